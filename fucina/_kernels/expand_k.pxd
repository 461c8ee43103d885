"""Expanding k-quants, iq4_xs and ternary blocks: 256 elements with one floating-point scale; see ``codes.pxd``.

Codes: q2_k as they are (0 to 3, mins in the pairs); q3_k + 4 (0 to 7); q6_k + 32 (0 to 63); iq4_xs signed; ternary + 1
(0 to 2, and 3 where a file holds the fourth pattern of two bits).
"""

from libc.stdint cimport uint8_t, uint16_t

from codes cimport AT_D, AT_M, AT_PAIRS, UNIT_K, UNIT_TERNARY, put, put_f8, put_scales, w8_byte_i32, w8_pack16
from expand_32 cimport nibble_levels
from levels cimport fu_iq4_levels
from simd cimport (
    f8_from_f16_of_words, f8_load_f16, f8_set1, w8, w8_add16, w8_and, w8_load, w8_or, w8_set1_i16, w8_set1_i32,
    w8_set1_u8, w8_shl16, w8_shl32, w8_shr16, w8_shr32, w8_store, w8_sub32,
)


cdef inline w8 field(w8 word, int at, int mask) noexcept nogil:
    """Bits of every lane, moved to its low end."""
    return w8_and(w8_shr32(word, at), w8_set1_i32(mask))


