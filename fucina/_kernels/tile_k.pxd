"""Tiles of q4_k and q5_k: blocks of 256 with integer scales and mins per sub-block of 32.

A sub-block's codes are unpacked into eight registers and meet all columns; its products are added in i16 as far as they
fit (15 * 127 * 2 * 8 = 30480, 31 * 127 * 2 * 4 = 31496) and the ``madd`` that widens them multiplies by the sub-block's
scale. Mins come off through the activations' block sums. |sum| <= 256 * 31 * 127 * 63 fits 32 bits. With several
columns two panels of q4_k share the loads of activations, see ``tile_32.pxd``; the fifth bits leave nothing to gain.
"""

from libc.stdint cimport int8_t, uint8_t

from blocks cimport Q4_K, Q5_K
from dot cimport part_add, part_dot_two, part_more, part_total_by, w8_dot_by
from panel cimport TILE, OnePanel, Panels, count_of, fetch_ahead, fetch_line
from recode cimport five_bits
from simd cimport (
    f8, f8_fma, f8_from_f16_of_words, f8_from_i32, f8_mul, f8_set1, f8_zero, w8, w8_add32, w8_and, w8_bcast32,
    w8_dup_u8_i16, w8_here, w8_load, w8_madd, w8_or, w8_pair_u8_i16, w8_set1_u8, w8_shr16, w8_zero,
)

ctypedef fused BlockK:
    Q4_K
    Q5_K


cdef inline void head_k(const char* p, f8* dw, f8* dmin, w8* sc, w8* pair) noexcept nogil:
    """The head of a block: both f16 scales, two words of scales of sub-blocks, four of pairs of mins."""
    cdef w8 s0 = w8_load(p + 32), s1 = w8_load(p + 64), s2 = w8_load(p + 96)
    cdef w8 mn[2]
    cdef int g
    dw[0], dmin[0] = f8_from_f16_of_words(w8_load(p), 0), f8_from_f16_of_words(w8_load(p), 1)
    sc[0] = w8_and(s0, w8_set1_u8(63))
    mn[0] = w8_and(s1, w8_set1_u8(63))
    sc[1] = w8_or(w8_and(s2, w8_set1_u8(15)), w8_and(w8_shr16(s0, 2), w8_set1_u8(48)))
    mn[1] = w8_or(w8_and(w8_shr16(s2, 4), w8_set1_u8(15)), w8_and(w8_shr16(s1, 2), w8_set1_u8(48)))
    for g in range(4):
        pair[g] = w8_pair_u8_i16(mn[g >> 1], g & 1)


cdef inline f8 close_k(f8 acc, f8 dw, f8 dmin, float da, w8 total, const w8* pair, const char* sums) noexcept nogil:
    """One more block of a column; ``sums``: its eight sums of 32 elements."""
    cdef w8 mins = w8_add32(w8_madd(pair[0], w8_bcast32(sums)), w8_madd(pair[1], w8_bcast32(sums + 4)))
    mins = w8_add32(mins, w8_madd(pair[2], w8_bcast32(sums + 8)))
    mins = w8_add32(mins, w8_madd(pair[3], w8_bcast32(sums + 12)))
    acc = f8_fma(f8_mul(dw, f8_set1(da)), f8_from_i32(total), acc)
    return f8_fma(f8_mul(dmin, f8_set1(-da)), f8_from_i32(mins), acc)


cdef inline void tile_k(const BlockK* tag, const Panels* panels, const char* const* starts, Py_ssize_t nb, const int8_t* qs,
                        const float* d, const char* aux, int nc, f8* acc) noexcept nogil:
    """Add ``nc`` columns times ``nb`` blocks of one or two panels; acc[count * c + e] for panel e."""
    cdef int count = count_of(panels)
    cdef const char* p[2]
    cdef w8 w[2][8]
    cdef w8 total[2 * TILE]
    cdef w8 sc[2][2]
    cdef w8 pair[2][4]
    cdef w8 scale[2]
    cdef w8 s[2]
    cdef w8 v, low
    cdef f8 dw[2]
    cdef f8 dmin[2]
    cdef const int8_t* a
    cdef Py_ssize_t _
    cdef int c, e, j, g
    low = w8_set1_u8(15)
    for e in range(count):
        p[e] = starts[e]
    for _ in range(nb):
        for e in range(count):
            head_k(p[e], &dw[e], &dmin[e], sc[e], pair[e])
            p[e] += 128
        for c in range(count * nc):
            total[c] = w8_zero()
        for j in range(8):
            for e in range(count):
                fetch_ahead(p[e] + <int> sizeof(BlockK) * j, sizeof(BlockK))
                if BlockK is Q5_K:
                    five_bits(p[e] + 160 * j, w[e])
                else:
                    for g in range(8):
                        v = w8_load(p[e] + 256 * (j >> 1) + 32 * g)
                        w[e][g] = w8_and(w8_shr16(v, 4) if j & 1 else v, low)
                scale[e] = w8_dup_u8_i16(sc[e][j >> 2], j & 3)
            a = qs + 32 * j
            for c in range(nc):
                if Panels is OnePanel:
                    total[c] = w8_add32(total[c], w8_dot_by(w[0], a, 8, 8 if BlockK is Q4_K else 4, scale[0]))
                else:
                    s[0] = s[1] = w8_zero()
                    part_dot_two(s, w[0], w[1], a, 8)
                    total[2 * c] = w8_add32(total[2 * c], part_total_by(s[0], scale[0]))
                    total[2 * c + 1] = w8_add32(total[2 * c + 1], part_total_by(s[1], scale[1]))
                a += 256
        for e in range(count):
            p[e] += 8 * sizeof(BlockK) - 128
        for c in range(nc):
            for e in range(count):
                acc[count * c + e] = close_k(acc[count * c + e], dw[e], dmin[e], d[c], total[count * c + e], pair[e],
                                             aux + 32)
            aux += 48
        qs += 256 * nc
        d += nc


