"""The fields of grid blocks: codes are points of a lattice, with signs or a common shift; see ``_blocks``.

``grid`` is uint8 [points, 8 or 4], what the points decode to. Scales are odd integers ``2 * s + 1``; the remaining
power of two is part of ``d``.
"""

import numpy as np

from ._bits import bits, half, nibble_pairs, planes, word16, word32


def _signs7(s):
    """Seven stored signs and an eighth that makes the number of minus signs even: [..., 8] of 1 and -1."""
    stored = s[..., None] >> np.arange(7) & 1
    return 1 - 2 * np.concatenate([stored, stored.sum(-1, keepdims=True) & 1], axis=-1)


def _codes(grid, index, signs):
    """Signed points, flat."""
    points = grid[index].astype(np.int32)
    return (points.reshape(signs.shape) * signs).reshape(index.shape[:-1] + (-1,))


def iq2_xxs(b, grid):
    """Per 32 elements four index bytes, and a word of four times seven signs and a 4-bit scale."""
    pairs = b[..., 2:66].reshape(b.shape[:-1] + (8, 8))
    word = word32(pairs[..., 4:8])
    signs = _signs7(word >> 7 * np.arange(4) & 127)
    index = pairs[..., 0:4].astype(np.int32).reshape(b.shape[:-1] + (32,))
    q = _codes(grid, index, signs.reshape(b.shape[:-1] + (32, 8)))
    return {"d": half(b, 0) * np.float32(0.125), "sc": (2 * (word[..., 0] >> 28) + 1).astype(np.int32), "q": q}


def iq2_xs(b, grid):
    """Per 8 elements a word of nine index bits and seven signs; a 4-bit scale per 16."""
    word = word16(b[..., 2:66])
    q = _codes(grid, word & 511, _signs7(word >> 9))
    return {"d": half(b, 0) * np.float32(0.125), "sc": 2 * nibble_pairs(b[..., 66:74]) + 1, "q": q}


def iq2_s(b, grid):
    """Per 8 elements an index byte, a byte of signs and two more index bits; a 4-bit scale per 16."""
    index = b[..., 2:34].astype(np.int32) | planes(b[..., 66:74], 1) << 8
    signs = 1 - 2 * bits(b[..., 34:66]).reshape(b.shape[:-1] + (32, 8))
    q = _codes(grid, index, signs)
    return {"d": half(b, 0) * np.float32(0.125), "sc": 2 * nibble_pairs(b[..., 74:82]) + 1, "q": q}


def iq3_xxs(b, grid):
    """Per 4 elements an index byte; per 32 a word of four times seven signs and a 4-bit scale."""
    word = word32(b[..., 66:98])
    signs = _signs7(word[..., None] >> 7 * np.arange(4) & 127).reshape(b.shape[:-1] + (64, 4))
    q = _codes(grid, b[..., 2:66].astype(np.int32), signs)
    return {"d": half(b, 0) * np.float32(0.25), "sc": (2 * (word >> 28) + 1).astype(np.int32), "q": q}


def iq3_s(b, grid):
    """Per 4 elements an index byte and a ninth bit; a bit of sign each; a 4-bit scale per 32."""
    index = b[..., 2:66].astype(np.int32) | bits(b[..., 66:74]) << 8
    signs = 1 - 2 * bits(b[..., 74:106]).reshape(b.shape[:-1] + (64, 4))
    return {"d": half(b, 0), "sc": 2 * nibble_pairs(b[..., 106:110]) + 1, "q": _codes(grid, index, signs)}


def _shifted(grid, index, shift):
    """Points -1, 0, 1 and a shift of an eighth up or down per 8 elements, in eighths."""
    points = grid.view(np.int8)[index].astype(np.int32)
    return (8 * points + shift[..., None]).reshape(index.shape[:-1] + (256,))


def iq1_s(b, grid):
    """Per 32 elements four index bytes and a word: four times three index bits, a scale, the sign of the shift."""
    word = word16(b[..., 34:50])
    high = word[..., None] >> 3 * np.arange(4) & 7
    index = b[..., 2:34].astype(np.int32) | high.reshape(b.shape[:-1] + (32,)) << 8
    shift = np.repeat(1 - 2 * (word >> 15), 4, axis=-1)
    return {"d": half(b, 0) * np.float32(0.125), "sc": 2 * (word >> 12 & 7) + 1, "q": _shifted(grid, index, shift)}


def iq1_m(b, grid):
    """Per 8 elements an index byte and a nibble: three index bits and the sign of the shift.

    Four words hold four 3-bit scales each, one per 16 elements; their top nibbles make up the scale of the block.
    """
    nibble = nibble_pairs(b[..., 32:48])
    index = b[..., 0:32].astype(np.int32) | (nibble & 7) << 8
    word = word16(b[..., 48:56])
    d = ((word >> 12) << 4 * np.arange(4)).sum(-1).astype(np.uint16).view(np.float16).astype(np.float32)
    sc = (word[..., None] >> 3 * np.arange(4) & 7).reshape(b.shape[:-1] + (16,))
    return {"d": d * np.float32(0.125), "sc": 2 * sc + 1, "q": _shifted(grid, index, 1 - 2 * (nibble >> 3))}
