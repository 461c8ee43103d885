"""iq2, iq3 and iq1: indices of points of a lattice, with signs or a shift; see ``codes.pxd``.

``expand_points`` makes code panels of them, for many columns. One column multiplies what it unpacks at once
(``row_points``), with signs put on the activations instead of the points: nothing has to be added to make points
unsigned and taken off again, and more products fit into i16. With activations in -127..127, n words are summed there:

    iq2       points to 43, n = 2: 21844       iq3_s     points to 15, n = 4: 15240
    iq3_xxs   points to 62, n = 2: 31496       iq1       codes to 18, n = 4: 18288

iq1 are codes in eighths from the start, 8 (p + 1) with 2 for a shift upwards, so 9 too many: that comes off through the
sums of the activations. Scales are odd and at most 31: scaled sums of 256 stay below 256 * 127 * 62 * 31 < 2^26.

Points are gathered by loads, and loads are the bottleneck: indices are read in pairs. What a block says beside its
points is unpacked for the whole block before them, wide indices into memory, which takes lanes apart at the cost of a
load and without a wait for what was just stored. A row by way of code panels took 1.7 to 1.9 times as long (AMD Zen 3,
2026-11).

Codes in code panels: iq2 + 43 (0 to 86), iq3_xxs + 62 (0 to 124), iq3_s + 15 (0 to 30), iq1 in eighths + 9 (0 to 18).
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t

from blocks cimport IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS
from codes cimport (
    AT_D, UNIT_K, put, put_f8, put_scales, w8_add8, w8_dup16, w8_even_parity, w8_mul16, w8_mul32, w8_points4,
    w8_points8, w8_sign8, w8_signed, w8_spread8, w8_xor,
)
from dot cimport PARTS_ARE_WHOLE, part_add, part_more, part_total_by
from unpack_k cimport field
from panel cimport fetch_ahead
from simd cimport (
    f8, f8_fma, f8_from_f16_of_words, f8_from_i32, f8_load_f16, f8_mul, f8_set1, w8, w8_add32,
    w8_and, w8_bcast32, w8_dup_u8_i16, w8_load, w8_madd, w8_or, w8_pair_u8_i16, w8_set1_i16, w8_set1_i32,
    w8_set1_u8, w8_shl16, w8_shl32, w8_shr16, w8_shr32, w8_sub32, w8_zero,
)

ctypedef fused Points:
    IQ2_XXS
    IQ2_XS
    IQ2_S
    IQ3_XXS
    IQ3_S
    IQ1_S
    IQ1_M

# What a block says beside its points, and where that lies in the panel or was made from it.
cdef struct Head:
    const char* indices     # pairs of bytes, or of halves of lanes
    const char* signs       # 8 words of 32 bits
    w8 scales[8]            # i16 pairs: of twice 16 elements, or that of 32 elements twice
    w8 made_indices[32]
    w8 made_signs[8]


cdef inline const char* words_of(const Points* tag, const char* p) noexcept nogil:
    """The words of a block: all but iq1_m begin with one f16 per row."""
    if Points is IQ1_M:
        return p
    else:
        return p + 16


cdef inline f8 scale_of_block(const Points* tag, const char* p) noexcept nogil:
    cdef w8 v, u
    if Points is IQ1_M:
        # A nibble in each half of the two words of scales.
        v, u = w8_load(p + 32 * 12), w8_load(p + 32 * 13)
        v = w8_or(field(v, 12, 15), w8_shl32(field(v, 28, 15), 4))
        v = w8_or(v, w8_or(w8_shl32(field(u, 12, 15), 8), w8_shl32(field(u, 28, 15), 12)))
        return f8_mul(f8_from_f16_of_words(v, 0), f8_set1(0.125))
    elif Points is IQ3_S:
        return f8_load_f16(<const uint16_t*> p)
    else:
        return f8_mul(f8_load_f16(<const uint16_t*> p), f8_set1(0.25 if Points is IQ3_XXS else 0.125))


cdef inline void put_pairs(w8* to, w8 low, w8 first, w8 last, int f0, int f1, int f2, int f3, int mask) noexcept nogil:
    """Two pairs of indices from the bytes of ``low``; factors bring the bits above each of them into place."""
    to[0] = w8_or(w8_pair_u8_i16(low, 0), w8_and(w8_mul16(first, f0, f1), w8_set1_i16(mask)))
    to[1] = w8_or(w8_pair_u8_i16(low, 1), w8_and(w8_mul16(last, f2, f3), w8_set1_i16(mask)))


cdef inline void put_indices(const Points* tag, const char* p, w8* to) noexcept nogil:
    """Pairs of indices in halves of lanes, for formats whose indices are not bytes."""
    cdef w8 v, h
    cdef int i, k
    if Points is IQ2_XS:
        for i in range(16):
            to[i] = w8_and(w8_load(p + 32 * i), w8_set1_i16(0x1ff))
    elif Points is IQ2_S:
        for i in range(2):
            v = w8_load(p + 32 * (16 + i))
            for k in range(4):
                h = w8_dup_u8_i16(v, k)
                put_pairs(to + 8 * i + 2 * k, w8_load(p + 32 * (4 * i + k)), h, h, 256, 64, 16, 4, 0x300)
    elif Points is IQ3_S:
        for i in range(2):
            v = w8_load(p + 32 * (16 + i))
            for k in range(4):
                h = w8_dup_u8_i16(v, k)
                put_pairs(to + 16 * i + 4 * k, w8_load(p + 64 * (4 * i + k)), h, h, 256, 128, 64, 32, 0x100)
                put_pairs(to + 16 * i + 4 * k + 2, w8_load(p + 64 * (4 * i + k) + 32), h, h, 16, 8, 4, 2, 0x100)
    elif Points is IQ1_S or Points is IQ1_M:
        for i in range(4):
            v = w8_load(p + 32 * (8 + i))
            for k in range(2):
                h = w8_dup16(v, k)
                if Points is IQ1_S:
                    put_pairs(to + 4 * i + 2 * k, w8_load(p + 32 * (2 * i + k)), h, w8_shr16(h, 1), 256, 32, 8, 1, 0x700)
                else:
                    put_pairs(to + 4 * i + 2 * k, w8_load(p + 32 * (2 * i + k)), h, w8_shr16(h, 4), 256, 16, 16, 1, 0x700)


cdef inline w8 signs_of_28(w8 v) noexcept nogil:
    """Four times seven signs, each with its eighth."""
    v = w8_or(w8_and(v, w8_set1_i32(0x3fff)), w8_shl32(w8_and(v, w8_set1_i32(0xfffc000)), 2))
    return w8_even_parity(w8_or(w8_and(v, w8_set1_i32(0x7f007f)), w8_shl32(w8_and(v, w8_set1_i32(0x3f803f80)), 1)))


cdef inline w8 signs_of_16(w8 v, w8 u) noexcept nogil:
    """The same from the high seven bits of four halves."""
    v = w8_or(w8_and(w8_shr32(v, 9), w8_set1_i32(0x7f)), w8_and(w8_shr32(v, 17), w8_set1_i32(0x7f00)))
    u = w8_or(w8_and(w8_shl32(u, 7), w8_set1_i32(0x7f0000)), w8_and(w8_shr32(u, 1), w8_set1_i32(0x7f000000)))
    return w8_even_parity(w8_or(v, u))


cdef inline void put_signs(const Points* tag, const char* p, w8* to) noexcept nogil:
    """Words of 32 signs; iq1: a byte per 8 elements, the code of a point 0 with their shift, 10 or 8."""
    cdef w8 v
    cdef int i, k
    if Points is IQ2_XXS:
        for i in range(8):
            to[i] = signs_of_28(w8_load(p + 64 * i + 32))
    elif Points is IQ2_XS:
        for i in range(8):
            to[i] = signs_of_16(w8_load(p + 64 * i), w8_load(p + 64 * i + 32))
    elif Points is IQ3_XXS:
        for i in range(8):
            to[i] = signs_of_28(w8_load(p + 32 * (16 + i)))
    elif Points is IQ1_S or Points is IQ1_M:
        for i in range(4):
            for k in range(2):
                v = w8_dup16(w8_load(p + 32 * (8 + i)), k)
                if Points is IQ1_S:
                    v = w8_and(w8_shr16(v, 14), w8_set1_i16(2))
                    v = w8_or(v, w8_shl16(v, 8))
                else:
                    # The highest bits of four nibbles.
                    v = w8_mul16(v, 256, 1)
                    v = w8_or(w8_and(w8_shr16(v, 10), w8_set1_i16(2)), w8_and(w8_shr16(v, 6), w8_set1_i16(512)))
                to[2 * i + k] = w8_xor(v, w8_set1_u8(10))


cdef inline w8 odd(w8 v, int at, int mask) noexcept nogil:
    """2 s + 1 in i16, s from bit ``at`` on."""
    v = w8_shr16(v, at - 1) if at else w8_shl16(v, 1)
    return w8_or(w8_and(v, w8_set1_i16(2 * mask)), w8_set1_i16(1))


cdef inline void scales_of(const Points* tag, const char* p, w8* s) noexcept nogil:
    """Pairs of i16: scales of twice 16 elements, or that of 32 twice."""
    cdef w8 v
    cdef int i, k
    if Points is IQ2_XXS or Points is IQ3_XXS:
        for i in range(8):
            s[i] = odd(w8_dup16(w8_load(p + (64 * i + 32 if Points is IQ2_XXS else 32 * (16 + i))), 1), 12, 15)
    elif Points is IQ3_S:
        for k in range(2):
            v = w8_dup16(w8_load(p + 32 * 26), k)
            for i in range(4):
                s[4 * k + i] = odd(v, 4 * i, 15)
    elif Points is IQ1_S:
        for i in range(4):
            v = odd(w8_load(p + 32 * (8 + i)), 12, 7)
            s[2 * i], s[2 * i + 1] = w8_dup16(v, 0), w8_dup16(v, 1)
    else:
        # The factor leaves the second scale where it is and brings the first one there.
        for i in range(2):
            v = w8_load(p + 32 * (i + (12 if Points is IQ1_M else 16 if Points is IQ2_XS else 18)))
            for k in range(2):
                if Points is IQ1_M:
                    s[4 * i + 2 * k] = odd(w8_mul16(w8_dup16(v, k), 8, 1), 3, 7)
                    s[4 * i + 2 * k + 1] = odd(w8_mul16(w8_dup16(v, k), 8, 1), 9, 7)
                else:
                    s[4 * i + 2 * k] = odd(w8_mul16(w8_dup16(v, k), 16, 1), 4, 15)
                    s[4 * i + 2 * k + 1] = odd(w8_mul16(w8_dup16(v, k), 16, 1), 12, 15)


cdef inline w8 scale(const Points* tag, w8 pair, int i) noexcept nogil:
    """The scale of half ``i`` of 32 elements in both halves of lanes."""
    if Points is IQ2_XS or Points is IQ2_S or Points is IQ1_M:
        return w8_dup16(pair, i)
    else:
        return pair


cdef inline void head(const Points* tag, const char* block, Head* h) noexcept nogil:
    cdef const char* p = words_of(tag, block)
    h.indices = p if Points is IQ2_XXS or Points is IQ3_XXS else <const char*> h.made_indices
    h.signs = p + 32 * 8 if Points is IQ2_S else p + 32 * 18 if Points is IQ3_S else <const char*> h.made_signs
    put_indices(tag, p, h.made_indices)
    put_signs(tag, p, h.made_signs)
    scales_of(tag, p, h.scales)


cdef inline void points(const Points* tag, const Head* h, const uint8_t* grid, int j, int i, w8* w) noexcept nogil:
    """Half ``i`` of the 32 elements from 32j on, as four words: points or, for iq1, codes."""
    cdef w8 shift, eight = w8_set1_u8(8)
    cdef int k
    if Points is IQ3_XXS:
        w8_points4(grid, h.indices + 64 * j + 32 * i, 0, w)
        w8_points4(grid, h.indices + 64 * j + 32 * i + 2, 0, w + 2)
    elif Points is IQ3_S:
        w8_points4(grid, h.indices + 128 * j + 64 * i, 1, w)
        w8_points4(grid, h.indices + 128 * j + 64 * i + 32, 1, w + 2)
    elif Points is IQ2_XXS:
        w8_points8(grid, h.indices + 64 * j + 2 * i, 0, w)
    else:
        w8_points8(grid, h.indices + 64 * j + 32 * i, 1, w)
    if Points is IQ1_S or Points is IQ1_M:
        for k in range(2):
            shift = w8_spread8(w8_load(h.signs + 32 * j), 2 * i + k)
            w[2 * k] = w8_add8(w8_sign8(eight, w[2 * k]), shift)
            w[2 * k + 1] = w8_add8(w8_sign8(eight, w[2 * k + 1]), shift)


cdef inline void expand_points(const Points* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """Code panels of ``nb`` blocks. The pointer's type selects the format."""
    cdef int bias = 62 if Points is IQ3_XXS else 15 if Points is IQ3_S else 9 if Points is IQ1_S or Points is IQ1_M else 43
    cdef const char* block = <const char*> p
    cdef Head h
    cdef w8 w[4]
    cdef Py_ssize_t _
    cdef int i, j, g
    for _ in range(nb):
        head(p, block, &h)
        put_f8(to, AT_D, scale_of_block(p, block))
        for j in range(8):
            put_scales(to, j, scale(p, h.scales[j], 0), scale(p, h.scales[j], 1), bias)
            for i in range(2):
                points(p, &h, grid, j, i, w)
                for g in range(4):
                    if Points is not IQ1_S and Points is not IQ1_M:
                        w[g] = w8_signed(w[g], w8_load(h.signs + 32 * j), 4 * i + g)
                        w[g] = w8_add8(w[g], w8_set1_u8(bias))
                    put(to, 8 * j + 4 * i + g, w[g])
        block += 8 * sizeof(Points)
        to += UNIT_K


