"""Activations to blocks of bytes, for whoever wants the blocks themselves; products keep them in the form of ``act.pxd``.

    q8_0      34 bytes per 32:   f16 d, i8 q[32]
    q8_1      36 bytes per 32:   f16 d, f16 d * sum(q), i8 q[32]
    q8_k     292 bytes per 256:  f32 d, i8 q[256], i16 sums[16]
    q8_k306  306 bytes per 256:  f16 d, i8 q[256], 16 zeros, i16 sums[16]

The first three follow the rules in ``act.pxd``, which are ggml's. The fourth, and the first two when asked to round
halves to even, have d = max|x| / 127 and q = round_half_even(x * (1 / d)), with the inverse in the same two steps on
every machine. Sums are of the codes as stored. NaN and infinity: d = NaN, q = 0.
"""

from libc.math cimport INFINITY, NAN
from libc.stdint cimport int8_t, int16_t, int32_t, uint8_t, uint16_t
from libc.string cimport memcpy, memset

from act cimport amax_of, block32, block256
from simd cimport f8_load, f8_mul, f8_round_even_i8, f8_set1, fu_f32_f16
from team cimport core_t, run_team, share_start

cdef enum:
    Q8_0 = 0
    Q8_1 = 1
    Q8_K = 2
    Q8_K306 = 3

cdef struct Args:
    const float* x
    uint8_t* out
    Py_ssize_t m, k, nbytes
    int layout
    bint to_even


cdef inline float even(const float* x, int n, int8_t* q) noexcept nogil:
    """Codes of n elements; the scale."""
    cdef float amax, scale, inv
    cdef int i
    cdef int finite = amax_of(x, n, &amax)
    scale = amax / <float> 127.0
    inv = <float> 1.0 / scale if scale > 0 else <float> 0.0
    if not finite or inv == INFINITY:
        inv = 0
        scale = <float> NAN if not finite else <float> 0.0
    for i in range(0, n, 8):
        f8_round_even_i8(q + i, f8_mul(f8_load(x + i), f8_set1(inv)), finite)
    return scale


cdef inline void put_half(uint8_t* p, float value) noexcept nogil:
    cdef uint16_t half = fu_f32_f16(value)
    memcpy(p, &half, 2)


cdef inline void write_32(const float* x, uint8_t* p, bint with_sum, bint to_even) noexcept nogil:
    cdef int8_t* q = <int8_t*> (p + (4 if with_sum else 2))
    cdef float d, s
    cdef int32_t total = 0
    cdef int i
    if not to_even:
        block32(x, q, &d, <char*> &s, 1)
        put_half(p, d)
        if with_sum:
            put_half(p + 2, s)
        return
    d = even(x, 32, q)
    put_half(p, d)
    if with_sum:
        for i in range(32):
            total += q[i]
        put_half(p + 2, d * <float> total)


cdef inline void write_256(const float* x, uint8_t* p) noexcept nogil:
    cdef int16_t[24] sums
    cdef float d
    block256(x, <int8_t*> (p + 4), &d, <char*> &sums[0])
    memcpy(p, &d, 4)
    memcpy(p + 260, &sums[0], 32)


cdef inline void write_306(const float* x, uint8_t* p) noexcept nogil:
    cdef int8_t* q = <int8_t*> (p + 2)
    cdef int16_t[16] sums
    cdef int i, j, s
    put_half(p, even(x, 256, q))
    memset(p + 258, 0, 16)
    for j in range(16):
        s = 0
        for i in range(16):
            s += q[16 * j + i]
        sums[j] = <int16_t> s
    memcpy(p + 274, &sums[0], 32)


cdef void quantize_blocks(const Args* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t size = 256 if a.layout >= Q8_K else 32
    cdef Py_ssize_t nb = a.k // size
    cdef Py_ssize_t i
    # Rows follow each other without a gap, so blocks are counted through.
    for i in range(share_start(a.m * nb, ith, nth), share_start(a.m * nb, ith + 1, nth)):
        if a.layout == Q8_K:
            write_256(a.x + i * size, a.out + i * a.nbytes)
        elif a.layout == Q8_K306:
            write_306(a.x + i * size, a.out + i * a.nbytes)
        else:
            write_32(a.x + i * size, a.out + i * a.nbytes, a.layout == Q8_1, a.to_even)


def quantize_blocks_into_unchecked(int layout, bint to_even, const float[:, ::1] x, unsigned char[:, ::1] out,
                                   Py_ssize_t nth):
    """Rows of ``x`` [m, k] to rows of blocks ``out`` [m, bytes]; layouts 0 q8_0, 1 q8_1, 2 q8_k, 3 q8_k306."""
    cdef Args a
    a.x = &x[0, 0]
    a.out = &out[0, 0]
    a.m = x.shape[0]
    a.k = x.shape[1]
    a.layout = layout
    a.to_even = to_even
    a.nbytes = 34 if layout == Q8_0 else 36 if layout == Q8_1 else 292 if layout == Q8_K else 306
    with nogil:
        run_team(<core_t> quantize_blocks, &a, 4 * nth if nth > 1 else 1, nth)
