"""Single-precision arithmetic as the kernels have it: fused multiply-add, the exponential, sums in 16 lanes."""

import numpy as np

F = np.float32


def fma(a, b, c):
    """a * b + c with one rounding, element-wise on float32.

    The product of two float32 is exact in float64. The sum there is rounded to odd (a last bit that is set whenever
    something was lost), which makes the second rounding to float32 the only one that counts.
    """
    with np.errstate(all="ignore"):
        p = np.multiply(a, b, dtype=np.float64)
        c = np.asarray(c, np.float64)
        s = np.asarray(p + c)
        t = s - p
        lost = (p - (s - t)) + (c - t)
        bits = s.view(np.int64)
        step = np.where((lost > 0) == (s > 0), 1, -1)
        inexact = (lost != 0) & np.isfinite(lost) & np.isfinite(s) & (bits & 1 == 0)
        return np.where(inexact, bits + step, bits).view(np.float64).astype(F)


def exp(x):
    """The kernels' exponential; see ``vmath.h`` for the derivation."""
    x = np.asarray(x, F)
    with np.errstate(all="ignore"):
        c = np.where(x < F(-104), F(-104), np.where(x > F(89), F(89), x))
        z = fma(c, F(float.fromhex("0x1.715476p+0")), F(float.fromhex("0x1.8p23")))
        n = z - F(float.fromhex("0x1.8p23"))
        r = fma(n, F(float.fromhex("-0x1.7f7d1cp-20")), fma(n, F(float.fromhex("-0x1.62e4p-1")), c))
        r2 = r * r
        high = fma(F(float.fromhex("0x1.0e4020p-7")), r, F(float.fromhex("0x1.573e2ep-5")))
        low = fma(F(float.fromhex("0x1.555e66p-3")), r, F(float.fromhex("0x1.fffdb6p-2")))
        p = fma(fma(high, r2, low), r2, F(float.fromhex("0x1.ffffecp-1")) * r)
        k = np.nan_to_num(n).astype(np.int32)
        half = k >> 1
        s1, s2 = np.ldexp(F(1), half), np.ldexp(F(1), k - half)
        return fma(p, s1, s1) * s2


def tree(lanes):
    """Sum of 16 lanes (last axis) as the kernels add them: halves, then (0+4)+(2+6) + (1+5)+(3+7)."""
    v = lanes[..., :8] + lanes[..., 8:]
    a, b, c, d = (v[..., i] + v[..., i + 4] for i in range(4))
    return (a + c) + (b + d)


def lanes16(x):
    """x [..., n] as groups [..., ceil(n / 16), 16], padded with zeros."""
    n = x.shape[-1]
    padded = np.zeros(x.shape[:-1] + (-(-n // 16) * 16,), F)
    padded[..., :n] = x
    return padded.reshape(x.shape[:-1] + (-1, 16))


def sum16(x):
    """Sum over the last axis in 16 virtual lanes."""
    acc = np.zeros(x.shape[:-1] + (16,), F)
    groups = lanes16(x)
    for g in range(groups.shape[-2]):
        acc = acc + groups[..., g, :]
    return tree(acc)


def f16(x):
    """float32 to half precision and back."""
    with np.errstate(over="ignore"):
        return np.asarray(x, F).astype(np.float16).astype(F)
