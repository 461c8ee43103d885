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

Where products are summed in 32 bits at once (``dot.pxd``), n does not matter, signed codes of 8 bits are biased by 128
instead, and two panels share the loads of activations.

Scaled sums of 256 stay below 256 * 127 * 127 * 32 < 2^28 and, for q6_k, 256 * 127 * 63 * 128 < 2^28; what the pairs
bring is smaller.
"""

from libc.stdint cimport int8_t

from codes cimport AT_D, AT_M, AT_PAIRS, AT_SCALES, UNIT_16, UNIT_32, UNIT_K, UNIT_TERNARY
from dot cimport (
    S8_BIAS, part_dot, part_dot_two, part_signed, part_total, part_total_by, w8_dot, w8_dot_by, w8_dot_s8, w8_dot_s8_by,
)
from panel cimport TILE, OnePanel, Panels, count_of
from simd cimport (
    f8, f8_fma, f8_from_i32, f8_load, f8_mul, f8_set1, w8, w8_add32, w8_bcast32, w8_load, w8_madd, w8_set1_i16,
    w8_set1_i32, w8_shl32, w8_sub32, w8_zero,
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


cdef inline w8 without_bias(const Tag32* tag, w8 s, const char* aux) noexcept nogil:
    """A sum of products less what the bias of the codes added to it."""
    if Tag32 is Eight:
        return w8_sub32(s, w8_bcast32(aux))
    elif Tag32 is Twelve:
        # The sum fits 16 bits: the low half of its word times 12.
        return w8_sub32(s, w8_madd(w8_bcast32(aux), w8_set1_i32(12)))
    else:
        return w8_sub32(s, w8_shl32(w8_bcast32(aux), 7)) if S8_BIAS else s


cdef inline w8 dot_codes(const Tag32* tag, const w8* w, const int8_t* a, const char* aux) noexcept nogil:
    """Exact sums of 32 products for 8 rows."""
    cdef w8 s
    if Tag32 is Signed:
        s = w8_dot_s8(w, a)
    else:
        s = w8_dot(w, a, 8, 4 if Tag32 is Twelve else 8)
    return without_bias(tag, s, aux)


cdef inline w8 dot_sixteen(const w8* w, const int8_t* a) noexcept nogil:
    """Exact sums of 16 products for 8 rows, codes with signs."""
    cdef w8 s = w8_zero()
    cdef int g
    for g in range(4):
        s = part_signed(s, w[g], a + 4 * g)
    return part_total(s)


cdef inline void tile_codes_32(const Tag32* tag, const Panels* panels, const char* const* starts, Py_ssize_t nb,
                               const int8_t* qs, const float* d, const char* aux, int nc, f8* acc) noexcept nogil:
    """Add ``nc`` columns times ``nb`` blocks of 32 elements of one or two panels; acc[count * c + e]."""
    cdef int count = count_of(panels)
    cdef const char* p[2]
    cdef w8 w[2][8]
    cdef w8 s[2]
    cdef f8 d0[2]
    cdef f8 d1[2]
    cdef f8 da, y
    cdef Py_ssize_t _
    cdef int c, e, g
    for e in range(count):
        p[e] = starts[e]
    for _ in range(nb):
        for e in range(count):
            for g in range(8):
                w[e][g] = w8_load(p[e] + 32 * g)
            d0[e] = f8_load(<const float*> (p[e] + 256))
            if Tag32 is Sixteen:
                d1[e] = f8_load(<const float*> (p[e] + 288))
            p[e] += UNIT_16 if Tag32 is Sixteen else UNIT_32
        for c in range(nc):
            if Tag32 is not Sixteen:
                if Panels is OnePanel:
                    s[0] = dot_codes(tag, w[0], qs, aux)
                else:
                    s[0] = s[1] = without_bias(tag, w8_zero(), aux)
                    part_dot_two(s, w[0], w[1], qs, 8)
            da = f8_set1(d[c])
            for e in range(count):
                y = acc[count * c + e]
                if Tag32 is Sixteen:
                    y = f8_fma(f8_mul(d0[e], da), f8_from_i32(dot_sixteen(w[e], qs)), y)
                    y = f8_fma(f8_mul(d1[e], da), f8_from_i32(dot_sixteen(w[e] + 4, qs + 16)), y)
                else:
                    y = f8_fma(f8_mul(d0[e], da), f8_from_i32(s[e]), y)
                acc[count * c + e] = y
            qs += 32
            aux += 4
        d += nc


cdef inline w8 dot_scaled(const TagK* tag, const w8* w, const int8_t* a, w8 s0, w8 s1) noexcept nogil:
    """Sums of 32 products for 8 rows, each half times its scale; those of signed codes are the same."""
    cdef int per = 1 if TagK is One else 2 if TagK is Two else 4
    if TagK is SignedK:
        return w8_dot_s8_by(w, a, s0)
    else:
        return w8_add32(w8_dot_by(w, a, 4, per, s0), w8_dot_by(w + 4, a + 16, 4, per, s1))


cdef inline void add_scaled_two(const TagK* tag, const w8* w, const w8* u, const int8_t* a, const w8* s0, const w8* s1,
                                w8* totals) noexcept nogil:
    """The same for two panels, added to ``totals``."""
    cdef w8 s[2]
    cdef int e
    s[0] = s[1] = w8_zero()
    part_dot_two(s, w, u, a, 8 if TagK is SignedK else 4)
    for e in range(2):
        totals[e] = w8_add32(totals[e], part_total_by(s[e], s0[e]))
    if TagK is not SignedK:
        s[0] = s[1] = w8_zero()
        part_dot_two(s, w + 4, u + 4, a + 16, 4)
        for e in range(2):
            totals[e] = w8_add32(totals[e], part_total_by(s[e], s1[e]))


cdef inline void tile_codes_k(const TagK* tag, const Panels* panels, const char* const* starts, Py_ssize_t nb,
                              const int8_t* qs, const float* d, const char* aux, int nc, f8* acc) noexcept nogil:
    """Add ``nc`` columns times ``nb`` blocks of 256 elements of one or two panels; acc[count * c + e]."""
    cdef int count = count_of(panels)
    cdef const char* p[2]
    cdef w8 w[2][8]
    cdef w8 total[2 * TILE]
    cdef w8 s0[2]
    cdef w8 s1[2]
    cdef w8 sums, t
    cdef f8 dw, mw
    cdef const int8_t* a
    cdef Py_ssize_t _
    cdef int c, e, j, g
    for e in range(count):
        p[e] = starts[e]
    for _ in range(nb):
        for c in range(count * nc):
            total[c] = w8_zero()
        for j in range(8):
            for e in range(count):
                for g in range(8):
                    w[e][g] = w8_load(p[e] + 256 * j + 32 * g)
                s0[e] = w8_load(p[e] + AT_SCALES + 64 * j)
                s1[e] = w8_load(p[e] + AT_SCALES + 64 * j + 32)
            a = qs + 32 * j
            for c in range(nc):
                if Panels is OnePanel:
                    total[c] = w8_add32(total[c], dot_scaled(tag, w[0], a, s0[0], s1[0]))
                else:
                    add_scaled_two(tag, w[0], w[1], a, s0, s1, total + 2 * c)
                a += 256
        for e in range(count):
            for g in range(8):
                w[0][g] = w8_load(p[e] + AT_PAIRS + 32 * g)
            dw = f8_load(<const float*> (p[e] + AT_D))
            mw = f8_load(<const float*> (p[e] + AT_M))
            for c in range(nc):
                t = total[count * c + e]
                if TagK is not SignedK or S8_BIAS:
                    sums = w8_madd(w[0][0], w8_bcast32(aux + 48 * c))
                    for g in range(1, 8):
                        sums = w8_add32(sums, w8_madd(w[0][g], w8_bcast32(aux + 48 * c + 4 * g)))
                if TagK is not Mins and (TagK is not SignedK or S8_BIAS):
                    t = w8_sub32(t, sums)
                acc[count * c + e] = f8_fma(f8_mul(dw, f8_set1(d[c])), f8_from_i32(t), acc[count * c + e])
                if TagK is Mins:
                    acc[count * c + e] = f8_fma(f8_mul(mw, f8_set1(-d[c])), f8_from_i32(sums), acc[count * c + e])
            p[e] += UNIT_K
        qs += 256 * nc
        aux += 48 * nc
        d += nc


cdef inline void tile_ternary(const Panels* panels, const char* const* starts, Py_ssize_t nb, const int8_t* qs,
                              const float* d, const char* aux, int nc, f8* acc) noexcept nogil:
    """Add ``nc`` columns times ``nb`` blocks of 256 elements of one or two panels; acc[count * c + e]."""
    cdef int count = count_of(panels)
    cdef w8 ones = w8_set1_i16(1)
    cdef const char* p[2]
    cdef w8 w[2][8]
    cdef w8 part[2 * TILE]
    cdef w8 total[2 * TILE]
    cdef w8 s, t
    cdef f8 dw[2]
    cdef const int8_t* a
    cdef Py_ssize_t _
    cdef int c, e, j, g
    for e in range(count):
        p[e] = starts[e]
    for _ in range(nb):
        for j in range(8):
            for e in range(count):
                for g in range(8):
                    w[e][g] = w8_load(p[e] + 256 * j + 32 * g)
            a = qs + 32 * j
            for c in range(nc):
                if j & 3 == 0:
                    for e in range(count):
                        part[count * c + e] = w8_zero()
                if Panels is OnePanel:
                    part[c] = part_dot(part[c], w[0], a, 8)
                else:
                    part_dot_two(part + 2 * c, w[0], w[1], a, 8)
                a += 256
            if j == 3:
                for c in range(count * nc):
                    total[c] = part_total(part[c])
        for e in range(count):
            dw[e] = f8_load(<const float*> (p[e] + 2048))
            p[e] += UNIT_TERNARY
        for c in range(nc):
            # Eight sums of 32 activations.
            s = w8_add32(w8_madd(w8_bcast32(aux + 32), ones), w8_madd(w8_bcast32(aux + 36), ones))
            s = w8_add32(s, w8_add32(w8_madd(w8_bcast32(aux + 40), ones), w8_madd(w8_bcast32(aux + 44), ones)))
            for e in range(count):
                t = w8_sub32(w8_add32(total[count * c + e], part_total(part[count * c + e])), s)
                acc[count * c + e] = f8_fma(f8_mul(dw[e], f8_set1(d[c])), f8_from_i32(t), acc[count * c + e])
            aux += 48
        qs += 256 * nc
        d += nc
