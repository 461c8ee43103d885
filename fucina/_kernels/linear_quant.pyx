"""Products with quantized weights: y[c, r] = sum_k x[c, k] * w[r, k] (+ bias[r]), w in GGUF blocks.

Per output one chain of fused multiply-adds over the blocks of k, in ascending order, from exact integer dots:

    q4_0 q5_0 q8_0   y = fma(dw * da, sum(q * a), y)                          offsets -8, -16 are in the integer sum
    q4_1 q5_1        y = fma(dw * da, sum(q * a), y);  y = fma(mw, s, y)
    q4_k q5_k        y = fma(dw * da, sum_j sc_j * dot_j, y);  y = fma(-(dmin * da), sum_j mn_j * asum_j, y)
    q6_k             y = fma(dw * da, sum_g sc_g * dot_g, y)

Integer sums are converted to f32 once, as totals. Lanes are rows of w and every output is its own chain, so the
bits depend neither on vector width, nor on threads, nor on how many columns share the call.

Panels. A panel holds 8 rows, word-interleaved: a block, seen as 32-bit words, becomes [word][row], so 32 bytes are
the same word of 8 rows. A block with an odd 16-bit field (``half_at`` in the format table) keeps the 8 halves in
front: [half x 8][word][row]. It has exactly the bytes of the original, every vector load is a load of 8 rows, and
nothing is summed across lanes: 4 bytes of activations, broadcast from memory, meet the same 4 positions of 8 rows.
Because 6-bit scales, nibbles and fifth bits sit in the same places of every row, unpacking them is the same vector
operation for all 8. Raw weights are interleaved into scratch one panel at a time (an 8 x 8 transposition per 256
bytes) and then go through the very same tile.

The tile. For each block the weights are unpacked once into eight registers and used for all columns of the
activation tile; the f32 accumulators of the columns live in the first-level cache, one load and one store per
block. Unsigned codes let ``maddubs`` add several products in i16 before one ``madd`` widens them:
15 * 127 * 2 * 8 = 30480, 31 * 127 * 2 * 4 = 31496 and 63 * 127 * 2 * 2 = 32004 stay under 32768.
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t
from libc.string cimport memcpy

from act cimport ActArgs, act_aux, act_block, quantize_act
from blocks cimport Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Block
from simd cimport (
    f8, f8_add, f8_fma, f8_from_f16_of_words, f8_from_i32, f8_load, f8_load_f16, f8_mul, f8_set1, f8_store, f8_zero,
    w8, w8_add32, w8_and, w8_bcast32, w8_dot1_s8, w8_dot2_u6, w8_dot4_u5, w8_dot8_u4, w8_dup_i8_i16, w8_dup_u8_i16,
    w8_fifth_bits, w8_load, w8_madd, w8_or, w8_pair_i8_i16, w8_pair_u8_i16, w8_set1_i16, w8_set1_u8, w8_shl16, w8_shl32,
    w8_shr16, w8_sub32, w8_transpose4, w8_zero,
)
from team cimport core_t, run_team, share_start

# Columns of an activation tile. 16 columns of k = 4096 and their scales are 72 KiB (second-level cache), of
# k = 1536 27 KiB (first level); the accumulators are 512 bytes.
cdef enum:
    TILE = 16


# Formats that share a tile; a fused type selects the code at compile time.
ctypedef fused Block32:
    Q4_0
    Q4_1
    Q5_0
    Q5_1
    Q8_0

ctypedef fused BlockK:
    Q4_K
    Q5_K

cdef struct Args:
    const char* w           # rows of blocks, or panels
    Py_ssize_t row_bytes
    int packed, nbytes, half_at
    const int8_t* qs
    const float* d
    const char* aux
    const float* bias       # or NULL
    float* out
    char* scratch           # one panel per share
    Py_ssize_t scratch_stride
    Py_ssize_t m, n, k


# ---- panels ------------------------------------------------------------------------------------------------

cdef void interleave(const char* w, Py_ssize_t stride, int rows, Py_ssize_t blocks, int nbytes, int half_at,
                     char* panel) noexcept nogil:
    """Rows ``w + i * stride`` to one panel; with fewer than 8 rows the last one is repeated."""
    cdef const char* src[8]
    cdef char* dst = panel
    cdef int words = nbytes // 4
    cdef int skip = 2 if half_at == 0 else 0
    cdef int i, j
    cdef Py_ssize_t b
    for i in range(8):
        src[i] = w + min(i, rows - 1) * stride
    for b in range(blocks):
        if half_at >= 0:
            for i in range(8):
                memcpy(dst + 2 * i, src[i] + half_at, 2)
            dst += 16
        # Four words at a time; the last group is shifted back over words that were already done.
        j = 0
        while j < words:
            j = min(j, words - 4)
            w8_transpose4(src, skip + 4 * j, dst + 32 * j)
            j += 4
        dst += 32 * words
        for i in range(8):
            src[i] += nbytes


cdef inline void finish(f8 acc, const float* bias, float* out, int rows) noexcept nogil:
    """Write one column of a panel: ``rows`` outputs, with the bias added last."""
    cdef float lane[8]
    cdef float edge[8]
    cdef int i
    if rows == 8:
        if bias != NULL:
            acc = f8_add(acc, f8_load(bias))
        f8_store(out, acc)
        return
    if bias != NULL:
        for i in range(8):
            edge[i] = bias[i] if i < rows else 0
        acc = f8_add(acc, f8_load(edge))
    f8_store(lane, acc)
    for i in range(rows):
        out[i] = lane[i]


# ---- blocks of 32 ------------------------------------------------------------------------------------------

cdef inline void unpack32(const Block32* tag, const char* p, w8* w) noexcept nogil:
    """Eight words of codes, unsigned where the format is; word g holds elements 4g..4g+3 of 8 rows."""
    cdef int g
    cdef w8 v, qh
    cdef w8 low = w8_set1_u8(15)
    if Block32 is Q8_0:
        for g in range(8):
            w[g] = w8_load(p + 32 * g)
    else:
        if Block32 is Q5_0 or Block32 is Q5_1:
            qh = w8_load(p)
            p += 32
        for g in range(4):
            v = w8_load(p + 32 * g)
            w[g] = w8_and(v, low)
            w[g + 4] = w8_and(w8_shr16(v, 4), low)
        if Block32 is Q5_0 or Block32 is Q5_1:
            for g in range(8):
                w[g] = w8_or(w[g], w8_fifth_bits(qh, g))


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
    if Block32 is Q4_0:
        s = w8_sub32(s, w8_shl32(w8_bcast32(aux), 3))
    if Block32 is Q5_0:
        s = w8_sub32(s, w8_shl32(w8_bcast32(aux), 4))
    return s


cdef void tile32(const Block32* tag, const char* p, Py_ssize_t nb, const int8_t* qs, const float* d, const char* aux,
                 int nc, f8* acc) noexcept nogil:
    """``nc`` columns times one panel of 8 rows."""
    cdef w8 w[8]
    cdef f8 dw, mw
    cdef w8 head
    cdef Py_ssize_t b
    cdef int c
    for c in range(nc):
        acc[c] = f8_zero()
    for b in range(nb):
        if Block32 is Q4_1 or Block32 is Q5_1:
            head = w8_load(p)
            dw = f8_from_f16_of_words(head, 0)
            mw = f8_from_f16_of_words(head, 1)
            p += 32
        else:
            dw = f8_load_f16(<const uint16_t*> p)
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


# ---- blocks of 256 -----------------------------------------------------------------------------------------

cdef void tile_k(const BlockK* tag, const char* p, Py_ssize_t nb, const int8_t* qs, const float* d, const char* aux,
                 int nc, f8* acc) noexcept nogil:
    """q4_k and q5_k: eight sub-blocks of 32 with 6-bit scales and mins."""
    cdef w8 w[8]
    cdef w8 total[TILE]
    cdef w8 sc[2]
    cdef w8 mn[2]
    cdef w8 pair[4]
    cdef w8 head, s0, s1, s2, v, scale, low, five, fifth, mins
    cdef f8 dw, dmin
    cdef const int8_t* a
    cdef const char* sums
    cdef Py_ssize_t b
    cdef int c, j, g
    low = w8_set1_u8(15)
    fifth = w8_set1_u8(16)
    for c in range(nc):
        acc[c] = f8_zero()
    for b in range(nb):
        head = w8_load(p)
        dw = f8_from_f16_of_words(head, 0)
        dmin = f8_from_f16_of_words(head, 1)
        # 12 bytes of scales are three words: bytes 0-3, 4-7, 8-11 of each row.
        s0 = w8_load(p + 32)
        s1 = w8_load(p + 64)
        s2 = w8_load(p + 96)
        sc[0] = w8_and(s0, w8_set1_u8(63))
        mn[0] = w8_and(s1, w8_set1_u8(63))
        sc[1] = w8_or(w8_and(s2, low), w8_and(w8_shr16(s0, 2), w8_set1_u8(48)))
        mn[1] = w8_or(w8_and(w8_shr16(s2, 4), low), w8_and(w8_shr16(s1, 2), w8_set1_u8(48)))
        for g in range(4):
            pair[g] = w8_pair_u8_i16(mn[g >> 1], g & 1)
        p += 128
        for c in range(nc):
            total[c] = w8_zero()
        for j in range(8):
            for g in range(8):
                if BlockK is Q5_K:
                    v = w8_load(p + 256 + 256 * (j >> 1) + 32 * g)
                else:
                    v = w8_load(p + 256 * (j >> 1) + 32 * g)
                w[g] = w8_and(w8_shr16(v, 4) if j & 1 else v, low)
                if BlockK is Q5_K:
                    # Bit j of qh[l] is the fifth bit of element l of sub-block j.
                    five = w8_load(p + 32 * g)
                    five = w8_shr16(five, j - 4) if j >= 4 else w8_shl16(five, 4 - j)
                    w[g] = w8_or(w[g], w8_and(five, fifth))
            scale = w8_dup_u8_i16(sc[j >> 2], j & 3)
            a = qs + 32 * j
            for c in range(nc):
                if BlockK is Q4_K:
                    v = w8_madd(w8_dot8_u4(w, a), scale)
                else:
                    v = w8_add32(w8_madd(w8_dot4_u5(w, a), scale), w8_madd(w8_dot4_u5(w + 4, a + 16), scale))
                total[c] = w8_add32(total[c], v)
                a += 256
        if BlockK is Q5_K:
            p += 256 + 1024
        else:
            p += 1024
        for c in range(nc):
            sums = aux + 32     # eight sums of 32 elements
            mins = w8_add32(w8_madd(pair[0], w8_bcast32(sums)), w8_madd(pair[1], w8_bcast32(sums + 4)))
            mins = w8_add32(mins, w8_madd(pair[2], w8_bcast32(sums + 8)))
            mins = w8_add32(mins, w8_madd(pair[3], w8_bcast32(sums + 12)))
            acc[c] = f8_fma(f8_mul(dw, f8_set1(d[c])), f8_from_i32(total[c]), acc[c])
            acc[c] = f8_fma(f8_mul(dmin, f8_set1(-d[c])), f8_from_i32(mins), acc[c])
            aux += 48
        qs += 256 * nc
        d += nc


cdef void tile_q6_k(const char* p, Py_ssize_t nb, const int8_t* qs, const float* d, const char* aux, int nc,
                    f8* acc) noexcept nogil:
    """q6_k: sixteen sub-blocks of 16 with signed 8-bit scales; codes are used unsigned and 32 is taken off after."""
    cdef w8 w[8]
    cdef w8 total[TILE]
    cdef w8 pair[8]
    cdef w8 low, high, ql, qh, s0, s1, corr
    cdef f8 dw
    cdef const char* q
    cdef const int8_t* a
    cdef const char* sums
    cdef Py_ssize_t b
    cdef int c, j, g, half, run
    low = w8_set1_u8(15)
    high = w8_set1_u8(48)
    for c in range(nc):
        acc[c] = f8_zero()
    for b in range(nb):
        dw = f8_load_f16(<const uint16_t*> p)
        p += 16
        for g in range(8):
            pair[g] = w8_pair_i8_i16(w8_load(p + 32 * (48 + (g >> 1))), g & 1)
        for c in range(nc):
            total[c] = w8_zero()
        for j in range(8):
            half = j >> 2
            run = j & 3
            # 32 elements: half of the block, then low or high nibbles of its first or second 32 bytes.
            q = p + 32 * (16 * half + 8 * (run & 1))
            for g in range(8):
                ql = w8_load(q + 32 * g)
                qh = w8_load(p + 32 * (32 + 8 * half + g))
                if run & 2:
                    ql = w8_shr16(ql, 4)
                if run == 0:
                    qh = w8_shl16(qh, 4)
                elif run == 1:
                    qh = w8_shl16(qh, 2)
                elif run == 3:
                    qh = w8_shr16(qh, 2)
                w[g] = w8_or(w8_and(ql, low), w8_and(qh, high))
            s0 = w8_dup_i8_i16(w8_load(p + 32 * (48 + (j >> 1))), 2 * (j & 1))
            s1 = w8_dup_i8_i16(w8_load(p + 32 * (48 + (j >> 1))), 2 * (j & 1) + 1)
            a = qs + 32 * j
            for c in range(nc):
                total[c] = w8_add32(total[c], w8_add32(
                    w8_add32(w8_madd(w8_dot2_u6(w, a), s0), w8_madd(w8_dot2_u6(w + 2, a + 8), s0)),
                    w8_add32(w8_madd(w8_dot2_u6(w + 4, a + 16), s1), w8_madd(w8_dot2_u6(w + 6, a + 24), s1))))
                a += 256
        p += 32 * 52
        for c in range(nc):
            sums = aux          # sixteen sums of 16 elements
            corr = w8_madd(pair[0], w8_bcast32(sums))
            for g in range(1, 8):
                corr = w8_add32(corr, w8_madd(pair[g], w8_bcast32(sums + 4 * g)))
            acc[c] = f8_fma(f8_mul(dw, f8_set1(d[c])), f8_from_i32(w8_sub32(total[c], w8_shl32(corr, 5))), acc[c])
            aux += 48
        qs += 256 * nc
        d += nc


# ---- the core ----------------------------------------------------------------------------------------------

cdef void linear_quant(const Block* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of the panels. The pointer's type only selects the format; it points to ``Args``."""
    cdef const Args* a = <const Args*> args
    cdef f8 acc[TILE]
    cdef int size = 256 if (Block is Q4_K or Block is Q5_K or Block is Q6_K) else 32
    cdef Py_ssize_t aux_bytes = 48 if size == 256 else 4
    cdef Py_ssize_t nb = a.k // size
    cdef Py_ssize_t panels = (a.n + 7) // 8
    cdef Py_ssize_t i, t
    cdef const char* p
    cdef char* scratch = a.scratch + ith * a.scratch_stride
    cdef int rows, nc, c
    for i in range(share_start(panels, ith, nth), share_start(panels, ith + 1, nth)):
        rows = <int> min(<Py_ssize_t> 8, a.n - 8 * i)
        p = a.w + i * 8 * a.row_bytes
        if not a.packed:
            interleave(p, a.row_bytes, rows, nb, a.nbytes, a.half_at, scratch)
            p = scratch
        t = 0
        while t < a.m:
            nc = <int> min(<Py_ssize_t> TILE, a.m - t)
            if Block is Q6_K:
                tile_q6_k(p, nb, a.qs + t * a.k, a.d + t * nb, a.aux + t * nb * aux_bytes, nc, acc)
            elif Block is Q4_K or Block is Q5_K:
                tile_k(args, p, nb, a.qs + t * a.k, a.d + t * nb, a.aux + t * nb * aux_bytes, nc, acc)
            else:
                tile32(args, p, nb, a.qs + t * a.k, a.d + t * nb, a.aux + t * nb * aux_bytes, nc, acc)
            for c in range(nc):
                finish(acc[c], NULL if a.bias == NULL else a.bias + 8 * i, a.out + (t + c) * a.n + 8 * i, rows)
            t += TILE


