"""iq4_xs and tq1_0: 256 elements with one floating-point scale.

``expand_*`` make code panels (``codes.pxd``) for many columns, ``row_*`` multiply what they unpack with one column.
Codes: iq4_xs signed; ternary + 1 (0 to 2). All 64 pairs of products of tq1_0 fit into 16 bits: 64 * 2 * 2 * 127 = 32512.
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t

from codes cimport AT_D, UNIT_K, UNIT_TERNARY, put, put_f8, put_scales
from dot cimport S8_BIAS, part_add, part_more, part_total
from levels cimport fu_iq4_codes
from panel cimport fetch_ahead, fetch_line
from recode cimport five_digits
from simd cimport (
    f8, f8_fma, f8_from_f16_of_words, f8_from_i32, f8_load_f16, f8_mul, f8_set1, w8, w8_add16, w8_add32, w8_and,
    w8_bcast32, w8_dup_u8_i16, w8_load, w8_madd, w8_or, w8_sar32, w8_set1_i16, w8_set1_i32, w8_set1_u8, w8_shl32,
    w8_shr32, w8_sub32, w8_zero,
)
from tile_codes cimport SignedK, dot_scaled
from unpack_32 cimport dot_levels_two, nibble_levels, nibble_words


cdef inline w8 field(w8 word, int at, int mask) noexcept nogil:
    """Bits of every lane, moved to its low end."""
    return w8_and(w8_shr32(word, at), w8_set1_i32(mask))


cdef inline void scales_xs(const char* p, w8* scales) noexcept nogil:
    """Scales of the even and of the odd sub-blocks, + 32, a byte each. Nibble b of the high half of the first word has
    the high bits of sub-blocks 2b and 2b + 1, byte b of the second word the low ones."""
    cdef w8 nibble = w8_set1_u8(15), top = w8_set1_u8(0x30)
    cdef w8 low = w8_load(p + 32), high = w8_shr32(w8_load(p), 16)
    high = w8_and(w8_or(high, w8_shl32(high, 8)), w8_set1_i32(0x00ff00ff))
    high = w8_and(w8_or(high, w8_shl32(high, 4)), nibble)
    scales[0] = w8_or(w8_and(low, nibble), w8_and(w8_shl32(high, 4), top))
    scales[1] = w8_or(w8_and(w8_shr32(low, 4), nibble), w8_and(w8_shl32(high, 2), top))


cdef inline w8 next_scale(w8* scales) noexcept nogil:
    """The lowest byte less its 32 as both i16 of a lane; the next one takes its place."""
    cdef w8 s = w8_add16(w8_dup_u8_i16(scales[0], 0), w8_set1_i16(-32))
    scales[0] = w8_shr32(scales[0], 8)
    return s


cdef inline void expand_iq4_xs(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """Words: the scale with eight times two high bits of scales, their low nibbles, 32 of codes."""
    cdef w8 scales[2]
    cdef w8 s
    cdef Py_ssize_t _
    cdef int j
    for _ in range(nb):
        scales_xs(p, scales)
        put_f8(to, AT_D, f8_from_f16_of_words(w8_load(p), 0))
        for j in range(8):
            s = w8_sar32(next_scale(&scales[j & 1]), 16)
            put_scales(to, j, s, s, S8_BIAS)
            nibble_levels(p + 64 + 128 * j, 4, fu_iq4_codes, to + 256 * j)
        p += 34 * 32
        to += UNIT_K


cdef inline void row_iq4_xs(const char* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                            const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of 8 rows."""
    cdef w8 w[8]
    cdef w8 scales[2]
    cdef w8 s, total, sums
    cdef f8 y = acc[0]
    cdef Py_ssize_t i
    cdef int j
    for i in range(nb):
        scales_xs(p, scales)
        total = w8_zero()
        sums = w8_zero()
        for j in range(8):
            fetch_ahead(p + 136 * j, 136)
            nibble_words(p + 64 + 128 * j, 4, fu_iq4_codes, w)
            s = next_scale(&scales[j & 1])
            total = w8_add32(total, dot_scaled(<const SignedK*> NULL, w, qs + 32 * j, s, s))
            if S8_BIAS:
                sums = w8_add32(sums, w8_madd(s, w8_bcast32(aux + 4 * j)))
        if S8_BIAS:
            total = w8_sub32(total, w8_shl32(sums, 7))
        y = f8_fma(f8_mul(f8_from_f16_of_words(w8_load(p), 0), f8_set1(d[i])), f8_from_i32(total), y)
        p += 34 * 32
        qs += 256
        aux += 48
    acc[0] = y


