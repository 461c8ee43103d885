"""Rotary position embedding: pairs of features of a head are rotated by an angle that grows with the position.

    (a, b) -> (a cos - b sin, a sin + b cos)      one rounding per product of the pair: fma(a, c, -(b s)), fma(a, s, b c)

x is [seq, heads, d]. In ``half`` mode feature i pairs with i + pairs, in ``interleaved`` mode 2i pairs with 2i + 1;
features from 2 * pairs on are copied. Cosines and sines come as tables [seq, pairs], shared by the heads, so both
identities of the library rotate by the same numbers. In a program the tables are of all positions, and the rows look
theirs up. Threads get whole positions. In place is allowed.

The tables themselves are made of additions and multiplications in f64, one rounding each, so that they are the same bits
with every C library and processor: sines of libraries are not. An angle loses k quarter turns, pi/2 being the sum of three
numbers of which the first two have 33 bits: with the multiples of 2^20 in k taken apart, products and differences are exact
as long as k < 2^40. What is left, at most pi/4, meets Taylor's series: the next terms are below 2^-54.
"""

from libc.math cimport rint

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


cdef enum:
    SINE = 7            # terms after the first
    COSINE = 8

cdef struct TableArgs:
    const double* positions
    const double* freq
    float* cos
    float* sin
    Py_ssize_t count, pairs
    double[SINE] sine           # (-1)^j / (2j + 1)!, the last one first
    double[COSINE] cosine       # (-1)^j / (2j)!


cdef inline void rotation(const TableArgs* a, double angle, float* c, float* s) noexcept nogil:
    """Cosine and sine of one angle."""
    cdef double k = rint(angle * 0.6366197723675814)
    cdef double much = rint(k * 9.5367431640625e-07) * 1048576.0
    cdef double few = k - much
    cdef double r = angle - much * 1.5707963267341256 - few * 1.5707963267341256
    cdef double r2, p = a.sine[0], q = a.cosine[0]
    cdef int j, quarter = <int> (<long long> k & 3)
    r = r - much * 6.077100506303966e-11 - few * 6.077100506303966e-11 - k * 2.0222662487959506e-21
    r2 = r * r
    for j in range(1, SINE):
        p = p * r2 + a.sine[j]
    for j in range(1, COSINE):
        q = q * r2 + a.cosine[j]
    p = r + r * (r2 * p)
    q = 1 + r2 * q
    if quarter & 1:
        p, q = q, -p
    if quarter & 2:
        p, q = -p, -q
    c[0], s[0] = <float> q, <float> p


cdef void tables(const TableArgs* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t t, i
    for t in range(share_start(a.count, ith, nth), share_start(a.count, ith + 1, nth)):
        for i in range(a.pairs):
            rotation(a, a.positions[t] * a.freq[i], a.cos + t * a.pairs + i, a.sin + t * a.pairs + i)


def rope_tables_into_unchecked(const double[::1] positions, const double[::1] freq, float[:, ::1] cos,
                               float[:, ::1] sin, Py_ssize_t nth):
    """Cosines and sines of ``positions[t] * freq[i]``, all below 2^40, to ``cos`` and ``sin`` [positions, pairs]."""
    cdef TableArgs a
    cdef double factorial = 1
    cdef int j
    a.positions, a.freq, a.cos, a.sin = &positions[0], &freq[0], &cos[0, 0], &sin[0, 0]
    a.count, a.pairs = positions.shape[0], freq.shape[0]
    for j in range(1, 9):
        factorial *= 2 * j - 1
        factorial *= 2 * j
        a.cosine[COSINE - j] = (-1.0 if j & 1 else 1.0) / factorial
        if j <= SINE:
            a.sine[SINE - j] = (-1.0 if j & 1 else 1.0) / (factorial * (2 * j + 1))
    with nogil:
        run_team(<core_t> tables, &a, min(a.count, 4 * nth), nth)


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
