"""Putting fields into the bytes of blocks: the inverse of ``_bits``."""

import numpy as np

from ._f32 import F


def only_finite(x, finite):
    """``x`` with zeros in the rows that hold NaN or infinity; ``finite`` [rows] becomes 1 or 0."""
    finite[...] = np.isfinite(x).all(-1)
    return np.where(np.asarray(finite)[:, None] == 1, x, F(0))


def half(x):
    """Half-precision bytes [..., 2] of float32."""
    with np.errstate(over="ignore"):
        return np.asarray(x, F).astype(np.float16)[..., None].view(np.uint8)


def rounded(x):
    """What is read back from ``half``."""
    with np.errstate(over="ignore"):
        return np.asarray(x, F).astype(np.float16).astype(F)


def join(*parts):
    """Blocks from the bytes of their fields, in order."""
    return np.concatenate([np.asarray(p).astype(np.uint8) for p in parts], axis=-1)


def nibbles(q):
    """The first half of the codes becomes low nibbles, the second half high ones."""
    n = q.shape[-1] // 2
    return q[..., :n] & 15 | (q[..., n:] & 15) << 4


def nibble_pairs(q):
    """Neighbouring codes share a byte, the first one low."""
    return q[..., 0::2] | q[..., 1::2] << 4


def bits(q):
    """Bytes of 0 and 1, lowest bit first."""
    return np.packbits(q.astype(bool), axis=-1, bitorder="little")


def planes(q, width, count=4, each=2):
    """Runs of ``count * width`` codes become ``width`` bytes: the first ``width`` codes are the lowest fields."""
    runs = (q & (1 << each) - 1).reshape(q.shape[:-1] + (-1, count, width))
    return (runs << each * np.arange(count)[:, None]).sum(-2).reshape(q.shape[:-1] + (-1,))


def word16(w):
    """Little-endian bytes of 16-bit words."""
    return np.ascontiguousarray(w).astype("<u2").view(np.uint8)


def word32(w):
    """Little-endian bytes of 32-bit words."""
    return np.ascontiguousarray(w).astype("<u4").view(np.uint8)
