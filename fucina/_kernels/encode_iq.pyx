"""Encoding to grid blocks, byte for byte as ggml does.

A group of weights becomes signs and points of a lattice (``points_search.pxd``), or points of -1, 0, 1 with a common
shift (``points_shift.pxd``); here they become blocks. The specification is ``fucina._scalar.encode_iq``; the tables are
those of ``fucina.formats.lattices.search_tables``.
"""

from libc.stdint cimport int8_t, int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from blocks cimport (
    IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, NUM_IQ1_S, NUM_IQ2_S, NUM_IQ2_XS, NUM_IQ2_XXS, NUM_IQ3_S,
    NUM_IQ3_XXS,
)
from encode_rows cimport EncodeArgs, encode_rows, encode_t, mean_square
from points_search cimport ALL, ALWAYS, OFF, Plan, Tables, group, halves, put32, weights
from points_shift cimport iq1_m_group, iq1_s_group, shift_levels
from simd cimport fu_f32_f16
from team cimport core_t, run_team


cdef void iq2_xxs(const float* x, const float* importance, Py_ssize_t n, const void* tables,
                  uint8_t* out) noexcept nogil:
    cdef Plan plan
    cdef IQ2_XXS* p = <IQ2_XXS*> out
    cdef float w[32]
    cdef float scale[8]
    cdef int index[8]
    cdef uint8_t signs[4]
    cdef uint8_t code[8]
    cdef uint32_t word[8]
    cdef float d, sigma2
    cdef Py_ssize_t b
    cdef int i, j
    plan.n, plan.dims, plan.base, plan.steps, plan.redo, plan.even = 32, 8, 3, 6, ALWAYS, 1
    plan.stretch, plan.tiny = <float> 0.1, <float> 1e-15
    for b in range(n // 256):
        sigma2 = mean_square(x, 256, 1)
        for j in range(8):
            weights(x + 32 * j, importance + 256 * b + 32 * j, 32, sigma2, w)
            scale[j] = group(<const Tables*> tables, &plan, x + 32 * j, w, index, signs)
            word[j] = 0
            for i in range(4):
                p[b].qs[8 * j + i] = <uint8_t> index[i]
                word[j] |= <uint32_t> signs[i] << 7 * i
        d = halves(scale, 8, 15, code)
        p[b].d = fu_f32_f16(d)
        for j in range(8):
            put32(p[b].qs + 8 * j + 4, word[j] | <uint32_t> code[j] << 28)
        if not d > 0:
            memset(p + b, 0, sizeof(IQ2_XXS))
        x += 256


cdef void iq2_xs(const float* x, const float* importance, Py_ssize_t n, const void* tables,
                 uint8_t* out) noexcept nogil:
    cdef Plan plan
    cdef IQ2_XS* p = <IQ2_XS*> out
    cdef float w[16]
    cdef float scale[16]
    cdef int index[8]
    cdef uint8_t signs[2]
    cdef uint8_t code[16]
    cdef float d, sigma2
    cdef Py_ssize_t b
    cdef int i, j
    plan.n, plan.dims, plan.base, plan.steps, plan.redo, plan.even = 16, 8, 3, 9, OFF, 1
    plan.stretch, plan.tiny = <float> 0.1, <float> 1e-15
    for b in range(n // 256):
        sigma2 = mean_square(x, 256, 1)
        for j in range(16):
            weights(x + 16 * j, importance + 256 * b + 16 * j, 16, sigma2, w)
            scale[j] = group(<const Tables*> tables, &plan, x + 16 * j, w, index, signs)
            for i in range(2):
                p[b].qs[2 * j + i] = <uint16_t> (index[i] | signs[i] << 9)
        d = halves(scale, 16, 15, code)
        p[b].d = fu_f32_f16(d)
        for j in range(8):
            p[b].scales[j] = code[2 * j] | code[2 * j + 1] << 4
        if not d > 0:
            memset(p + b, 0, sizeof(IQ2_XS))
        x += 256


cdef void iq2_s(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    cdef Plan plan
    cdef IQ2_S* p = <IQ2_S*> out
    cdef float w[16]
    cdef float scale[16]
    cdef int index[8]
    cdef uint8_t code[16]
    cdef float sigma2
    cdef Py_ssize_t b
    cdef int i, j
    plan.n, plan.dims, plan.base, plan.steps, plan.redo, plan.even = 16, 8, 3, 9, OFF, 0
    plan.stretch, plan.tiny = <float> 0.1, <float> 1e-8
    for b in range(n // 256):
        sigma2 = mean_square(x, 256, 2)
        memset(p[b].qh, 0, 8)
        for j in range(16):
            weights(x + 16 * j, importance + 256 * b + 16 * j if importance != NULL else NULL, 16, sigma2, w)
            if importance == NULL:
                for i in range(16):
                    w[i] = <float> 0.25 * sigma2 + w[i]
            scale[j] = group(<const Tables*> tables, &plan, x + 16 * j, w, index, p[b].signs + 2 * j)
            for i in range(2):
                p[b].qs[2 * j + i] = index[i] & 255
                p[b].qh[j >> 1] |= index[i] >> 8 << 2 * (2 * (j & 1) + i)
        p[b].d = fu_f32_f16(halves(scale, 16, 15, code) * <float> 0.9875)
        for j in range(8):
            p[b].scales[j] = code[2 * j] | code[2 * j + 1] << 4
        x += 256


cdef void iq3_xxs(const float* x, const float* importance, Py_ssize_t n, const void* tables,
                  uint8_t* out) noexcept nogil:
    cdef Plan plan
    cdef IQ3_XXS* p = <IQ3_XXS*> out
    cdef float w[32]
    cdef float scale[8]
    cdef int index[8]
    cdef uint8_t signs[4]
    cdef uint8_t code[8]
    cdef uint32_t word[8]
    cdef float d, sigma2
    cdef Py_ssize_t b
    cdef int i, j
    plan.n, plan.dims, plan.base, plan.steps, plan.redo, plan.even = 32, 4, 8, 15, OFF, 1
    plan.stretch, plan.tiny = <float> 0.2, <float> 1e-8
    for b in range(n // 256):
        sigma2 = mean_square(x, 256, 2)
        for j in range(8):
            weights(x + 32 * j, importance + 256 * b + 32 * j if importance != NULL else NULL, 32, sigma2, w)
            scale[j] = group(<const Tables*> tables, &plan, x + 32 * j, w, index, signs)
            word[j] = 0
            for i in range(4):
                word[j] |= <uint32_t> signs[i] << 7 * i
            for i in range(8):
                p[b].qs[8 * j + i] = <uint8_t> index[i]
        d = halves(scale, 8, 15, code)
        p[b].d = fu_f32_f16(d * <float> 1.0125)
        for j in range(8):
            put32(p[b].gas + 4 * j, word[j] | <uint32_t> code[j] << 28)
        if not d > 0:
            memset(p + b, 0, sizeof(IQ3_XXS))
        x += 256


cdef void iq3_s(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    """Groups that are all zero take no room in ggml's indices and signs: what follows moves up."""
    cdef Plan plan
    cdef IQ3_S* p = <IQ3_S*> out
    cdef float w[32]
    cdef float scale[8]
    cdef int index[8]
    cdef uint8_t signs[4]
    cdef uint8_t code[8]
    cdef float sigma2
    cdef Py_ssize_t b
    cdef int i, j, at
    plan.n, plan.dims, plan.base, plan.steps, plan.redo, plan.even = 32, 4, 8, 9, ALL, 0
    plan.stretch, plan.tiny = <float> 0.2, 0
    for b in range(n // 256):
        memset(p + b, 0, sizeof(IQ3_S))
        sigma2 = mean_square(x, 256, 2)
        at = 0
        for j in range(8):
            weights(x + 32 * j, importance + 256 * b + 32 * j if importance != NULL else NULL, 32, sigma2, w)
            scale[j] = group(<const Tables*> tables, &plan, x + 32 * j, w, index, signs)
            if scale[j] < 0:
                continue
            for i in range(8):
                p[b].qs[8 * at + i] = index[i] & 255
                p[b].qh[j] |= index[i] >> 8 << i
            memcpy(p[b].signs + 4 * at, signs, 4)
            at += 1
        p[b].d = fu_f32_f16(halves(scale, 8, 15, code) * <float> 1.033)
        for j in range(4):
            p[b].scales[j] = code[2 * j] | code[2 * j + 1] << 4
        x += 256


cdef void iq1_s(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    cdef IQ1_S* p = <IQ1_S*> out
    cdef float w[32]
    cdef float scale[8]
    cdef int index[4]
    cdef int down[8]
    cdef int word[8]
    cdef uint8_t code[8]
    cdef float d, sigma2
    cdef Py_ssize_t b
    cdef int i, j
    for b in range(n // 256):
        sigma2 = mean_square(x, 256, 2)
        for j in range(8):
            weights(x + 32 * j, importance + 256 * b + 32 * j, 32, sigma2, w)
            scale[j] = iq1_s_group(<const Tables*> tables, x + 32 * j, w, index, down + j)
            word[j] = 0
            for i in range(4):
                p[b].qs[4 * j + i] = index[i] & 255
                word[j] |= index[i] >> 8 << 3 * i
        d = halves(scale, 8, 7, code)
        p[b].d = fu_f32_f16(d * <float> 1.125)
        for j in range(8):
            p[b].qh[j] = <uint16_t> (word[j] | ((code[j] | down[j] << 3) << 12 if d > 0 else 0))
        x += 256


cdef void iq1_m(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    """The scale of the block is fitted at the end and spread over the top nibbles of the four words of scales."""
    cdef IQ1_M* p = <IQ1_M*> out
    cdef const Tables* t = <const Tables*> tables
    cdef float levels[2][3]
    cdef float w[256]
    cdef float scale[16]
    cdef int index[32]
    cdef int variant[16]
    cdef uint8_t code[16]
    cdef float d, sigma2, q, qx, qq
    cdef Py_ssize_t b
    cdef int i, j, down, bits, word
    shift_levels(levels[0], levels[1])
    for b in range(n // 256):
        memset(p + b, 0, sizeof(IQ1_M))
        sigma2 = mean_square(x, 256, 2)
        weights(x, importance + 256 * b if importance != NULL else NULL, 256, sigma2, w)
        for j in range(16):
            scale[j] = iq1_m_group(t, x + 16 * j, w + 16 * j, index + 2 * j, variant + j)
        d = halves(scale, 16, 7, code)
        qx = qq = 0
        for j in range(32):
            down = variant[j >> 1] >> 1 if not j & 1 else variant[j >> 1] & 1
            p[b].qs[j] = index[j] & 255
            p[b].qh[j >> 1] |= (index[j] >> 8 | (down << 3 if d > 0 else 0)) << 4 * (j & 1)
            for i in range(8):
                q = levels[down][t.points[8 * index[j] + i] >> 1] * <float> (2 * code[j >> 1] + 1)
                qx += w[8 * j + i] * q * x[8 * j + i]
                qq += w[8 * j + i] * q * q
        if d > 0 and qq > 0:
            d = qx / qq
        bits = fu_f32_f16(d * <float> 1.1125)
        for j in range(4):
            word = code[4 * j] | code[4 * j + 1] << 3 | code[4 * j + 2] << 6 | code[4 * j + 3] << 9
            p[b].scales[j] = <uint16_t> (word | (bits >> 4 * j & 15) << 12)
        x += 256


cdef encode_t encoder_of(int number) noexcept nogil:
    if number == NUM_IQ2_XXS:
        return iq2_xxs
    if number == NUM_IQ2_XS:
        return iq2_xs
    if number == NUM_IQ2_S:
        return iq2_s
    if number == NUM_IQ3_XXS:
        return iq3_xxs
    if number == NUM_IQ3_S:
        return iq3_s
    if number == NUM_IQ1_S:
        return iq1_s
    return iq1_m


def encode_rows_into_unchecked(int number, const int8_t[:, ::1] points, const int32_t[::1] where,
                               const uint16_t[::1] near, const float[:, ::1] x, const float[::1] imatrix,
                               unsigned char[:, ::1] out, unsigned char[::1] finite, Py_ssize_t nth):
    """Rows of ``x`` to rows of blocks; ``imatrix`` (or None) weighs the errors; rows that are not ``finite`` are zero."""
    cdef EncodeArgs a
    cdef Tables t
    t.points = &points[0, 0]
    t.where = &where[0]
    t.near = &near[0]
    a.x = &x[0, 0]
    a.importance = NULL
    if imatrix is not None:
        a.importance = &imatrix[0]
    a.tables = &t
    a.out = &out[0, 0]
    a.finite = &finite[0]
    a.rows = x.shape[0]
    a.k = x.shape[1]
    a.row_bytes = out.shape[1]
    a.encode = encoder_of(number)
    with nogil:
        run_team(<core_t> encode_rows, &a, min(a.rows, 4 * nth), nth)
