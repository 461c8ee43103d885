"""What packing changes in the bytes of a panel, so that it is unpacked with fewer operations: q4_1, q5_0, q5_1, q3_k, q5_k,
q6_k, q1_0, tq1_0. ``recode_*`` rewrites interleaved blocks of 8 rows in place; the readers of codes stand beside them.

Six bits (q6_k): three words hold 16 elements in a row, one word of four elements in the low six bits of each, and two
bits each of a fourth. ggml has low nibbles and high bits in two places, either shared by elements far apart.

    word 0   e0 e1 e2 e3       bits 6 and 7: bits 4 and 5 of e12 e13 e14 e15
    word 1   e4 e5 e6 e7                     bits 2 and 3
    word 2   e8 e9 e10 e11                   bits 0 and 1

Five bits (q5_0, q5_1, sub-blocks of q5_k): five words hold 32 elements, a word in the low five bits of each, and three
bits each of three more. Taking a single bit to its place takes five operations a word, this takes two.

    word 0   e0 .. e3          bits 5 to 7: bits 2 to 4 of e20 .. e23
    word 1   e4 .. e7                       bits 2 to 4 of e24 .. e27
    word 2   e8 .. e11                      bits 2 to 4 of e28 .. e31
    word 3   e12 .. e15        bits 5 and 6: bits 0 and 1 of e20 .. e23; bit 7: bit 1 of e28 .. e31
    word 4   e16 .. e19                      bits 0 and 1 of e24 .. e27;        bit 0

Three bits (q3_k): three words hold 32 elements, two words of four elements in bits 0 to 2 and 3 to 5 of each, and two bits
each of two more. ggml has two bits and the third in two places.

    word 0   e0 .. e3, e4 .. e7        bits 6 and 7: bits 0 and 1 of e24 .. e27
    word 1   e8 .. e11, e12 .. e15                   bits 0 and 1 of e28 .. e31
    word 2   e16 .. e19, e20 .. e23                  bit 2 of e24 .. e27 and of e28 .. e31

Scales and mins (q4_1, q5_1): the eight scales of a block, then its eight mins, instead of pairs.

Sums that are looked up (q1_0, tq1_0; ``lookup.pxd``) need the same byte of many rows side by side. The words of four rows,
half a vector, are turned: first byte 0 of the four, then their bytes 1, 2 and 3. A byte of tq1_0 is a number v of five
digits of base 3, stored as ceil(256 / 243 * v). Panels hold ceil(256 / 9 * f) + r of its two leading digits, f = v // 27,
and the other three, r = v % 27: f is one multiplication away and r one table more. Bytes that ggml never writes become
those with the same digits.

One column from the caches, one core, Gweights/s before and after: q6_k 32 and 41 (AMD Zen 3, 2026-11); four panels of tq1_0
56, turned 64, turned and recoded 70.
"""

from libc.stdint cimport int8_t

from blocks cimport Q4_1, Q5_0, Q5_1, Q5_K
from codes cimport w8_add8, w8_move16, w8_sub8, w8_table16
from simd cimport w8, w8_and, w8_fifth_bits, w8_load, w8_or, w8_set1_u8, w8_store

cdef extern from "recode.h" nogil:
    const int8_t fu_first_byte[16]
    const int8_t fu_byte_gap[16]
    const int8_t fu_third[16]
    const int8_t fu_unit[16]
    const int8_t fu_nine[16]
    w8 w8_five_code(const char* p, int g)
    w8 w8_part8(w8 x, int k)
    w8 w8_turn8(w8 x)
    w8 w8_apart16(w8 x)

cdef enum:
    HEAD = 16       # bytes of eight scales of one f16

ctypedef fused Recoded:
    Q4_1
    Q5_0
    Q5_1
    Q5_K


cdef inline w8 moved(w8 x, int n, int mask) noexcept nogil:
    """Bits of every byte, ``n`` places up or, below zero, down."""
    return w8_and(w8_move16(x, n), w8_set1_u8(mask))


