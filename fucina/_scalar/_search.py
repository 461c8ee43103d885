"""Searches for the scale of a group: what the better encoders minimize.

Groups are independent and lie along the leading axes; the elements of a group are the last axis and are summed one
after the other. All candidates of a search are tried in a fixed order and a later one must be strictly better. These
are the searches of ggml (``make_qx_quants`` and its siblings), rounding for rounding.
"""

import numpy as np

from ._f32 import F

# Groups whose largest magnitude is below this count as zero.
TINY = F(1e-15)


def nearest(v):
    """Round to nearest even by adding 1.5 * 2**23, as int32; out of range (2**22) it wraps as the bits do."""
    return ((np.asarray(v, F) + F(12582912)).view(np.int32) & 0x7FFFFF) - 0x400000


def ordered_sum(terms):
    """Sum over the last axis, first element first."""
    total = np.zeros(terms.shape[:-1], F)
    for i in range(terms.shape[-1]):
        total = total + terms[..., i]
    return total


def largest(x):
    """The first element of largest magnitude; a zero is positive, and NaN (from an overflow) does not count."""
    x = np.where(np.isnan(x), F(0), x)
    return np.take_along_axis(x, np.argmax(np.abs(x), axis=-1)[..., None], -1)[..., 0] + F(0)


def extremes(x):
    """The first smallest and the first largest element, with the signs they have if they are zeros."""
    return tuple(np.take_along_axis(x, at(x, axis=-1)[..., None], -1)[..., 0] for at in (np.argmin, np.argmax))


def quotient(a, b):
    """a / b where b is positive, else 0."""
    return np.where(b > 0, a / np.where(b > 0, b, F(1)), F(0)).astype(F)


def symmetric(x, nmax, w):
    """Codes and scale for x ~ scale * (code - nmax), codes 0 .. 2 nmax - 1, minimizing sum w (x - ...)^2.

    The first candidate maps the largest magnitude to -nmax; eighteen more stretch that by tenths of a code. Per
    candidate the best scale is sum(w x l) / sum(w l l), and sum(w x l)^2 / sum(w l l) says how good it is.
    """
    top = largest(x)
    zero = np.abs(top) < TINY
    top = np.where(zero, F(1), top)

    def levels(inverse):
        return np.clip(nearest(inverse[..., None] * x), -nmax, nmax - 1)

    def sums(l):
        f = l.astype(F)
        return ordered_sum(w * x * f), ordered_sum(w * f * f)

    code = levels(F(-nmax) / top)
    xl, ll = sums(code)
    scale = np.where(ll != 0, xl / np.where(ll != 0, ll, F(1)), F(0))
    best = scale * xl
    for step in (*range(-9, 0), *range(1, 10)):
        l = levels(-(F(nmax) + F(0.1) * F(step)) / top)
        xl, ll = sums(l)
        better = (ll > 0) & (xl * xl > best * ll)
        code = np.where(better[..., None], l, code)
        scale = np.where(better, quotient(xl, ll), scale)
        best = np.where(better, scale * xl, best)
    return np.where(zero[..., None], 0, code + nmax), np.where(zero, F(0), scale)


def symmetric_descent(x, nmax):
    """The same with weights x^2, by improving one code at a time, at most five rounds."""
    top = largest(x)
    zero = np.abs(top) < TINY
    code = np.clip(nearest((F(-nmax) / np.where(zero, F(1), top))[..., None] * x), -nmax, nmax - 1)
    w = x * x
    f = code.astype(F)
    xl, ll = ordered_sum(w * x * f), ordered_sum(w * f * f)
    for _ in range(5):
        for i in range(x.shape[-1]):
            wi, xi, l = w[..., i], x[..., i], code[..., i].astype(F)
            sx = xl - wi * xi * l
            s2 = ll - wi * l * l
            new = np.clip(nearest(xi * s2 / sx), -nmax, nmax - 1)
            f = new.astype(F)
            sx1, s21 = sx + wi * xi * f, s2 + wi * f * f
            better = (sx > 0) & (new != code[..., i]) & (s21 > 0) & (sx1 * sx1 * ll > xl * xl * s21)
            code[..., i] = np.where(better, new, code[..., i])
            xl, ll = np.where(better, sx1, xl), np.where(better, s21, ll)
    return np.where(zero[..., None], 0, code + nmax), np.where(zero, F(0), quotient(xl, ll))


