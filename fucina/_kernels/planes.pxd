"""q2_k, q3_k, q6_k, tq2_0 and i2_s: a byte holds elements of four runs of 32, twice in a block of 256.

``expand_planes`` makes code panels (``codes.pxd``) of them, for many columns. One column multiplies what it unpacks at
once (``row_planes``): four sums, one per run, grow in i16 as far as the bounds of ``tile_codes.pxd`` allow, then meet
their scales. Writing codes out and reading them back took a single row 1.5 times as long (AMD Zen 3, 2026-11).

Codes: q2_k as they are (0 to 3, mins in the pairs); q3_k + 4 (0 to 7); q6_k + 32 (0 to 63); ternary + 1 (0 to 2, and 3
where a file holds the fourth pattern of two bits).
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t

from blocks cimport I2_S, Q2_K, Q3_K, Q6_K, TQ2_0
from codes cimport AT_D, AT_M, AT_PAIRS, AT_SCALES, UNIT_K, UNIT_TERNARY, put, put_f8, w8_sub8
from panel cimport fetch_ahead
from simd cimport (
    f8, f8_fma, f8_from_f16_of_words, f8_from_i32, f8_load_f16, f8_mul, f8_set1, fu_touch, w8, w8_add16, w8_add32,
    w8_and, w8_bcast32, w8_dup_i8_i16, w8_load, w8_madd, w8_maddubs, w8_or, w8_pair_i8_i16, w8_set1_i16, w8_set1_u8,
    w8_shl16, w8_shl32, w8_shr16, w8_store, w8_sub32, w8_zero,
)

ctypedef fused Planes:
    Q2_K
    Q3_K
    Q6_K
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


cdef inline void planes(const Planes* tag, const char* p, int i, int g, w8* w) noexcept nogil:
    """Elements 4g..4g+3 of the four runs of half ``i``; ``p``: the words of codes."""
    cdef w8 mask = w8_set1_u8(48 if Planes is Q6_K else 4)
    cdef w8 low = w8_set1_u8(15 if Planes is Q6_K else 3)
    cdef w8 v, h
    if Planes is Q6_K:
        # 32 words of low nibbles, 16 of two high bits.
        h = w8_load(p + 32 * (32 + 8 * i + g))
        v = w8_load(p + 32 * (16 * i + g))
        w[0] = w8_or(w8_and(v, low), w8_and(w8_shl16(h, 4), mask))
        w[2] = w8_or(w8_and(w8_shr16(v, 4), low), w8_and(h, mask))
        v = w8_load(p + 32 * (16 * i + 8 + g))
        w[1] = w8_or(w8_and(v, low), w8_and(w8_shl16(h, 2), mask))
        w[3] = w8_or(w8_and(w8_shr16(v, 4), low), w8_and(w8_shr16(h, 2), mask))
    elif Planes is I2_S:
        # The first run is in the highest bits.
        v = w8_load(p + 32 * (8 * i + g))
        w[0], w[1], w[2], w[3] = w8_shr16(v, 6), w8_shr16(v, 4), w8_shr16(v, 2), v
        w[0], w[1], w[2], w[3] = w8_and(w[0], low), w8_and(w[1], low), w8_and(w[2], low), w8_and(w[3], low)
    else:
        v = w8_load(p + 32 * (8 * i + g + (8 if Planes is Q3_K else 0)))
        w[0], w[1], w[2], w[3] = v, w8_shr16(v, 2), w8_shr16(v, 4), w8_shr16(v, 6)
        w[0], w[1], w[2], w[3] = w8_and(w[0], low), w8_and(w[1], low), w8_and(w[2], low), w8_and(w[3], low)
        if Planes is Q3_K:
            # 8 words of third bits come first: those of the first half in the low nibbles.
            h = w8_load(p + 32 * g)
            if i == 1:
                h = w8_shr16(h, 4)
            w[0], w[1] = w8_or(w[0], w8_and(w8_shl16(h, 2), mask)), w8_or(w[1], w8_and(w8_shl16(h, 1), mask))
            w[2], w[3] = w8_or(w[2], w8_and(h, mask)), w8_or(w[3], w8_and(w8_shr16(h, 1), mask))


cdef inline void head(const Planes* tag, const char* p, f8* d, f8* m, w8* scales, w8* mins) noexcept nogil:
    """What a block says of its codes: f32 scales, and four words of the scales (mins) of 16 elements each, in bytes."""
    cdef w8 v, top
    cdef int g
    if Planes is Q2_K:
        v = w8_load(p + 32 * 20)
        d[0], m[0] = f8_from_f16_of_words(v, 0), f8_from_f16_of_words(v, 1)
        for g in range(4):
            v = w8_load(p + 32 * g)
            scales[g], mins[g] = w8_and(v, w8_set1_u8(15)), w8_and(w8_shr16(v, 4), w8_set1_u8(15))
    elif Planes is I2_S:
        d[0] = f8_set1(1)
    else:
        d[0] = f8_load_f16(<const uint16_t*> p)
        p += 16
        if Planes is Q6_K:
            for g in range(4):
                scales[g] = w8_load(p + 32 * (48 + g))
        if Planes is Q3_K:
            # Scale j: a nibble of byte j mod 8 and two bits of byte j mod 4 of the third word.
            top = w8_load(p + 32 * 26)
            for g in range(4):
                v = w8_load(p + 32 * (24 + (g & 1)))
                v = w8_and(w8_shr16(v, 4) if g >= 2 else v, w8_set1_u8(15))
                v = w8_or(v, w8_and(w8_shl16(top, 4 - 2 * g) if g < 2 else w8_shr16(top, 2 * g - 4), w8_set1_u8(48)))
                scales[g] = w8_sub8(v, w8_set1_u8(32))


cdef inline int bias_bits(const Planes* tag) noexcept nogil:
    """What was added to a code, as a power of two."""
    return 5 if Planes is Q6_K else 2


cdef inline void expand_planes(const Planes* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    """Code panels of ``nb`` blocks. The pointer's type selects the format."""
    cdef const char* at = <const char*> p
    cdef w8 w[4]
    cdef w8 scales[4]
    cdef w8 mins[4]
    cdef w8 v
    cdef f8 d, m
    cdef Py_ssize_t _
    cdef int i, g, j
    for _ in range(nb):
        head(p, at, &d, &m, scales, mins)
        for i in range(2):
            for g in range(8):
                planes(p, codes_of(p, at), i, g, w)
                for j in range(4):
                    put(to, 32 * i + 8 * j + g, w[j])
        if Planes is TQ2_0 or Planes is I2_S:
            put_f8(to, 2048, d)
            to += UNIT_TERNARY
        else:
            for g in range(16):
                w8_store(to + AT_SCALES + 32 * g, w8_dup_i8_i16(scales[g >> 2], g & 3))
            for g in range(8):
                if Planes is Q2_K:
                    v = w8_pair_i8_i16(mins[g >> 1], g & 1)
                else:
                    v = w8_shl16(w8_pair_i8_i16(scales[g >> 1], g & 1), bias_bits(p))
                w8_store(to + AT_PAIRS + 32 * g, v)
            put_f8(to, AT_D, d)
            if Planes is Q2_K:
                put_f8(to, AT_M, m)
            to += UNIT_K
        at += 16 * sizeof(Planes) if Planes is I2_S else 8 * sizeof(Planes)