cdef inline void put_six(const w8* e, char* to) noexcept nogil:
    """Four words of codes to three."""
    w8_store(to, w8_or(e[0], moved(e[3], 2, 192)))
    w8_store(to + 32, w8_or(e[1], moved(e[3], 4, 192)))
    w8_store(to + 64, w8_or(e[2], moved(e[3], 6, 192)))


cdef inline void six_bits(const char* p, w8* e) noexcept nogil:
    """The four words of codes in three."""
    cdef w8 a = w8_load(p), b = w8_load(p + 32), c = w8_load(p + 64), six = w8_set1_u8(63)
    e[0], e[1], e[2] = w8_and(a, six), w8_and(b, six), w8_and(c, six)
    e[3] = w8_or(w8_or(moved(a, -2, 48), moved(b, -4, 12)), moved(c, -6, 3))


cdef inline void recode_q6_k(char* panel, Py_ssize_t nb) noexcept nogil:
    """Eight scales, 32 words of low nibbles, 16 of high bits, 4 of scales; the last come first then."""
    cdef w8 e[64]
    cdef w8 scales[4]
    cdef w8 v, t, h
    cdef Py_ssize_t _
    cdef int i, g
    for _ in range(nb):
        panel += HEAD
        for i in range(2):
            for g in range(8):
                # Elements g of four runs of 32: high bits of all in one word, nibbles of two in each of two.
                v, t = w8_load(panel + 32 * (16 * i + g)), w8_load(panel + 32 * (16 * i + 8 + g))
                h = w8_load(panel + 32 * (32 + 8 * i + g))
                e[32 * i + g] = w8_or(moved(v, 0, 15), moved(h, 4, 48))
                e[32 * i + 8 + g] = w8_or(moved(t, 0, 15), moved(h, 2, 48))
                e[32 * i + 16 + g] = w8_or(moved(v, -4, 15), moved(h, 0, 48))
                e[32 * i + 24 + g] = w8_or(moved(t, -4, 15), moved(h, -2, 48))
        for g in range(4):
            scales[g] = w8_load(panel + 32 * (48 + g))
        for g in range(4):
            w8_store(panel + 32 * g, scales[g])
        panel += 128
        for g in range(16):
            put_six(e + 4 * g, panel)
            panel += 96


cdef inline void three_bits(const char* p, w8* e) noexcept nogil:
    """The eight words of codes in three."""
    cdef w8 a = w8_load(p), b = w8_load(p + 32), c = w8_load(p + 64)
    e[0], e[1], e[2], e[3] = moved(a, 0, 7), moved(a, -3, 7), moved(b, 0, 7), moved(b, -3, 7)
    e[4], e[5] = moved(c, 0, 7), moved(c, -3, 7)
    e[6] = w8_or(moved(a, -6, 3), moved(c, -4, 4))
    e[7] = w8_or(moved(b, -6, 3), moved(c, -5, 4))


cdef inline void recode_q3_k(char* panel, Py_ssize_t nb) noexcept nogil:
    """Eight scales, 8 words of third bits, bit j of a byte belonging to run j of 32, 16 of two bits each of four runs."""
    cdef w8 e[64]
    cdef w8 v, h
    cdef Py_ssize_t _
    cdef int i, j, g
    for _ in range(nb):
        panel += HEAD
        for g in range(8):
            h = w8_load(panel + 32 * g)
            for i in range(2):
                v = w8_load(panel + 32 * (8 + 8 * i + g))
                for j in range(4):
                    e[8 * (4 * i + j) + g] = w8_or(moved(v, -2 * j, 3), moved(h, 2 - 4 * i - j, 4))
        for j in range(8):
            for i in range(3):
                v = w8_or(e[8 * j + 2 * i], moved(e[8 * j + 2 * i + 1], 3, 56))
                if i < 2:
                    v = w8_or(v, moved(e[8 * j + 6 + i], 6, 192))
                else:
                    v = w8_or(v, w8_or(moved(e[8 * j + 6], 4, 64), moved(e[8 * j + 7], 5, 128)))
                w8_store(panel + 32 * i, v)
            panel += 96
        panel += 96


