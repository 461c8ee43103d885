"""Tiles of the formats with blocks of 32 and one scale: q4_0, q4_1, q5_0, q5_1, q8_0.

For each block the weights are unpacked once into eight registers and used for all columns; the f32 accumulators of the
columns live in the first-level cache, one load and one store per block. Unsigned codes let ``maddubs`` add several
products in i16 before one ``madd`` widens them: 15 * 127 * 2 * 8 = 30480 and 31 * 127 * 2 * 4 = 31496 stay under 32768.
q8_0 moves the sign of the weight to the activation and widens every product: 2 * 128 * 127 = 32512. Where products of
bytes are summed in 32 bits at once (``dot.pxd``), none of this limits anything, and codes of 8 bits are made unsigned.

A load gives four activations to all rows of a panel, and two loads per cycle are all there are. So with several columns
two panels share them (``pair_32``): half a block of either is eight registers, and the sums of the first half wait in
the first-level cache: 1.1 to 1.2 times as fast (AMD Zen 3, 2026-11). Codes of five bits leave nothing to gain there. With 32
registers both panels fit as a whole, and every format takes two (``tile_32`` itself): 1.2 times as fast as one panel with 4
bits, 1.4 with 5, 2.2 with 8, the better instruction included (AMD Zen 4, 2026-11). One column has two panels for every
load, too (``row_pair_32``).
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t

from blocks cimport Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from dot cimport S8_BIAS, part_add, part_dot_two, part_more, part_total, w8_codes_s8, w8_dot, w8_dot_s8
from panel cimport TILE, OnePanel, Panels, count_of, fetch_ahead
from recode cimport five_bits
from simd cimport (
    f8, f8_fma, f8_from_i32, f8_load_f16, f8_mul, f8_set1, f8_zero, w8, w8_and, w8_bcast32, w8_here, w8_load, w8_set1_u8,
    w8_shl32, w8_shr16, w8_sub32, w8_zero,
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
    elif Block32 is Q8_0:
        return w8_sub32(s, w8_shl32(w8_bcast32(aux), 7)) if S8_BIAS else s
    else:
        return s


cdef inline void unpack32(const Block32* tag, const char* p, w8* w) noexcept nogil:
    """Eight words of codes, unsigned where the format is; word g holds elements 4g..4g+3 of 8 rows."""
    cdef int g
    cdef w8 v
    if Block32 is Q8_0:
        for g in range(8):
            w[g] = w8_codes_s8(w8_load(p + 32 * g))
    elif Block32 is Q5_0 or Block32 is Q5_1:
        five_bits(p, w)
    else:
        for g in range(4):
            v = w8_load(p + 32 * g)
            w[g], w[g + 4] = nibbles(v, 0), nibbles(v, 1)


cdef inline w8 dot32(const Block32* tag, const w8* w, const int8_t* a, const char* aux) noexcept nogil:
    """Exact sums of 32 products for 8 rows."""
    cdef w8 s
    if Block32 is Q8_0:
        s = w8_dot_s8(w, a)
    elif Block32 is Q4_0 or Block32 is Q4_1:
        s = w8_dot(w, a, 8, 8)
    else:
        s = w8_dot(w, a, 8, 4)
    return without_offset(tag, s, aux)


cdef inline const char* open_32(const Block32* tag, const char* p, f8* dw, f8* mw, w8* w) noexcept nogil:
    """The scales of a block, its mins if it has some, its codes; returns where the next one is."""
    fetch_ahead(p, 8 * sizeof(Block32))
    dw[0] = f8_load_f16(<const uint16_t*> p)
    if Block32 is Q4_1 or Block32 is Q5_1:
        mw[0] = f8_load_f16(<const uint16_t*> (p + 16))
        unpack32(tag, p + 32, w)
    else:
        unpack32(tag, p + 16, w)
    return p + 8 * sizeof(Block32)


cdef inline f8 close_32(const Block32* tag, f8 acc, f8 dw, f8 mw, w8 s, float d, const char* aux) noexcept nogil:
    """One more block of a column."""
    acc = f8_fma(f8_mul(dw, f8_set1(d)), f8_from_i32(s), acc)
    if Block32 is Q4_1 or Block32 is Q5_1:
        acc = f8_fma(mw, f8_set1((<const float*> aux)[0]), acc)
    return acc


cdef inline void tile_32(const Block32* tag, const Panels* panels, const char* const* starts, Py_ssize_t nb,
                         const int8_t* qs, const float* d, const char* aux, int nc, f8* acc) noexcept nogil:
    """Add ``nc`` columns times ``nb`` blocks of one or two panels; acc[count * c + e] for panel e."""
    cdef int count = count_of(panels)
    cdef const char* p[2]
    cdef w8 w[2][8]
    cdef w8 s[2]
    cdef f8 dw[2]
    cdef f8 mw[2]
    cdef Py_ssize_t _
    cdef int c, e
    for e in range(count):
        p[e] = starts[e]
    for _ in range(nb):
        for e in range(count):
            p[e] = open_32(tag, p[e], &dw[e], &mw[e], w[e])
        for c in range(nc):
            if Panels is OnePanel:
                s[0] = dot32(tag, w[0], qs, aux)
            else:
                # Whole parts can start with what will have to come off.
                s[0] = s[1] = without_offset(tag, w8_zero(), aux)
                part_dot_two(s, w[0], w[1], qs, 8)
            for e in range(count):
                acc[count * c + e] = close_32(tag, acc[count * c + e], dw[e], mw[e], s[e], d[c], aux)
            qs += 32
            aux += 4
        d += nc


cdef inline void row_32(const Block32* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                        const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of 8 rows."""
    cdef const char* at = <const char*> p
    cdef w8 w[8]
    cdef f8 dw, mw, y = acc[0]
    cdef Py_ssize_t b
    for b in range(nb):
        at = open_32(p, at, &dw, &mw, w)
        y = close_32(p, y, dw, mw, dot32(p, w, qs, aux), d[b], aux)
        qs += 32
        aux += 4
    acc[0] = y


