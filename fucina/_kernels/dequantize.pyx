"""Decoding of blocks to f32: whole matrices, or rows by index (the embedding look-up).

Every element is the product written in the format's definition, rounded as ggml rounds it: scale and code first, then
the offset, no fused operations. The layouts are those of ``blocks.pxd``; threads get whole rows. Plain f32, f16 and
bf16 tables are widened exactly. Here are the formats of 32-element blocks with uniform codes and the K formats; the
others are in ``dequantize_tiny`` and ``dequantize_iq``.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t
from libc.string cimport memcpy

from blocks cimport Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0
from simd cimport fu_bf16_f32, fu_f16_f32
from team cimport core_t, run_team, share_start, step_of

ctypedef fused Block:
    Q4_0
    Q4_1
    Q5_0
    Q5_1
    Q8_0
    Q4_K
    Q5_K
    Q6_K
    Q2_K
    Q3_K

cdef struct Args:
    const char* table
    const int64_t* ids      # or NULL: row r is row r
    float* out
    Py_ssize_t rows, n, row_bytes, blocks
    int code


cdef inline int fifth(const uint8_t* qh, int i) noexcept nogil:
    return (qh[i >> 3] >> (i & 7) & 1) << 4


cdef void decode(const Block* p, float* y) noexcept nogil:
    """One block."""
    cdef float d = fu_f16_f32(p.d)
    cdef float m, scale, offset
    cdef int i, j, sc, mn, code
    if Block is Q4_0:
        for i in range(16):
            y[i] = <float> (<int> (p.qs[i] & 15) - 8) * d
            y[i + 16] = <float> (<int> (p.qs[i] >> 4) - 8) * d
    elif Block is Q4_1:
        m = fu_f16_f32(p.m)
        for i in range(16):
            y[i] = <float> (p.qs[i] & 15) * d + m
            y[i + 16] = <float> (p.qs[i] >> 4) * d + m
    elif Block is Q5_0:
        for i in range(16):
            y[i] = <float> ((p.qs[i] & 15 | fifth(p.qh, i)) - 16) * d
            y[i + 16] = <float> ((p.qs[i] >> 4 | fifth(p.qh, i + 16)) - 16) * d
    elif Block is Q5_1:
        m = fu_f16_f32(p.m)
        for i in range(16):
            y[i] = <float> (p.qs[i] & 15 | fifth(p.qh, i)) * d + m
            y[i + 16] = <float> (p.qs[i] >> 4 | fifth(p.qh, i + 16)) * d + m
    elif Block is Q8_0:
        for i in range(32):
            y[i] = <float> p.qs[i] * d
    elif Block is Q6_K:
        for i in range(256):
            # half i / 128, run of 32 inside it, byte inside the run
            j = i & 31
            code = p.ql[(i >> 7) * 64 + (i & 32) + j]
            code = code >> 4 if i & 64 else code & 15
            code |= (p.qh[(i >> 7) * 32 + j] >> 2 * (i >> 5 & 3) & 3) << 4
            y[i] = d * <float> p.scales[i >> 4] * <float> (code - 32)
    elif Block is Q2_K:
        m = fu_f16_f32(p.dmin)
        for j in range(16):
            # sub-block j of 16 elements: half j / 8, plane of 32 elements inside it, half of the plane
            scale = d * <float> (p.scales[j] & 15)
            offset = m * <float> (p.scales[j] >> 4)
            for i in range(16):
                code = p.qs[(j >> 3) * 32 + (j & 1) * 16 + i] >> (j & 6) & 3
                y[16 * j + i] = scale * <float> code - offset
    elif Block is Q3_K:
        for j in range(16):
            sc = p.scales[j & 7] >> 4 if j & 8 else p.scales[j] & 15
            sc |= (p.scales[8 + (j & 3)] >> 2 * (j >> 2) & 3) << 4
            scale = d * <float> (sc - 32)
            for i in range(16):
                code = p.qs[(j >> 3) * 32 + (j & 1) * 16 + i] >> (j & 6) & 3
                code -= 0 if p.hmask[(j & 1) * 16 + i] >> (j >> 1) & 1 else 4
                y[16 * j + i] = scale * <float> code
    else:
        m = fu_f16_f32(p.dmin)
        for j in range(8):
            if j < 4:
                sc = p.scales[j] & 63
                mn = p.scales[j + 4] & 63
            else:
                sc = p.scales[j + 4] & 15 | p.scales[j - 4] >> 6 << 4
                mn = p.scales[j + 4] >> 4 | p.scales[j] >> 6 << 4
            scale = d * <float> sc
            offset = m * <float> mn
            for i in range(32):
                code = p.qs[(j >> 1) * 32 + i]
                code = code >> 4 if j & 1 else code & 15
                if Block is Q5_K:
                    code |= (p.qh[i] >> j & 1) << 4
                y[32 * j + i] = scale * <float> code - offset


cdef void decode_rows(const Block* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of the rows. The pointer's type only selects the format; it points to ``Args``."""
    cdef const Args* a = <const Args*> args
    cdef Py_ssize_t r, b, at
    cdef bint small = Block is Q4_0 or Block is Q4_1 or Block is Q5_0 or Block is Q5_1 or Block is Q8_0
    cdef Py_ssize_t size = 32 if small else 256
    for r in range(share_start(a.rows, ith, nth), share_start(a.rows, ith + 1, nth)):
        at = r if a.ids == NULL else a.ids[r]
        for b in range(a.blocks):
            decode(<const Block*> (a.table + at * a.row_bytes) + b, a.out + r * a.n + b * size)


