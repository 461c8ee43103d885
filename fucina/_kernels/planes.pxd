"""q2_k, tq2_0 and i2_s: a byte holds elements of four runs of 32, twice in a block of 256.

``expand_planes`` makes code panels (``codes.pxd``) of them, for many columns. One column multiplies what it unpacks at
once (``row_planes``): the sum of 16 elements of a run grows in i16 and meets its scale. Writing codes out and reading
them back took a single row 1.5 times as long (AMD Zen 3, 2026-11).

Codes: q2_k as they are (0 to 3, mins in the pairs); ternary + 1 (0 to 2, and 3 where a file holds the fourth pattern of two
bits).
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t

from blocks cimport I2_S, Q2_K, TQ2_0
from codes cimport AT_D, AT_M, AT_PAIRS, AT_SCALES, UNIT_K, UNIT_TERNARY, put, put_f8, w8_move16, w8_sub8
from dot cimport part_add, part_more, part_sar, part_total, part_total_by
from panel cimport fetch_ahead
from simd cimport (
    f8, f8_fma, f8_from_f16_of_words, f8_from_i32, f8_load_f16, f8_mul, f8_set1, w8, w8_add32, w8_and,
    w8_bcast32, w8_dup_i8_i16, w8_dup_u8_i16, w8_here, w8_load, w8_madd, w8_pair_u8_i16, w8_sar32, w8_set1_i16, w8_set1_u8,
    w8_shr16, w8_store, w8_sub32, w8_zero,
)

ctypedef fused Planes:
    Q2_K
    TQ2_0
    I2_S


cdef inline const char* codes_of(const Planes* tag, const char* p) noexcept nogil:
    """The words of codes of a block: after 4 words of scales, or a head of one f16 per row."""
    if Planes is Q2_K:
        return p + 128
    elif Planes is I2_S:
        return p
    else:
        return p + 16


cdef inline w8 plane(const Planes* tag, const char* p, int i, int j, int g, int up) noexcept nogil:
    """Elements 4g..4g+3 of run ``j`` of half ``i``, ``up`` bits above their place; ``p``: the words of codes."""
    if Planes is I2_S:
        # The first run is in the highest bits.
        return w8_and(w8_shr16(w8_load(p + 32 * (8 * i + g)), 6 - 2 * j - up), w8_set1_u8(3 << up))
    else:
        return w8_and(w8_shr16(w8_load(p + 32 * (8 * i + g)), 2 * j - up), w8_set1_u8(3 << up))


cdef inline f8 scale_of_block(const Planes* tag, const char* p) noexcept nogil:
    if Planes is I2_S:
        return f8_set1(1)
    elif Planes is Q2_K:
        return f8_from_f16_of_words(w8_load(p + 32 * 20), 0)
    else:
        return f8_load_f16(<const uint16_t*> p)


cdef inline w8 scales_of(const Planes* tag, const char* p, int g) noexcept nogil:
    """Word ``g`` of four: the scales of four times 16 elements of q2_k, in bytes."""
    if Planes is Q2_K:
        return w8_and(w8_load(p + 32 * g), w8_set1_u8(15))
    else:
        return w8_zero()


cdef inline w8 mins_of(const Planes* tag, const char* p, int g) noexcept nogil:
    """The same of the mins of q2_k."""
    return w8_and(w8_shr16(w8_load(p + 32 * g), 4), w8_set1_u8(15))


cdef inline void expand_planes(const Planes* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """Code panels of ``nb`` blocks. The pointer's type selects the format."""
    cdef const char* at = <const char*> p
    cdef w8 w[4]
    cdef w8 scales
    cdef f8 d
    cdef Py_ssize_t _
    cdef int i, g, j
    for _ in range(nb):
        d = scale_of_block(p, at)
        for i in range(2):
            for g in range(8):
                # A store between them would make compilers load again what the four have in common.
                for j in range(4):
                    w[j] = plane(p, codes_of(p, at), i, j, g, 0)
                for j in range(4):
                    put(to, 32 * i + 8 * j + g, w[j])
        if Planes is TQ2_0 or Planes is I2_S:
            put_f8(to, 2048, d)
            to += UNIT_TERNARY
        else:
            for g in range(4):
                scales = scales_of(p, at, g)
                for j in range(4):
                    w8_store(to + AT_SCALES + 128 * g + 32 * j, w8_dup_i8_i16(scales, j))
                for j in range(2):
                    w8_store(to + AT_PAIRS + 64 * g + 32 * j, w8_pair_u8_i16(mins_of(p, at, g), j))
            put_f8(to, AT_D, d)
            put_f8(to, AT_M, f8_from_f16_of_words(w8_load(at + 32 * 20), 1))
            to += UNIT_K
        at += 16 * sizeof(Planes) if Planes is I2_S else 8 * sizeof(Planes)


