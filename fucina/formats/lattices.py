"""The point sets that the grid formats (IQ1, IQ2, IQ3) index, as data.

A grid format stores groups of 8 or 4 weights as the number of a point in a fixed set. Coordinates are digits: 0, 1, 2
in eight dimensions, or 0 to 7 in four. A position is the number with these digits, the first one least significant; a
set is a bitmap over all positions, and its points are numbered in the order of their positions. The sets are those of
ggml (``iq2xxs_grid`` and its siblings in ggml-common.h, ggml 0.25; MIT), where they were found by searching for the
points that real weights use most; they can be copied but not derived.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cache

import numpy as np

__all__ = ["LATTICES", "Lattice", "grid", "search_tables"]


@dataclass(frozen=True)
class Lattice:
    """One point set.

    Attributes
    ----------
    name : str
    dims : int
        Weights per group.
    levels : tuple of int
        What each digit decodes to.
    rings : int
        While encoding, a position outside the set is replaced by one of the points at its ``rings`` smallest distances.
    bitmap : str
        Base64 of the bitmap, lowest bit first.
    """

    name: str
    dims: int
    levels: tuple[int, ...]
    rings: int
    bitmap: str


LATTICES: dict[str, Lattice] = {row.name: row for row in (
    Lattice(
        "iq1", 8, (-1, 0, 1), 3,
        "VSUUhaACQlEIRTGohiCKohoIKiAUhVAUgiBERSUVBaACgiCIGAAIgqADKqCIu6oKkKoLACIACqqMgqAIQFEIRSGIgFAUQlEIijAImKAIgCoI"
        "RSEUhSBIQlUIRQEswqAgiiYAKiSoqqII4q8ICCgoAKACQiiqKCCogCAKmwi5uqggyq6Joq6qOnzr6rq7gg64IrrK0w6SAiIAIiCoiroKggII"
        "ACpK4KI7IiArogCBQIGqiigIIgEUhVAVgiAJRSFUhaAIAiOoOiCEgiBUQlEIoiAIlVAUAioIuKiCgKBIAiAIgqJoogIoqyoIhSAIgjAIRUAA"
        "RSEUhaAAQlEARQEpggCKgioIoTAUBVAUgigIRSEUhSACAiCqKgAgErGKriiouqGqqHAAggoIAigiAoQAggBIgKDqsCqqwiCLuiLq2qeLi26o"
        "krAqqnKLikQMKiBIhEAoiioIqiDIzKIioq+aoOioAgACACqoiAAggKCLoqIouqCAgjIKur64uv7roqArogiKCijqogChMgIM+qTq3u8rqC6N"
        "vn7r+vd/v+Z9ut5p+yf/vyb6EunhiiIQqr4OhKoIsqgLgq7/uiTpg4AEYixo8qgKpCsAAioICOKqEgACgioKpiDJgomQgigAogCMgBMAgggI"
        "AGyKqqq7Aqa+iqDKAoBrly7QsukQghAuqt4oFdGlBAAKggCKgiAIAaEggqo5uiIyhKAJgBgAiqJiAoEURFEARSGsglAUQlEIqiAoqocKEioI"
        "RSEUBaAIQlEIRQEgAqBAoiIAiAAIoghqim64qqqAACAKguLIIiEIRFAUQlEJiiAVhVAUhgoIqioqgAAKQlEIRSGoAFAUQlEI4iCIggoYgioI"
        "qqKqirCLAgoqqiAogoCqCigIKACpiAIioL4LKLgIirpLsq7/uqT4rqogUihotqAw5oAKAigIImpigCAKAqqqK6rqoqmgoggIECCgiiIAgg4A"
        "RSEUhaAKQFEIRSGpBgBKqgIIpQAQDUQUgigIRSEUBQAIgoKs8iAAAACqCigKuiDqogIAgkgJKOkUABFLRVEARQGoAlAUQlEIiCQIiCgKQAgA"
        "RQEUBaACQFEIRQE=",
    ),
    Lattice(
        "iq2_xxs", 8, (8, 25, 43), 2,
        "VRUUVRBEQUEABBREABAAAAAEQAAUAEAAAAAABAAAUBBAQREAARQEQFAEQAAQAAAFEAAAUAAAAQAAQAAAQRQEQBQUAAAEAAAEAAAEAAAAAAAA"
        "BBAAAAAAAAAAABQEEBAAQAAEEQAEARAAQEAAAQAAAAAAAQQAAAAAABAEQARAAAAEAAAAABAAAAAQAAAAQAAQAAAAAAAAAAAFAQAEAABAAAAA"
        "EQAAAAAAAAAAAQAAAABAAAAAAAAUBAAAAQABBQAAAAAAEBAAAAAAAFAAAAAAAAAAAABAQQAAAUAAAAAAQAAAAAQAQAAAAAAAAAAAAAAAQAAA"
        "QAAEAAAAAAAEAAAAAAAAAAAAAAAAAAAAAQAAAAAAUBBEQRAQARQEABAAQAAAAAREAABAQAAAQEAAAQAAQBAAAQAAABAAEAAABBAAAAAAAAAA"
        "AQAAAAAAAAAAABQEABABAAAAAAAEAAAAABABBAAAAAAAAAQAAAAEABBEUAAAAAAEAQAAAQAABAAAAAAAAQAAAAAAAABAAAAAAAAAAAAAQAEA"
        "AAEAAAAAAAAAAAQAAAAAAQAAAAAEEAQAAAAEAAAAAAAAQAAAAAAAAAAEAAAAAAAAAAAAQQAAAQAAAQAAQAAAAABAAAAAAAAAQAAAABAAAAAA"
        "EQAAAAAAAAAAAAAUAAAAAAAEAAAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAQEEAAAQAAEAAAAAEQAAEAAAAAAAA"
        "AAQAAAAAAAAAABREABAAQAAAAAAEAAAABAAAABAAAAQAQAAAAQAAAEAAAAAAAAAAAAAAAQAAAAAAAAAAAAABAAAAAAAAAAAEARAEAAAAAAAB"
        "AEAAAAAAQAAAAAAAAAABAAAAAAAEAEAAAQAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAAAAAAEAAAAAAAAQAAAAAAAAAAAAAAAAAAAAAA"
        "BAAAABAAAAQAAAABAAAAAAAAAAAEAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAEAAAAAAAEAAAAAAAAAAAA"
        "AAAAAAAAAAAAAAA=",
    ),
    Lattice(
        "iq2_xs", 8, (8, 25, 43), 2,
        "VVVVUVVFQRVFAVRVVVBFQRAFAQBUURBAQQQAAQEAUFVFQRUVARQEAFBFQQAFAQQEAABAQQAQBQAAQAAAQFUFERQEARAAQEAFAQAEAABAEAAA"
        "AQAEAQAAAAAQAVRVUVBFQUAFAQBUURBAQQAAAVAAUBEAQAAAAQAAAFBFQQBFARAEAABAQQAAAQAAAAAAQAAEAAABAAAAAAAFBQAEQAAABAAA"
        "EQAAAAAABAAAAAAAAABAAAAAAABVVRBAQQAAAQAEUBAAQBAAEAAAABAAAAEAAAAEAABEQQBAAQAAAAAAQAAAAAQQAAAAEAABAAEAAAAAAAAQ"
        "QQEEAAABABAABAAAAAAAABAAAQAAARAAAAAARAEAUFVFQVUFERQEAFBFQQAFAQBEAEBAQQFAAQAAAAAAQBVFARQEABAAAQAFARAEAAAAAEAA"
        "AQEAQBAAAAAAABQEABABAQEAAAAEEAAAQQBAAAAAQAAAAAAAAAAAAFBFQRAFAQAEAABAQQQABQAAAAAAQAAAABAAAAAAAEAFAQQEABBAAAAB"
        "QQAAAAAAQBAAAAAAEAAAABAAAAQEQABAQAAAAAABAAAQQAEAAAAAAAAAAAAAAABAAABAQQAAARAQAAEAUAAAAAAAAAAAAAAAABAABAAAAAEA"
        "AUAAAAAAAAAAAAAEABABAAAAABAAAAAAAAAAAAAAEAAAAAAAAAEAAAAAAAQAAAAAAAAABAAAABAQAAAAQBUFARUEAFAAAFAVAQAEEAQAAAAA"
        "AQAEAAAAQAEAQRRUABAAQABAAAAEAAAAAQAAAABAAAAEAAAAAAEAABAEAAQAAAEUAAAEBAAAAAAAAAAAAAAABAAAABAEBBAFAQAEAAEAAQAA"
        "AQAQAAAAAQAAAAAAAAAABABAAABEAAAAQRAAAAAAAAAAEAAAAAAUAAAAAAABAAAAAAAAAAAAAAQAAAAABAAAAAABAAAAAAAAEAAAABAAAAAA"
        "RQEEBAAAAAAAAQAAAABAEAAAAEAUAQAQAAAAAQAEAAAAQAAAAABAAAAAAAAAAAAAAAAAAAAAAABAAAAEAEAARQAAAAAAQBAEAAAAAAAABQAA"
        "AAAABQAAAAABAAE=",
    ),
    Lattice(
        "iq2_s", 8, (8, 25, 43), 1,
        "VVVVUVVFVRUFEVVVUVBFVRQFFRRUURBQVQQAEREQUFVFVVVVFVRFUVBVVRRVVRRUURBAVQQAURQEUBAAQBVVEVVVURABAUAFVQREURBAQAAA"
        "ARQQBRAAAABAAFRVUVFFVRUVURRUVVVFVRUFVRQAUBRBQQQFABQEAFBFVRRVVRRUURBAVRUFVRQEUBAAQBQFARQEABAAAEBVUQRUURBAAQAA"
        "VRQEUBAAEAAABBAEABAABAAAAABUURVRQQUEAREAVFBBQAUFARQEABAQAFEEAQAABQBEVRQFVRQEUBAAQBQFARQEABEAAAAFAQAEAAQAAAAA"
        "ERQAUBAAAEAAABUEAAAAAAAAEAAABEAAAAAEQAEAUFVVRVVVFRREUVBFVQVVVRRUURBAQRUEURQEUAAAQFVVVVRVUVBFQQBVVRRUURBQQQAA"
        "VRQEUBAAQAAAEBRVUVBFQQAEAQBUURBAQQAAAUAAUBAAQAAAAAAAAFBFVRVVVRRUUQBAVRUFVRQEUBAAQBQFARQEABQAAABVVRRUURBAQQAA"
        "VRQEUBAAQAAAABQEABEAAAAAAABUURBAQUAAAQAAUBAAQAAAAAAAABAAEAAAAABAAABERRUFURQEQBAAQBUFARQEABAAEAAEAQAEAAEAAAAB"
        "URQEUBAAQAAAABQEABAQABAABAAEAAAAAAAAABAAUBAAAAAAEAAAARAAAEAAAAAAAAAAAAAABAAAAABAQBVFERRUERBBAQBFVRRUUQBAQQBA"
        "ERUAUBAAAAAAAFRVEVBFQQAFAQBUURBAQQAAAQEAUBAAUAAAAAAAABBBAQAFAQAAAEBAAQAAAQBAAAAAAAAABAAABUAAAAFFVRBUURBAQQAA"
        "ERQAUBAQAAAAABQEABAAAAAAAEBUURBAQQAAAUAAUBAAQAAAAAAAERAAAAAQABAAAABAQQAQAQAAAAAAUAAAAAARAAAAAAAAAAAAAAAAQAAA"
        "EREQVBAAAAAABAEAABAAAAQAAAAQBEAUAAAARAEAURAAQAAAAAABQBAAEAAAAAAAAAAAAAAAAAQAAAAAAEAAQAAAAAAAAAEAAAAAQAAABAAA"
        "QAEUAQAAABAAAAE=",
    ),
    Lattice(
        "iq3_xxs", 4, (4, 12, 20, 28, 36, 44, 52, 62), 2,
        "FYoFAgQAACgKBSIFAhAAARUCBYoAggAgggUgAAAAAAEACACAEIAAKIIAAAQABAAAAAAAIAAAEAAAUQAACAACAAoFChWAAQAABQIFAAAAAAAK"
        "BQIBAAAABAUAAQJAAEAAIgAAAAABAAAAABEAQAAAAiAAAAAAAAAAAAAEAAEAAAAFCkUCBAAAACoFAgEAAIgBBYIFgAEgAAACEQAAAAAAEQAA"
        "ACAACAAACACAAAIAABAAAAAAAAAAAApAAAAgAAAAAgUKAAABIAQFAAECUAAAAAoBIAAABAAEAAIACAAAAAAAAAABgAAABEEABAAAIAAAABAA"
        "QAAACAAAAAAIAAABABCAAKAAiAAAAAAAAAAAABAAAAGAAQBBAIAAAAAgAAAAEAAAAAACEAAAACAACAAAAQAAAAAAAAAAIAUAAQAAAAAABAAA"
        "AgAAAUEAQAAAIAAAABAABAAAAAQEAAAAAAgAAAABiAAAAAAEBAAAAgAAAAAAAAAAAAEAAAAAEAAEAAAAAAAQAFAAEAAAAAIAAAACAACAAAAA"
        "ABAAAAAAQQAAAAAAAAAAEAAAACAAAAAABAAAAAAACAAAAAAIAAIAAAAAAKgBAAQABAAAAABAAAEAAAAABAAAIAQAAAEgAAgAAAEAAAACAAIA"
        "AAAFABAAAAAAAAAAAAEAAAAAAAAAAAAAAAA=",
    ),
    Lattice(
        "iq3_s", 4, (1, 3, 5, 7, 9, 11, 13, 15), 3,
        "p1cjCKUKBZIXI4kiEAAiBKNJIhGkCgAJCCIFShAFgCIBiBIECQIAARQARQiiAEAIQAoAAgAEAAIVAEUIABEAABerBVIAUAIESxECCQIFAEEB"
        "pBEECSABBJIJghECAAQBKBQACkQRAAACCQIFAAIAAAAAkQBQAAAACgUCIAIABAGrVYoFKgWAKQWJJBIEAgAAkgAKgQKIABIlAhQKBAFAAIIA"
        "CSQCAAAkEAIEgAEIAAGFAAIAACACACACQAEIAQAABKoEKpQCCAIqEAoAAQABRAEEARQAAQAAAhGKAYogAAgIQgQCAAQRAAIFIAQQQAAIAEAA"
        "AAIAAAAKAAUgAAAAABEEkQQCAQABhAoEIQgiAAAKIQIIAYAEARAKBSIAAAAABQAQgAEAAAKgAAIAAAAEAAAIABAAAAEAACEAAQgCAAAEEQQA"
        "kQRAECoEAgQAAAAEAQIIQQAIAACEAYAAEAIgCBIAAQRAAAAAAARAAAAKAAAAAAAABAAAABQABAAAAAAAACoACgAAAQABAIEAAAAQAAAEABAE"
        "IAQBARACAAEAAAAAACAACAAEAAkAABAAAAEAIAAAAAEAAAAACgAAAAAAAJEABUABEAQABAIQACgAAAASQQIBAAIAAAQAACQACAAAIggBAAAB"
        "AAAAAAQABAAAAAQAAAIAAAAAAQAAAAAAAAA=",
    ),
)}


@cache
def _digits(name: str) -> np.ndarray:
    """Coordinates of the points, uint8 [points, dims]."""
    lattice = LATTICES[name]
    base = len(lattice.levels)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(lattice.bitmap), np.uint8), bitorder="little")
    return _of_positions(np.flatnonzero(bits), lattice.dims, base)


def _of_positions(positions: np.ndarray, dims: int, base: int) -> np.ndarray:
    return (positions[:, None] // base ** np.arange(dims) % base).astype(np.uint8)


@cache
def grid(name: str) -> np.ndarray:
    """What the points of a lattice decode to, as bytes.

    Parameters
    ----------
    name : str
        A name in ``LATTICES``.

    Returns
    -------
    ndarray of uint8, shape (points, dims)
        Levels; the negative ones of ``iq1`` as two's complement. Read-only.
    """
    values = np.array(LATTICES[name].levels, np.int8).view(np.uint8)[_digits(name)]
    values.flags.writeable = False
    return values


@cache
def search_tables(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What encoders need to find a point near any position.

    Parameters
    ----------
    name : str
        A name in ``LATTICES``.

    Returns
    -------
    points : ndarray of int8, shape (points, dims)
        Odd coordinates ``2 * digit + 1``.
    where : ndarray of int32, shape (base ** dims,)
        By position: the number of the point there, or ``-1 - start`` of a list in ``near``.
    near : ndarray of uint16
        Lists: their length, then the numbers of the points in the first ``rings`` distances, nearest first and of
        equal distance the lower number first.
    """
    lattice = LATTICES[name]
    digits, base = _digits(name), len(lattice.levels)
    total = base**lattice.dims
    where = np.full(total, -1, np.int32)
    where[(digits * base ** np.arange(lattice.dims)).sum(-1)] = np.arange(len(digits))
    outside = np.flatnonzero(where < 0)
    lists, start = [], 0
    a = digits.astype(np.float32)
    for chunk in np.array_split(outside, max(1, len(outside) // 512)):
        b = _of_positions(chunk, lattice.dims, base).astype(np.float32)
        # Squared distances are small integers, exact in float32.
        distance = ((b * b).sum(-1)[:, None] + (a * a).sum(-1)[None] - 2 * b @ a.T).astype(np.uint8)
        order = np.argsort(distance, axis=-1, kind="stable")
        ranked = np.take_along_axis(distance, order, -1)
        ring = np.cumsum(np.diff(ranked, axis=-1, prepend=ranked[:, :1]) > 0, axis=-1)
        count = (ring < lattice.rings).sum(-1)
        for position, n, members in zip(chunk, count, order):
            where[position] = -1 - start
            lists.append(np.concatenate([[n], members[:n]]))
            start += n + 1
    near = np.concatenate(lists).astype(np.uint16)
    return (2 * digits + 1).astype(np.int8), where, near
