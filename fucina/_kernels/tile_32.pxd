"""Tiles of the formats with blocks of 32 and one scale: q4_0, q4_1, q5_0, q5_1, q8_0.

For each block the weights are unpacked once into eight registers and used for all columns; the f32 accumulators of the
columns live in the first-level cache, one load and one store per block. Unsigned codes let ``maddubs`` add several
products in i16 before one ``madd`` widens them: 15 * 127 * 2 * 8 = 30480 and 31 * 127 * 2 * 4 = 31496 stay under 32768.
q8_0 moves the sign of the weight to the activation and widens every product: 2 * 128 * 127 = 32512.

A load gives four activations to all rows of a panel, and two loads per cycle are all there are. So with several columns
two panels share them (``pair_32``): half a block of either is eight registers, and the sums of the first half wait in
the first-level cache: 1.1 to 1.2 times as fast (AMD Zen 3, 2026-11). Codes of five bits leave nothing to gain there.
One column has two panels for every load, too (``row_pair_32``).
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t

from blocks cimport Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from panel cimport TILE, fetch_ahead
from recode cimport five_bits
from simd cimport (
    f8, f8_fma, f8_from_i32, f8_load_f16, f8_mul, f8_set1, f8_zero, w8, w8_add16,
    w8_add32, w8_and, w8_bcast32, w8_dot1_s8, w8_dot4_u5, w8_dot8_u4, w8_here, w8_load, w8_madd, w8_maddubs,
    w8_set1_i16, w8_set1_u8, w8_shl32, w8_shr16, w8_store, w8_sub32, w8_zero,
)

# A fused type selects the code at compile time.
ctypedef fused Block32:
    Q4_0
    Q4_1
    Q5_0
    Q5_1
    Q8_0


cdef inline w8 nibbles(w8 word, int high) noexcept nogil:
    """The low or the high nibbles of every byte."""
    return w8_and(w8_shr16(word, 4) if high else word, w8_set1_u8(15))


cdef inline w8 without_offset(const Block32* tag, w8 s, const char* aux) noexcept nogil:
    """A sum of products less what the offset of the codes added to it."""
    if Block32 is Q4_0:
        return w8_sub32(s, w8_shl32(w8_bcast32(aux), 3))
    elif Block32 is Q5_0:
        return w8_sub32(s, w8_shl32(w8_bcast32(aux), 4))
    else:
        return s


cdef inline void unpack32(const Block32* tag, const char* p, w8* w) noexcept nogil:
    """Eight words of codes, unsigned where the format is; word g holds elements 4g..4g+3 of 8 rows."""
    cdef int g
    cdef w8 v
    if Block32 is Q8_0:
        for g in range(8):
            w[g] = w8_load(p + 32 * g)
    elif Block32 is Q5_0 or Block32 is Q5_1:
        five_bits(p, w)
    else:
        for g in range(4):
            v = w8_load(p + 32 * g)
            w[g], w[g + 4] = nibbles(v, 0), nibbles(v, 1)


cdef inline w8 dot32(const Block32* tag, const w8* w, const int8_t* a, const char* aux) noexcept nogil:
    """Exact sums of 32 products for 8 rows."""
    cdef w8 s
    cdef w8 ones = w8_set1_i16(1)
    if Block32 is Q8_0:
        s = w8_add32(w8_dot1_s8(w[0], a), w8_dot1_s8(w[1], a + 4))
        s = w8_add32(s, w8_add32(w8_dot1_s8(w[2], a + 8), w8_dot1_s8(w[3], a + 12)))
        s = w8_add32(s, w8_add32(w8_dot1_s8(w[4], a + 16), w8_dot1_s8(w[5], a + 20)))
        s = w8_add32(s, w8_add32(w8_dot1_s8(w[6], a + 24), w8_dot1_s8(w[7], a + 28)))
    elif Block32 is Q4_0 or Block32 is Q4_1:
        s = w8_madd(w8_dot8_u4(w, a), ones)
    else:
        s = w8_add32(w8_madd(w8_dot4_u5(w, a), ones), w8_madd(w8_dot4_u5(w + 4, a + 16), ones))
    return without_offset(tag, s, aux)


cdef inline void tile_32(const Block32* tag, const char* p, Py_ssize_t nb, const int8_t* qs, const float* d,
                         const char* aux, int nc, f8* acc) noexcept nogil:
    """Add ``nc`` columns times ``nb`` blocks of 8 rows."""
    cdef w8 w[8]
    cdef f8 dw, mw
    cdef Py_ssize_t _
    cdef int c
    for _ in range(nb):
        fetch_ahead(p, 8 * sizeof(Block32))
        dw = f8_load_f16(<const uint16_t*> p)
        if Block32 is Q4_1 or Block32 is Q5_1:
            mw = f8_load_f16(<const uint16_t*> (p + 16))
            p += 16
        p += 16
        unpack32(tag, p, w)
        p += 8 * (sizeof(Block32) - 2) if not (Block32 is Q4_1 or Block32 is Q5_1) else 8 * (sizeof(Block32) - 4)
        for c in range(nc):
            acc[c] = f8_fma(f8_mul(dw, f8_set1(d[c])), f8_from_i32(dot32(tag, w, qs, aux)), acc[c])
            if Block32 is Q4_1 or Block32 is Q5_1:
                acc[c] = f8_fma(mw, f8_set1((<const float*> aux)[0]), acc[c])
            qs += 32
            aux += 4
        d += nc


cdef inline void row_32(const Block32* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                        const char* aux, f8* acc) noexcept nogil:
    """The tile for one column, whose accumulator stays in a register."""
    cdef f8 y[1]
    y[0] = acc[0]
    tile_32(p, <const char*> p, nb, qs, d, aux, 1, y)
    acc[0] = y[0]


cdef inline void dot4_pair(const w8* w, const w8* u, const int8_t* a, w8* x, w8* y) noexcept nogil:
    """Sums of 16 products in i16 for the rows of two panels (needs codes <= 31): a load of activations serves both."""
    cdef w8 v = w8_bcast32(a)
    cdef int g
    x[0], y[0] = w8_maddubs(w[0], v), w8_maddubs(u[0], v)
    for g in range(1, 4):
        v = w8_bcast32(a + 4 * g)
        x[0] = w8_add16(x[0], w8_maddubs(w[g], v))
        y[0] = w8_add16(y[0], w8_maddubs(u[g], v))


ctypedef fused Paired32:
    Q4_0
    Q4_1


cdef inline void pair_32(const Paired32* tag, const char* p, const char* r, Py_ssize_t nb, const int8_t* qs,
                         const float* d, const char* aux, int nc, f8* acc) noexcept nogil:
    """``nc`` columns times the panels ``p`` and ``r``; acc[2 * c] and acc[2 * c + 1]."""
    cdef w8 w[4]
    cdef w8 u[4]
    cdef w8 part[2 * TILE]
    cdef w8 x, y
    cdef w8 ones = w8_set1_i16(1), low = w8_set1_u8(15)
    cdef f8 dp, dr, mp, mr, dc
    cdef Py_ssize_t _
    cdef const int8_t* a
    cdef int c, g
    for c in range(2 * nc):
        acc[c] = f8_zero()
    for _ in range(nb):
        dp, dr = f8_load_f16(<const uint16_t*> p), f8_load_f16(<const uint16_t*> r)
        if Paired32 is Q4_1:
            p += 16
            r += 16
            mp, mr = f8_load_f16(<const uint16_t*> p), f8_load_f16(<const uint16_t*> r)
        p += 16
        r += 16
        for g in range(4):
            w[g], u[g] = w8_and(w8_load(p + 32 * g), low), w8_and(w8_load(r + 32 * g), low)
        a = qs
        for c in range(nc):
            dot4_pair(w, u, a, &x, &y)
            part[2 * c], part[2 * c + 1] = x, y
            a += 32
        for g in range(4):
            w[g], u[g] = w8_and(w8_shr16(w8_load(p + 32 * g), 4), low), w8_and(w8_shr16(w8_load(r + 32 * g), 4), low)
        a = qs + 16
        for c in range(nc):
            dot4_pair(w, u, a, &x, &y)
            x, y = w8_madd(w8_add16(x, part[2 * c]), ones), w8_madd(w8_add16(y, part[2 * c + 1]), ones)
            x, y = without_offset(tag, x, aux + 4 * c), without_offset(tag, y, aux + 4 * c)
            dc = f8_set1(d[c])
            acc[2 * c] = f8_fma(f8_mul(dp, dc), f8_from_i32(x), acc[2 * c])
            acc[2 * c + 1] = f8_fma(f8_mul(dr, dc), f8_from_i32(y), acc[2 * c + 1])
            if Paired32 is Q4_1:
                dc = f8_set1((<const float*> aux)[c])
                acc[2 * c] = f8_fma(mp, dc, acc[2 * c])
                acc[2 * c + 1] = f8_fma(mr, dc, acc[2 * c + 1])
            a += 32
        p += 128
        r += 128
        qs += 32 * nc
        aux += 4 * nc
        d += nc


cdef inline void row_pair_32(const Paired32* p, const char* r, Py_ssize_t nb, const int8_t* qs, const float* d,
                             const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of the panels ``p`` and ``r``, which share the loads of activations: 1.14 and 1.22
    times as fast from caches (AMD Zen 3, 2026-11)."""
    cdef const char* at[2]
    cdef w8 sums[2]
    cdef f8 y[2]
    cdef f8 dw[2]
    cdef w8 ones = w8_set1_i16(1), a, total
    cdef f8 da
    cdef Py_ssize_t _
    cdef int g, e
    at[0], at[1] = <const char*> p, r
    y[0], y[1] = acc[0], acc[1]
    for _ in range(nb):
        for e in range(2):
            fetch_ahead(at[e], 8 * sizeof(Paired32))
            dw[e] = f8_load_f16(<const uint16_t*> at[e])
            at[e] += 32 if Paired32 is Q4_1 else 16
            sums[e] = w8_zero()
        for g in range(8):
            a = w8_bcast32(qs + 4 * g)
            for e in range(2):
                total = w8_maddubs(nibbles(w8_load(at[e] + 32 * (g & 3)), g >> 2), a)
                sums[e] = w8_here(w8_add16(sums[e], total))
        da = f8_set1(d[0])
        for e in range(2):
            total = without_offset(p, w8_madd(sums[e], ones), aux)
            y[e] = f8_fma(f8_mul(dw[e], da), f8_from_i32(total), y[e])
            if Paired32 is Q4_1:
                y[e] = f8_fma(f8_load_f16(<const uint16_t*> (at[e] - 16)), f8_set1((<const float*> aux)[0]), y[e])
            at[e] += 128
        qs += 32
        aux += 4
        d += 1
    acc[0], acc[1] = y[0], y[1]
