"""One column times two panels of five-bit codes: q5_0, q5_1, q5_k.

Unpacking takes more instructions than multiplying, and within a block they wait for each other: processors look only two
or three blocks ahead. Two panels are two chains side by side. A word of codes is multiplied as soon as it is there,
because eight of them for either panel are more than there are registers, and lines are fetched between words, not in a
burst. Of one panel at a time, by turns in one process, 1024 elements a row, one thread: from the second-level cache 1.11
to 1.14 times as fast (q5_0, q5_1) and 1.00 to 1.08 (q5_k), from memory 1.05 to 1.28 and 1.02 to 1.13 (AVX2, AMD Zen 3,
2026-12).
Not measured where products of bytes are summed in 32 bits at once, and not used there.
"""

from libc.stdint cimport int8_t, uint16_t

from blocks cimport Q5_0, Q5_1, Q5_K
from dot cimport part_more_two, part_total_by
from panel cimport fetch_line
from recode cimport w8_five_code
from simd cimport (
    f8, f8_fma, f8_from_i32, f8_load_f16, f8_mul, f8_set1, w8, w8_add32, w8_dup_u8_i16, w8_here, w8_set1_i16,
    w8_zero,
)
from tile_32 cimport without_offset
from tile_k cimport close_k, head_k

ctypedef fused Five32:
    Q5_0
    Q5_1


cdef inline void dot_five_two(const char* const* codes, const char* const* ahead, const int8_t* a, const w8* scales,
                              w8* totals) noexcept nogil:
    """32 products of two panels, times their scales, added to ``totals``; three lines behind ``ahead`` are fetched.

    Four words of products are what fits 16 bits. Those made of the same bytes are neighbours.
    """
    cdef const char* p = codes[0]
    cdef const char* r = codes[1]
    cdef w8 s[2]
    cdef int e
    for e in range(2):
        fetch_line(ahead[e])
        s[e] = w8_zero()
    part_more_two(s, w8_five_code(p, 0), w8_five_code(r, 0), a)
    for e in range(2):
        fetch_line(ahead[e] + 64)
    part_more_two(s, w8_five_code(p, 3), w8_five_code(r, 3), a + 12)
    part_more_two(s, w8_five_code(p, 5), w8_five_code(r, 5), a + 20)
    for e in range(2):
        fetch_line(ahead[e] + 128)
    part_more_two(s, w8_five_code(p, 2), w8_five_code(r, 2), a + 8)
    for e in range(2):
        totals[e] = w8_add32(totals[e], part_total_by(s[e], scales[e]))
        s[e] = w8_zero()
    part_more_two(s, w8_five_code(p, 4), w8_five_code(r, 4), a + 16)
    part_more_two(s, w8_five_code(p, 1), w8_five_code(r, 1), a + 4)
    part_more_two(s, w8_five_code(p, 6), w8_five_code(r, 6), a + 24)
    part_more_two(s, w8_five_code(p, 7), w8_five_code(r, 7), a + 28)
    for e in range(2):
        totals[e] = w8_here(w8_add32(totals[e], part_total_by(s[e], scales[e])))


cdef inline void row_pair_five(const Five32* p, const char* r, Py_ssize_t nb, const int8_t* qs, const float* d,
                               const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of the panels ``p`` and ``r``. The pointer's type selects the format."""
    cdef int head = 32 if Five32 is Q5_1 else 16
    cdef const char* codes[2]
    cdef w8 ones[2]
    cdef w8 sums[2]
    cdef f8 y[2]
    cdef f8 dw
    cdef Py_ssize_t i
    cdef int e
    codes[0], codes[1] = <const char*> p + head, r + head
    ones[0] = ones[1] = w8_set1_i16(1)
    y[0], y[1] = acc[0], acc[1]
    for i in range(nb):
        sums[0] = sums[1] = w8_zero()
        dot_five_two(codes, codes, qs + 32 * i, ones, sums)
        for e in range(2):
            dw = f8_load_f16(<const uint16_t*> (codes[e] - head))
            y[e] = f8_fma(f8_mul(dw, f8_set1(d[i])), f8_from_i32(without_offset(p, sums[e], aux)), y[e])
            if Five32 is Q5_1:
                y[e] = f8_fma(f8_load_f16(<const uint16_t*> (codes[e] - 16)), f8_set1((<const float*> aux)[0]), y[e])
            codes[e] += 8 * sizeof(Five32)
        aux += 4
    acc[0], acc[1] = y[0], y[1]


cdef inline void row_pair_q5_k(const char* p, const char* r, Py_ssize_t nb, const int8_t* qs, const float* d,
                               const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of the panels ``p`` and ``r``."""
    cdef const char* at[2]
    cdef const char* codes[2]
    cdef const char* ahead[2]
    cdef w8 sc[2][2]
    cdef w8 pair[2][4]
    cdef w8 scale[2]
    cdef w8 totals[2]
    cdef f8 dw[2]
    cdef f8 dmin[2]
    cdef f8 y[2]
    cdef Py_ssize_t i
    cdef int e, j
    at[0], at[1] = p, r
    y[0], y[1] = acc[0], acc[1]
    for i in range(nb):
        for e in range(2):
            head_k(at[e], &dw[e], &dmin[e], sc[e], pair[e])
            totals[e] = w8_zero()
        for j in range(8):
            for e in range(2):
                ahead[e] = at[e] + <int> sizeof(Q5_K) * j
                codes[e] = at[e] + 128 + 160 * j
                scale[e] = w8_dup_u8_i16(sc[e][j >> 2], j & 3)
            dot_five_two(codes, ahead, qs + 32 * j, scale, totals)
        for e in range(2):
            y[e] = close_k(y[e], dw[e], dmin[e], d[i], totals[e], pair[e], aux + 32)
            at[e] += 8 * sizeof(Q5_K)
        qs += 256
        aux += 48
    acc[0], acc[1] = y[0], y[1]
