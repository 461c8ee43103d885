"""What packing changes in the bytes of q1_0 and tq1_0 for the sake of sums that are looked up (``lookup.pxd``).

Every format's panel holds words of eight rows. Lookups need the same byte of many rows side by side, so here the words
of four rows, half a vector, are turned: first byte 0 of the four, then their bytes 1, 2 and 3.

A byte of tq1_0 is a number v of five digits of base 3, stored as ceil(256 / 243 * v). Panels hold ceil(256 / 9 * f) + r
instead, of its two leading digits, f = v // 27, and the other three, r = v % 27. Then f is one multiplication away and r
one table more; ggml's byte takes two multiplications. Bytes that ggml never writes become those with the same digits.

Four panels times a column of 4096, from the caches, one core, Gweights/s: ggml's bytes 56, these bytes 64, turned 70
(AMD Zen 3, 2026-11).
"""

from libc.stdint cimport int8_t

from codes cimport w8_add8, w8_sub8, w8_table16
from simd cimport w8, w8_load, w8_store

cdef extern from "recode.h" nogil:
    const int8_t fu_first_byte[16]
    const int8_t fu_byte_gap[16]
    const int8_t fu_third[16]
    const int8_t fu_unit[16]
    const int8_t fu_nine[16]
    w8 w8_part8(w8 x, int k)
    w8 w8_turn8(w8 x)


cdef inline void recode_q1_0(char* panel, Py_ssize_t nb) noexcept nogil:
    """``nb`` interleaved blocks of 8 rows, in place: eight scales, four words."""
    cdef Py_ssize_t _
    cdef int _g
    for _ in range(nb):
        panel += 16
        for _g in range(4):
            w8_store(panel, w8_turn8(w8_load(panel)))
            panel += 32


cdef inline void recode_tq1_0(char* panel, Py_ssize_t nb) noexcept nogil:
    """The same: eight scales, 13 words."""
    cdef Py_ssize_t _
    cdef int _g
    cdef w8 x
    for _ in range(nb):
        panel += 16
        for _g in range(13):
            x = w8_load(panel)
            x = w8_add8(w8_part8(x, 243), w8_table16(w8_part8(x, 9), fu_byte_gap))
            w8_store(panel, w8_turn8(x))
            panel += 32


cdef inline void five_digits(const char* p, w8* digits) noexcept nogil:
    """Of a word of eight rows, the leading ones first."""
    cdef w8 x = w8_turn8(w8_load(p))
    cdef w8 first = w8_part8(x, 9)
    cdef w8 last = w8_sub8(x, w8_table16(first, fu_first_byte))
    digits[0] = w8_table16(first, fu_third)
    digits[1] = w8_table16(first, fu_unit)
    digits[2] = w8_part8(last, 29)      # 29 / 256 is a ninth, for numbers up to 26
    last = w8_sub8(last, w8_table16(digits[2], fu_nine))
    digits[3] = w8_table16(last, fu_third)
    digits[4] = w8_table16(last, fu_unit)
