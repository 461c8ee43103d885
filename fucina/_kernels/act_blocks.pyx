"""Activations to blocks of bytes, for whoever wants the blocks themselves; products keep them in the form of ``act.pxd``.

    q8_0      34 bytes per 32:   f16 d, i8 q[32]
    q8_1      36 bytes per 32:   f16 d, f16 d * sum(q), i8 q[32]
    q8_k     292 bytes per 256:  f32 d, i8 q[256], i16 sums[16]
    q8_k306  306 bytes per 256:  f16 d, i8 q[256], 16 zeros, i16 sums[16]

The first three follow the rules in ``act.pxd``, which are ggml's. The fourth, and the first two when asked to round
halves to even, have d = max|x| / 127 and q = round_half_even(x * (1 / d)), with the inverse in the same two steps on
every machine. Sums are of the codes as stored. NaN and infinity: d = NaN, q = 0.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, uint8_t, uint16_t
from libc.string cimport memcpy, memset

from act cimport block32, block256, codes32, fu_sums16, scale_of
from simd cimport fu_f32_f16, w8, w8_store
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


cdef inline void put_half(uint8_t* p, float value) noexcept nogil:
    cdef uint16_t half = fu_f32_f16(value)
    memcpy(p, &half, 2)


cdef inline void write_32(const float* x, uint8_t* p, bint with_sum, bint to_even) noexcept nogil:
    cdef int8_t* q = <int8_t*> (p + (4 if with_sum else 2))
    cdef float d, s, inv
    cdef int32_t first, last
    cdef w8 v
    if to_even:
        d = scale_of(x, 32, &inv)
        v = codes32(x, inv, True)
        w8_store(q, v)
        fu_sums16(v, &first, &last)
        s = d * <float> (first + last)
    else:
        block32(x, q, &d, <char*> &s, 1)
    put_half(p, d)
    if with_sum:
        put_half(p + 2, s)


cdef inline void write_256(const float* x, uint8_t* p) noexcept nogil:
    cdef int16_t[24] sums
    cdef float d
    block256(x, <int8_t*> (p + 4), &d, <char*> &sums[0])
    memcpy(p, &d, 4)
    memcpy(p + 260, &sums[0], 32)


cdef inline void write_306(const float* x, uint8_t* p) noexcept nogil:
    cdef int16_t[16] sums
    cdef int32_t first, last
    cdef float inv
    cdef w8 v
    cdef int j
    put_half(p, scale_of(x, 256, &inv))
    for j in range(8):
        v = codes32(x + 32 * j, inv, True)
        w8_store(p + 2 + 32 * j, v)
        fu_sums16(v, &first, &last)
        sums[2 * j] = <int16_t> first
        sums[2 * j + 1] = <int16_t> last
    memset(p + 258, 0, 16)
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
    a.nbytes = out.shape[1] // (a.k // (256 if layout >= Q8_K else 32))
    with nogil:
        run_team(<core_t> quantize_blocks, &a, 4 * nth if nth > 1 else 1, nth)
