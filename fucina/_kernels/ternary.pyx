"""Ternary weights times float activations without multiplying them: y[t, r] = scale * sum_b d_b * s_b.

s_b is the sum over block b of +x, -x or +0, by the weight, in 16 virtual lanes and a fixed tree; nothing is rounded to
8 bits. A sign is flipped and an element dropped by bits: (x xor flip) and keep. The code 3, which no encoder writes,
means 2 as in the decoder: x is added to itself. Then y = fma(d_b, s_b, y), blocks in order. A dropped element adds
nothing even if it is infinite or NaN.

A thread owns rows of weights; each block is spread to masks once for all rows of activations, of which four share the
loading of masks.
"""

from libc.stdint cimport uint8_t, uint32_t

from blocks cimport I2_S, NUM_TQ1_0, NUM_TQ2_0, TQ1_0, TQ2_0
from simd cimport f8, f8_add, f8_hsum, f8_load, f8_select, f8_zero, fu_f16_f32, fu_fma, w8, w8_load
from team cimport core_t, run_team, share_start

cdef extern from *:
    """
    #include "simd.h"
    FU f8 fu_flip_and_keep(f8 x, w8 flip, w8 keep) { return (f8)(((w8)x ^ flip) & keep); }
    """
    f8 fu_flip_and_keep(f8 x, w8 flip, w8 keep) nogil

cdef struct Args:
    const char* w
    const float* x
    const float* bias       # or NULL
    float* out
    Py_ssize_t m, n, k, row_bytes
    float scale

cdef struct Masks:
    uint32_t[256] flip
    uint32_t[256] keep
    uint32_t[256] twice
    float d
    bint any_twice

ctypedef fused Block:
    TQ1_0
    TQ2_0
    I2_S


cdef inline void trits(const uint8_t* p, int width, int count, uint8_t* q) noexcept nogil:
    """Base-3 digits: multiplying by 3 brings the next one to the top."""
    cdef int i, j, power = 1
    for j in range(count):
        for i in range(width):
            q[j * width + i] = (<uint8_t> (p[i] * power) * 3) >> 8
        power *= 3


cdef inline void spread(const Block* p, Masks* v) noexcept nogil:
    """Codes 0, 1, 2, 3 mean -1, 0, 1, 2."""
    cdef uint8_t[256] q
    cdef int i, j
    cdef uint8_t three = 0
    cdef int size = 128 if Block is I2_S else 256
    if Block is TQ1_0:
        trits(&p.qs[0], 32, 5, &q[0])
        trits(&p.qs[32], 16, 5, &q[160])
        trits(&p.qh[0], 4, 4, &q[240])
    elif Block is TQ2_0:
        for j in range(8):
            for i in range(32):
                q[32 * j + i] = p.qs[32 * (j >> 2) + i] >> 2 * (j & 3) & 3
    else:
        for j in range(4):
            for i in range(32):
                q[32 * j + i] = p.qs[i] >> 6 - 2 * j & 3
    for i in range(size):
        three |= q[i] & q[i] >> 1
    v.any_twice = three
    if three:
        for i in range(size):
            v.twice[i] = -<uint32_t> (q[i] == 3)
    for i in range(size):
        v.flip[i] = (<uint32_t> q[i] - 1) & 0x80000000u
        v.keep[i] = -<uint32_t> (q[i] != 1)
    if Block is I2_S:
        v.d = 1
    else:
        v.d = fu_f16_f32(p.d)


cdef inline f8 element(const Masks* v, const float* x, int i, bint any_twice) noexcept nogil:
    """Eight elements of a row, signed or dropped."""
    cdef f8 a = f8_load(x + i)
    if any_twice:
        a = f8_select(w8_load(&v.twice[i]), f8_add(a, a), a)
    return fu_flip_and_keep(a, w8_load(&v.flip[i]), w8_load(&v.keep[i]))


cdef inline void sums(const Masks* v, int size, const float* x, Py_ssize_t k, int nc, bint any_twice,
                      float* s) noexcept nogil:
    """s[c] = the sum of a block for row c of x, ``nc`` (at most 4) rows at once; ``nc``, ``any_twice`` are constants."""
    cdef f8 low[4]
    cdef f8 high[4]
    cdef int i, c
    for c in range(nc):
        low[c] = high[c] = f8_zero()
    for i in range(0, size, 16):
        for c in range(nc):
            low[c] = f8_add(low[c], element(v, x + c * k, i, any_twice))
            high[c] = f8_add(high[c], element(v, x + c * k, i + 8, any_twice))
    for c in range(nc):
        s[c] = f8_hsum(f8_add(low[c], high[c]))


cdef void ternary(const Block* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of the rows of weights. The pointer's type only selects the format; it points to ``Args``."""
    cdef const Args* a = <const Args*> args
    cdef int size = 128 if Block is I2_S else 256
    cdef Py_ssize_t r, b, t, c
    cdef float s[4]
    cdef float y
    cdef Masks v
    for r in range(share_start(a.n, ith, nth), share_start(a.n, ith + 1, nth)):
        for t in range(a.m):
            a.out[t * a.n + r] = 0
        for b in range(a.k // size):
            spread(<const Block*> (a.w + r * a.row_bytes) + b, &v)
            t = 0
            while not v.any_twice and t + 4 <= a.m:
                sums(&v, size, a.x + t * a.k + b * size, a.k, 4, False, s)
                for c in range(4):
                    a.out[(t + c) * a.n + r] = fu_fma(v.d, s[c], a.out[(t + c) * a.n + r])
                t += 4
            while t < a.m:
                if v.any_twice:
                    sums(&v, size, a.x + t * a.k + b * size, a.k, 1, True, s)
                else:
                    sums(&v, size, a.x + t * a.k + b * size, a.k, 1, False, s)
                a.out[t * a.n + r] = fu_fma(v.d, s[0], a.out[t * a.n + r])
                t += 1
        for t in range(a.m):
            y = a.out[t * a.n + r] * a.scale
            a.out[t * a.n + r] = y if a.bias == NULL else y + a.bias[r]


def ternary_linear_into_unchecked(int number, int nbytes, const unsigned char[:, ::1] w, float scale,
                                  const float[:, ::1] x, const float[::1] bias, float[:, ::1] out, Py_ssize_t nth):
    """``out`` [m, n] = ``x`` [m, k] times the n rows of blocks ``w`` times ``scale``, plus ``bias`` unless it is None.

    ``number`` and ``nbytes`` are those of tq1_0, tq2_0 or i2_s in the format table.
    """
    cdef Args a
    cdef core_t core = <core_t> ternary[I2_S]
    if number == NUM_TQ1_0:
        core = <core_t> ternary[TQ1_0]
    elif number == NUM_TQ2_0:
        core = <core_t> ternary[TQ2_0]
    a.w = <const char*> &w[0, 0]
    a.row_bytes = w.shape[1]
    a.x = &x[0, 0]
    a.bias = NULL
    if bias is not None:
        a.bias = &bias[0]
    a.out = &out[0, 0]
    a.m = x.shape[0]
    a.n = out.shape[1]
    a.k = x.shape[1]
    a.scale = scale
    with nogil:
        run_team(core, &a, min(a.n, 4 * nth) if nth > 1 else 1, nth)