cdef inline void row_pair_iq4_xs(const char* p, const char* r, Py_ssize_t nb, const int8_t* qs, const float* d,
                                 const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of the panels ``p`` and ``r``.

    Sub-blocks in twos: where the words of scales are is known then, and what holds them is not addressed by a counter. Every
    line is fetched once, 17 for a block. From the second-level cache 1.05 to 1.1 times as fast, from memory 1.00 to 1.04
    (AVX2, AMD Zen 3, 2026-12).
    """
    cdef const char* at[2]
    cdef const char* codes[2]
    cdef w8 scales[2][2]
    cdef w8 s[2]
    cdef w8 total[2]
    cdef f8 y[2]
    cdef Py_ssize_t i
    cdef int e, j
    at[0], at[1] = p, r
    y[0], y[1] = acc[0], acc[1]
    for i in range(nb):
        for e in range(2):
            fetch_line(at[e])
            scales_xs(at[e], scales[e])
            total[e] = w8_zero()
        for j in range(4):
            for e in range(2):
                codes[e] = at[e] + 64 + 256 * j
                s[e] = next_scale(&scales[e][0])
            dot_levels_two(codes, 2, qs + 64 * j, s, total)
            for e in range(2):
                codes[e] += 128
                s[e] = next_scale(&scales[e][1])
            dot_levels_two(codes, 2, qs + 64 * j + 32, s, total)
        for e in range(2):
            y[e] = f8_fma(f8_mul(f8_from_f16_of_words(w8_load(at[e]), 0), f8_set1(d[i])), f8_from_i32(total[e]), y[e])
            at[e] += 34 * 32
        qs += 256
    acc[0], acc[1] = y[0], y[1]


cdef inline void trits(const char* p, int words, int count, char* to) noexcept nogil:
    """The leading ``count`` digits of each byte."""
    cdef w8 v[5]
    cdef int g, n
    for g in range(words):
        five_digits(p + 32 * g, v)
        for n in range(count):
            put(to, words * n + g, v[n])


cdef inline w8 dot_trits(const char* p, int words, int count, const int8_t* a) noexcept nogil:
    """The same digits times the activations, a part."""
    cdef w8 v[5]
    cdef w8 total = w8_zero()
    cdef int g, n
    for g in range(words):
        five_digits(p + 32 * g, v)
        for n in range(count):
            total = part_more(total, v[n], w8_bcast32(a + 4 * (words * n + g)))
    return total


cdef inline void expand_tq1_0(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    cdef Py_ssize_t _
    for _ in range(nb):
        put_f8(to, 2048, f8_load_f16(<const uint16_t*> p))
        p += 16
        trits(p, 8, 5, to)
        trits(p + 32 * 8, 4, 5, to + 32 * 40)
        trits(p + 32 * 12, 1, 4, to + 32 * 60)
        p += 13 * 32
        to += UNIT_TERNARY


cdef inline void row_tq1_0(const char* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                           const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of 8 rows."""
    cdef w8 total, ones = w8_set1_i16(1)
    cdef f8 dw, y = acc[0]
    cdef Py_ssize_t i
    cdef int g
    for i in range(nb):
        fetch_ahead(p, 8 * 54)
        dw = f8_load_f16(<const uint16_t*> p)
        p += 16
        total = part_add(dot_trits(p, 8, 5, qs), dot_trits(p + 32 * 8, 4, 5, qs + 160))
        total = part_total(part_add(total, dot_trits(p + 32 * 12, 1, 4, qs + 240)))
        for g in range(4):
            total = w8_sub32(total, w8_madd(w8_bcast32(aux + 32 + 4 * g), ones))
        y = f8_fma(f8_mul(dw, f8_set1(d[i])), f8_from_i32(total), y)
        p += 13 * 32
        qs += 256
        aux += 48
    acc[0] = y
