"""Formats whose scales are floating-point numbers per 16, 32 or more elements, by way of tables or single bits.

``expand_*`` make code panels (``codes.pxd``) for many columns, ``row_*`` multiply what they unpack with one column.
Codes: iq4_nl and nvfp4 signed; mxfp4 + 12; q2_0 + 1; q1_0 (-1 or 1) + 1.

A byte of q2_0 (q1_0) holds four (eight) neighbours, and code panels want them in neighbouring bytes, which takes six
operations a word. One column leaves them where they are: a mask gives every fourth (eighth) element, and activations
are put into that order instead. Shuffles do that: with words broadcast from what had just been stored a row took 1.2
times as long (AMD Zen 3, 2026-11).
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t

from blocks cimport IQ4_NL, MXFP4, NVFP4, Q1_0, Q2_0, Q2_0_G128
from codes cimport (
    UNIT_16, UNIT_32, codes_of_bits, codes_of_crumbs, f8_e8m0_half, f8_ue4m3_half, put, put_f8, w8_dot_bits8,
    w8_dot_crumbs4, w8_sign8, w8_table16, w8_ue4m3,
)
from dot cimport part_more, part_total, part_total_by
from levels cimport fu_fp4_levels, fu_iq4_codes, fu_iq4_levels
from panel cimport fetch_ahead, fetch_line
from recode cimport w8_turn8
from simd cimport (
    f8, f8_fma, f8_from_i32, f8_load_f16, f8_mul, f8_set1, w8, w8_abs8, w8_add32, w8_and, w8_bcast32, w8_here, w8_in_memory,
    w8_load, w8_sar32, w8_set1_i16, w8_set1_u8, w8_shl16, w8_shr16, w8_sub32, w8_zero,
)
from tile_codes cimport Signed, Twelve, dot_codes


cdef inline void nibble_words(const char* p, int words, const int8_t* levels, w8* w) noexcept nogil:
    """Low nibbles of ``words`` words, then their high nibbles, through a table."""
    cdef w8 low = w8_set1_u8(15)
    cdef w8 v
    cdef int g
    for g in range(words):
        v = w8_load(p + 32 * g)
        w[g] = w8_table16(w8_and(v, low), levels)
        w[words + g] = w8_table16(w8_and(w8_shr16(v, 4), low), levels)


cdef inline void nibble_levels(const char* p, int words, const int8_t* levels, char* to) noexcept nogil:
    """The same to a code panel."""
    cdef w8 w[8]
    cdef int g
    nibble_words(p, words, levels, w)
    for g in range(2 * words):
        put(to, g, w[g])


cdef inline void biased_levels(int8_t* levels) noexcept nogil:
    """The levels of mxfp4 + 12."""
    cdef int i
    for i in range(16):
        levels[i] = fu_fp4_levels[i] + 12


cdef inline void expand_iq4_nl(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    cdef Py_ssize_t _
    for _ in range(nb):
        put_f8(to, 256, f8_load_f16(<const uint16_t*> p))
        nibble_levels(p + 16, 4, fu_iq4_codes, to)
        p += 16 + 4 * 32
        to += UNIT_32


cdef inline void expand_mxfp4(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    cdef int8_t[16] biased
    cdef Py_ssize_t _
    biased_levels(biased)
    for _ in range(nb):
        put_f8(to, 256, f8_e8m0_half(<const uint8_t*> p))
        nibble_levels(p + 8, 4, biased, to)
        p += 8 + 4 * 32
        to += UNIT_32


cdef inline void expand_nvfp4(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """The four bytes of the first word are the scales of 16 elements each."""
    cdef w8 scales
    cdef Py_ssize_t _
    cdef int s
    for _ in range(nb):
        scales = w8_ue4m3(w8_load(p))
        for s in range(4):
            put_f8(to + (s >> 1) * UNIT_16, 256 + 32 * (s & 1), f8_ue4m3_half(scales, s))
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
            codes_of_bits(to, w8_turn8(w8_load(p + 16 + 32 * s)), 2)
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


ctypedef fused Nibbles:
    IQ4_NL
    MXFP4
    NVFP4


cdef inline w8 dot_fp4(const char* p, const int8_t* a) noexcept nogil:
    """Exact sums of 16 products of nvfp4: four-bit floats are a magnitude and a sign, which the activation takes.

    The sign is the highest bit of a byte, or becomes it; what else the byte holds is 0 only where the float is. A
    magnitude needs no mask to be an index, with both signs off: indices ignore bits 4 to 6.
    """
    cdef w8 magnitude = w8_set1_u8(0x77), total = w8_zero(), v, x, y
    cdef int g
    for g in range(2):
        v = w8_load(p + 32 * g)
        x = w8_sign8(w8_bcast32(a + 4 * g), w8_shl16(v, 4))
        y = w8_sign8(w8_bcast32(a + 4 * g + 8), v)
        v = w8_and(v, magnitude)
        total = part_more(total, w8_table16(v, fu_fp4_levels), x)
        total = part_more(total, w8_table16(w8_shr16(v, 4), fu_fp4_levels), y)
    return part_total(total)


cdef inline void row_nibbles(const Nibbles* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                             const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of 8 rows. The pointer's type selects the format."""
    cdef const char* at = <const char*> p
    cdef int8_t[16] biased
    cdef w8 w[8]
    cdef w8 scales
    cdef f8 y = acc[0]
    cdef Py_ssize_t _
    cdef int s
    if Nibbles is MXFP4:
        biased_levels(biased)
    for _ in range(nb):
        fetch_ahead(at, 8 * sizeof(Nibbles))
        if Nibbles is NVFP4:
            scales = w8_ue4m3(w8_load(at))
            for s in range(4):
                y = f8_fma(f8_mul(f8_ue4m3_half(scales, s), f8_set1(d[s >> 1])),
                           f8_from_i32(dot_fp4(at + 32 + 64 * s, qs + 16 * s)), y)
            qs += 64
            d += 2
        elif Nibbles is MXFP4:
            nibble_words(at + 8, 4, biased, w)
            y = f8_fma(f8_mul(f8_e8m0_half(<const uint8_t*> at), f8_set1(d[0])),
                       f8_from_i32(dot_codes(<const Twelve*> NULL, w, qs, aux)), y)
        else:
            nibble_words(at + 16, 4, fu_iq4_codes, w)
            y = f8_fma(f8_mul(f8_load_f16(<const uint16_t*> at), f8_set1(d[0])),
                       f8_from_i32(dot_codes(<const Signed*> NULL, w, qs, aux)), y)
        if Nibbles is not NVFP4:
            qs += 32
            d += 1
            aux += 4
        at += 8 * sizeof(Nibbles)
    acc[0] = y