cdef inline w8 quarter(const Planes* tag, const char* p, int i, int last, const int8_t* a,
                       const w8* scales) noexcept nogil:
    """Products of the first, or last, 16 elements of the runs of half ``i``, each run times its scale."""
    cdef int eighth = (2 if Planes is I2_S else 1) * sizeof(Planes)
    cdef const char* step = p + eighth * (4 * i + 2 * last)
    cdef w8 w[4]
    cdef w8 part[4]
    cdef w8 total = w8_zero(), v
    cdef int h, j
    for h in range(4 * last, 4 * last + 4, 2):
        planes(tag, p, i, h, w)
        for j in range(4):
            v = w8_maddubs(w[j], w8_bcast32(a + 32 * j + 4 * h))
            part[j] = v if Planes is Q6_K or h == 4 * last else w8_add16(part[j], v)
        planes(tag, p, i, h + 1, w)
        fetch_ahead(step, eighth)
        step += eighth
        for j in range(4):
            part[j] = w8_add16(part[j], w8_maddubs(w[j], w8_bcast32(a + 32 * j + 4 * h + 4)))
        if Planes is Q6_K:
            # Codes to 63: two products fit.
            for j in range(4):
                total = w8_add32(total, w8_madd(part[j], w8_dup_i8_i16(scales[j >> 1], 2 * (j & 1) + last)))
    if Planes is Q2_K or Planes is Q3_K:
        for j in range(4):
            total = w8_add32(total, w8_madd(part[j], w8_dup_i8_i16(scales[j >> 1], 2 * (j & 1) + last)))
    if Planes is TQ2_0 or Planes is I2_S:
        total = w8_add16(w8_add16(part[0], part[1]), w8_add16(part[2], part[3]))
    return total


