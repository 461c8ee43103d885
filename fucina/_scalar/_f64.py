"""Double-precision fused multiply-add, as the kernels have it."""

import numpy as np

_SPLIT = 2.0**27 + 1


def fma(a, b, c):
    """a * b + c with one rounding, element-wise on float64.

    The product is written as a sum of two numbers (Dekker), c is added to the smaller one and the result rounded to odd
    before the larger one joins (Boldo and Melquiond): so the last rounding is the only one. Exact for magnitudes from
    2^-400 to 2^400 and zero; what is not finite is computed in two steps, with the same outcome.
    """
    with np.errstate(all="ignore"):
        a, b, c = np.broadcast_arrays(a, b, c)
        high = a * b
        low = _product_error(a, b, high)
        rest, rest_low = _two_sum(c, low)
        top, top_low = _two_sum(high, rest)
        result = top + _odd_sum(top_low, rest_low)
        return np.where(np.isfinite(result), result, high + c)


def _product_error(a, b, p):
    """a * b - p, exactly."""
    x, y = a * _SPLIT, b * _SPLIT
    a1, b1 = x - (x - a), y - (y - b)
    a2, b2 = a - a1, b - b1
    return ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def _two_sum(a, b):
    """The rounded sum and what the rounding lost."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _odd_sum(a, b):
    """a + b rounded to odd: a last bit that is set whenever something was lost."""
    s, lost = _two_sum(a, b)
    bits = np.asarray(s).view(np.int64)
    step = np.where((lost > 0) == (s > 0), 1, -1)
    inexact = (lost != 0) & np.isfinite(s) & (bits & 1 == 0)
    return np.where(inexact, bits + step, bits).view(np.float64)
