"""Products with quantized weights: y[c, r] = sum_k x[c, k] * w[r, k] (+ bias[r]), w in GGUF blocks.

Per output one chain of fused multiply-adds over the blocks of k, in ascending order, from exact integer dots:

    q4_0 q5_0 q8_0 iq4_nl mxfp4     y = fma(dw * da, sum(q * a), y)           per 32 elements
    q1_0 q2_0                       the same, dw of 128 or 64 elements
    nvfp4                           y = fma((d * sc_g) * da, sum(q * a), y)   per 16 elements
    q4_1 q5_1                       y = fma(dw * da, sum(q * a), y);  y = fma(mw, s, y)
    q4_k q5_k q2_k                  y = fma(dw * da, sum_j sc_j * dot_j, y);
                                    y = fma(dmin * -da, sum_j mn_j * asum_j, y)
    q3_k q6_k iq4_xs iq1 iq2 iq3    y = fma(dw * da, sum_g sc_g * dot_g, y)   per 256 elements
    tq1_0 tq2_0 i2_s                y = fma(dw * da, sum(q * a), y)           per 256 elements; i2_s: dw = 1, y * scale

Offsets of codes are in the integer sums, which are converted to f32 once, as totals. A scale of the whole tensor
multiplies the finished sum, before the bias. Lanes are rows of w and every output is its own chain, so the bits depend
neither on vector width, nor on threads, nor on how many columns share the call.

Raw weights are interleaved into scratch one panel of 8 rows at a time (``panel.pxd``) and go through the same tile as
packed ones. Nothing is summed across lanes: 4 bytes of activations, broadcast from memory, meet the same 4 positions of
8 rows. The tiles of the most common formats unpack while they multiply (``tile_32.pxd``, ``tile_k.pxd``); the others
are expanded to code panels first (``codes.pxd``, ``tile_codes.pxd``). One column is a matter of memory
(``one_column.pxd``). Threads get whole panels or pairs of them.
"""

from libc.stdint cimport int8_t

from act cimport ActArgs, act_aux, act_block, quantize_act
from blocks cimport (
    I2_S, IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, MXFP4, NUM_I2_S, NUM_IQ1_S, NUM_IQ2_S,
    NUM_IQ2_XS, NUM_IQ2_XXS, NUM_IQ3_S, NUM_IQ3_XXS, NUM_IQ4_NL, NUM_IQ4_XS, NUM_MXFP4, NUM_NVFP4, NUM_Q1_0, NUM_Q2_0,
    NUM_Q2_0_G128, NUM_Q2_K, NUM_Q3_K, NUM_Q4_0, NUM_Q4_1, NUM_Q4_K, NUM_Q5_0, NUM_Q5_1, NUM_Q5_K, NUM_Q6_K, NUM_Q8_0,
    NUM_TQ1_0, NUM_TQ2_0, NVFP4, Q1_0, Q2_0, Q2_0_G128, Q2_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q8_0, TQ2_0,
)
from codes cimport UNIT_16, UNIT_32, UNIT_K, UNIT_TERNARY, expand_t, look_up_t, recode_t, row_pair_t, row_t, tabulate_t
from dot cimport ROOM_FOR_TWO, S8_BIAS
from lookup cimport TABLE, look_up_q1_0, look_up_tq1_0, tabulate_q1_0, tabulate_tq1_0
from one_column cimport PIECE, SHARES, WORTH, one_column, one_column_looked_up, one_column_raw
from panel cimport TILE, LinearArgs, OnePanel, Panels, TwoPanels, count_of, finish, interleave, pack_panel, up64
from planes cimport expand_planes, row_planes
from points cimport expand_points, row_points
from recode cimport recode_q1_0, recode_q3_k, recode_q6_k, recode_tq1_0, recode_words
from simd cimport f8, f8_zero, fu_prefetch
from team cimport core_t, run_team, share_start, step_of
from tile_32 cimport pair_32, row_32, row_pair_32, tile_32
from tile_codes cimport (
    Eight, Four, Mins, One, Signed, SignedK, Sixteen, Tag, Ternary, Twelve, Two, tile_codes_32, tile_codes_k,
    tile_ternary,
)
from tile_k cimport pair_k, row_k, row_pair_k, tile_k
from unpack_32 cimport (
    expand_iq4_nl, expand_mxfp4, expand_nvfp4, expand_q1_0, expand_q2_0, expand_q2_0_g128, row_bits, row_nibbles,
    row_pair_iq4_nl,
)
from unpack_3 cimport expand_q3_k, row_q3_k
from unpack_6 cimport expand_q6_k, row_q6_k
from unpack_k cimport expand_iq4_xs, expand_tq1_0, row_iq4_xs, row_pair_iq4_xs, row_tq1_0

