"""Rotary position embedding: pairs of features of a head are rotated by an angle that grows with the position.

    (a, b) -> (a cos - b sin, a sin + b cos)      one rounding per product of the pair: fma(a, c, -(b s)), fma(a, s, b c)

x is [seq, heads, d]. In ``half`` mode feature i pairs with i + pairs, in ``interleaved`` mode 2i pairs with 2i + 1;
features from 2 * pairs on are copied. Cosines and sines come as tables [seq, pairs], shared by the heads, so both
identities of the library rotate by the same numbers. In a program the tables are of all positions, and the rows look
theirs up. Threads get whole positions. In place is allowed.
"""

from simd cimport fu_fma
from span cimport Span, position_of, span_of
from team cimport core_t, run_team, share_start, step_of

cdef struct Args:
    const float* x
    const float* cos
    const float* sin
    float* out
    Py_ssize_t seq, heads, d, pairs
    int interleaved
    const Span* spans       # of a program, or NULL: row s of the tables belongs to row s


cdef void rope(const Args* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef const Span* span = a.spans
    cdef Py_ssize_t s, h, i, lo, hi, at
    cdef Py_ssize_t step = 2 if a.interleaved else 1
    cdef Py_ssize_t other = 1 if a.interleaved else a.pairs
    cdef const float* x
    cdef const float* c
    cdef const float* n
    cdef float* out
    cdef float u, v
    for s in range(share_start(a.seq, ith, nth), share_start(a.seq, ith + 1, nth)):
        at = s
        if span != NULL:
            span = span_of(span, s)
            at = position_of(span, s)
        c = a.cos + at * a.pairs
        n = a.sin + at * a.pairs
        for h in range(a.heads):
            x = a.x + (s * a.heads + h) * a.d
            out = a.out + (s * a.heads + h) * a.d
            for i in range(a.pairs):
                lo = step * i
                hi = lo + other
                u = x[lo]
                v = x[hi]
                out[lo] = fu_fma(u, c[i], -(v * n[i]))
                out[hi] = fu_fma(u, n[i], v * c[i])
            for i in range(2 * a.pairs, a.d):
                out[i] = x[i]


def rope_into_unchecked(const float[:, :, ::1] x, const float[:, ::1] cos, const float[:, ::1] sin, bint interleaved,
                        float[:, :, ::1] out, Py_ssize_t nth):
    """Rotate ``x`` [seq, heads, d] by the angles whose cosines and sines are given, [seq, pairs]."""
    cdef Args a = Args(&x[0, 0, 0], &cos[0, 0], &sin[0, 0], &out[0, 0, 0], x.shape[0], x.shape[1], x.shape[2],
                       cos.shape[1], interleaved, NULL)
    with nogil:
        run_team(<core_t> rope, &a, min(a.seq, 4 * nth), nth)


def rope_step(const float[:, :, ::1] x, const float[:, ::1] cos, const float[:, ::1] sin, bint interleaved,
              float[:, :, ::1] out, const long long[:, ::1] spans):
    """The same as a step of a program, by the positions that ``spans`` (``span.pxd``) say, [positions, pairs]."""
    cdef Args a = Args(&x[0, 0, 0], &cos[0, 0], &sin[0, 0], &out[0, 0, 0], x.shape[0], x.shape[1], x.shape[2],
                       cos.shape[1], interleaved, <const Span*> &spans[0, 0])
    return step_of(<core_t> rope, &a, sizeof(a), &a.seq)
