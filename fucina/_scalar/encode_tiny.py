"""Encoding to level tables, ternary blocks and blocks of few bits (specification of ``_kernels/encode_tiny.pyx``)."""

import numpy as np

from . import _pack
from ._blocks_tiny import FP4_LEVELS, IQ4_LEVELS
from ._f32 import F
from ._search import TINY, largest, nearest, ordered_sum, quotient
from .encode import inverse, round_away


def _iq4_level(v):
    """Number of the nearest level; half-way, the upper one."""
    high = np.clip(np.searchsorted(IQ4_LEVELS.astype(F), v, side="right"), 1, 15)
    low = high - 1
    nearer = v - IQ4_LEVELS[low].astype(F) < IQ4_LEVELS[high].astype(F) - v
    return np.where(v <= IQ4_LEVELS[0], 0, np.where(v >= IQ4_LEVELS[15], 15, np.where(nearer, low, high)))


def _iq4_scale(x, w):
    """The best of sixteen scales around the one that maps the largest magnitude to the lowest level."""
    top = largest(x)
    zero = np.abs(top) < TINY
    top = np.where(zero, F(1), top)

    def sums(inverse):
        q = IQ4_LEVELS[_iq4_level(inverse[..., None] * x)].astype(F)
        return ordered_sum(w * q * x), ordered_sum(w * q * q)

    qx, qq = sums(F(1) / (-top / F(-127)))
    scale = quotient(qx, qq)
    best = scale * qx
    for step in range(-7, 8):
        qx, qq = sums((F(step) + F(-127)) / top)
        better = (qq > 0) & (qx * qx > best * qq)
        scale = np.where(better, quotient(qx, qq), scale)
        best = np.where(better, scale * qx, best)
    return np.where(zero, F(0), scale)


def _iq4_weights(x, w):
    if w is None:
        return x * x
    sigma2 = ordered_sum(x * x) * F(2 / x.shape[-1])
    return w * np.sqrt(sigma2[..., None] + x * x)


def iq4_nl(x, w):
    d = _iq4_scale(x, _iq4_weights(x, w))
    return _pack.join(_pack.half(d), _pack.nibbles(_iq4_level(inverse(d)[..., None] * x)))


def iq4_xs(x, w):
    sub = x.reshape(-1, 8, 32)
    scale = _iq4_scale(sub, _iq4_weights(x, w).reshape(sub.shape))
    d = -largest(scale) / F(32)
    sc = np.clip(nearest(inverse(d)[..., None] * scale), -32, 31)
    q = _iq4_level(inverse(d[..., None] * sc.astype(F))[..., None] * sub).reshape(x.shape)
    sc = sc + 32
    high = ((sc >> 4) << 2 * np.arange(8)).sum(-1, keepdims=True)
    codes = _pack.planes(q, 16, count=2, each=4)
    return _pack.join(_pack.half(d), _pack.word16(high), _pack.nibble_pairs(sc & 15), codes)


def _ternary(x):
    """0, 1, 2 for -1, 0, 1 times the largest magnitude, and that."""
    d = np.abs(x).max(-1)
    return round_away(x * inverse(d)[..., None]) + 1, d


def _trits(q, width, count):
    """``count`` planes of digits as one number per byte, ceil(256 v / 243) where v has five digits."""
    digits = q.reshape(q.shape[:-1] + (count, width))
    v = sum(digits[..., n, :] * 3 ** (4 - n) for n in range(count)) & 255
    return (v * 256 + 242) // 243 & 255


def tq1_0(x, w):
    q, d = _ternary(x)
    return _pack.join(_trits(q[:, :160], 32, 5), _trits(q[:, 160:240], 16, 5), _trits(q[:, 240:], 4, 4), _pack.half(d))


def tq2_0(x, w):
    q, d = _ternary(x)
    return _pack.join(_pack.planes(q, 32), _pack.half(d))


def _fp4_level(x, d):
    """Number of the level k with the smallest |d * k - x|, the first of equal ones."""
    error = np.abs(d[..., None, None] * FP4_LEVELS.astype(F) - x[..., None])
    return np.argmin(error, axis=-1)


def mxfp4(x, w):
    """The exponent of the largest magnitude, from its logarithm in single precision, minus 2."""
    top = np.abs(x).max(-1)
    log = np.log2(np.where(top > 0, top, F(1)).astype(np.float64)).astype(F)
    e = np.where(top > 0, np.floor(log).astype(np.int32) + 125, 0) & 255
    d = np.ldexp(F(1), e - 128)
    return _pack.join(e[:, None], _pack.nibbles(_fp4_level(x, d)))


def _ue4m3(v):
    """Unsigned float of 4 exponent and 3 mantissa bits, halves rounded up; from 248 on it is the largest, 448."""
    v = np.minimum(v, F(448))
    exponent = (v.view(np.int32) >> 23) - 120
    mantissa = (v.view(np.int32) >> 19 & 15) + 1 >> 1
    subnormal = np.minimum((v * F(512) + F(0.5)).astype(np.int32), 7)
    normal = (exponent << 3) + mantissa
    normal = np.where(normal < 15 << 3, normal, 0x7E)
    return np.where(v > 0, np.where(exponent > 0, normal, subnormal), 0)


def nvfp4(x, w):
    sub = x.reshape(-1, 4, 16)
    u = _ue4m3(np.abs(sub).max(-1) / F(6))
    exponent, mantissa = u >> 3, u & 7
    value = np.where(exponent > 0, mantissa + 8 << np.maximum(exponent - 1, 0), mantissa).astype(F) * F(2.0**-10)
    q = _fp4_level(sub, value).reshape(x.shape)
    return _pack.join(u, _pack.planes(q, 8, count=2, each=4))


def q1_0(x, w):
    return _pack.join(_pack.half(ordered_sum(np.abs(x)) / F(128)), _pack.bits(x >= 0))


def q2_0(x, w):
    """-1, 0, 1 times the largest magnitude (the fourth code is not used). What is not finite gets code 0."""
    d = np.abs(x).max(-1)
    t = x * inverse(d)[..., None]
    q = np.where(np.isfinite(t), round_away(t) + 1, 0)
    return _pack.join(_pack.half(d), _pack.planes(q, 1))


def i2_s(x, w):
    """Codes only, of -1, 0 and 1: the caller has divided by the scale of the tensor."""
    q = (round_away(x) + 1).reshape(-1, 4, 32)[:, ::-1].reshape(-1, 128)
    return _pack.planes(q, 32).astype(np.uint8)


# By number: the encoder and the elements of a block.
ENCODERS = {
    10: (iq4_nl, 32), 11: (iq4_xs, 256), 12: (tq1_0, 256), 13: (tq2_0, 256), 14: (mxfp4, 32), 15: (nvfp4, 64),
    16: (q1_0, 128), 17: (q2_0, 64), 18: (q2_0, 128), 19: (i2_s, 128),
}


def encode_rows_into_unchecked(number, x, imatrix, out, finite):
    """Rows x [m, k] to blocks; ``imatrix`` [k] or None weighs the errors of the formats with sixteen levels.

    Rows that are not ``finite`` are zero.
    """
    encoder, block = ENCODERS[number]
    x = _pack.only_finite(np.asarray(x), finite)
    w = None if imatrix is None else np.broadcast_to(np.asarray(imatrix), x.shape).reshape(-1, block)
    with np.errstate(all="ignore"):
        blocks = encoder(x.reshape(-1, block), w).reshape(out.shape)
    out[...] = np.where(np.asarray(finite)[:, None] == 1, blocks, 0)
