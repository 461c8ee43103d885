"""Expanding grid formats: indices of lattice points, with signs or a common shift; see ``codes.pxd``.

A point is loaded per row and group, signs of all rows are applied at once (``codes.h``). Codes: iq2 + 43 (0 to 86),
iq3_xxs + 62 (0 to 124), iq3_s + 15 (0 to 30), iq1 in eighths + 9 (0 to 18).
"""

from libc.stdint cimport uint8_t, uint16_t

from codes cimport (
    AT_D, UNIT_K, codes_of_eighths, codes_of_points4, codes_of_points8, put_f8, put_scales, w8_even_parity,
)
from unpack_k cimport field
from simd cimport (
    f8_from_f16_of_words, f8_load_f16, f8_mul, f8_set1, w8, w8_add32, w8_and, w8_load, w8_or, w8_set1_i32, w8_shl32,
    w8_shr32, w8_zero,
)


cdef inline w8 odd(w8 s) noexcept nogil:
    """2 s + 1."""
    return w8_add32(w8_shl32(s, 1), w8_set1_i32(1))


cdef inline w8 signs_of_28(w8 word) noexcept nogil:
    """Four times seven signs, each with its eighth."""
    cdef w8 x = w8_or(field(word, 0, 127), w8_shl32(field(word, 7, 127), 8))
    return w8_even_parity(w8_or(x, w8_or(w8_shl32(field(word, 14, 127), 16), w8_shl32(field(word, 21, 127), 24))))


