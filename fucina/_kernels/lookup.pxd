"""One column times weights of one or 1.6 bits: sums are looked up instead of multiplied.

A byte of q1_0 holds 8 signs, a byte of tq1_0 5 digits of base 3. Unpacked and multiplied they keep a core busier than
its memory. But a few weights have few values: the sums of 4 activations with 16 patterns of signs, of 2 with 9 and of
3 with 27 patterns of digits are tables that one shuffle of bytes asks for 16 rows. 27 become 14 by their symmetry:
|c - 13| is the index, and its sign that of the sum.

A sum has more than 8 bits, so a table holds two digits of it, sum = low + 32 * high, which are summed as bytes as long
as they fit and are put together by one multiply-add. Sums are the same integers as elsewhere.

Memory: 32 rows, a panel of 8 out of four streams, are taken together, because a shuffle has one table for 16 rows.
Panels hold bytes in the order and the code that is made for this (``recode.pxd``).
Nothing is fetched ahead: hardware follows four streams, and asking took 1.03 times as long (AMD Zen 3, 2026-11).
Tables of q1_0: 64 bytes per byte of weights (16 low digits and 16 high ones for its low and its high four bits), of
tq1_0 as well (low digits of the first two activations and of the last three, then high ones).
"""

from libc.stdint cimport int8_t, int16_t, uint16_t
from libc.string cimport memcpy

from blocks cimport Q1_0, TQ1_0
from codes cimport w8_add8, w8_sign8, w8_sub8, w8_table16
from recode cimport fu_first_byte, w8_part8
from simd cimport (
    f8, f8_fma, f8_from_i32, f8_load_f16, f8_mul, f8_set1, w8, w8_abs8, w8_add16, w8_and, w8_load, w8_madd, w8_maddubs,
    w8_sar16, w8_sar32, w8_set1_i16, w8_set1_i32, w8_set1_u8, w8_shr16, w8_zero,
)

cdef extern from "lookup.h" nogil:
    void w8_join_bytes(const char* const* panels, long at, w8* v)
    w8 w8_zip8(w8 a, w8 b, int high)
    void w8_store_bytes(char* to, w8 a, w8 b)

cdef enum:
    TOGETHER = 4            # panels
    TABLE = 64              # bytes of tables per byte of weights
    BYTES = 52              # of digits in a block of tq1_0


cdef inline int16_t pair(int8_t first, int8_t second) noexcept nogil:
    return (first & 255) | (second << 8)


cdef inline w8 pair_sums(int16_t pair, w8 signs) noexcept nogil:
    """Two activations with 16 patterns of signs (-1, 0 or 1 for either), summed."""
    return w8_maddubs(w8_set1_u8(1), w8_sign8(w8_set1_i16(pair), signs))


cdef inline void put_digits(char* to, w8 sums, int low) noexcept nogil:
    """Sums + ``low`` as digits of base 32; the low ones range from -``low`` to 31 - ``low``."""
    w8_store_bytes(to, w8_add16(w8_and(sums, w8_set1_i16(31)), w8_set1_i16(-low)), w8_sar16(sums, 5))


cdef inline void tabulate_q1_0(const int8_t* qs, Py_ssize_t k, char* to) noexcept nogil:
    """Four activations with all signs. Digits are unsigned, of sums + 512: 8 of them fit into a byte (8 * 31 = 248)."""
    cdef int8_t[64] signs
    cdef int16_t[2] pairs
    cdef w8 first, second
    cdef Py_ssize_t i
    cdef int e
    for i in range(4):
        for e in range(16):
            signs[32 * (i >> 1) + 2 * e + (i & 1)] = 1 if e >> i & 1 else -1
    first, second = w8_load(signs), w8_load(signs + 32)
    for i in range(0, k, 4):
        memcpy(pairs, qs + i, 4)
        put_digits(to, w8_add16(w8_add16(pair_sums(pairs[0], first), pair_sums(pairs[1], second)), w8_set1_i16(512)), 0)
        to += TABLE // 2


cdef inline void take_pairs(const int8_t* qs, const int count, const bint fifth, int16_t* pairs) noexcept nogil:
    """The activations of ``count`` bytes, three pairs each: those of a byte's five digits are ``count`` apart."""
    cdef int p
    for p in range(count):
        pairs[p] = pair(qs[p], qs[count + p])
        pairs[BYTES + p] = pair(qs[2 * count + p], qs[3 * count + p])
        pairs[2 * BYTES + p] = pair(qs[4 * count + p], 0) if fifth else 0


cdef inline void tabulate_tq1_0(const int8_t* qs, Py_ssize_t k, char* to) noexcept nogil:
    """32, 16 and 4 bytes; the fifth digit of the last ones stands for nothing."""
    cdef int8_t[96] signs
    cdef int16_t pairs[3 * BYTES]
    cdef w8 first, second, third, some = w8_set1_i16(16)
    cdef Py_ssize_t b
    cdef int e, p
    for e in range(96):
        signs[e] = 0
    for e in range(9):
        signs[2 * e] = e // 3 - 1
        signs[2 * e + 1] = e % 3 - 1
    for e in range(14):
        signs[32 + 2 * e] = (e + 13) // 9 - 1
        signs[32 + 2 * e + 1] = (e + 13) // 3 % 3 - 1
        signs[64 + 2 * e] = (e + 13) % 3 - 1
    first, second, third = w8_load(signs), w8_load(signs + 32), w8_load(signs + 64)
    for b in range(0, k, 256):
        take_pairs(qs + b, 32, True, pairs)
        take_pairs(qs + b + 160, 16, True, pairs + 32)
        take_pairs(qs + b + 240, 4, False, pairs + 48)
        for p in range(BYTES):
            put_digits(to, w8_add16(pair_sums(pairs[p], first), some), 16)
            put_digits(to + 32, w8_add16(w8_add16(pair_sums(pairs[BYTES + p], second),
                                                  pair_sums(pairs[2 * BYTES + p], third)), some), 16)
            to += TABLE