cdef enum:
    PAIRED = 4      # columns from which two panels at a time pay off


# Formats whose tile unpacks.
ctypedef fused Direct:
    Q4_0
    Q4_1
    Q5_0
    Q5_1
    Q8_0
    Q4_K
    Q5_K


cdef inline void pack_direct(const Direct* tag, const LinearArgs* a, const char* w, int rows, char* panel) noexcept nogil:
    """``pack_panel`` of whole rows, with the constants of the format."""
    cdef int half_at = -1 if Direct is Q4_1 or Direct is Q5_1 or Direct is Q4_K or Direct is Q5_K else 0
    cdef Py_ssize_t nb = a.row_bytes // <Py_ssize_t> sizeof(Direct)
    interleave(w, a.row_bytes, rows, nb, sizeof(Direct), half_at, w + 8 * a.row_bytes, panel)
    if a.recode != NULL:
        a.recode(panel, nb)


cdef inline void some_panels(const Direct* tag, const Panels* panels, const LinearArgs* a, Py_ssize_t i,
                             char* scratch) noexcept nogil:
    """Panel ``i``, or that and the next one, times all columns."""
    cdef int count = count_of(panels)
    cdef f8 acc[2 * TILE]
    cdef int size = 256 if Direct is Q4_K or Direct is Q5_K else 32
    cdef Py_ssize_t aux_bytes = 48 if size == 256 else 4
    cdef Py_ssize_t nb = a.k // size
    cdef Py_ssize_t t = 0
    cdef const char* p[2]
    cdef const int8_t* qs
    cdef const float* d
    cdef const char* aux
    cdef int nc, c, e
    for e in range(count):
        p[e] = a.w + (i + e) * 8 * a.row_bytes
        if not a.packed:
            pack_direct(tag, a, p[e], <int> min(<Py_ssize_t> 8, a.n - 8 * (i + e)), scratch + e * up64(8 * a.row_bytes))
            p[e] = scratch + e * up64(8 * a.row_bytes)
    while t < a.m:
        nc = <int> min(<Py_ssize_t> TILE, a.m - t)
        for c in range(count * nc):
            acc[c] = f8_zero()
        qs, d, aux = a.qs + t * a.k, a.d + t * nb, a.aux + t * nb * aux_bytes
        if count == 2 and not ROOM_FOR_TWO:
            if Direct is Q4_K:
                pair_k(p[0], p[1], nb, qs, d, aux, nc, acc)
            elif Direct is Q4_0 or Direct is Q4_1:
                pair_32(tag, p[0], p[1], nb, qs, d, aux, nc, acc)
        elif nc == 1:
            for e in range(count):
                a.row(p[e], nb, NULL, qs, d, aux, acc + e)
        elif Direct is Q4_K or Direct is Q5_K:
            tile_k(tag, panels, <const char* const*> p, nb, qs, d, aux, nc, acc)
        else:
            tile_32(tag, panels, <const char* const*> p, nb, qs, d, aux, nc, acc)
        put_tile(panels, a, i, t, nc, acc)
        t += TILE


cdef inline void put_tile(const Panels* panels, const LinearArgs* a, Py_ssize_t i, Py_ssize_t t, int nc,
                          const f8* acc) noexcept nogil:
    """The outputs of panels from ``i`` on, of ``nc`` columns from ``t`` on."""
    cdef int count = count_of(panels)
    cdef int c, e
    for e in range(count):
        for c in range(nc):
            finish(acc[count * c + e], a.scale, NULL if a.bias == NULL else a.bias + 8 * (i + e),
                   a.out + (t + c) * a.n + 8 * (i + e), <int> min(<Py_ssize_t> 8, a.n - 8 * (i + e)))


