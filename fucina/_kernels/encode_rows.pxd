"""Encoding of rows, given how to encode one row: what all encoders share. Threads get whole rows.

A row that holds NaN or infinity is reported and left zero: looking at it costs little while it is in the cache anyway.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memset

from team cimport share_start

# A row of k elements to its blocks; ``importance`` [k] or NULL; ``tables`` is what the family hands to itself.
ctypedef void (*encode_t)(const float* x, const float* importance, Py_ssize_t k, const void* tables,
                          uint8_t* out) noexcept nogil

cdef struct EncodeArgs:
    const float* x
    const float* importance
    const void* tables
    uint8_t* out
    uint8_t* finite         # [rows], 1 where the row was encoded
    encode_t encode
    Py_ssize_t rows, k, row_bytes


cdef inline int is_finite(const float* x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef int odd = 0
    for i in range(n):
        # x - x is 0, or NaN where x is not finite.
        odd += (x[i] - x[i] != 0)
    return odd == 0


cdef inline void encode_rows(const EncodeArgs* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t r
    for r in range(share_start(a.rows, ith, nth), share_start(a.rows, ith + 1, nth)):
        a.finite[r] = is_finite(a.x + r * a.k, a.k)
        if a.finite[r]:
            a.encode(a.x + r * a.k, a.importance, a.k, a.tables, a.out + r * a.row_bytes)
        else:
            memset(a.out + r * a.row_bytes, 0, a.row_bytes)


cdef inline float sum_squares(const float* x, Py_ssize_t n) noexcept nogil:
    """Added in order."""
    cdef float total = 0
    cdef Py_ssize_t i
    for i in range(n):
        total += x[i] * x[i]
    return total


cdef inline float mean_square(const float* x, Py_ssize_t n, float factor) noexcept nogil:
    """``factor`` times the mean of x^2."""
    return factor * sum_squares(x, n) / <float> n
