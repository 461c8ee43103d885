"""Encoding to the K formats, blocks of 256 with scaled sub-blocks (specification of ``_kernels/encode_k.pyx``).

Two levels: a search finds scale (and min) of every sub-block, these are quantized to a few bits relative to the block,
and then the codes are rounded again with the scales that came out. A sub-block whose scale became zero keeps the codes
of the search. With an importance matrix the weights of the errors are ``imatrix * sqrt(sigma2 + x^2)``.
"""

import numpy as np

from . import _pack
from ._f32 import F
from ._search import TINY, largest, nearest, ordered_sum, positive, symmetric, symmetric_descent, with_min


def _weights(x, w, factor):
    """Importance and size of the elements; sigma2 is ``factor`` times the mean square of the block."""
    sigma2 = F(factor) * ordered_sum(x * x) / F(256)
    return w * np.sqrt(sigma2[..., None] + x * x)


def _codes(x, d, low, first, lo, hi):
    """Round (x + low) / d of sub-blocks [..., s, n]; where d is 0 the ``first`` codes stay."""
    again = np.clip(nearest((x + low[..., None]) / d[..., None]), lo, hi) - lo
    return np.where((d != 0)[..., None], again, first).reshape(x.shape[:-2] + (256,))


def q2_k(x, w):
    sub = x.reshape(-1, 16, 16)
    if w is None:
        first, scale, low = with_min(sub, 3, np.abs(sub), -0.5, 0.1, 15, absolute=True)
        (sc, d), (mn, m) = _largest_as(scale, 15), _largest_as(low, 15)
    else:
        weight = _weights(x, w, 1).reshape(sub.shape)
        first, scale, low = with_min(sub, 3, weight, -0.9, 0.05, 36)
        total = ordered_sum(weight)
        (sc, d), (mn, m) = positive(scale, 15, total), positive(low, 15, total)
    byte = (sc | mn << 4) & 255
    dx = _pack.rounded(d)[..., None] * (byte & 15).astype(F)
    mx = _pack.rounded(m)[..., None] * (byte >> 4).astype(F)
    q = _codes(sub, dx, mx, first, 0, 3)
    return _pack.join(byte, _pack.planes(q, 32), _pack.half(d), _pack.half(m))


def _largest_as(v, nmax):
    """Codes of non-negative numbers when the largest becomes ``nmax``, and what one code is worth."""
    top = np.fmax(np.fmax.reduce(v, -1), F(0))
    code = nearest((F(nmax) / np.where(top > 0, top, F(1)))[..., None] * v) & 255
    return np.where(top[..., None] > 0, code, 0), top / F(nmax)


def q3_k(x, w):
    sub = x.reshape(-1, 16, 16)
    if w is None:
        first, scale = symmetric_descent(sub, 4)
        top = largest(scale)
        inverse = F(-32) / np.where(top != 0, top, F(1))
        code = nearest(inverse[..., None] * scale).astype(np.int8).astype(np.int32)
        sc = np.where(top[..., None] != 0, np.clip(code, -32, 31) + 32, 0)
        d = np.where(top != 0, F(1) / inverse, F(0))
    else:
        weight = _weights(x, w, 2).reshape(sub.shape)
        first, scale = symmetric(sub, 4, weight)
        sc, d = symmetric(scale, 32, ordered_sum(weight))
    dx = _pack.rounded(d)[..., None] * (sc - 32).astype(F)
    q = _codes(sub, dx, np.zeros_like(dx), first, -4, 3)
    six = _pack.join(_pack.nibbles(sc), _pack.planes(sc >> 4, 4))
    return _pack.join(_pack.planes(q >> 2, 32, count=8, each=1), _pack.planes(q, 32), six, _pack.half(d))


def _scales6(sc, mn):
    """Eight 6-bit scales and eight 6-bit mins in twelve bytes."""
    low = sc[..., :4] | sc[..., 4:] >> 4 << 6
    mid = mn[..., :4] | mn[..., 4:] >> 4 << 6
    return _pack.join(low & 255, mid & 255, sc[..., 4:] & 15 | (mn[..., 4:] & 15) << 4)


def _scaled_min(x, w, nmax, start, step, count):
    """What q4_k and q5_k share: codes, the twelve bytes of scales and mins, and the two scales of the block."""
    sub = x.reshape(-1, 8, 32)
    if w is None:
        weight = np.sqrt(ordered_sum(sub * sub) / F(32))[..., None] + np.abs(sub)
        first, scale, low = with_min(sub, nmax, weight, start, step, count)
        (sc, d), (mn, m) = _largest_as(scale, 63), _largest_as(low, 63)
    else:
        weight = _weights(x, w, 2).reshape(sub.shape)
        first, scale, low = with_min(sub, nmax, weight, -0.9, 0.05, 36)
        total = ordered_sum(weight)
        (sc, d), (mn, m) = positive(scale, 63, total), positive(low, 63, total)
    sc, mn = np.minimum(sc, 63), np.minimum(mn, 63)
    dx = _pack.rounded(d)[..., None] * sc.astype(F)
    mx = _pack.rounded(m)[..., None] * mn.astype(F)
    return _codes(sub, dx, mx, first, 0, nmax), _scales6(sc, mn), d, m


def q4_k(x, w):
    q, six, d, m = _scaled_min(x, w, 15, -1.0, 0.1, 20)
    return _pack.join(_pack.half(d), _pack.half(m), six, _pack.planes(q, 32, count=2, each=4))


def q5_k(x, w):
    q, six, d, m = _scaled_min(x, w, 31, -0.5, 0.1, 15)
    high = _pack.planes(q >> 4, 32, count=8, each=1)
    return _pack.join(_pack.half(d), _pack.half(m), six, high, _pack.planes(q, 32, count=2, each=4))


def q6_k(x, w):
    sub = x.reshape(-1, 16, 16)
    first, scale = symmetric(sub, 32, sub * sub if w is None else w.reshape(-1, 16, 16))
    top = largest(scale)
    zero = np.abs(top) < TINY
    inverse = F(-128) / np.where(zero, F(1), top)
    d = F(1) / inverse
    sc = np.minimum(nearest(inverse[..., None] * scale), 127)
    dx = _pack.rounded(d)[..., None] * sc.astype(F)
    q = _codes(sub, dx, np.zeros_like(dx), first, -32, 31)
    low, high = _pack.planes(q, 64, count=2, each=4), _pack.planes(q >> 4, 32)
    return np.where(zero[:, None], 0, _pack.join(low, high, sc & 255, _pack.half(d))).astype(np.uint8)


ENCODERS = {5: q4_k, 6: q5_k, 7: q6_k, 8: q2_k, 9: q3_k}


def encode_rows_into_unchecked(number, x, imatrix, out, finite):
    """Rows x [m, k] to blocks; ``imatrix`` [k] or None weighs the errors; rows that are not ``finite`` are zero."""
    x = _pack.only_finite(np.asarray(x), finite)
    w = None if imatrix is None else np.broadcast_to(np.asarray(imatrix), x.shape).reshape(-1, 256)
    with np.errstate(all="ignore"):
        blocks = ENCODERS[number](x.reshape(-1, 256), w).reshape(out.shape)
    out[...] = np.where(np.asarray(finite)[:, None] == 1, blocks, 0)
