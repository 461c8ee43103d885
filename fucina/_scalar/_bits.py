"""Pulling fields out of the bytes of blocks: every function takes uint8 [..., n]."""

import numpy as np


def half(b, at):
    """The half-precision number at a byte offset, as float32."""
    with np.errstate(invalid="ignore"):
        return b[..., at : at + 2].copy().view(np.float16)[..., 0].astype(np.float32)


def word16(b):
    """Little-endian 16-bit words, as int32."""
    return b[..., 0::2].astype(np.int32) | b[..., 1::2].astype(np.int32) << 8


def word32(b):
    """Little-endian 32-bit words, as int64."""
    return word16(b)[..., 0::2].astype(np.int64) | word16(b)[..., 1::2].astype(np.int64) << 16


def nibbles(b):
    """Low nibbles are the first half of the elements, high nibbles the second."""
    return np.concatenate([b & 15, b >> 4], axis=-1).astype(np.int32)


def nibble_pairs(b):
    """Low nibble, then high nibble, of each byte."""
    return np.stack([b & 15, b >> 4], axis=-1).reshape(b.shape[:-1] + (-1,)).astype(np.int32)


def bits(b):
    """The bits of every byte, lowest first."""
    return np.unpackbits(b, axis=-1, bitorder="little").astype(np.int32)


def crumbs(b):
    """The four 2-bit codes of every byte, lowest first."""
    return (b[..., None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3).reshape(b.shape[:-1] + (-1,)).astype(np.int32)


def planes(b, width, count=4, each=2):
    """Fields of ``each`` bits, ``count`` per byte: of every ``width`` bytes all lowest fields, then the next."""
    runs = b.reshape(b.shape[:-1] + (-1, 1, width)).astype(np.int32)
    codes = runs >> each * np.arange(count)[:, None] & (1 << each) - 1
    return codes.reshape(b.shape[:-1] + (-1,))