cdef inline w8 sums_of(const Planes* tag, const w8* scales, const char* aux) noexcept nogil:
    """Scales, or mins, times the sums of the activations that they belong to; without scales the sum of all."""
    cdef w8 total = w8_zero()
    cdef int g
    if Planes is TQ2_0 or Planes is I2_S:
        for g in range(4):
            total = w8_add32(total, w8_madd(w8_bcast32(aux + 32 + 4 * g), w8_set1_i16(1)))
    else:
        for g in range(8):
            total = w8_add32(total, w8_madd(w8_pair_i8_i16(scales[g >> 1], g & 1), w8_bcast32(aux + 4 * g)))
    return total


cdef inline void row_planes(const Planes* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                            const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of 8 rows. The pointer's type selects the format."""
    cdef const char* at = <const char*> p
    cdef const char* codes
    cdef w8 scales[4]
    cdef w8 mins[4]
    cdef w8 total, sums
    cdef f8 dw, mw, y = acc[0]
    cdef Py_ssize_t i
    cdef int line
    for i in range(nb):
        if Planes is Q6_K:
            # The words that belong together are in three places: read in order once, they are a stream to hardware.
            for line in range(<int> sizeof(Planes) // 8 + 1):
                fu_touch(at + 64 * line)
        head(p, at, &dw, &mw, scales, mins)
        codes = codes_of(p, at)
        if Planes is TQ2_0 or Planes is I2_S:
            total = w8_add16(quarter(p, codes, 0, 0, qs, scales), quarter(p, codes, 0, 1, qs, scales))
            sums = w8_add16(quarter(p, codes, 1, 0, qs + 128, scales), quarter(p, codes, 1, 1, qs + 128, scales))
            total = w8_add32(w8_madd(total, w8_set1_i16(1)), w8_madd(sums, w8_set1_i16(1)))
        else:
            total = w8_add32(quarter(p, codes, 0, 0, qs, scales), quarter(p, codes, 0, 1, qs, scales))
            total = w8_add32(total, quarter(p, codes, 1, 0, qs + 128, scales + 2))
            total = w8_add32(total, quarter(p, codes, 1, 1, qs + 128, scales + 2))
        sums = sums_of(p, &mins[0] if Planes is Q2_K else &scales[0], aux)
        if Planes is Q3_K or Planes is Q6_K:
            sums = w8_shl32(sums, bias_bits(p))
        if Planes is not Q2_K:
            total = w8_sub32(total, sums)
        y = f8_fma(f8_mul(dw, f8_set1(d[i])), f8_from_i32(total), y)
        if Planes is Q2_K:
            y = f8_fma(f8_mul(mw, f8_set1(-d[i])), f8_from_i32(sums), y)
        at += 16 * sizeof(Planes) if Planes is I2_S else 8 * sizeof(Planes)
        qs += 256
        aux += 48
    acc[0] = y