cdef void widen_rows(const Args* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t r, i, at
    cdef const uint16_t* half
    for r in range(share_start(a.rows, ith, nth), share_start(a.rows, ith + 1, nth)):
        at = r if a.ids == NULL else a.ids[r]
        half = <const uint16_t*> (a.table + at * a.row_bytes)
        if a.code == -1:
            memcpy(a.out + r * a.n, half, a.n * sizeof(float))
        elif a.code == -2:
            for i in range(a.n):
                a.out[r * a.n + i] = fu_f16_f32(half[i])
        else:
            for i in range(a.n):
                a.out[r * a.n + i] = fu_bf16_f32(half[i])


cdef core_t core_of(int code) noexcept nogil:
    """The core of the format with that number in the format table; negative codes are plain number types."""
    if code < 0:
        return <core_t> widen_rows
    if code == 0:
        return <core_t> decode_rows[Q4_0]
    if code == 1:
        return <core_t> decode_rows[Q4_1]
    if code == 2:
        return <core_t> decode_rows[Q5_0]
    if code == 3:
        return <core_t> decode_rows[Q5_1]
    if code == 4:
        return <core_t> decode_rows[Q8_0]
    if code == 5:
        return <core_t> decode_rows[Q4_K]
    if code == 6:
        return <core_t> decode_rows[Q5_K]
    if code == 7:
        return <core_t> decode_rows[Q6_K]
    if code == 8:
        return <core_t> decode_rows[Q2_K]
    return <core_t> decode_rows[Q3_K]


cdef Args filled(int code, int nbytes, const unsigned char[:, ::1] table, const long long[::1] ids, float[:, ::1] out):
    cdef Args a
    a.table = <const char*> &table[0, 0]
    a.ids = NULL
    if ids is not None:
        a.ids = <const int64_t*> &ids[0]
    a.out = &out[0, 0]
    a.rows = out.shape[0]
    a.n = out.shape[1]
    a.row_bytes = table.shape[1]
    a.blocks = a.row_bytes // nbytes
    a.code = code
    return a


def dequantize_rows_into_unchecked(int code, int nbytes, const unsigned char[:, ::1] table, const long long[::1] ids,
                                   float[:, ::1] out, Py_ssize_t nth):
    """Rows ``ids`` of ``table`` (all rows when ``ids`` is None) as f32; codes -1, -2, -3 are f32, f16, bf16."""
    cdef Args a = filled(code, nbytes, table, ids, out)
    with nogil:
        run_team(core_of(code), &a, min(a.rows, 4 * nth), nth)


def dequantize_rows_step(int code, int nbytes, const unsigned char[:, ::1] table, const long long[::1] ids,
                         float[:, ::1] out):
    """The same as a step of a program, which reads ``ids`` at every run."""
    cdef Args a = filled(code, nbytes, table, ids, out)
    return step_of(core_of(code), &a, sizeof(a), &a.rows)
