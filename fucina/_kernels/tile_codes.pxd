"""Tiles over code panels (``codes.pxd``): what differs between formats is how many products fit into 16 bits.

A tag selects the arithmetic at compile time. With activations in -127..127 and codes up to c, n pairs of products stay
below 2 * 127 * c * n:

    Eight    c <= 3, n = 8: 6096        minus the sum of the activations                        q1_0 q2_0
    Twelve   c <= 24, n = 4: 24384      minus 12 times the sum                                  mxfp4
    Signed   |c| <= 127, n = 1: 32258   the activation takes the sign of the code               iq4_nl
    Sixteen  |c| <= 12, n = 4: 12192    the same, scales of 16                                  nvfp4
    Mins     c <= 3, n = 4: 3048        mins meet the sums                                      q2_k
    Four     c <= 30, n = 4: 30480      what the bias adds comes off through the sums           q3_k iq3_s iq1
    Two      c <= 63, n = 2: 32004      the same                                                q6_k
    One      c <= 124, n = 1: 31496     the same                                                iq2 iq3_xxs
    SignedK  |c| <= 127, n = 1: 32258   the activation takes the sign of the code               iq4_xs
    Ternary  c <= 3, n = 32: 24384      minus the sum of the activations                        tq1_0 tq2_0 i2_s

Scaled sums of 256 stay below 256 * 127 * 127 * 32 < 2^28 and, for q6_k, 256 * 127 * 63 * 128 < 2^28; what the pairs
bring is smaller.
"""

from libc.stdint cimport int8_t

from codes cimport (
    AT_D, AT_M, AT_PAIRS, AT_SCALES, UNIT_16, UNIT_32, UNIT_K, UNIT_TERNARY, w8_dot4_s, w8_mul_s8,
)
from panel cimport TILE
from simd cimport (
    f8, f8_fma, f8_from_i32, f8_load, f8_mul, f8_set1, w8, w8_add16, w8_add32, w8_bcast32, w8_dot1_s8, w8_dot2_u6,
    w8_dot4_u5, w8_dot8_u4, w8_load, w8_madd, w8_maddubs, w8_set1_i16, w8_set1_i32, w8_sub32, w8_zero,
)

cdef struct Eight:
    char unused

cdef struct Twelve:
    char unused

cdef struct Signed:
    char unused

cdef struct Sixteen:
    char unused

cdef struct Mins:
    char unused

cdef struct Four:
    char unused

cdef struct Two:
    char unused

cdef struct One:
    char unused

cdef struct SignedK:
    char unused

cdef struct Ternary:
    char unused

ctypedef fused Tag32:
    Eight
    Twelve
    Signed
    Sixteen

ctypedef fused TagK:
    Mins
    Four
    Two
    One
    SignedK

ctypedef fused Tag:
    Eight
    Twelve
    Signed
    Sixteen
    Mins
    Four
    Two
    One
    SignedK
    Ternary


cdef inline w8 dot_codes(const Tag32* tag, const w8* w, const int8_t* a, const char* aux) noexcept nogil:
    """Exact sums of 32 products for 8 rows."""
    cdef w8 ones = w8_set1_i16(1)
    cdef w8 s
    if Tag32 is Eight:
        s = w8_sub32(w8_madd(w8_dot8_u4(w, a), ones), w8_bcast32(aux))
    elif Tag32 is Twelve:
        s = w8_add32(w8_madd(w8_dot4_u5(w, a), ones), w8_madd(w8_dot4_u5(w + 4, a + 16), ones))
        # The sum fits 16 bits: the low half of its word times 12.
        s = w8_sub32(s, w8_madd(w8_bcast32(aux), w8_set1_i32(12)))
    else:
        s = w8_add32(w8_dot1_s8(w[0], a), w8_dot1_s8(w[1], a + 4))
        s = w8_add32(s, w8_add32(w8_dot1_s8(w[2], a + 8), w8_dot1_s8(w[3], a + 12)))
        s = w8_add32(s, w8_add32(w8_dot1_s8(w[4], a + 16), w8_dot1_s8(w[5], a + 20)))
        s = w8_add32(s, w8_add32(w8_dot1_s8(w[6], a + 24), w8_dot1_s8(w[7], a + 28)))
    return s


