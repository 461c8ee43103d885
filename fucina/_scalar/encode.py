"""Encoding to 32-element blocks of uniform codes and to 16-bit floats (specification of ``_kernels/encode.pyx``)."""

import numpy as np

from . import _pack
from ._f32 import F
from ._search import extremes, largest, ordered_sum, symmetric, with_min


def inverse(d):
    """1 / d, and 0 for 0."""
    return np.where(d != 0, F(1) / np.where(d != 0, d, F(1)), F(0)).astype(F)


def truncated(v):
    """Towards zero; what is not finite counts as 0."""
    return np.where(np.isfinite(v), v, F(0)).astype(np.int32)


def round_away(v):
    """To nearest, halves away from zero; what is not finite counts as 0."""
    v = np.where(np.isfinite(v), v, F(0))
    whole = np.trunc(v)
    return (whole + (v - whole >= F(0.5)) - (v - whole <= F(-0.5))).astype(np.int32)


def importance(x, imatrix):
    """Weights of the errors of rows [m, k]: the importance of the column times sqrt(mean(row^2) + x^2)."""
    mean = ordered_sum(x * x) / F(x.shape[-1])
    return np.asarray(imatrix) * np.sqrt(mean[:, None] + x * x)


def _fifth_bits(q):
    return _pack.bits(q >> 4)


def q4_0(x, w):
    if w is None:
        d = largest(x) / F(-8)
        q = np.minimum(truncated(x * inverse(d)[..., None] + F(8.5)), 15)
    else:
        q, d = symmetric(x, 8, w)
    return _pack.join(_pack.half(d), _pack.nibbles(q))


def q5_0(x, w):
    if w is None:
        d = largest(x) / F(-16)
        q = np.minimum(truncated(x * inverse(d)[..., None] + F(16.5)), 31)
    else:
        q, d = symmetric(x, 16, w)
    return _pack.join(_pack.half(d), _fifth_bits(q), _pack.nibbles(q))


def _range(x, w, nmax):
    """Codes, scale and offset between the smallest and the largest element."""
    if w is not None:
        q, d, low = with_min(x, nmax, w, -0.9, 0.05, 36)
        return q, d, -low
    low, high = extremes(x)
    d = (high - low) / F(nmax)
    q = np.minimum(truncated((x - low[..., None]) * inverse(d)[..., None] + F(0.5)), nmax)
    return q, d, low


def q4_1(x, w):
    q, d, low = _range(x, w, 15)
    return _pack.join(_pack.half(d), _pack.half(low), _pack.nibbles(q))


def q5_1(x, w):
    q, d, low = _range(x, w, 31)
    return _pack.join(_pack.half(d), _pack.half(low), _fifth_bits(q), _pack.nibbles(q))


def q8_0(x, w):
    d = np.abs(x).max(-1) / F(127)
    return _pack.join(_pack.half(d), round_away(x * inverse(d)[..., None]).astype(np.int8).view(np.uint8))


ENCODERS = [q4_0, q4_1, q5_0, q5_1, q8_0]


def narrow(number, x):
    """Bytes of f32 (-1), f16 (-2) or bf16 (-3), to nearest even."""
    if number == -1:
        return x.view(np.uint8)
    if number == -2:
        return _pack.half(x)
    bits = x.view(np.uint32)
    return _pack.word16(bits + 0x7FFF + (bits >> 16 & 1) >> 16)


def encode_rows_into_unchecked(number, x, imatrix, out, finite):
    """Rows x [m, k] to blocks; numbers -1, -2, -3 are f32, f16, bf16.

    ``imatrix`` [k] or None weighs the errors where the format takes one. Rows that are not ``finite`` become zero bytes.
    """
    x = _pack.only_finite(np.asarray(x), finite)
    with np.errstate(all="ignore"):
        if number < 0:
            blocks = narrow(number, x)
        else:
            w = None if imatrix is None else importance(x, imatrix).reshape(-1, 32)
            blocks = ENCODERS[number](x.reshape(-1, 32), w)
    out[...] = np.where(np.asarray(finite)[:, None] == 1, blocks.reshape(out.shape), 0)
