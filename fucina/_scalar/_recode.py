"""What packing changes in the bytes of some formats (specification of ``_kernels/recode.pxd``, which draws the layouts)."""

import numpy as np

from . import _pack
from ._bits import bits, planes

# Numbers of formats in the format table.
Q4_1, Q5_0, Q5_1, Q5_K, Q6_K, TQ1_0, Q1_0 = 1, 2, 3, 6, 7, 12, 16
TURNED = (TQ1_0, Q1_0)
# The digits of a byte of tq1_0 as one number; two leading ones and three others as panels hold them, and as ggml does.
_V = np.arange(256) * 243 >> 8
_PACKED = (256 * (_V // 27) + 8) // 9 + _V % 27
_UNPACKED = np.zeros(256, np.uint8)
_UNPACKED[_PACKED] = (256 * _V + 242) // 243
# Where blocks keep the bits of their codes: the bytes of low nibbles and of high bits, how many bytes of nibbles share two
# runs of codes and of high bits more of them, the bits of such a code; where the panels' codes begin.
_SPLIT = {
    Q5_0: (slice(6, 22), slice(2, 6), 16, None, 1, 2),
    Q5_1: (slice(8, 24), slice(4, 8), 16, None, 1, 4),
    Q5_K: (slice(48, 176), slice(16, 48), 32, 32, 1, 16),
    Q6_K: (slice(0, 128), slice(128, 192), 64, 32, 2, 16),
}


def _codes(code, blocks):
    """Codes of five or six bits [..., elements] of ggml's blocks."""
    low, high, nibble_run, bit_run, each, _ = _SPLIT[code]
    low, high = blocks[..., low], blocks[..., high]
    fifth = bits(high) if bit_run is None else planes(high, bit_run, count=8 // each, each=each)
    return planes(low, nibble_run, count=2, each=4) | fifth << 4


def _joined(words):
    """Words of elements [..., 8 or 4, 4 elements] as five or three words, of which the first hold the rest in high bits."""
    e = np.moveaxis(words, -2, 0)
    if len(e) == 4:
        return np.stack([e[0] | e[3] >> 4 << 6, e[1] | (e[3] >> 2 & 3) << 6, e[2] | (e[3] & 3) << 6], axis=-2)
    fourth, last = e[3] | (e[5] & 3) << 5 | (e[7] >> 1 & 1) << 7, e[4] | (e[6] & 3) << 5 | (e[7] & 1) << 7
    return np.stack([e[0] | e[5] >> 2 << 5, e[1] | e[6] >> 2 << 5, e[2] | e[7] >> 2 << 5, fourth, last], axis=-2)


def _separated(words):
    """The inverse."""
    b = np.moveaxis(words, -2, 0)
    if len(b) == 3:
        return np.stack([b[0] & 63, b[1] & 63, b[2] & 63, b[0] >> 6 << 4 | b[1] >> 6 << 2 | b[2] >> 6], axis=-2)
    top = b >> 5
    last = [top[0] << 2 | top[3] & 3, top[1] << 2 | top[4] & 3, top[2] << 2 | top[3] >> 2 << 1 | top[4] >> 2]
    return np.stack([*(b & 31), *last], axis=-2)


def recoded(code, blocks):
    """Blocks with their bytes as they are when packed."""
    out = blocks.copy()
    if code == TQ1_0:
        out[..., :52] = _PACKED[blocks[..., :52]]
    elif code in _SPLIT:
        at, size = _SPLIT[code][-1], 4 if code == Q6_K else 8
        q = _codes(code, blocks)
        joined = _joined(q.reshape(q.shape[:-1] + (-1, size, 4))).reshape(q.shape[:-1] + (-1,))
        if code == Q6_K:
            out[..., :16] = blocks[..., 192:208]
        out[..., at : at + joined.shape[-1]] = joined
    return out


def restored(code, blocks):
    """The inverse, for bytes that encoders write."""
    out = blocks.copy()
    if code == TQ1_0:
        out[..., :52] = _UNPACKED[blocks[..., :52]]
    elif code in _SPLIT:
        low, high, nibble_run, bit_run, each, at = _SPLIT[code]
        size, count = (3, 192) if code == Q6_K else (5, 160 if code == Q5_K else 20)
        words = blocks[..., at : at + count]
        q = _separated(words.reshape(words.shape[:-1] + (-1, size, 4))).reshape(blocks.shape[:-1] + (-1,))
        out[..., low] = _pack.planes(q & 15, nibble_run, count=2, each=4)
        out[..., high] = _pack.bits(q >> 4) if bit_run is None else _pack.planes(q >> 4, bit_run, count=8 // each, each=each)
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