cdef inline w8 mul(const Points* tag, const w8* w, w8 signs, int g, const int8_t* a) noexcept nogil:
    """Products of words ``g`` and ``g`` + 1 of 32 elements, the first of ``w``."""
    cdef w8 x = w8_bcast32(a + 4 * g), y = w8_bcast32(a + 4 * g + 4)
    if Points is not IQ1_S and Points is not IQ1_M:
        x, y = w8_signed(x, signs, g), w8_signed(y, signs, g + 1)
    return part_more(part_more(w8_zero(), w[0], x), w[1], y)


cdef inline w8 dot_scaled(const Points* tag, const Head* h, const uint8_t* grid, int j, int i,
                          const int8_t* a) noexcept nogil:
    """Half ``i`` of the 32 products from 32j on for 8 rows, summed, times its scale."""
    cdef w8 signs = w8_load(h.signs + 32 * j)
    cdef w8 s, t
    cdef w8 w[4]
    points(tag, h, grid, j, i, w)
    s, t = mul(tag, w, signs, 4 * i, a), mul(tag, w + 2, signs, 4 * i + 2, a)
    if Points is IQ3_S or Points is IQ1_S or Points is IQ1_M or PARTS_ARE_WHOLE:
        return part_total_by(part_add(s, t), scale(tag, h.scales[j], i))
    else:
        return w8_add32(part_total_by(s, scale(tag, h.scales[j], i)), part_total_by(t, scale(tag, h.scales[j], i)))


cdef inline void row_points(const Points* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                            const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of 8 rows. The pointer's type selects the format."""
    cdef const char* block = <const char*> p
    cdef Head h
    cdef w8 total, sums
    cdef f8 y = acc[0]
    cdef Py_ssize_t b
    cdef int j
    for b in range(nb):
        fetch_ahead(block, 8 * sizeof(Points))
        head(p, block, &h)
        total, sums = w8_zero(), w8_zero()
        for j in range(8):
            total = w8_add32(total, dot_scaled(p, &h, grid, j, 0, qs))
            total = w8_add32(total, dot_scaled(p, &h, grid, j, 1, qs))
            if Points is IQ1_S or Points is IQ1_M:
                sums = w8_add32(sums, w8_madd(h.scales[j], w8_bcast32(aux + 4 * j)))
            qs += 32
        if Points is IQ1_S or Points is IQ1_M:
            total = w8_sub32(total, w8_mul32(sums, 9))
        y = f8_fma(f8_mul(scale_of_block(p, block), f8_set1(d[b])), f8_from_i32(total), y)
        block += 8 * sizeof(Points)
        aux += 48
    acc[0] = y
