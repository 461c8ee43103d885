"""Products with quantized weights: y[c, r] = sum_k x[c, k] * w[r, k] (+ bias[r]), w in GGUF blocks.

Per output one chain of fused multiply-adds over the blocks of k, in ascending order, from exact integer dots:

    q4_0 q5_0 q8_0   y = fma(dw * da, sum(q * a), y)                          offsets -8, -16 are in the integer sum
    q4_1 q5_1        y = fma(dw * da, sum(q * a), y);  y = fma(mw, s, y)
    q4_k q5_k        y = fma(dw * da, sum_j sc_j * dot_j, y);  y = fma(-(dmin * da), sum_j mn_j * asum_j, y)
    q6_k             y = fma(dw * da, sum_g sc_g * dot_g, y)

Integer sums are converted to f32 once, as totals. Lanes are rows of w and every output is its own chain, so the
bits depend neither on vector width, nor on threads, nor on how many columns share the call.

Raw weights are interleaved into scratch one panel of 8 rows at a time (``panel.pxd``) and go through the same tile as
packed ones. Nothing is summed across lanes: 4 bytes of activations, broadcast from memory, meet the same 4 positions of
8 rows. The tiles are in ``tile_32.pxd`` and ``tile_k.pxd``. Threads get whole panels.
"""

from libc.stdint cimport int8_t

from act cimport ActArgs, act_aux, act_block, quantize_act
from blocks cimport Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Block
from panel cimport TILE, LinearArgs, finish, interleave, up64
from simd cimport f8
from team cimport core_t, run_team, share_start, step_of
from tile_32 cimport tile_32
from tile_k cimport tile_k, tile_q6_k


cdef void linear_quant(const Block* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of the panels. The pointer's type only selects the format; it points to ``LinearArgs``."""
    cdef const LinearArgs* a = <const LinearArgs*> args
    cdef f8 acc[TILE]
    cdef int size = 256 if (Block is Q4_K or Block is Q5_K or Block is Q6_K) else 32
    cdef int half_at = 208 if Block is Q6_K else (
        -1 if Block is Q4_1 or Block is Q5_1 or Block is Q4_K or Block is Q5_K else 0)
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
            interleave(p, a.row_bytes, rows, nb, sizeof(Block), half_at, scratch)
            p = scratch
        t = 0
        while t < a.m:
            nc = <int> min(<Py_ssize_t> TILE, a.m - t)
            if Block is Q6_K:
                tile_q6_k(p, nb, a.qs + t * a.k, a.d + t * nb, a.aux + t * nb * aux_bytes, nc, acc)
            elif Block is Q4_K or Block is Q5_K:
                tile_k(args, p, nb, a.qs + t * a.k, a.d + t * nb, a.aux + t * nb * aux_bytes, nc, acc)
            else:
                tile_32(args, p, nb, a.qs + t * a.k, a.d + t * nb, a.aux + t * nb * aux_bytes, nc, acc)
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
    cdef LinearArgs a
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


def linear_quant_step(int code, bint packed, const unsigned char[:, ::1] w, const signed char[::1] qs, const float[::1] d,
                      const unsigned char[::1] aux, const float[::1] bias, float[:, ::1] out, Py_ssize_t k,
                      unsigned char[::1] scratch):
    """The product alone as a step of a program: activations come quantized, ``scratch`` holds a panel per share."""
    cdef LinearArgs a
    a.w = <const char*> &w[0, 0]
    a.row_bytes = w.shape[1] // 8 if packed else w.shape[1]
    a.packed = packed
    a.qs = <const int8_t*> &qs[0]
    a.d = &d[0]
    a.aux = <const char*> &aux[0]
    a.bias = NULL
    if bias is not None:
        a.bias = &bias[0]
    a.out = &out[0, 0]
    a.scratch = <char*> &scratch[0]
    a.scratch_stride = up64(8 * a.row_bytes)
    a.m = out.shape[0]
    a.n = out.shape[1]
    a.k = k
    return step_of(core_of(code), &a, sizeof(a))


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
