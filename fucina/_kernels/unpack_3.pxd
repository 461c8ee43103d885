"""q3_k: 256 elements of three bits, scales of six bits per 16 elements, the codes as packing leaves them (``recode.pxd``).

``expand_q3_k`` makes code panels (``codes.pxd``) for many columns, ``row_q3_k`` multiplies what it unpacks with one column.
Codes: + 4 (0 to 7). One column leaves those in bits 3 to 5 where they are, eightfold, and shifts a sum of two instead:
2 * 2 * 56 * 127 = 28448.
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t

from codes cimport AT_D, UNIT_K, add_offset, put, put_f8, put_four_scales, w8_sub8
from dot cimport part_add, part_more, part_sar, part_total_by
from panel cimport fetch_ahead
from recode cimport HEAD, moved, three_bits
from simd cimport (
    f8, f8_fma, f8_from_i32, f8_load_f16, f8_mul, f8_set1, w8, w8_add32, w8_and, w8_bcast32, w8_dup_i8_i16, w8_here,
    w8_load, w8_or, w8_set1_u8, w8_shl32, w8_sub32, w8_zero,
)

cdef enum:
    NBYTES = 8 * 110    # of a block of 8 rows
    CODES = 24 * 32     # bytes of codes, before the scales


cdef inline w8 four_scales(const char* p, int g) noexcept nogil:
    """Word ``g`` of four: the scales of four times 16 elements. Scale j: a nibble of byte j mod 8 and two bits of byte j mod
    4 of the third word."""
    cdef w8 low = moved(w8_load(p + 32 * (g & 1)), -4 if g >= 2 else 0, 15)
    return w8_sub8(w8_or(low, moved(w8_load(p + 64), 4 - 2 * g, 48)), w8_set1_u8(32))


cdef inline void expand_q3_k(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    cdef w8 w[8]
    cdef Py_ssize_t _
    cdef int g, i
    for _ in range(nb):
        put_f8(to, AT_D, f8_load_f16(<const uint16_t*> p))
        p += HEAD
        for g in range(4):
            put_four_scales(to, g, four_scales(p + CODES, g), 2)
        for g in range(8):
            three_bits(p + 96 * g, w)
            for i in range(8):
                put(to, 8 * g + i, w[i])
        p += NBYTES - HEAD
        to += UNIT_K


cdef inline w8 thirty_two(const char* p, const int8_t* a, w8 first, w8 second) noexcept nogil:
    """Products of 32 elements, three words, times the scales of the first and the second 16."""
    cdef w8 x = w8_load(p), y = w8_load(p + 32), z = w8_load(p + 64)
    cdef w8 low = w8_set1_u8(7), high = w8_set1_u8(56)
    cdef w8 s, t
    s = part_more(part_more(w8_zero(), w8_and(x, low), w8_bcast32(a)), w8_and(y, low), w8_bcast32(a + 8))
    t = part_more(part_more(w8_zero(), w8_and(x, high), w8_bcast32(a + 4)), w8_and(y, high), w8_bcast32(a + 12))
    first = w8_here(part_total_by(part_add(s, part_sar(t, 3)), first))
    t = part_more(w8_zero(), w8_and(z, high), w8_bcast32(a + 20))
    s = part_more(part_sar(t, 3), w8_and(z, low), w8_bcast32(a + 16))
    s = part_more(s, w8_or(moved(x, -6, 3), moved(z, -4, 4)), w8_bcast32(a + 24))
    s = part_more(s, w8_or(moved(y, -6, 3), moved(z, -5, 4)), w8_bcast32(a + 28))
    return w8_add32(first, part_total_by(s, second))


cdef inline void row_q3_k(const char* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                          const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of 8 rows."""
    cdef w8 scales, total, sums
    cdef f8 dw, y = acc[0]
    cdef Py_ssize_t b
    cdef int g
    for b in range(nb):
        dw = f8_load_f16(<const uint16_t*> p)
        p += HEAD
        total = w8_zero()
        sums = w8_zero()
        for g in range(4):
            fetch_ahead(p + 192 * g, 220)
            scales = four_scales(p + CODES, g)
            sums = add_offset(sums, scales, aux + 8 * g)
            total = w8_here(w8_add32(total, thirty_two(p + 192 * g, qs, w8_dup_i8_i16(scales, 0), w8_dup_i8_i16(scales, 1))))
            total = w8_here(w8_add32(total, thirty_two(p + 192 * g + 96, qs + 32, w8_dup_i8_i16(scales, 2),
                                                       w8_dup_i8_i16(scales, 3))))
            qs += 64
        y = f8_fma(f8_mul(dw, f8_set1(d[b])), f8_from_i32(w8_sub32(total, w8_shl32(sums, 2))), y)
        p += NBYTES - HEAD
        aux += 48
    acc[0] = y
