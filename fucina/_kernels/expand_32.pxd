"""Expanding formats whose scales are floating-point numbers per 16, 32 or more elements; see ``codes.pxd``.

Codes: iq4_nl and nvfp4 signed; mxfp4 + 12; q2_0 + 1; q1_0 (-1 or 1) + 1.
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t

from codes cimport (
    UNIT_16, UNIT_32, codes_of_bits, codes_of_crumbs, f8_e8m0_half, f8_ue4m3_half, put, put_f8, w8_table16,
)
from levels cimport fu_fp4_levels, fu_iq4_levels
from simd cimport f8, f8_load_f16, w8, w8_and, w8_load, w8_set1_i32, w8_set1_u8, w8_shr16, w8_shr32


cdef inline void nibble_levels(const char* p, int words, const int8_t* levels, char* to) noexcept nogil:
    """Low nibbles of ``words`` words, then their high nibbles, through a table."""
    cdef w8 low = w8_set1_u8(15)
    cdef w8 v
    cdef int g
    for g in range(words):
        v = w8_load(p + 32 * g)
        put(to, g, w8_table16(w8_and(v, low), levels))
        put(to, words + g, w8_table16(w8_and(w8_shr16(v, 4), low), levels))


cdef inline void expand_iq4_nl(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    cdef Py_ssize_t _
    for _ in range(nb):
        put_f8(to, 256, f8_load_f16(<const uint16_t*> p))
        nibble_levels(p + 16, 4, fu_iq4_levels, to)
        p += 16 + 4 * 32
        to += UNIT_32


cdef inline void expand_mxfp4(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    cdef int8_t[16] biased
    cdef Py_ssize_t _
    cdef int i
    for i in range(16):
        biased[i] = fu_fp4_levels[i] + 12
    for _ in range(nb):
        put_f8(to, 256, f8_e8m0_half(<const uint8_t*> p))
        nibble_levels(p + 8, 4, biased, to)
        p += 8 + 4 * 32
        to += UNIT_32


cdef inline void expand_nvfp4(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """The four bytes of the first word are the scales of 16 elements each."""
    cdef w8 byte = w8_set1_i32(255)
    cdef w8 scales
    cdef Py_ssize_t _
    cdef int s
    for _ in range(nb):
        scales = w8_load(p)
        for s in range(4):
            put_f8(to + (s >> 1) * UNIT_16, 256 + 32 * (s & 1), f8_ue4m3_half(w8_and(w8_shr32(scales, 8 * s), byte)))
            nibble_levels(p + 32 + 64 * s, 2, fu_fp4_levels, to + (s >> 1) * UNIT_16 + 128 * (s & 1))
        p += 9 * 32
        to += 2 * UNIT_16


cdef inline void expand_q1_0(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """A word holds the bits of 32 elements, the lowest first."""
    cdef f8 d
    cdef Py_ssize_t _
    cdef int s
    for _ in range(nb):
        d = f8_load_f16(<const uint16_t*> p)
        for s in range(4):
            codes_of_bits(to, w8_load(p + 16 + 32 * s), 2)
            put_f8(to, 256, d)
            to += UNIT_32
        p += 16 + 4 * 32


cdef inline void crumb_words(const char* p, Py_ssize_t nb, int parts, char* to) noexcept nogil:
    """A byte holds four elements; ``parts`` times 32 of them are a block."""
    cdef f8 d
    cdef Py_ssize_t _
    cdef int _s
    for _ in range(nb):
        d = f8_load_f16(<const uint16_t*> p)
        p += 16
        for _s in range(parts):
            codes_of_crumbs(to, w8_load(p))
            codes_of_crumbs(to + 128, w8_load(p + 32))
            put_f8(to, 256, d)
            p += 64
            to += UNIT_32


cdef inline void expand_q2_0(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    crumb_words(p, nb, 2, to)


cdef inline void expand_q2_0_g128(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    crumb_words(p, nb, 4, to)