cdef inline w8 run(const Planes* tag, const char* p, int i, int j, const int8_t* a, w8 scale) noexcept nogil:
    """Products of 16 elements of run ``j`` of half ``i`` times their scale, or in i16. See ``quarter``."""
    cdef w8 part = w8_zero()
    cdef int g, up = 2 * (j & 1)
    if Planes is I2_S:
        up = 2 - up
    for g in range(4):
        part = w8_here(part_more(part, plane(tag, p, i, j, g, up), w8_bcast32(a + 32 * j + 4 * g)))
    if Planes is TQ2_0 or Planes is I2_S:
        return part
    else:
        return w8_here(part_total_by(part, scale))


cdef inline w8 quarter(const Planes* tag, const char* block, int i, int last, const int8_t* a,
                       const w8* scales) noexcept nogil:
    """Products of 16 elements of the runs of half ``i``, each run times its scale.

    Fields of two bits in the high half of a nibble stay there, which spares a shift and makes them fourfold: with third
    bits 2 * 127 * 28 * 4 = 28448, two ternary runs 2 * 127 * 12 * 8 = 24384.
    """
    cdef int share = sizeof(Planes) if Planes is I2_S else sizeof(Planes) // 2
    cdef const char* p = codes_of(tag, block) + 128 * last
    cdef w8 s[4]
    cdef int j
    a += 16 * last
    block += share * 4 * (2 * last + i)
    for j in range(4):
        if Planes is Q2_K:
            s[j] = w8_dup_u8_i16(scales[j >> 1], 2 * (j & 1) + last)
        else:
            s[j] = w8_dup_i8_i16(scales[j >> 1], 2 * (j & 1) + last)
    fetch_ahead(block, share)
    s[0] = run(tag, p, i, 0, a, s[0])
    fetch_ahead(block + share, share)
    s[1] = run(tag, p, i, 1, a, s[1])
    fetch_ahead(block + 2 * share, share)
    s[2] = run(tag, p, i, 2, a, s[2])
    fetch_ahead(block + 3 * share, share)
    s[3] = run(tag, p, i, 3, a, s[3])
    if Planes is TQ2_0:
        return part_add(part_add(s[0], s[2]), part_sar(part_add(s[1], s[3]), 2))
    elif Planes is I2_S:
        return part_add(part_add(s[1], s[3]), part_sar(part_add(s[0], s[2]), 2))
    else:
        return w8_add32(w8_add32(s[0], s[2]), w8_sar32(w8_add32(s[1], s[3]), 2))


cdef inline w8 sums_of(const Planes* tag, const char* p, const char* aux) noexcept nogil:
    """Mins times the sums of the activations that they belong to; without mins the sum of all."""
    cdef w8 total = w8_zero(), u, v
    cdef int g
    for g in range(4):
        if Planes is Q2_K:
            v = mins_of(tag, p, g)
            u, v = w8_pair_u8_i16(v, 0), w8_pair_u8_i16(v, 1)
            u, v = w8_madd(u, w8_bcast32(aux + 8 * g)), w8_madd(v, w8_bcast32(aux + 8 * g + 4))
            total = w8_add32(total, w8_add32(u, v))
        else:
            total = w8_add32(total, w8_madd(w8_bcast32(aux + 32 + 4 * g), w8_set1_i16(1)))
    return total


cdef inline void row_planes(const Planes* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                            const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of 8 rows. The pointer's type selects the format."""
    cdef int bytes = (16 if Planes is I2_S else 8) * sizeof(Planes)
    cdef const char* at = <const char*> p
    cdef w8 scales[4]
    cdef w8 total, part
    cdef f8 y = acc[0]
    cdef Py_ssize_t b
    cdef int last
    for b in range(nb):
        scales[0], scales[1] = scales_of(p, at, 0), scales_of(p, at, 1)
        scales[2], scales[3] = scales_of(p, at, 2), scales_of(p, at, 3)
        total = w8_zero()
        # The first 16 elements of all runs, then the others.
        for last in range(2):
            part = quarter(p, at, 0, last, qs, scales)
            if Planes is TQ2_0 or Planes is I2_S:
                part = part_add(part, quarter(p, at, 1, last, qs + 128, scales))
                part = part_total(part)
            else:
                part = w8_add32(part, quarter(p, at, 1, last, qs + 128, scales + 2))
            total = w8_add32(total, part)
        part = sums_of(p, at, aux)
        if Planes is not Q2_K:
            total = w8_sub32(total, part)
        y = f8_fma(f8_mul(scale_of_block(p, at), f8_set1(d[b])), f8_from_i32(total), y)
        if Planes is Q2_K:
            y = f8_fma(f8_mul(f8_from_f16_of_words(w8_load(at + 32 * 20), 1), f8_set1(-d[b])), f8_from_i32(part), y)
        at += bytes
        qs += 256
        aux += 48
    acc[0] = y
