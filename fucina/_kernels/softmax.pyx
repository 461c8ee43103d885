"""Softmax of rows: y = e^(t - max t) / sum, t = scale * x + mask.

Rows are contiguous; threads get whole rows. The maximum is exact in any order; the sum runs in 16 virtual lanes and a
fixed tree, with padded elements counting as e^-inf = 0. A row without a finite or +inf maximum is NaN, as in 0 / 0.
"""

from libc.math cimport INFINITY

from simd cimport f8, f8_add, f8_div, f8_hmax, f8_hsum, f8_max, f8_mul, f8_set1, f8_sub, f8_zero
from team cimport core_t, run_team, share_start
from vmath cimport f8_exp, load_part, store_part

cdef struct Args:
    const float* x
    const float* mask       # [mask_rows, n], row r uses mask row r % mask_rows; or NULL
    float* out
    Py_ssize_t rows, n, mask_rows
    float scale


cdef void softmax(const Args* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t r, i
    cdef const float* x
    cdef const float* mask
    cdef float* out
    cdef f8 top, s0, s1, v
    for r in range(share_start(a.rows, ith, nth), share_start(a.rows, ith + 1, nth)):
        x = a.x + r * a.n
        out = a.out + r * a.n
        mask = NULL
        if a.mask != NULL:
            mask = a.mask + r % a.mask_rows * a.n
        top = f8_set1(-INFINITY)
        i = 0
        while i < a.n:
            v = f8_mul(load_part(x + i, a.n - i, 0), f8_set1(a.scale))
            if mask != NULL:
                v = f8_add(v, load_part(mask + i, a.n - i, 0))
            store_part(out + i, v, a.n - i)
            top = f8_max(load_part(out + i, a.n - i, -INFINITY), top)
            i += 8
        top = f8_set1(f8_hmax(top))
        s0 = f8_zero()
        s1 = f8_zero()
        i = 0
        while i < a.n:
            v = f8_exp(f8_sub(load_part(out + i, a.n - i, -INFINITY), top))
            s0 = f8_add(s0, v)
            store_part(out + i, v, a.n - i)
            if i + 8 < a.n:
                v = f8_exp(f8_sub(load_part(out + i + 8, a.n - i - 8, -INFINITY), top))
                s1 = f8_add(s1, v)
                store_part(out + i + 8, v, a.n - i - 8)
            i += 16
        v = f8_set1(f8_hsum(f8_add(s0, s1)))
        i = 0
        while i < a.n:
            store_part(out + i, f8_div(load_part(out + i, a.n - i, 0), v), a.n - i)
            i += 8


def softmax_into_unchecked(const float[:, ::1] x, float scale, const float[:, ::1] mask, float[:, ::1] out,
                           Py_ssize_t nth):
    """``mask`` is None or [mask_rows, n], repeated over the rows of ``x``."""
    cdef Args a
    a.x = &x[0, 0]
    a.mask = NULL
    a.mask_rows = 1
    if mask is not None:
        a.mask = &mask[0, 0]
        a.mask_rows = mask.shape[0]
    a.out = &out[0, 0]
    a.rows = x.shape[0]
    a.n = x.shape[1]
    a.scale = scale
    with nogil:
        run_team(<core_t> softmax, &a, min(a.rows, 4 * nth), nth)
