"""Tiles of the formats with blocks of 32 and one scale: q4_0, q4_1, q5_0, q5_1, q8_0.

For each block the weights are unpacked once into eight registers and used for all columns; the f32 accumulators of the
columns live in the first-level cache, one load and one store per block. Unsigned codes let ``maddubs`` add several
products in i16 before one ``madd`` widens them: 15 * 127 * 2 * 8 = 30480 and 31 * 127 * 2 * 4 = 31496 stay under 32768.
q8_0 moves the sign of the weight to the activation and widens every product: 2 * 128 * 127 = 32512.
"""

from libc.stdint cimport int8_t, uint16_t

from blocks cimport Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from simd cimport (
    f8, f8_fma, f8_from_f16_of_words, f8_from_i32, f8_load_f16, f8_mul, f8_set1, f8_zero, w8, w8_add32, w8_and,
    w8_bcast32, w8_dot1_s8, w8_dot4_u5, w8_dot8_u4, w8_fifth_bits, w8_load, w8_madd, w8_or, w8_set1_i16, w8_set1_u8,
    w8_shl32, w8_shr16, w8_sub32,
)

# A fused type selects the code at compile time.
ctypedef fused Block32:
    Q4_0
    Q4_1
    Q5_0
    Q5_1
    Q8_0


cdef inline void unpack32(const Block32* tag, const char* p, w8* w) noexcept nogil:
    """Eight words of codes, unsigned where the format is; word g holds elements 4g..4g+3 of 8 rows."""
    cdef int g
    cdef w8 v, qh
    cdef w8 low = w8_set1_u8(15)
    if Block32 is Q8_0:
        for g in range(8):
            w[g] = w8_load(p + 32 * g)
    else:
        if Block32 is Q5_0 or Block32 is Q5_1:
            qh = w8_load(p)
            p += 32
        for g in range(4):
            v = w8_load(p + 32 * g)
            w[g] = w8_and(v, low)
            w[g + 4] = w8_and(w8_shr16(v, 4), low)
        if Block32 is Q5_0 or Block32 is Q5_1:
            for g in range(8):
                w[g] = w8_or(w[g], w8_fifth_bits(qh, g))


cdef inline w8 dot32(const Block32* tag, const w8* w, const int8_t* a, const char* aux) noexcept nogil:
    """Exact sums of 32 products for 8 rows."""
    cdef w8 s
    cdef w8 ones = w8_set1_i16(1)
    if Block32 is Q8_0:
        s = w8_add32(w8_dot1_s8(w[0], a), w8_dot1_s8(w[1], a + 4))
        s = w8_add32(s, w8_add32(w8_dot1_s8(w[2], a + 8), w8_dot1_s8(w[3], a + 12)))
        s = w8_add32(s, w8_add32(w8_dot1_s8(w[4], a + 16), w8_dot1_s8(w[5], a + 20)))
        s = w8_add32(s, w8_add32(w8_dot1_s8(w[6], a + 24), w8_dot1_s8(w[7], a + 28)))
    elif Block32 is Q4_0 or Block32 is Q4_1:
        s = w8_madd(w8_dot8_u4(w, a), ones)
    else:
        s = w8_add32(w8_madd(w8_dot4_u5(w, a), ones), w8_madd(w8_dot4_u5(w + 4, a + 16), ones))
    if Block32 is Q4_0:
        s = w8_sub32(s, w8_shl32(w8_bcast32(aux), 3))
    if Block32 is Q5_0:
        s = w8_sub32(s, w8_shl32(w8_bcast32(aux), 4))
    return s


cdef inline void tile_32(const Block32* tag, const char* p, Py_ssize_t nb, const int8_t* qs, const float* d,
                         const char* aux, int nc, f8* acc) noexcept nogil:
    """``nc`` columns times one panel of 8 rows."""
    cdef w8 w[8]
    cdef f8 dw, mw
    cdef w8 head
    cdef Py_ssize_t _
    cdef int c
    for c in range(nc):
        acc[c] = f8_zero()
    for _ in range(nb):
        if Block32 is Q4_1 or Block32 is Q5_1:
            head = w8_load(p)
            dw = f8_from_f16_of_words(head, 0)
            mw = f8_from_f16_of_words(head, 1)
            p += 32
        else:
            dw = f8_load_f16(<const uint16_t*> p)
            p += 16
        unpack32(tag, p, w)
        p += 8 * (sizeof(Block32) - 2) if not (Block32 is Q4_1 or Block32 is Q5_1) else 8 * (sizeof(Block32) - 4)
        for c in range(nc):
            acc[c] = f8_fma(f8_mul(dw, f8_set1(d[c])), f8_from_i32(dot32(tag, w, qs, aux)), acc[c])
            if Block32 is Q4_1 or Block32 is Q5_1:
                acc[c] = f8_fma(mw, f8_set1((<const float*> aux)[0]), acc[c])
            qs += 32
            aux += 4
        d += nc
