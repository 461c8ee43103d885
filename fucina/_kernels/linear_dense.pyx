"""Products with f32, f16 or bf16 weights: y[c, r] = sum_k x[c, k] * w[r, k] (+ bias[r]), in f32.

Every output is one chain of fused multiply-adds over k in ascending order; 16-bit weights are widened exactly.
Sixteen rows of w are widened and transposed into a panel [k][16], KC values of k at a time, so that lanes are rows;
the 6 x 16 tile then runs over all columns of x. Chains go on across blocks of k through the f32 output. KC = 256
makes a panel 16 KiB, half of the first-level cache. Threads get whole panels.
"""

from libc.stdint cimport uint16_t

from micro cimport rows_by_16
from simd cimport f8, f8_load, f8_load_bf16, f8_load_f16, f8_store, f8_transpose, fu_bf16_f32, fu_f16_f32
from team cimport core_t, run_team, share_start

cdef enum:
    KC = 256

# bf16 has no C type of its own: a one-member struct keeps it apart from f16 as a fused type.
cdef struct bf16:
    uint16_t bits

ctypedef fused Weight:
    float
    uint16_t
    bf16

cdef struct Args:
    const char* w
    const float* x
    const float* bias
    float* out
    float* scratch
    Py_ssize_t scratch_stride   # in floats
    Py_ssize_t m, n, k


cdef inline f8 load8(const Weight* p) noexcept nogil:
    if Weight is float:
        return f8_load(p)
    elif Weight is uint16_t:
        return f8_load_f16(p)
    else:
        return f8_load_bf16(<const uint16_t*> p)


cdef inline float load1(const Weight* p) noexcept nogil:
    if Weight is float:
        return p[0]
    elif Weight is uint16_t:
        return fu_f16_f32(p[0])
    else:
        return fu_bf16_f32(p.bits)


cdef void pack16(const Weight* w, Py_ssize_t ldw, int rows, Py_ssize_t kc, float* panel) noexcept nogil:
    """``rows`` <= 16 rows of ``kc`` values to [kc][16]; missing rows repeat the last."""
    cdef f8 r[8]
    cdef const Weight* row
    cdef Py_ssize_t p = 0
    cdef int i, g
    while p + 8 <= kc:
        for g in range(2):
            for i in range(8):
                r[i] = load8(w + min(8 * g + i, rows - 1) * ldw + p)
            f8_transpose(r)
            for i in range(8):
                f8_store(panel + 16 * (p + i) + 8 * g, r[i])
        p += 8
    while p < kc:
        for i in range(16):
            panel[16 * p + i] = load1(w + min(i, rows - 1) * ldw + p)
        p += 1


cdef void linear_dense(const Weight* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of the panels. The pointer's type only selects the weight type; it points to ``Args``."""
    cdef const Args* a = <const Args*> args
    cdef const Weight* w = <const Weight*> a.w
    cdef float* panel = a.scratch + ith * a.scratch_stride
    cdef float* edge = panel + 16 * KC      # [m][16], for a panel of fewer than 16 rows
    cdef Py_ssize_t panels = (a.n + 15) // 16
    cdef Py_ssize_t i, c, p, kc
    cdef int rows, r
    for i in range(share_start(panels, ith, nth), share_start(panels, ith + 1, nth)):
        rows = <int> min(<Py_ssize_t> 16, a.n - 16 * i)
        p = 0
        while p < a.k:
            kc = min(<Py_ssize_t> KC, a.k - p)
            pack16(w + 16 * i * a.k + p, a.k, rows, kc, panel)
            if rows == 16:
                rows_by_16(<int> a.m, a.x + p, a.k, panel, kc, a.out + 16 * i, a.n, p == 0)
            else:
                rows_by_16(<int> a.m, a.x + p, a.k, panel, kc, edge, 16, p == 0)
            p += kc
        for c in range(a.m):
            if rows < 16:
                for r in range(rows):
                    a.out[c * a.n + 16 * i + r] = edge[16 * c + r]
            if a.bias != NULL:
                for r in range(rows):
                    a.out[c * a.n + 16 * i + r] += a.bias[16 * i + r]


cdef core_t core_of(int code) noexcept nogil:
    if code == 0:
        return <core_t> linear_dense[float]
    if code == 1:
        return <core_t> linear_dense[uint16_t]
    return <core_t> linear_dense[bf16]


def scratch_bytes(Py_ssize_t m, Py_ssize_t nth):
    """Bytes of scratch that ``linear_dense_into_unchecked`` needs for m columns and a team of nth."""
    return 4 * (16 * KC + 16 * m) * (4 * nth if nth > 1 else 1)


def linear_dense_into_unchecked(int code, const unsigned char[:, ::1] w, const float[:, ::1] x, const float[::1] bias,
                                float[:, ::1] out, unsigned char[::1] scratch, Py_ssize_t nth):
    """``out`` [m, n] = ``x`` [m, k] times the rows of ``w``: bytes of f32 (code 0), f16 (1) or bf16 (2) values."""
    cdef Args a
    a.w = <const char*> &w[0, 0]
    a.x = &x[0, 0]
    a.bias = NULL
    if bias is not None:
        a.bias = &bias[0]
    a.out = &out[0, 0]
    a.m = out.shape[0]
    a.n = out.shape[1]
    a.k = x.shape[1]
    a.scratch = <float*> &scratch[0]
    a.scratch_stride = 16 * KC + 16 * a.m
    with nogil:
        run_team(core_of(code), &a, 4 * nth if nth > 1 else 1, nth)