def with_min(x, nmax, w, start, step, count, absolute=False):
    """Codes, scale and min for x ~ scale * code - min, codes 0 .. nmax, min >= 0.

    Candidates stretch the range of the group to ``nmax + start + step * i`` codes, i = 0 .. count; for the codes of
    each, scale and min solve the weighted least squares problem. An improvement moves the min, and the next candidate
    starts from there. ``absolute`` judges by sum w |error| instead of sum w error^2.
    """
    low, high = extremes(x)
    low = np.where(low > 0, F(0), low)
    flat = high <= low
    wx = w * x
    sum_w, sum_x = ordered_sum(w), ordered_sum(wx)

    def levels(inverse, low):
        return np.clip(nearest(inverse[..., None] * (x - low[..., None])), 0, nmax)

    def error(scale, l, low):
        e = scale[..., None] * l.astype(F) + low[..., None] - x
        return ordered_sum(w * (np.abs(e) if absolute else e * e))

    inverse = F(nmax) / (high - low)
    scale, low_used = F(1) / inverse, low
    code = levels(inverse, low)
    best = error(scale, code, low)
    for i in range(count + 1):
        l = levels((F(start) + F(step) * F(i) + F(nmax)) / (high - low_used), low_used)
        f = l.astype(F)
        sum_l, sum_l2, sum_xl = ordered_sum(w * f), ordered_sum(w * f * f), ordered_sum(w * f * x)
        det = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / det
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / det
        positive = new_low > 0
        new_scale = np.where(positive, sum_xl / sum_l2, new_scale)
        new_low = np.where(positive, F(0), new_low)
        e = error(new_scale, l, new_low)
        better = (det > 0) & (e < best)
        code = np.where(better[..., None], l, code)
        best, scale = np.where(better, e, best), np.where(better, new_scale, scale)
        low_used = np.where(better, new_low, low_used)
    return np.where(flat[..., None], 0, code), np.where(flat, F(0), scale), -np.where(flat, low, low_used)


def positive(x, nmax, w):
    """Codes 0 .. nmax and scale for non-negative x ~ scale * code: nine stretches, then one code at a time.

    Codes live in bytes: what a negative x gives is seen modulo 256 by the second phase.
    """
    top = np.fmax(np.fmax.reduce(x, -1), F(0))
    zero = top < TINY
    top = np.where(zero, F(1), top)

    def error(scale, l):
        e = x - scale[..., None] * l.astype(F)
        return ordered_sum(w * e * e)

    inverse = F(nmax) / top
    best = error(F(1) / inverse, nearest(inverse[..., None] * x) & 255)
    for step in (*range(-4, 0), *range(1, 5)):
        trial = (F(0.1) * F(step) + F(nmax)) / top
        e = error(F(1) / trial, np.minimum(nearest(trial[..., None] * x), nmax))
        better = e < best
        best, inverse = np.where(better, e, best), np.where(better, trial, inverse)
    l = np.minimum(nearest(inverse[..., None] * x), nmax)
    f = l.astype(F)
    xl, ll = ordered_sum(w * x * f), ordered_sum(w * f * f)
    code = l & 255
    for _ in range(5):
        for i in range(x.shape[-1]):
            wi, xi, l = w[..., i], x[..., i], code[..., i].astype(F)
            sx, s2 = xl - wi * xi * l, ll - wi * l * l
            new = np.minimum(nearest(xi * s2 / sx), nmax)
            f = new.astype(F)
            sx1, s21 = sx + wi * xi * f, s2 + wi * f * f
            better = (sx > 0) & (s2 > 0) & (new != code[..., i]) & (sx1 * sx1 * ll > xl * xl * s21)
            code[..., i] = np.where(better, new & 255, code[..., i])
            xl, ll = np.where(better, sx1, xl), np.where(better, s21, ll)
    return np.where(zero[..., None], 0, code), np.where(zero, F(0), quotient(xl, ll))
