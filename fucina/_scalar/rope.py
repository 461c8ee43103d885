"""Rotary position embedding (specification of ``_kernels/rope.pyx``)."""

from math import factorial

import numpy as np

from ._f32 import fma

# pi/2 as a sum: two numbers of 33 bits, and the rest.
_QUARTER = (float.fromhex("0x1.921fb544p+0"), float.fromhex("0x1.0b4611a6p-34"), float.fromhex("0x1.3198a2e037073p-69"))


def rope_tables_into_unchecked(positions, freq, cos, sin):
    """In float64, every step rounded, nothing fused."""
    angle = np.asarray(positions)[:, None] * np.asarray(freq)
    k = np.rint(angle * float.fromhex("0x1.45f306dc9c883p-1"))
    much = np.rint(k * 2.0**-20) * 2.0**20
    few = k - much
    r = angle - much * _QUARTER[0] - few * _QUARTER[0]
    r = r - much * _QUARTER[1] - few * _QUARTER[1] - k * _QUARTER[2]
    r2 = r * r
    p, q = 0.0, 0.0
    for j in range(7, 0, -1):
        p = p * r2 + (-1.0) ** j / factorial(2 * j + 1)
    for j in range(8, 0, -1):
        q = q * r2 + (-1.0) ** j / factorial(2 * j)
    p, q = r + r * (r2 * p), 1.0 + r2 * q
    quarter = k.astype(np.int64) & 3
    p, q = np.where(quarter & 1, q, p), np.where(quarter & 1, -p, q)
    sin[...], cos[...] = np.where(quarter & 2, -p, p), np.where(quarter & 2, -q, q)


def rope_into_unchecked(x, cos, sin, interleaved, out):
    x = np.array(x)
    pairs = cos.shape[1]
    c, s = np.asarray(cos)[:, None], np.asarray(sin)[:, None]
    low = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    high = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    a, b = x[..., low], x[..., high]
    out[...] = x
    with np.errstate(all="ignore"):
        out[..., low], out[..., high] = fma(a, c, -(b * s)), fma(a, s, b * c)