cdef inline void expand_q2_k(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """Words: 4 of scales and mins, 16 of codes in 4 planes, the two floating-point scales."""
    cdef w8 three = w8_set1_u8(3)
    cdef w8 v
    cdef Py_ssize_t _
    cdef int i, g, at
    for _ in range(nb):
        for g in range(8):
            v = w8_load(p + 32 * (g >> 1))
            at = 16 * (g & 1)
            put_scales(to, g, field(v, at, 15), field(v, at + 8, 15), 0)
            w8_store(to + AT_PAIRS + 32 * g, w8_pack16(field(v, at + 4, 15), field(v, at + 12, 15)))
        for i in range(2):
            for g in range(8):
                v = w8_load(p + 32 * (4 + 8 * i + g))
                put(to, 32 * i + g, w8_and(v, three))
                put(to, 32 * i + g + 8, w8_and(w8_shr16(v, 2), three))
                put(to, 32 * i + g + 16, w8_and(w8_shr16(v, 4), three))
                put(to, 32 * i + g + 24, w8_and(w8_shr16(v, 6), three))
        v = w8_load(p + 32 * 20)
        put_f8(to, AT_D, f8_from_f16_of_words(v, 0))
        put_f8(to, AT_M, f8_from_f16_of_words(v, 1))
        p += 21 * 32
        to += UNIT_K


cdef inline void expand_q3_k(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """The scale, then words: 8 of third bits, 16 of codes in 4 planes, 3 of scales."""
    cdef w8 three = w8_set1_u8(3)
    cdef w8 four = w8_set1_u8(4)
    cdef w8 top_scale = w8_set1_i32(32)
    cdef w8 v, h, top, s0, s1
    cdef Py_ssize_t _
    cdef int i, g, at, low
    for _ in range(nb):
        put_f8(to, AT_D, f8_load_f16(<const uint16_t*> p))
        p += 16
        top = w8_load(p + 32 * 26)
        for g in range(8):
            # Scale j: a nibble of byte j mod 8 and two bits of byte j mod 4 of the third word.
            v = w8_load(p + 32 * (24 + (g >> 1 & 1)))
            at = 16 * (g & 1)
            low = at + 4 * (g >> 2)
            s0 = w8_or(field(v, low, 15), w8_shl32(field(top, at + 2 * (g >> 1), 3), 4))
            s1 = w8_or(field(v, low + 8, 15), w8_shl32(field(top, at + 8 + 2 * (g >> 1), 3), 4))
            put_scales(to, g, w8_sub32(s0, top_scale), w8_sub32(s1, top_scale), 4)
        for i in range(2):
            for g in range(8):
                v = w8_load(p + 32 * (8 + 8 * i + g))
                h = w8_load(p + 32 * g)
                if i == 1:
                    h = w8_shr16(h, 4)
                put(to, 32 * i + g, w8_or(w8_and(v, three), w8_and(w8_shl16(h, 2), four)))
                put(to, 32 * i + g + 8, w8_or(w8_and(w8_shr16(v, 2), three), w8_and(w8_shl16(h, 1), four)))
                put(to, 32 * i + g + 16, w8_or(w8_and(w8_shr16(v, 4), three), w8_and(h, four)))
                put(to, 32 * i + g + 24, w8_or(w8_and(w8_shr16(v, 6), three), w8_and(w8_shr16(h, 1), four)))
        p += 27 * 32
        to += UNIT_K


cdef inline void expand_q6_k(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """The scale, then words: 32 of low nibbles, 16 of two high bits in 4 planes, 4 of signed scales."""
    cdef w8 low = w8_set1_u8(15)
    cdef w8 high = w8_set1_u8(48)
    cdef w8 v, q0, q1, h
    cdef Py_ssize_t _
    cdef int i, g
    for _ in range(nb):
        put_f8(to, AT_D, f8_load_f16(<const uint16_t*> p))
        p += 16
        for g in range(4):
            v = w8_load(p + 32 * (48 + g))
            put_scales(to, 2 * g, w8_byte_i32(v, 0), w8_byte_i32(v, 1), 32)
            put_scales(to, 2 * g + 1, w8_byte_i32(v, 2), w8_byte_i32(v, 3), 32)
        for i in range(2):
            for g in range(8):
                q0 = w8_load(p + 32 * (16 * i + g))
                q1 = w8_load(p + 32 * (16 * i + 8 + g))
                h = w8_load(p + 32 * (32 + 8 * i + g))
                put(to, 32 * i + g, w8_or(w8_and(q0, low), w8_and(w8_shl16(h, 4), high)))
                put(to, 32 * i + g + 8, w8_or(w8_and(q1, low), w8_and(w8_shl16(h, 2), high)))
                put(to, 32 * i + g + 16, w8_or(w8_and(w8_shr16(q0, 4), low), w8_and(h, high)))
                put(to, 32 * i + g + 24, w8_or(w8_and(w8_shr16(q1, 4), low), w8_and(w8_shr16(h, 2), high)))
        p += 52 * 32
        to += UNIT_K


cdef inline void expand_iq4_xs(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """Words: the scale with eight times two high bits of scales, their low nibbles, 32 of codes."""
    cdef w8 head, low, s
    cdef Py_ssize_t _
    cdef int j
    for _ in range(nb):
        head = w8_load(p)
        low = w8_load(p + 32)
        put_f8(to, AT_D, f8_from_f16_of_words(head, 0))
        for j in range(8):
            s = w8_or(field(low, 4 * j, 15), w8_shl32(field(head, 16 + 2 * j, 3), 4))
            s = w8_sub32(s, w8_set1_i32(32))
            put_scales(to, j, s, s, 0)
            nibble_levels(p + 64 + 128 * j, 4, fu_iq4_levels, to + 256 * j)
        p += 34 * 32
        to += UNIT_K


cdef inline void trits(const char* p, int words, int count, char* to) noexcept nogil:
    """``count`` base-3 digits of each byte: tripling brings the next one above the byte."""
    cdef w8 byte = w8_set1_i16(255)
    cdef w8 v, even, odd
    cdef int g, n
    for g in range(words):
        v = w8_load(p + 32 * g)
        even = w8_and(v, byte)
        odd = w8_shr16(v, 8)
        for n in range(count):
            even = w8_add16(w8_add16(even, even), even)
            odd = w8_add16(w8_add16(odd, odd), odd)
            put(to, words * n + g, w8_or(w8_shr16(even, 8), w8_shl16(w8_shr16(odd, 8), 8)))
            even = w8_and(even, byte)
            odd = w8_and(odd, byte)


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


cdef inline void two_bits(const char* p, int first, int step, char* to) noexcept nogil:
    """Eight words hold four planes of 32 elements; plane j starts at bit ``first + step * j`` of each byte."""
    cdef w8 three = w8_set1_u8(3)
    cdef w8 v
    cdef int g, j
    for g in range(8):
        v = w8_load(p + 32 * g)
        for j in range(4):
            put(to, 8 * j + g, w8_and(w8_shr16(v, first + step * j), three))


cdef inline void expand_tq2_0(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    cdef Py_ssize_t _
    for _ in range(nb):
        put_f8(to, 2048, f8_load_f16(<const uint16_t*> p))
        two_bits(p + 16, 0, 2, to)
        two_bits(p + 16 + 256, 0, 2, to + 1024)
        p += 16 + 512
        to += UNIT_TERNARY


cdef inline void expand_i2_s(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """Two blocks of 128 meet one of activations; the first plane is in the highest bits."""
    cdef Py_ssize_t _
    for _ in range(nb):
        put_f8(to, 2048, f8_set1(1))
        two_bits(p, 6, -2, to)
        two_bits(p + 256, 6, -2, to + 1024)
        p += 512
        to += UNIT_TERNARY