ctypedef fused Paired32:
    Q4_0
    Q4_1


cdef inline void pair_32(const Paired32* tag, const char* p, const char* r, Py_ssize_t nb, const int8_t* qs,
                         const float* d, const char* aux, int nc, f8* acc) noexcept nogil:
    """``nc`` columns times the panels ``p`` and ``r``; acc[2 * c] and acc[2 * c + 1]."""
    cdef w8 w[4]
    cdef w8 u[4]
    cdef w8 part[2 * TILE]
    cdef w8 s[2]
    cdef w8 low = w8_set1_u8(15)
    cdef f8 dp, dr, mp, mr
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
            s[0] = s[1] = w8_zero()
            part_dot_two(s, w, u, a, 4)
            part[2 * c], part[2 * c + 1] = s[0], s[1]
            a += 32
        for g in range(4):
            w[g], u[g] = w8_and(w8_shr16(w8_load(p + 32 * g), 4), low), w8_and(w8_shr16(w8_load(r + 32 * g), 4), low)
        a = qs + 16
        for c in range(nc):
            s[0] = s[1] = w8_zero()
            part_dot_two(s, w, u, a, 4)
            s[0] = without_offset(tag, part_total(part_add(s[0], part[2 * c])), aux + 4 * c)
            s[1] = without_offset(tag, part_total(part_add(s[1], part[2 * c + 1])), aux + 4 * c)
            acc[2 * c] = close_32(tag, acc[2 * c], dp, mp, s[0], d[c], aux + 4 * c)
            acc[2 * c + 1] = close_32(tag, acc[2 * c + 1], dr, mr, s[1], d[c], aux + 4 * c)
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
    cdef w8 a, total
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
                sums[e] = w8_here(part_more(sums[e], nibbles(w8_load(at[e] + 32 * (g & 3)), g >> 2), a))
        da = f8_set1(d[0])
        for e in range(2):
            total = without_offset(p, part_total(sums[e]), aux)
            y[e] = f8_fma(f8_mul(dw[e], da), f8_from_i32(total), y[e])
            if Paired32 is Q4_1:
                y[e] = f8_fma(f8_load_f16(<const uint16_t*> (at[e] - 16)), f8_set1((<const float*> aux)[0]), y[e])
            at[e] += 128
        qs += 32
        aux += 4
        d += 1
    acc[0], acc[1] = y[0], y[1]
