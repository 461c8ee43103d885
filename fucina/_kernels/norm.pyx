"""Root-mean-square normalization of rows: y = x / sqrt(mean(x^2) + eps) [* weight].

Rows are contiguous. The sum of squares runs in 16 virtual lanes (lane l adds elements l, l + 16, ... with fused
multiply-adds, a short last group is padded with zeros) that are added as a fixed tree: the order depends neither on
the instruction set nor on threads, which get whole rows. In place is allowed.
"""

from libc.math cimport sqrtf

from simd cimport f8, f8_add, f8_fma, f8_hsum, f8_mul, f8_set1, f8_zero
from team cimport core_t, run_team, share_start, step_of
from vmath cimport load_part, store_part

cdef struct Args:
    const float* x
    const float* weight     # or NULL
    float* out
    Py_ssize_t rows, n
    Py_ssize_t unit         # rows that stay together when threads share the work
    float eps


cdef void rms_norm(const Args* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t r, i
    cdef const float* x
    cdef float* out
    cdef f8 s0, s1, v
    cdef float scale
    cdef Py_ssize_t units = a.rows // a.unit
    for r in range(a.unit * share_start(units, ith, nth), a.unit * share_start(units, ith + 1, nth)):
        x = a.x + r * a.n
        out = a.out + r * a.n
        s0 = f8_zero()
        s1 = f8_zero()
        i = 0
        while i < a.n:
            v = load_part(x + i, a.n - i, 0)
            s0 = f8_fma(v, v, s0)
            if i + 8 < a.n:
                v = load_part(x + i + 8, a.n - i - 8, 0)
                s1 = f8_fma(v, v, s1)
            i += 16
        scale = <float>1.0 / sqrtf(f8_hsum(f8_add(s0, s1)) / <float> a.n + a.eps)
        i = 0
        while i < a.n:
            v = f8_mul(load_part(x + i, a.n - i, 0), f8_set1(scale))
            if a.weight != NULL:
                v = f8_mul(v, load_part(a.weight + i, a.n - i, 0))
            store_part(out + i, v, a.n - i)
            i += 8


cdef Args filled(const float[:, ::1] x, const float[::1] weight, float eps, float[:, ::1] out):
    cdef Args a
    a.x = &x[0, 0]
    a.weight = NULL
    if weight is not None:
        a.weight = &weight[0]
    a.out = &out[0, 0]
    a.rows = x.shape[0]
    a.n = x.shape[1]
    a.unit = 1
    a.eps = eps
    return a


def rms_norm_into_unchecked(const float[:, ::1] x, const float[::1] weight, float eps, float[:, ::1] out,
                            Py_ssize_t nth):
    """``weight`` may be None."""
    cdef Args a = filled(x, weight, eps, out)
    with nogil:
        run_team(<core_t> rms_norm, &a, min(a.rows, 4 * nth), nth)


def rms_norm_step(const float[:, ::1] x, const float[::1] weight, float eps, float[:, ::1] out, Py_ssize_t unit):
    """The same as a step of a program; a thread gets whole units of ``unit`` rows."""
    cdef Args a = filled(x, weight, eps, out)
    a.unit = unit
    return step_of(<core_t> rms_norm, &a, sizeof(a), &a.rows)