cdef inline void tile_codes_32(const Tag32* tag, const char* p, Py_ssize_t nb, const int8_t* qs, const float* d,
                               const char* aux, int nc, f8* acc) noexcept nogil:
    """Add ``nc`` columns times ``nb`` blocks of 32 elements of 8 rows to ``acc``."""
    cdef w8 ones = w8_set1_i16(1)
    cdef w8 w[8]
    cdef f8 d0, d1, da
    cdef Py_ssize_t _
    cdef int c, g
    for _ in range(nb):
        for g in range(8):
            w[g] = w8_load(p + 32 * g)
        d0 = f8_load(<const float*> (p + 256))
        if Tag32 is Sixteen:
            d1 = f8_load(<const float*> (p + 288))
            p += UNIT_16
        else:
            p += UNIT_32
        for c in range(nc):
            da = f8_set1(d[c])
            if Tag32 is Sixteen:
                acc[c] = f8_fma(f8_mul(d0, da), f8_from_i32(w8_madd(w8_dot4_s(w, qs), ones)), acc[c])
                acc[c] = f8_fma(f8_mul(d1, da), f8_from_i32(w8_madd(w8_dot4_s(w + 4, qs + 16), ones)), acc[c])
            else:
                acc[c] = f8_fma(f8_mul(d0, da), f8_from_i32(dot_codes(tag, w, qs, aux)), acc[c])
            qs += 32
            aux += 4
        d += nc


cdef inline w8 mul(const w8* w, const int8_t* a, int g) noexcept nogil:
    return w8_maddubs(w[g], w8_bcast32(a + 4 * g))


cdef inline w8 dot_scaled(const TagK* tag, const w8* w, const int8_t* a, w8 s0, w8 s1) noexcept nogil:
    """Sums of 32 products for 8 rows, each half times its scale."""
    cdef w8 s, t
    if TagK is One:
        s = w8_add32(w8_madd(mul(w, a, 0), s0), w8_madd(mul(w, a, 1), s0))
        s = w8_add32(s, w8_add32(w8_madd(mul(w, a, 2), s0), w8_madd(mul(w, a, 3), s0)))
        s = w8_add32(s, w8_add32(w8_madd(mul(w, a, 4), s1), w8_madd(mul(w, a, 5), s1)))
        t = w8_add32(w8_madd(mul(w, a, 6), s1), w8_madd(mul(w, a, 7), s1))
    elif TagK is Two:
        s = w8_add32(w8_madd(w8_dot2_u6(w, a), s0), w8_madd(w8_dot2_u6(w + 2, a + 8), s0))
        t = w8_add32(w8_madd(w8_dot2_u6(w + 4, a + 16), s1), w8_madd(w8_dot2_u6(w + 6, a + 24), s1))
    elif TagK is SignedK:
        s = w8_add32(w8_madd(w8_mul_s8(w[0], a), s0), w8_madd(w8_mul_s8(w[1], a + 4), s0))
        s = w8_add32(s, w8_add32(w8_madd(w8_mul_s8(w[2], a + 8), s0), w8_madd(w8_mul_s8(w[3], a + 12), s0)))
        s = w8_add32(s, w8_add32(w8_madd(w8_mul_s8(w[4], a + 16), s1), w8_madd(w8_mul_s8(w[5], a + 20), s1)))
        t = w8_add32(w8_madd(w8_mul_s8(w[6], a + 24), s1), w8_madd(w8_mul_s8(w[7], a + 28), s1))
    else:
        s = w8_madd(w8_dot4_u5(w, a), s0)
        t = w8_madd(w8_dot4_u5(w + 4, a + 16), s1)
    return w8_add32(s, t)