cdef inline w8 two_sub_blocks(const BlockK* tag, const char* block, int j, const int8_t* a,
                              w8 scales) noexcept nogil:
    """Sub-blocks ``j`` and ``j`` + 1 times their scales. With constant ``j`` so are all positions."""
    cdef w8 low = w8_set1_u8(15)
    cdef w8 s0 = w8_dup_u8_i16(scales, j & 3), s1 = w8_dup_u8_i16(scales, (j & 3) + 1)
    cdef w8 part0 = w8_zero(), part1 = w8_zero()
    cdef w8 w[8]
    cdef w8 v
    cdef const char* p = block + 128
    cdef int g
    if BlockK is Q5_K:
        fetch_ahead(block + <int> sizeof(Q5_K) * j, sizeof(Q5_K))
        five_bits(p + 160 * j, w)
        part0 = w8_here(w8_dot_by(w, a, 8, 4, s0))
        fetch_ahead(block + <int> sizeof(Q5_K) * (j + 1), sizeof(Q5_K))
        five_bits(p + 160 * j + 160, w)
        part1 = w8_dot_by(w, a + 32, 8, 4, s1)
    else:
        for g in range(8):
            # Lines evenly spaced: bursts of six read 5 to 10 % slower (AMD Zen 3, 2026-11).
            if 64 * g < <int> sizeof(Q4_K) * 2:
                fetch_line(block + <int> sizeof(Q4_K) * j + 64 * g)
            v = w8_load(p + 128 * j + 32 * g)
            part0 = w8_here(part_more(part0, w8_and(v, low), w8_bcast32(a + 4 * g)))
            part1 = w8_here(part_more(part1, w8_and(w8_shr16(v, 4), low), w8_bcast32(a + 4 * g + 32)))
        part0, part1 = part_total_by(part0, s0), part_total_by(part1, s1)
    return w8_here(w8_add32(part0, part1))