cdef void linear_quant(const Direct* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of the panels. The pointer's type only selects the format; it points to ``LinearArgs``."""
    cdef const LinearArgs* a = <const LinearArgs*> args
    cdef char* scratch = a.scratch + ith * a.scratch_stride
    cdef Py_ssize_t panels = (a.n + 7) // 8
    cdef Py_ssize_t pairs = (panels + 1) // 2
    cdef Py_ssize_t i
    cdef bint together = ROOM_FOR_TWO and a.m > 1
    if Direct is Q4_0 or Direct is Q4_1 or Direct is Q4_K:
        together = together or a.m >= PAIRED
    if together:
        for i in range(2 * share_start(pairs, ith, nth), 2 * share_start(pairs, ith + 1, nth), 2):
            if i + 1 < panels:
                some_panels(args, <const TwoPanels*> NULL, a, i, scratch)
            else:
                some_panels(args, <const OnePanel*> NULL, a, i, scratch)
    else:
        for i in range(share_start(panels, ith, nth), share_start(panels, ith + 1, nth)):
            some_panels(args, <const OnePanel*> NULL, a, i, scratch)


cdef inline void some_codes(const Tag* args, const Panels* panels, const LinearArgs* a, Py_ssize_t i,
                            char* scratch) noexcept nogil:
    """Panel ``i``, or that and the next one, times all columns by way of code panels. The pointer's type selects the tile.

    A few columns take a panel piece by piece; for many it is expanded as a whole, once.
    """
    cdef int count = count_of(panels)
    cdef f8 acc[2 * TILE]
    cdef int size = 32 if (Tag is Eight or Tag is Twelve or Tag is Signed or Tag is Sixteen) else 256
    cdef Py_ssize_t nb = a.k // a.block
    cdef Py_ssize_t na = a.k // size
    cdef Py_ssize_t piece = nb if a.m > TILE else min(nb, <Py_ssize_t> (PIECE // a.block))
    cdef Py_ssize_t b, t = 0, blocks
    cdef char* codes[2]
    cdef char* raw = scratch + count * up64(piece * a.unit)
    cdef const char* p
    cdef const char* const* starts = <const char* const*> codes
    cdef Py_ssize_t at
    cdef int nc, c, e
    for e in range(count):
        codes[e] = scratch + e * up64(piece * a.unit)
    while t < a.m:
        nc = <int> min(<Py_ssize_t> TILE, a.m - t)
        for c in range(count * nc):
            acc[c] = f8_zero()
        b = 0
        while b < nb:
            blocks = min(piece, nb - b)
            for e in range(count if t == 0 else 0):
                p = a.w + 8 * (i + e) * a.row_bytes
                if a.packed:
                    p += 8 * b * a.nbytes
                    # While the tile works, the next piece can come in.
                    if piece < nb:
                        for c in range((8 * blocks * a.nbytes + 63) // 64):
                            fu_prefetch(p + 8 * blocks * a.nbytes + 64 * c)
                else:
                    pack_panel(a, p + b * a.nbytes, <int> min(<Py_ssize_t> 8, a.n - 8 * (i + e)), blocks,
                               p + 8 * a.row_bytes + 8 * b * a.nbytes, raw)
                    p = raw
                a.expand(p, blocks, a.grid, codes[e])
            at = t * na + b * a.block // size * nc
            # A constant number of columns where it is one.
            if nc == 1:
                tile_codes(args, panels, starts, blocks * a.block // size, at, 1, acc)
            else:
                tile_codes(args, panels, starts, blocks * a.block // size, at, nc, acc)
            b += blocks
        put_tile(panels, a, i, t, nc, acc)
        t += TILE


cdef inline void tile_codes(const Tag* args, const Panels* panels, const char* const* codes, Py_ssize_t blocks,
                            Py_ssize_t at, int nc, f8* acc) noexcept nogil:
    """The tile of a tag: ``blocks`` blocks of activations, the first one being number ``at``."""
    cdef const LinearArgs* a = <const LinearArgs*> args
    if Tag is Ternary:
        tile_ternary(panels, codes, blocks, a.qs + 256 * at, a.d + at, a.aux + 48 * at, nc, acc)
    elif Tag is Eight or Tag is Twelve or Tag is Signed or Tag is Sixteen:
        tile_codes_32(args, panels, codes, blocks, a.qs + 32 * at, a.d + at, a.aux + 4 * at, nc, acc)
    else:
        tile_codes_k(args, panels, codes, blocks, a.qs + 256 * at, a.d + at, a.aux + 48 * at, nc, acc)


cdef void linear_codes(const Tag* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of the panels by way of code panels, see ``linear_quant``."""
    cdef const LinearArgs* a = <const LinearArgs*> args
    cdef char* scratch = a.scratch + ith * a.scratch_stride
    cdef Py_ssize_t panels = (a.n + 7) // 8
    cdef Py_ssize_t pairs = (panels + 1) // 2
    cdef Py_ssize_t i
    if ROOM_FOR_TWO and a.m > 1:
        for i in range(2 * share_start(pairs, ith, nth), 2 * share_start(pairs, ith + 1, nth), 2):
            if i + 1 < panels:
                some_codes(args, <const TwoPanels*> NULL, a, i, scratch)
            else:
                some_codes(args, <const OnePanel*> NULL, a, i, scratch)
    else:
        for i in range(share_start(panels, ith, nth), share_start(panels, ith + 1, nth)):
            some_codes(args, <const OnePanel*> NULL, a, i, scratch)


cdef void linear(const LinearArgs* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of a product. The core for many columns is called by its address and knows nothing of the others:
    with them in one function its loops had too few registers and lost a fifth of their speed."""
    cdef Py_ssize_t panels = (a.n + 7) // 8
    if a.m == 1 and a.packed and a.look_up != NULL and panels // nth >= WORTH:
        one_column_looked_up(a, ith, nth, a.scratch + ith * a.scratch_stride)
    elif a.m == 1 and a.packed:
        one_column(a, ith, nth)
    elif a.m == 1 and a.expand != NULL:
        one_column_raw(a, share_start(panels, ith, nth), share_start(panels, ith + 1, nth),
                       a.scratch + ith * a.scratch_stride)
    else:
        a.many(a, ith, nth)


cdef core_t as_format(LinearArgs* a, core_t many, expand_t expand, row_t row, int block, int nbytes, int half_at,
                      int unit) noexcept nogil:
    a.many = many
    a.expand = expand
    a.row = row
    a.block = block
    a.nbytes = nbytes
    a.half_at = half_at
    a.unit = unit
    a.size = 256 if block == 256 else 32
    a.row_pair = NULL
    a.tabulate = NULL
    a.look_up = NULL
    a.recode = NULL
    return <core_t> linear


cdef core_t looked_up(LinearArgs* a, tabulate_t tabulate, look_up_t look_up, core_t core) noexcept nogil:
    """The format of ``a`` when one column meets it by way of tables."""
    a.tabulate = tabulate
    a.look_up = look_up
    return core


cdef core_t recoded(LinearArgs* a, recode_t recode, core_t core) noexcept nogil:
    """The format of ``a`` when packing changes its bytes."""
    a.recode = recode
    return core


cdef core_t paired(LinearArgs* a, row_pair_t row_pair, core_t core) noexcept nogil:
    """The format of ``a`` when one column meets two panels at a time."""
    a.row_pair = row_pair
    return core


cdef core_t core_of(int number, LinearArgs* a) noexcept nogil:
    """The core of the format with that ``number`` in the format table; what it has to know is put into ``a``."""
    as_format(a, NULL, NULL, NULL, 1, 0, -1, 0)
    if number == NUM_Q4_0:
        return paired(a, <row_pair_t> row_pair_32[Q4_0],
                      as_format(a, <core_t> linear_quant[Q4_0], NULL, <row_t> row_32[Q4_0], 32, 18, 0, 0))
    if number == NUM_Q4_1:
        return recoded(a, <recode_t> recode_words[Q4_1], paired(
            a, <row_pair_t> row_pair_32[Q4_1],
            as_format(a, <core_t> linear_quant[Q4_1], NULL, <row_t> row_32[Q4_1], 32, 20, -1, 0)))
    if number == NUM_Q5_0:
        return recoded(a, <recode_t> recode_words[Q5_0],
                       as_format(a, <core_t> linear_quant[Q5_0], NULL, <row_t> row_32[Q5_0], 32, 22, 0, 0))
    if number == NUM_Q5_1:
        return recoded(a, <recode_t> recode_words[Q5_1],
                       as_format(a, <core_t> linear_quant[Q5_1], NULL, <row_t> row_32[Q5_1], 32, 24, -1, 0))
    if number == NUM_Q8_0:
        return as_format(a, <core_t> linear_quant[Q8_0], NULL, <row_t> row_32[Q8_0], 32, 34, 0, 0)
    if number == NUM_Q4_K:
        return paired(a, row_pair_k,
                      as_format(a, <core_t> linear_quant[Q4_K], NULL, <row_t> row_k[Q4_K], 256, 144, -1, 0))
    if number == NUM_Q5_K:
        return recoded(a, <recode_t> recode_words[Q5_K],
                       as_format(a, <core_t> linear_quant[Q5_K], NULL, <row_t> row_k[Q5_K], 256, 176, -1, 0))
    if number == NUM_Q2_K:
        return as_format(a, <core_t> linear_codes[Mins],
                         <expand_t> expand_planes[Q2_K], <row_t> row_planes[Q2_K], 256, 84, -1, UNIT_K)
    if number == NUM_Q3_K:
        return recoded(a, recode_q3_k,
                       as_format(a, <core_t> linear_codes[Four], expand_q3_k, row_q3_k, 256, 110, 108, UNIT_K))
    if number == NUM_Q6_K:
        return recoded(a, recode_q6_k,
                       as_format(a, <core_t> linear_codes[Two], expand_q6_k, row_q6_k, 256, 210, 208, UNIT_K))
    if number == NUM_IQ4_NL:
        return paired(a, <row_pair_t> NULL if S8_BIAS else <row_pair_t> row_pair_iq4_nl,
                      as_format(a, <core_t> linear_codes[Signed],
                                expand_iq4_nl, <row_t> row_nibbles[IQ4_NL], 32, 18, 0, UNIT_32))
    if number == NUM_IQ4_XS:
        return paired(a, <row_pair_t> NULL if S8_BIAS else <row_pair_t> row_pair_iq4_xs,
                      as_format(a, <core_t> linear_codes[SignedK], expand_iq4_xs, row_iq4_xs, 256, 136, -1, UNIT_K))
    if number == NUM_TQ1_0:
        return looked_up(a, tabulate_tq1_0, look_up_tq1_0, recoded(
            a, recode_tq1_0,
            as_format(a, <core_t> linear_codes[Ternary], expand_tq1_0, row_tq1_0, 256, 54, 52, UNIT_TERNARY)))
    if number == NUM_TQ2_0:
        return as_format(a, <core_t> linear_codes[Ternary],
                         <expand_t> expand_planes[TQ2_0], <row_t> row_planes[TQ2_0], 256, 66, 64, UNIT_TERNARY)
    if number == NUM_MXFP4:
        return as_format(a, <core_t> linear_codes[Twelve], expand_mxfp4, <row_t> row_nibbles[MXFP4], 32, 17, 0, UNIT_32)
    if number == NUM_NVFP4:
        return as_format(a, <core_t> linear_codes[Sixteen],
                         expand_nvfp4, <row_t> row_nibbles[NVFP4], 64, 36, -1, 2 * UNIT_16)
    if number == NUM_Q1_0:
        return looked_up(a, tabulate_q1_0, look_up_q1_0, recoded(
            a, recode_q1_0,
            as_format(a, <core_t> linear_codes[Eight], expand_q1_0, <row_t> row_bits[Q1_0], 128, 18, 0, 4 * UNIT_32)))
    if number == NUM_Q2_0:
        return as_format(a, <core_t> linear_codes[Eight], expand_q2_0, <row_t> row_bits[Q2_0], 64, 18, 0, 2 * UNIT_32)
    if number == NUM_Q2_0_G128:
        return as_format(a, <core_t> linear_codes[Eight],
                         expand_q2_0_g128, <row_t> row_bits[Q2_0_G128], 128, 34, 0, 4 * UNIT_32)
    if number == NUM_I2_S:
        return as_format(a, <core_t> linear_codes[Ternary],
                         <expand_t> expand_planes[I2_S], <row_t> row_planes[I2_S], 256, 64, -1, UNIT_TERNARY)
    if number == NUM_IQ2_XXS:
        return as_format(a, <core_t> linear_codes[One],
                         <expand_t> expand_points[IQ2_XXS], <row_t> row_points[IQ2_XXS], 256, 66, 0, UNIT_K)
    if number == NUM_IQ2_XS:
        return as_format(a, <core_t> linear_codes[One],
                         <expand_t> expand_points[IQ2_XS], <row_t> row_points[IQ2_XS], 256, 74, 0, UNIT_K)
    if number == NUM_IQ2_S:
        return as_format(a, <core_t> linear_codes[One],
                         <expand_t> expand_points[IQ2_S], <row_t> row_points[IQ2_S], 256, 82, 0, UNIT_K)
    if number == NUM_IQ3_XXS:
        return as_format(a, <core_t> linear_codes[One],
                         <expand_t> expand_points[IQ3_XXS], <row_t> row_points[IQ3_XXS], 256, 98, 0, UNIT_K)
    if number == NUM_IQ3_S:
        return as_format(a, <core_t> linear_codes[Four],
                         <expand_t> expand_points[IQ3_S], <row_t> row_points[IQ3_S], 256, 110, 0, UNIT_K)
    if number == NUM_IQ1_S:
        return as_format(a, <core_t> linear_codes[Four],
                         <expand_t> expand_points[IQ1_S], <row_t> row_points[IQ1_S], 256, 50, 0, UNIT_K)
    return as_format(a, <core_t> linear_codes[Four],
                     <expand_t> expand_points[IQ1_M], <row_t> row_points[IQ1_M], 256, 56, -1, UNIT_K)


cdef Py_ssize_t share_bytes_of(int number, Py_ssize_t m, Py_ssize_t k, Py_ssize_t row_bytes) noexcept nogil:
    """Room for the panels that raw rows are interleaved to, or for one and its codes, or for tables."""
    cdef LinearArgs a
    cdef Py_ssize_t elements, codes
    core_of(number, &a)
    if a.unit == 0:
        return 2 * up64(8 * row_bytes)      # two panels
    elements = k if m > TILE else min(k, <Py_ssize_t> PIECE)
    codes = (1 + ROOM_FOR_TWO) * up64(elements // a.block * a.unit) + up64(8 * (elements // a.block) * a.nbytes)
    # Tables are for the bytes of a block but its scale.
    return codes if a.look_up == NULL else max(codes, k // a.block * (a.nbytes - 2) * TABLE)


def share_bytes(int code, Py_ssize_t m, Py_ssize_t k, Py_ssize_t row_bytes):
    """Bytes of scratch per share of a product of ``m`` rows of activations."""
    return share_bytes_of(code, m, k, row_bytes)


def scratch_bytes(int code, int kind, Py_ssize_t m, Py_ssize_t k, Py_ssize_t row_bytes, Py_ssize_t nth):
    """Bytes of scratch for ``linear_quant_into_unchecked``: the quantized activations, and what the shares need."""
    cdef Py_ssize_t blocks = m * (k // act_block(kind))
    return (up64(m * k) + up64(4 * blocks) + up64(act_aux(kind) * blocks)
            + share_bytes_of(code, m, k, row_bytes) * (SHARES * nth if nth > 1 else 1))


cdef core_t fill(LinearArgs* a, int code, bint packed, const unsigned char[:, ::1] w, const unsigned char[:, ::1] grid,
                 float scale, const float[::1] bias, float[:, ::1] out, Py_ssize_t k):
    """All arguments of a product but its activations and its scratch; returns the core that takes them."""
    a.w = <const char*> &w[0, 0]
    a.row_bytes = w.shape[1] // 8 if packed else w.shape[1]
    a.packed = packed
    a.grid = NULL
    if grid is not None:
        a.grid = &grid[0, 0]
    a.scale = scale
    a.bias = NULL
    if bias is not None:
        a.bias = &bias[0]
    a.out = &out[0, 0]
    a.m = out.shape[0]
    a.n = out.shape[1]
    a.k = k
    a.scratch_stride = share_bytes_of(code, a.m, k, a.row_bytes)
    return core_of(code, a)


def linear_quant_into_unchecked(int code, int kind, int nbytes, int half_at, bint packed,
                                const unsigned char[:, ::1] w, const unsigned char[:, ::1] grid, float scale,
                                const float[:, ::1] x, const float[::1] bias, float[:, ::1] out,
                                unsigned char[::1] scratch, Py_ssize_t nth):
    """``out`` [m, n] = ``x`` [m, k] times the n rows of ``w`` times ``scale``, plus ``bias`` unless it is None.

    ``w`` holds n rows of blocks or, ``packed``, ceil(n / 8) panels. ``code``, ``nbytes`` and ``half_at`` are the
    format's row in the table, ``kind`` its activation (0 q8_0, 1 q8_1, 2 q8_k); ``grid`` is what the points of its
    lattice decode to, or None; ``scratch`` as ``scratch_bytes`` says.
    """
    cdef ActArgs act
    cdef LinearArgs a
    cdef Py_ssize_t m = x.shape[0]
    cdef Py_ssize_t k = x.shape[1]
    cdef Py_ssize_t blocks = m * (k // act_block(kind))
    cdef core_t core = fill(&a, code, packed, w, grid, scale, bias, out, k)
    act.x = &x[0, 0]
    act.qs = <int8_t*> &scratch[0]
    act.d = <float*> (<char*> act.qs + up64(m * k))
    act.aux = <char*> act.d + up64(4 * blocks)
    act.m = m
    act.k = k
    act.tile = TILE
    act.kind = kind
    a.qs = act.qs
    a.d = act.d
    a.aux = act.aux
    a.scratch = act.aux + up64(act_aux(kind) * blocks)
    with nogil:
        # Quantizing is a few per cent of the product's work: a handful of rows is not worth a second region.
        run_team(<core_t> quantize_act, &act, min(4 * nth, m), nth if m >= 8 else 1)
        run_team(core, &a, SHARES * nth if nth > 1 else 1, nth)


def linear_quant_step(int code, bint packed, const unsigned char[:, ::1] w, const unsigned char[:, ::1] grid,
                      float scale, const signed char[::1] qs, const float[::1] d, const unsigned char[::1] aux,
                      const float[::1] bias, float[:, ::1] out, Py_ssize_t k, unsigned char[::1] scratch):
    """The product alone as a step of a program: activations come quantized; ``scratch``: ``share_bytes`` per share."""
    cdef LinearArgs a
    cdef core_t core = fill(&a, code, packed, w, grid, scale, bias, out, k)
    a.qs = <const int8_t*> &qs[0]
    a.d = &d[0]
    a.aux = <const char*> &aux[0]
    a.scratch = <char*> &scratch[0]
    return step_of(core, &a, sizeof(a), &a.m)


cdef void pack_rows(const LinearArgs* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of the panels that rows are packed to, at ``scratch``."""
    cdef Py_ssize_t count = (a.n + 7) // 8
    cdef Py_ssize_t i
    cdef const char* p
    for i in range(share_start(count, ith, nth), share_start(count, ith + 1, nth)):
        p = a.w + 8 * i * a.row_bytes
        pack_panel(a, p, <int> min(<Py_ssize_t> 8, a.n - 8 * i), a.row_bytes // a.nbytes, p + 8 * a.row_bytes,
                   a.scratch + 8 * i * a.row_bytes)


def pack_rows_into_unchecked(int code, int nbytes, int half_at, const unsigned char[:, ::1] w,
                             unsigned char[:, ::1] panels, Py_ssize_t nth):
    """Interleave the rows of ``w`` [n, row_bytes] by 8 into ``panels`` [ceil(n / 8), 8 * row_bytes].

    ``code``, ``nbytes`` and ``half_at`` are the format's row in the table."""
    cdef LinearArgs a
    core_of(code, &a)
    a.nbytes = nbytes
    a.half_at = half_at
    a.w = <const char*> &w[0, 0]
    a.scratch = <char*> &panels[0, 0]
    a.n = w.shape[0]
    a.row_bytes = w.shape[1]
    with nogil:
        run_team(<core_t> pack_rows, &a, 4 * nth if nth > 1 else 1, nth)