cdef inline void dot_levels_two(const char* const* at, int lines, const int8_t* a, const w8* scales,
                                w8* totals) noexcept nogil:
    """32 products of two panels of iq4, times their scales, added to ``totals``. ``lines`` of what comes later are
    fetched, not in a burst (1.00 to 1.04 times as fast, AMD Zen 3, 2026-12).

    Two panels share what there is of activations, so that may be more: codes take the signs of the activations and
    meet their magnitudes, which is an operation less than the other way round. From caches and from memory, one thread,
    1.12 to 1.14 times as fast as one panel at a time (AVX2, AMD Zen 4, 2026-11). For products of bytes that are summed
    in 32 bits codes have no signs, and this is not used.
    """
    cdef w8 low = w8_set1_u8(15)
    cdef w8 v, x, y, size_x, size_y, part
    cdef w8 sizes = w8_abs8(w8_load(a))
    cdef const char* size = <const char*> &sizes
    cdef int e, g
    w8_in_memory(&sizes)
    for g in range(4):
        x, y = w8_bcast32(a + 4 * g), w8_bcast32(a + 4 * g + 16)
        size_x, size_y = w8_bcast32(size + 4 * g), w8_bcast32(size + 4 * g + 16)
        for e in range(2):
            if g < lines:
                fetch_line(at[e] + 64 * g)
            v = w8_load(at[e] + 32 * g)
            part = part_more(w8_zero(), size_x, w8_sign8(w8_table16(w8_and(v, low), fu_iq4_levels), x))
            totals[e] = w8_add32(totals[e], part_total_by(part, scales[e]))
            v = w8_and(w8_shr16(v, 4), low)
            part = part_more(w8_zero(), size_y, w8_sign8(w8_table16(v, fu_iq4_levels), y))
            totals[e] = w8_here(w8_add32(totals[e], part_total_by(part, scales[e])))


cdef inline void row_pair_iq4_nl(const char* p, const char* r, Py_ssize_t nb, const int8_t* qs, const float* d,
                                 const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of the panels ``p`` and ``r``."""
    cdef const char* codes[2]
    cdef w8 ones[2]
    cdef w8 s[2]
    cdef f8 y[2]
    cdef Py_ssize_t i
    cdef int e
    codes[0], codes[1] = p + 16, r + 16
    ones[0] = ones[1] = w8_set1_i16(1)
    y[0], y[1] = acc[0], acc[1]
    for i in range(nb):
        for e in range(2):
            s[e] = w8_zero()
        dot_levels_two(codes, 3, qs + 32 * i, ones, s)
        for e in range(2):
            y[e] = f8_fma(f8_mul(f8_load_f16(<const uint16_t*> (codes[e] - 16)), f8_set1(d[i])), f8_from_i32(s[e]), y[e])
            codes[e] += 8 * sizeof(IQ4_NL)
    acc[0], acc[1] = y[0], y[1]


ctypedef fused Bits:
    Q1_0
    Q2_0
    Q2_0_G128


cdef inline void row_bits(const Bits* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                          const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of 8 rows. The pointer's type selects the format."""
    cdef const char* at = <const char*> p
    cdef w8 s
    cdef f8 dw, y = acc[0]
    cdef Py_ssize_t _
    cdef int _part
    for _ in range(nb):
        fetch_ahead(at, 8 * sizeof(Bits))
        dw = f8_load_f16(<const uint16_t*> at)
        at += 16
        for _part in range(2 if Bits is Q2_0 else 4):
            if Bits is Q1_0:
                # A bit stands for 0 or 2: the sum is fourfold, too.
                s = w8_dot_bits8(w8_turn8(w8_load(at)), qs)
                at += 32
            else:
                s = w8_dot_crumbs4(w8_load(at), w8_load(at + 32), qs)
                at += 64
            s = w8_sub32(w8_sar32(part_total(s), 2), w8_bcast32(aux))
            y = f8_fma(f8_mul(dw, f8_set1(d[0])), f8_from_i32(s), y)
            qs += 32
            d += 1
            aux += 4
    acc[0] = y