cdef inline void row_k(const BlockK* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                       const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of 8 rows. The pointer's type selects the format."""
    cdef const char* at = <const char*> p
    cdef w8 sc[2]
    cdef w8 pair[4]
    cdef w8 total
    cdef f8 dw, dmin, y = acc[0]
    cdef Py_ssize_t i
    for i in range(nb):
        head_k(at, &dw, &dmin, sc, pair)
        total = two_sub_blocks(p, at, 0, qs, sc[0])
        total = w8_add32(total, two_sub_blocks(p, at, 2, qs + 64, sc[0]))
        total = w8_add32(total, two_sub_blocks(p, at, 4, qs + 128, sc[1]))
        total = w8_add32(total, two_sub_blocks(p, at, 6, qs + 192, sc[1]))
        y = close_k(y, dw, dmin, d[i], total, pair, aux + 32)
        at += 8 * sizeof(BlockK)
        qs += 256
        aux += 48
    acc[0] = y


cdef inline void pair_k(const char* p, const char* r, Py_ssize_t nb, const int8_t* qs, const float* d, const char* aux,
                        int nc, f8* acc) noexcept nogil:
    """``nc`` columns times the panels ``p`` and ``r`` of q4_k; acc[2 * c] and acc[2 * c + 1]."""
    cdef w8 w[4]
    cdef w8 u[4]
    cdef w8 total[2 * TILE]
    cdef w8 part[2 * TILE]
    cdef w8 sp[2]
    cdef w8 sr[2]
    cdef w8 pp[4]
    cdef w8 pr[4]
    cdef w8 x[2]
    cdef w8 s, t
    cdef w8 low = w8_set1_u8(15)
    cdef f8 dp, dr, mp, mr
    cdef const int8_t* a
    cdef Py_ssize_t _
    cdef int c, j, g, half, shift
    for c in range(2 * nc):
        acc[c] = f8_zero()
    for _ in range(nb):
        head_k(p, &dp, &mp, sp, pp)
        head_k(r, &dr, &mr, sr, pr)
        p += 128
        r += 128
        for c in range(2 * nc):
            total[c] = w8_zero()
        for j in range(8):
            shift = 4 * (j & 1)
            s = w8_dup_u8_i16(sp[j >> 2], j & 3)
            t = w8_dup_u8_i16(sr[j >> 2], j & 3)
            for half in range(2):
                for g in range(4):
                    w[g] = w8_and(w8_shr16(w8_load(p + 32 * g), shift), low)
                    u[g] = w8_and(w8_shr16(w8_load(r + 32 * g), shift), low)
                p += 128
                r += 128
                a = qs + 32 * j + 16 * half
                for c in range(nc):
                    x[0] = x[1] = w8_zero()
                    part_dot_two(x, w, u, a, 4)
                    if half == 0:
                        part[2 * c], part[2 * c + 1] = x[0], x[1]
                    else:
                        x[0], x[1] = part_add(x[0], part[2 * c]), part_add(x[1], part[2 * c + 1])
                        total[2 * c] = w8_add32(total[2 * c], part_total_by(x[0], s))
                        total[2 * c + 1] = w8_add32(total[2 * c + 1], part_total_by(x[1], t))
                    a += 256
            # Both nibbles of 32 bytes are two sub-blocks.
            if shift == 0:
                p -= 256
                r -= 256
        for c in range(nc):
            acc[2 * c] = close_k(acc[2 * c], dp, mp, d[c], total[2 * c], pp, aux + 32)
            acc[2 * c + 1] = close_k(acc[2 * c + 1], dr, mr, d[c], total[2 * c + 1], pr, aux + 32)
            aux += 48
        qs += 256 * nc
        d += nc


cdef inline void sub_blocks_of_two(const char* const* blocks, int j, const int8_t* a, const w8* scales,
                                   w8* totals) noexcept nogil:
    """``two_sub_blocks`` of q4_k for two panels, which share the loads of activations, added to ``totals``."""
    cdef w8 low = w8_set1_u8(15), v, x, y
    cdef w8 part[2][2]
    cdef int g, e
    for e in range(2):
        part[e][0] = part[e][1] = w8_zero()
    for g in range(8):
        x, y = w8_bcast32(a + 4 * g), w8_bcast32(a + 4 * g + 32)
        for e in range(2):
            if 64 * g < <int> sizeof(Q4_K) * 2:
                fetch_line(blocks[e] + <int> sizeof(Q4_K) * j + 64 * g)
            v = w8_load(blocks[e] + 128 + 128 * j + 32 * g)
            part[e][0] = w8_here(part_more(part[e][0], w8_and(v, low), x))
            part[e][1] = w8_here(part_more(part[e][1], w8_and(w8_shr16(v, 4), low), y))
    for e in range(2):
        x, y = w8_dup_u8_i16(scales[e], j & 3), w8_dup_u8_i16(scales[e], (j & 3) + 1)
        totals[e] = w8_add32(totals[e], w8_add32(part_total_by(part[e][0], x), part_total_by(part[e][1], y)))


cdef inline void row_pair_k(const char* p, const char* r, Py_ssize_t nb, const int8_t* qs, const float* d,
                            const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of the panels ``p`` and ``r`` of q4_k."""
    cdef const char* at[2]
    cdef w8 sc[2]
    cdef w8 low[2]
    cdef w8 high[2]
    cdef w8 pair[2][4]
    cdef w8 totals[2]
    cdef f8 dw[2]
    cdef f8 dmin[2]
    cdef f8 y[2]
    cdef Py_ssize_t i
    cdef int e
    at[0], at[1] = p, r
    y[0], y[1] = acc[0], acc[1]
    for i in range(nb):
        for e in range(2):
            head_k(at[e], &dw[e], &dmin[e], sc, pair[e])
            low[e], high[e] = sc[0], sc[1]
            totals[e] = w8_zero()
        sub_blocks_of_two(at, 0, qs, low, totals)
        sub_blocks_of_two(at, 2, qs + 64, low, totals)
        sub_blocks_of_two(at, 4, qs + 128, high, totals)
        sub_blocks_of_two(at, 6, qs + 192, high, totals)
        for e in range(2):
            y[e] = close_k(y[e], dw[e], dmin[e], d[i], totals[e], pair[e], aux + 32)
            at[e] += 8 * sizeof(Q4_K)
        qs += 256
        aux += 48
    acc[0], acc[1] = y[0], y[1]