cdef inline void tile_codes_k(const TagK* tag, const char* p, Py_ssize_t nb, const int8_t* qs, const float* d,
                              const char* aux, int nc, f8* acc) noexcept nogil:
    """Add ``nc`` columns times ``nb`` blocks of 256 elements of 8 rows to ``acc``."""
    cdef w8 w[8]
    cdef w8 total[TILE]
    cdef w8 s0, s1, sums
    cdef f8 dw, mw
    cdef const int8_t* a
    cdef Py_ssize_t _
    cdef int c, j, g
    for _ in range(nb):
        for c in range(nc):
            total[c] = w8_zero()
        for j in range(8):
            for g in range(8):
                w[g] = w8_load(p + 256 * j + 32 * g)
            s0 = w8_load(p + AT_SCALES + 64 * j)
            s1 = w8_load(p + AT_SCALES + 64 * j + 32)
            a = qs + 32 * j
            for c in range(nc):
                total[c] = w8_add32(total[c], dot_scaled(tag, w, a, s0, s1))
                a += 256
        for g in range(8):
            w[g] = w8_load(p + AT_PAIRS + 32 * g)
        dw = f8_load(<const float*> (p + AT_D))
        mw = f8_load(<const float*> (p + AT_M))
        for c in range(nc):
            if TagK is not SignedK:
                sums = w8_madd(w[0], w8_bcast32(aux))
                for g in range(1, 8):
                    sums = w8_add32(sums, w8_madd(w[g], w8_bcast32(aux + 4 * g)))
            if TagK is not Mins and TagK is not SignedK:
                total[c] = w8_sub32(total[c], sums)
            acc[c] = f8_fma(f8_mul(dw, f8_set1(d[c])), f8_from_i32(total[c]), acc[c])
            if TagK is Mins:
                acc[c] = f8_fma(f8_mul(mw, f8_set1(-d[c])), f8_from_i32(sums), acc[c])
            aux += 48
        p += UNIT_K
        qs += 256 * nc
        d += nc


cdef inline void tile_ternary(const char* p, Py_ssize_t nb, const int8_t* qs, const float* d, const char* aux, int nc,
                              f8* acc) noexcept nogil:
    """Add ``nc`` columns times ``nb`` blocks of 256 elements of 8 rows to ``acc``."""
    cdef w8 ones = w8_set1_i16(1)
    cdef w8 w[8]
    cdef w8 part[TILE]
    cdef w8 total[TILE]
    cdef w8 s
    cdef f8 dw
    cdef const int8_t* a
    cdef Py_ssize_t _
    cdef int c, j, g
    for _ in range(nb):
        for j in range(8):
            for g in range(8):
                w[g] = w8_load(p + 256 * j + 32 * g)
            a = qs + 32 * j
            for c in range(nc):
                s = w8_dot8_u4(w, a)
                part[c] = s if j & 3 == 0 else w8_add16(part[c], s)
                a += 256
            if j == 3:
                for c in range(nc):
                    total[c] = w8_madd(part[c], ones)
        dw = f8_load(<const float*> (p + 2048))
        for c in range(nc):
            # Eight sums of 32 activations.
            s = w8_add32(w8_madd(w8_bcast32(aux + 32), ones), w8_madd(w8_bcast32(aux + 36), ones))
            s = w8_add32(s, w8_add32(w8_madd(w8_bcast32(aux + 40), ones), w8_madd(w8_bcast32(aux + 44), ones)))
            s = w8_sub32(w8_add32(total[c], w8_madd(part[c], ones)), s)
            acc[c] = f8_fma(f8_mul(dw, f8_set1(d[c])), f8_from_i32(s), acc[c])
            aux += 48
        p += UNIT_TERNARY
        qs += 256 * nc
        d += nc
