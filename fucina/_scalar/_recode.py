"""What packing changes in the bytes of some formats (specification of ``_kernels/recode.pxd``, which draws the layouts)."""

from typing import NamedTuple

import numpy as np

from . import _pack
from ._bits import bits, planes

# Numbers of formats in the format table.
Q4_1, Q5_0, Q5_1, Q5_K, Q6_K, Q3_K, TQ1_0, Q1_0 = 1, 2, 3, 6, 7, 9, 12, 16
TURNED = (TQ1_0, Q1_0)
# The digits of a byte of tq1_0 as one number; two leading ones and three others as panels hold them, and as ggml does.
_V = np.arange(256) * 243 >> 8
_PACKED = (256 * (_V // 27) + 8) // 9 + _V % 27
_UNPACKED = np.zeros(256, np.uint8)
_UNPACKED[_PACKED] = (256 * _V + 242) // 243


class _Split(NamedTuple):
    """A code is some low bits of one part of a block and some high bits of another."""

    low: slice
    low_bits: int
    low_run: int        # bytes whose lowest fields come first, then their next ones
    high: slice
    high_bits: int
    high_run: int       # 0: the bits of one byte are neighbours
    at: int             # where the codes are in panels' blocks
    elements: int = 256


_SPLITS = {
    Q5_0: _Split(slice(6, 22), 4, 16, slice(2, 6), 1, 0, 2, 32),
    Q5_1: _Split(slice(8, 24), 4, 16, slice(4, 8), 1, 0, 4, 32),
    Q3_K: _Split(slice(32, 96), 2, 32, slice(0, 32), 1, 32, 0),
    Q5_K: _Split(slice(48, 176), 4, 32, slice(16, 48), 1, 32, 16),
    Q6_K: _Split(slice(0, 128), 4, 64, slice(128, 192), 2, 32, 16),
}


def _codes(split, blocks):
    """Codes [..., elements] of ggml's blocks."""
    low, high, each = blocks[..., split.low], blocks[..., split.high], split.high_bits
    high = planes(high, split.high_run, count=8 // each, each=each) if split.high_run else bits(high)
    return planes(low, split.low_run, count=8 // split.low_bits, each=split.low_bits) | high << split.low_bits


def _joined(width, words):
    """Words of codes [..., 8 or 4, 4 elements] of ``width`` bits as few words, which hold the last ones in high bits."""
    e = np.moveaxis(words, -2, 0)
    if width == 3:
        third = e[4] | e[5] << 3 | e[6] >> 2 << 6 | e[7] >> 2 << 7
        b = [e[0] | e[1] << 3 | (e[6] & 3) << 6, e[2] | e[3] << 3 | (e[7] & 3) << 6, third]
    elif width == 5:
        fourth, last = e[3] | (e[5] & 3) << 5 | (e[7] >> 1 & 1) << 7, e[4] | (e[6] & 3) << 5 | (e[7] & 1) << 7
        b = [e[0] | e[5] >> 2 << 5, e[1] | e[6] >> 2 << 5, e[2] | e[7] >> 2 << 5, fourth, last]
    else:
        b = [e[0] | e[3] >> 4 << 6, e[1] | (e[3] >> 2 & 3) << 6, e[2] | (e[3] & 3) << 6]
    return np.stack(b, axis=-2)


def _separated(width, words):
    """The inverse."""
    b = np.moveaxis(words, -2, 0)
    if width == 3:
        first = [b[0] & 7, b[0] >> 3 & 7, b[1] & 7, b[1] >> 3 & 7, b[2] & 7, b[2] >> 3 & 7]
        e = [*first, b[0] >> 6 | (b[2] >> 6 & 1) << 2, b[1] >> 6 | b[2] >> 7 << 2]
    elif width == 5:
        top = b >> 5
        last = [top[0] << 2 | top[3] & 3, top[1] << 2 | top[4] & 3, top[2] << 2 | top[3] >> 2 << 1 | top[4] >> 2]
        e = [*(b & 31), *last]
    else:
        e = [*(b & 63), b[0] >> 6 << 4 | b[1] >> 6 << 2 | b[2] >> 6]
    return np.stack(e, axis=-2)


def _by_words(change, split, q, size):
    """``change`` of every ``size`` words of [..., bytes]."""
    words = q.reshape(q.shape[:-1] + (-1, size, 4))
    return change(split.low_bits + split.high_bits, words).reshape(q.shape[:-1] + (-1,))


def recoded(code, blocks):
    """Blocks with their bytes as they are when packed."""
    out = blocks.copy()
    if code == TQ1_0:
        out[..., :52] = _PACKED[blocks[..., :52]]
    elif code in _SPLITS:
        split = _SPLITS[code]
        if code == Q6_K:
            out[..., :16] = blocks[..., 192:208]    # scales come first
        joined = _by_words(_joined, split, _codes(split, blocks), 4 if code == Q6_K else 8)
        out[..., split.at : split.at + joined.shape[-1]] = joined
    return out


def restored(code, blocks):
    """The inverse, for bytes that encoders write."""
    out = blocks.copy()
    if code == TQ1_0:
        out[..., :52] = _UNPACKED[blocks[..., :52]]
    elif code in _SPLITS:
        split = _SPLITS[code]
        low, each = split.low_bits, split.high_bits
        end = split.at + split.elements * (low + each) // 8
        q = _by_words(_separated, split, blocks[..., split.at : end].astype(np.int32), 5 if low + each == 5 else 3)
        out[..., split.low] = _pack.planes(q & (1 << low) - 1, split.low_run, count=8 // low, each=low)
        q >>= low
        out[..., split.high] = _pack.planes(q, split.high_run, count=8 // each, each=each) if split.high_run else _pack.bits(q)
        if code == Q6_K:
            out[..., 192:208] = blocks[..., :16]
    return out


def mixed(code, words):
    """Words [..., words, 8 rows, 4 bytes] as panels order their bytes."""
    if code in TURNED:
        # Of four rows each byte 0, then byte 1, and so on.
        return words.reshape(words.shape[:-2] + (2, 4, 4)).swapaxes(-1, -2).reshape(words.shape)
    if code in (Q4_1, Q5_1):
        # The first word is scale and min: eight scales, then eight mins.
        words = words.copy()
        words[..., 0, :, :] = _apart(words[..., 0, :, :], (8, 2, 2))
    return words


def unmixed(code, words):
    """The inverse."""
    if code in (Q4_1, Q5_1):
        words = words.copy()
        words[..., 0, :, :] = _apart(words[..., 0, :, :], (2, 8, 2))
        return words
    return mixed(code, words)


def _apart(word, shape):
    """Halves of a word of eight rows, seen as ``shape``, with rows and halves exchanged."""
    return word.reshape(word.shape[:-2] + shape).swapaxes(-3, -2).reshape(word.shape)