cdef core_t core_of(int code) noexcept nogil:
    """The core of the format with that ``code`` in the format table."""
    if code == 0:
        return <core_t> linear_quant[Q4_0]
    if code == 1:
        return <core_t> linear_quant[Q4_1]
    if code == 2:
        return <core_t> linear_quant[Q5_0]
    if code == 3:
        return <core_t> linear_quant[Q5_1]
    if code == 4:
        return <core_t> linear_quant[Q8_0]
    if code == 5:
        return <core_t> linear_quant[Q4_K]
    if code == 6:
        return <core_t> linear_quant[Q5_K]
    return <core_t> linear_quant[Q6_K]


cdef inline Py_ssize_t up64(Py_ssize_t n) noexcept nogil:
    return (n + 63) & ~<Py_ssize_t> 63


def scratch_bytes(int kind, Py_ssize_t m, Py_ssize_t k, Py_ssize_t row_bytes, Py_ssize_t nth):
    """Bytes of scratch for ``linear_quant_into_unchecked``: the quantized activations and a panel per share."""
    cdef Py_ssize_t blocks = m * (k // act_block(kind))
    return (up64(m * k) + up64(4 * blocks) + up64(act_aux(kind) * blocks)
            + up64(8 * row_bytes) * (4 * nth if nth > 1 else 1))


def linear_quant_into_unchecked(int code, int kind, int nbytes, int half_at, bint packed,
                                const unsigned char[:, ::1] w, const float[:, ::1] x, const float[::1] bias,
                                float[:, ::1] out, unsigned char[::1] scratch, Py_ssize_t nth):
    """``out`` [m, n] = ``x`` [m, k] times the n rows of ``w``, plus ``bias`` unless it is None.

    ``w`` holds n rows of blocks or, ``packed``, ceil(n / 8) panels. ``code``, ``nbytes`` and ``half_at`` are the
    format's row in the table, ``kind`` its activation (0 q8_0, 1 q8_1, 2 q8_k); ``scratch`` as ``scratch_bytes`` says.
    """
    cdef ActArgs act
    cdef Args a
    cdef Py_ssize_t m = x.shape[0]
    cdef Py_ssize_t k = x.shape[1]
    cdef Py_ssize_t blocks = m * (k // act_block(kind))
    act.x = &x[0, 0]
    act.qs = <int8_t*> &scratch[0]
    act.d = <float*> (<char*> act.qs + up64(m * k))
    act.aux = <char*> act.d + up64(4 * blocks)
    act.m = m
    act.k = k
    act.tile = TILE
    act.kind = kind
    a.w = <const char*> &w[0, 0]
    a.row_bytes = w.shape[1] // 8 if packed else w.shape[1]
    a.packed = packed
    a.nbytes = nbytes
    a.half_at = half_at
    a.qs = act.qs
    a.d = act.d
    a.aux = act.aux
    a.bias = NULL
    if bias is not None:
        a.bias = &bias[0]
    a.out = &out[0, 0]
    a.scratch = act.aux + up64(act_aux(kind) * blocks)
    a.scratch_stride = up64(8 * a.row_bytes)
    a.m = m
    a.n = out.shape[1]
    a.k = k
    with nogil:
        # Quantizing is a few per cent of the product's work: a handful of rows is not worth a second region.
        run_team(<core_t> quantize_act, &act, min(4 * nth, m), nth if m >= 8 else 1)
        run_team(core_of(code), &a, 4 * nth if nth > 1 else 1, nth)


cdef struct PackArgs:
    const char* w
    char* panels
    Py_ssize_t n, row_bytes
    int nbytes, half_at


cdef void pack_rows(const PackArgs* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t count = (a.n + 7) // 8
    cdef Py_ssize_t i
    for i in range(share_start(count, ith, nth), share_start(count, ith + 1, nth)):
        interleave(a.w + 8 * i * a.row_bytes, a.row_bytes, <int> min(<Py_ssize_t> 8, a.n - 8 * i),
                   a.row_bytes // a.nbytes, a.nbytes, a.half_at, a.panels + 8 * i * a.row_bytes)


def pack_rows_into_unchecked(int nbytes, int half_at, const unsigned char[:, ::1] w, unsigned char[:, ::1] panels,
                             Py_ssize_t nth):
    """Interleave the rows of ``w`` [n, row_bytes] by 8 into ``panels`` [ceil(n / 8), 8 * row_bytes]."""
    cdef PackArgs a
    a.w = <const char*> &w[0, 0]
    a.panels = <char*> &panels[0, 0]
    a.n = w.shape[0]
    a.row_bytes = w.shape[1]
    a.nbytes = nbytes
    a.half_at = half_at
    with nogil:
        run_team(<core_t> pack_rows, &a, 4 * nth if nth > 1 else 1, nth)