cdef inline void expand_iq2_xxs(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """The scale; per 32 elements a word of four indices and one of signs and scale."""
    cdef w8 v, word, signs, s
    cdef Py_ssize_t _
    cdef int j
    for _ in range(nb):
        put_f8(to, AT_D, f8_mul(f8_load_f16(<const uint16_t*> p), f8_set1(0.125)))
        p += 16
        for j in range(8):
            v = w8_load(p + 64 * j)
            word = w8_load(p + 64 * j + 32)
            s = odd(w8_shr32(word, 28))
            put_scales(to, j, s, s, 43)
            signs = signs_of_28(word)
            codes_of_points8(to + 256 * j, grid, field(v, 0, 255), field(v, 8, 255), signs, 0, 43)
            codes_of_points8(to + 256 * j + 128, grid, field(v, 16, 255), field(v, 24, 255), signs, 1, 43)
        p += 16 * 32
        to += UNIT_K


cdef inline void expand_iq2_xs(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """The scale; 16 words of two groups each, nine bits of index and seven signs; 2 words of scales."""
    cdef w8 v, signs
    cdef Py_ssize_t _
    cdef int i
    for _ in range(nb):
        put_f8(to, AT_D, f8_mul(f8_load_f16(<const uint16_t*> p), f8_set1(0.125)))
        p += 16
        for i in range(8):
            v = w8_load(p + 32 * (16 + (i >> 2)))
            put_scales(to, i, odd(field(v, 8 * (i & 3), 15)), odd(field(v, 8 * (i & 3) + 4, 15)), 43)
        for i in range(16):
            v = w8_load(p + 32 * i)
            signs = w8_even_parity(w8_or(field(v, 9, 127), w8_shl32(field(v, 25, 127), 8)))
            codes_of_points8(to + 128 * i, grid, field(v, 0, 511), field(v, 16, 511), signs, 0, 43)
        p += 18 * 32
        to += UNIT_K


cdef inline void expand_iq2_s(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """The scale; words: 8 of index bytes, 8 of signs, 2 of two more index bits, 2 of scales."""
    cdef w8 v, signs, high
    cdef Py_ssize_t _
    cdef int j
    for _ in range(nb):
        put_f8(to, AT_D, f8_mul(f8_load_f16(<const uint16_t*> p), f8_set1(0.125)))
        p += 16
        for j in range(8):
            v = w8_load(p + 32 * (18 + (j >> 2)))
            put_scales(to, j, odd(field(v, 8 * (j & 3), 15)), odd(field(v, 8 * (j & 3) + 4, 15)), 43)
            v = w8_load(p + 32 * j)
            signs = w8_load(p + 32 * (8 + j))
            high = w8_shr32(w8_load(p + 32 * (16 + (j >> 2))), 8 * (j & 3))
            codes_of_points8(to + 256 * j, grid, w8_or(field(v, 0, 255), w8_shl32(field(high, 0, 3), 8)),
                             w8_or(field(v, 8, 255), w8_shl32(field(high, 2, 3), 8)), signs, 0, 43)
            codes_of_points8(to + 256 * j + 128, grid, w8_or(field(v, 16, 255), w8_shl32(field(high, 4, 3), 8)),
                             w8_or(field(v, 24, 255), w8_shl32(field(high, 6, 3), 8)), signs, 1, 43)
        p += 20 * 32
        to += UNIT_K


cdef inline void expand_iq3_xxs(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """The scale; words: 16 of index bytes, 8 of signs and scale."""
    cdef w8 word, s
    cdef Py_ssize_t _
    cdef int j
    for _ in range(nb):
        put_f8(to, AT_D, f8_mul(f8_load_f16(<const uint16_t*> p), f8_set1(0.25)))
        p += 16
        for j in range(8):
            word = w8_load(p + 32 * (16 + j))
            s = odd(w8_shr32(word, 28))
            put_scales(to, j, s, s, 62)
            codes_of_points4(to + 256 * j, grid, p + 64 * j, w8_zero(), signs_of_28(word), 62)
        p += 24 * 32
        to += UNIT_K


cdef inline void expand_iq3_s(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """The scale; words: 16 of index bytes, 2 of ninth bits, 8 of signs, 1 of scales."""
    cdef w8 high, scales, s
    cdef Py_ssize_t _
    cdef int j
    for _ in range(nb):
        put_f8(to, AT_D, f8_load_f16(<const uint16_t*> p))
        p += 16
        scales = w8_load(p + 32 * 26)
        for j in range(8):
            s = odd(field(scales, 4 * j, 15))
            put_scales(to, j, s, s, 15)
            high = w8_shr32(w8_load(p + 32 * (16 + (j >> 2))), 8 * (j & 3))
            codes_of_points4(to + 256 * j, grid, p + 64 * j, high, w8_load(p + 32 * (18 + j)), 15)
        p += 27 * 32
        to += UNIT_K


cdef inline w8 all_of(w8 bit) noexcept nogil:
    """Four times the same bit."""
    return w8_or(w8_or(bit, w8_shl32(bit, 1)), w8_or(w8_shl32(bit, 2), w8_shl32(bit, 3)))


cdef inline void expand_iq1_s(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """The scale; words: 8 of index bytes, 4 of index bits, scales and shifts for twice 32 elements."""
    cdef w8 word, s
    cdef Py_ssize_t _
    cdef int j
    for _ in range(nb):
        put_f8(to, AT_D, f8_mul(f8_load_f16(<const uint16_t*> p), f8_set1(0.125)))
        p += 16
        for j in range(8):
            word = w8_shr32(w8_load(p + 32 * (8 + (j >> 1))), 16 * (j & 1))
            s = odd(field(word, 12, 7))
            put_scales(to, j, s, s, 9)
            codes_of_eighths(to + 256 * j, grid, w8_load(p + 32 * j), word, 3, all_of(field(word, 15, 1)))
        p += 12 * 32
        to += UNIT_K


cdef inline void expand_iq1_m(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """Words: 8 of index bytes, 4 of nibbles with index bits and shift, 2 of scales and a nibble of the scale each."""
    cdef w8 v, s0, s1, nibbles, minus
    cdef Py_ssize_t _
    cdef int j, at
    for _ in range(nb):
        s0 = w8_load(p + 32 * 12)
        s1 = w8_load(p + 32 * 13)
        v = w8_or(field(s0, 12, 15), w8_shl32(field(s0, 28, 15), 4))
        v = w8_or(v, w8_or(w8_shl32(field(s1, 12, 15), 8), w8_shl32(field(s1, 28, 15), 12)))
        put_f8(to, AT_D, f8_mul(f8_from_f16_of_words(v, 0), f8_set1(0.125)))
        for j in range(8):
            at = 16 * (j >> 1 & 1) + 6 * (j & 1)
            v = s1 if j >= 4 else s0
            put_scales(to, j, odd(field(v, at, 7)), odd(field(v, at + 3, 7)), 9)
            nibbles = w8_shr32(w8_load(p + 32 * (8 + (j >> 1))), 16 * (j & 1))
            minus = w8_or(field(nibbles, 3, 1), field(nibbles, 6, 2))
            minus = w8_or(minus, w8_or(field(nibbles, 9, 4), field(nibbles, 12, 8)))
            codes_of_eighths(to + 256 * j, grid, w8_load(p + 32 * j), nibbles, 4, minus)
        p += 14 * 32
        to += UNIT_K
