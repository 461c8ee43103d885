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
8 rows. Many columns are a matter of arithmetic (``many_columns.pxd``), one is a matter of memory
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
from dot cimport PARTS_ARE_WHOLE, ROOM_FOR_TWO, S8_BIAS
from lookup cimport TABLE, look_up_q1_0, look_up_tq1_0, tabulate_q1_0, tabulate_tq1_0
from many_columns cimport linear_codes, linear_quant
from one_column cimport PIECE, SHARES, WORTH, one_column, one_column_looked_up, one_column_raw
from pair_five cimport row_pair_five, row_pair_q5_k
from panel cimport TILE, LinearArgs, pack_panel, up64
from planes cimport expand_planes, row_planes
from points cimport expand_points, row_points
from recode cimport recode_q1_0, recode_q3_k, recode_q6_k, recode_tq1_0, recode_words
from team cimport core_t, run_team, share_start, step_of
from tile_32 cimport row_32, row_pair_32
from tile_codes cimport Eight, Four, Mins, One, Signed, SignedK, Sixteen, Ternary, Twelve, Two
from tile_k cimport row_k, row_pair_k
from unpack_32 cimport (
    expand_iq4_nl, expand_mxfp4, expand_nvfp4, expand_q1_0, expand_q2_0, expand_q2_0_g128, row_bits, row_nibbles,
    row_pair_iq4_nl,
)
from unpack_3 cimport expand_q3_k, row_q3_k
from unpack_6 cimport expand_q6_k, row_q6_k
from unpack_k cimport expand_iq4_xs, expand_tq1_0, row_iq4_xs, row_pair_iq4_xs, row_tq1_0


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
        return recoded(a, <recode_t> recode_words[Q5_0], paired(
            a, <row_pair_t> NULL if PARTS_ARE_WHOLE else <row_pair_t> row_pair_five[Q5_0],
            as_format(a, <core_t> linear_quant[Q5_0], NULL, <row_t> row_32[Q5_0], 32, 22, 0, 0)))
    if number == NUM_Q5_1:
        return recoded(a, <recode_t> recode_words[Q5_1], paired(
            a, <row_pair_t> NULL if PARTS_ARE_WHOLE else <row_pair_t> row_pair_five[Q5_1],
            as_format(a, <core_t> linear_quant[Q5_1], NULL, <row_t> row_32[Q5_1], 32, 24, -1, 0)))
    if number == NUM_Q8_0:
        return as_format(a, <core_t> linear_quant[Q8_0], NULL, <row_t> row_32[Q8_0], 32, 34, 0, 0)
    if number == NUM_Q4_K:
        return paired(a, row_pair_k,
                      as_format(a, <core_t> linear_quant[Q4_K], NULL, <row_t> row_k[Q4_K], 256, 144, -1, 0))
    if number == NUM_Q5_K:
        return recoded(a, <recode_t> recode_words[Q5_K], paired(
            a, <row_pair_t> NULL if PARTS_ARE_WHOLE else row_pair_q5_k,
            as_format(a, <core_t> linear_quant[Q5_K], NULL, <row_t> row_k[Q5_K], 256, 176, -1, 0)))
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