cdef inline void add_scaled(w8 ab, w8 cd, const f8* dw, float da, f8* y) noexcept nogil:
    """Add the sums of four panels, two and two of them in turn, times their scales."""
    cdef w8 one = w8_set1_i32(1)
    cdef f8 d = f8_set1(da)
    y[0] = f8_fma(f8_mul(dw[0], d), f8_from_i32(w8_madd(ab, one)), y[0])
    y[1] = f8_fma(f8_mul(dw[1], d), f8_from_i32(w8_sar32(ab, 16)), y[1])
    y[2] = f8_fma(f8_mul(dw[2], d), f8_from_i32(w8_madd(cd, one)), y[2])
    y[3] = f8_fma(f8_mul(dw[3], d), f8_from_i32(w8_sar32(cd, 16)), y[3])


cdef inline void look_up_q1_0(const char* const* panels, Py_ssize_t nb, const char* tables, const float* d,
                              f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of four panels."""
    cdef const char* p[TOGETHER]
    cdef f8 y[TOGETHER]
    cdef f8 dw[TOGETHER]
    cdef w8 v[4]
    cdef w8 nibble = w8_set1_u8(15), digits = w8_set1_i16(0x2001), over = w8_set1_i16(-8 * 512)
    cdef w8 low, high, x
    cdef Py_ssize_t _
    cdef int i, s
    for i in range(TOGETHER):
        p[i], y[i] = panels[i], acc[i]
    for _ in range(nb):
        for i in range(TOGETHER):
            dw[i] = f8_load_f16(<const uint16_t*> p[i])
        for s in range(4):
            w8_join_bytes(p, 16 + 32 * s, v)
            low = w8_zero()
            high = w8_zero()
            for i in range(4):
                x = w8_and(v[i], nibble)
                low = w8_add8(low, w8_table16(x, <const int8_t*> tables))
                high = w8_add8(high, w8_table16(x, <const int8_t*> tables + 16))
                x = w8_and(w8_shr16(v[i], 4), nibble)
                low = w8_add8(low, w8_table16(x, <const int8_t*> tables + 32))
                high = w8_add8(high, w8_table16(x, <const int8_t*> tables + 48))
                tables += TABLE
            add_scaled(w8_add16(w8_maddubs(w8_zip8(low, high, 0), digits), over),
                       w8_add16(w8_maddubs(w8_zip8(low, high, 1), digits), over), dw, d[0], y)
            d += 1
        for i in range(TOGETHER):
            p[i] += 8 * sizeof(Q1_0)
    for i in range(TOGETHER):
        acc[i] = y[i]


cdef inline void look_up_tq1_0(const char* const* panels, Py_ssize_t nb, const char* tables, const float* d,
                               f8* acc) noexcept nogil:
    """The same. Middles are the bytes whose three last digits stand for nothing, 1 1 1.

    A word's low digits are 8 numbers from -16 to 16 whose sum is at least -128; sums of a block fit into 16 bits.
    """
    cdef const char* p[TOGETHER]
    cdef f8 y[TOGETHER]
    cdef f8 dw[TOGETHER]
    cdef w8 v[4]
    cdef int8_t[16] middles
    cdef w8 digits = w8_set1_i16(0x2001)
    cdef w8 low, high, ab, cd, first, last, index
    cdef Py_ssize_t _
    cdef int i, g
    for i in range(16):
        middles[i] = <int8_t> (fu_first_byte[i] + 13)
    for i in range(TOGETHER):
        p[i], y[i] = panels[i], acc[i]
    for _ in range(nb):
        ab = w8_zero()
        cd = w8_zero()
        for g in range(13):
            w8_join_bytes(p, 16 + 32 * g, v)
            low = w8_zero()
            high = w8_zero()
            for i in range(4):
                first = w8_part8(v[i], 9)
                last = w8_sub8(v[i], w8_table16(first, middles))
                index = w8_abs8(last)
                low = w8_add8(low, w8_table16(first, <const int8_t*> tables))
                high = w8_add8(high, w8_table16(first, <const int8_t*> tables + 16))
                low = w8_add8(low, w8_sign8(w8_table16(index, <const int8_t*> tables + 32), last))
                high = w8_add8(high, w8_sign8(w8_table16(index, <const int8_t*> tables + 48), last))
                tables += TABLE
            ab = w8_add16(ab, w8_maddubs(digits, w8_zip8(low, high, 0)))
            cd = w8_add16(cd, w8_maddubs(digits, w8_zip8(low, high, 1)))
        for i in range(TOGETHER):
            dw[i] = f8_load_f16(<const uint16_t*> p[i])
            p[i] += 8 * sizeof(TQ1_0)
        add_scaled(ab, cd, dw, d[0], y)
        d += 1
    for i in range(TOGETHER):
        acc[i] = y[i]