cdef inline void put_five(const w8* e, char* to) noexcept nogil:
    """Eight words of codes to five."""
    w8_store(to, w8_or(e[0], moved(e[5], 3, 224)))
    w8_store(to + 32, w8_or(e[1], moved(e[6], 3, 224)))
    w8_store(to + 64, w8_or(e[2], moved(e[7], 3, 224)))
    w8_store(to + 96, w8_or(w8_or(e[3], moved(e[5], 5, 96)), moved(e[7], 6, 128)))
    w8_store(to + 128, w8_or(w8_or(e[4], moved(e[6], 5, 96)), moved(e[7], 7, 128)))


cdef inline void five_bits(const char* p, w8* e) noexcept nogil:
    """The eight words of codes in five."""
    cdef int g
    for g in range(8):
        e[g] = w8_five_code(p, g)


cdef inline void recode_words(Recoded* p, Py_ssize_t nb) noexcept nogil:
    """Of 32 elements a word of scale and min, unless it is a head, a word of fifth bits and four of nibbles; of 256 eight words of fifth bits, bit j of a byte belonging
    to sub-block j, and 32 of nibbles, eight for each two sub-blocks."""
    cdef char* panel = <char*> p
    cdef w8 e[64]
    cdef w8 v, h
    cdef Py_ssize_t _
    cdef int g, j
    for _ in range(nb):
        if Recoded is Q5_K:
            panel += 128
            for g in range(8):
                h = w8_load(panel + 32 * g)
                for j in range(4):
                    v = w8_load(panel + 256 + 256 * j + 32 * g)
                    e[16 * j + g] = w8_or(moved(v, 0, 15), moved(h, 4 - 2 * j, 16))
                    e[16 * j + 8 + g] = w8_or(moved(v, -4, 15), moved(h, 3 - 2 * j, 16))
            for j in range(8):
                put_five(e + 8 * j, panel)
                panel += 160
        else:
            if Recoded is not Q5_0:
                w8_store(panel, w8_apart16(w8_load(panel)))
            if Recoded is not Q4_1:
                panel += HEAD if Recoded is Q5_0 else 2 * HEAD
                h = w8_load(panel)
                for g in range(4):
                    v = w8_load(panel + 32 + 32 * g)
                    e[g] = w8_or(moved(v, 0, 15), w8_fifth_bits(h, g))
                    e[4 + g] = w8_or(moved(v, -4, 15), w8_fifth_bits(h, 4 + g))
                put_five(e, panel)
            panel += 8 * sizeof(Q4_1) if Recoded is Q4_1 else 160


cdef inline void recode_q1_0(char* panel, Py_ssize_t nb) noexcept nogil:
    """Eight scales, four words."""
    cdef Py_ssize_t _
    cdef int _g
    for _ in range(nb):
        panel += HEAD
        for _g in range(4):
            w8_store(panel, w8_turn8(w8_load(panel)))
            panel += 32


cdef inline void recode_tq1_0(char* panel, Py_ssize_t nb) noexcept nogil:
    """Eight scales, 13 words."""
    cdef Py_ssize_t _
    cdef int _g
    cdef w8 x
    for _ in range(nb):
        panel += HEAD
        for _g in range(13):
            x = w8_load(panel)
            x = w8_add8(w8_part8(x, 243), w8_table16(w8_part8(x, 9), fu_byte_gap))
            w8_store(panel, w8_turn8(x))
            panel += 32


cdef inline void five_digits(const char* p, w8* digits) noexcept nogil:
    """Of a word of tq1_0, the leading ones first."""
    cdef w8 x = w8_turn8(w8_load(p))
    cdef w8 first = w8_part8(x, 9)
    cdef w8 last = w8_sub8(x, w8_table16(first, fu_first_byte))
    digits[0] = w8_table16(first, fu_third)
    digits[1] = w8_table16(first, fu_unit)
    digits[2] = w8_part8(last, 29)      # 29 / 256 is a ninth, for numbers up to 26
    last = w8_sub8(last, w8_table16(digits[2], fu_nine))
    digits[3] = w8_table16(last, fu_third)
    digits[4] = w8_table16(last, fu_unit)
