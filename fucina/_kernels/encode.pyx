"""Encoding to blocks of 32 elements with uniform codes and to 16-bit floats, byte for byte as ggml does.

Without an importance matrix a block is scaled by its extremes and rounded. With one, weights w = importance *
sqrt(mean(row^2) + x^2) enter a search for the scale (``search.pxd``), eight blocks side by side. The specification is
``fucina._scalar.encode``.
"""

from libc.math cimport INFINITY, fabsf, sqrtf
from libc.stdint cimport uint8_t, uint16_t
from libc.string cimport memcpy, memset

from blocks cimport NUM_Q4_0, NUM_Q4_1, NUM_Q5_0, NUM_Q5_1, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from encode_rows cimport EncodeArgs, encode_rows, encode_t, mean_square
from search cimport (
    f8_codes32, f8_half_away, f8_ne, fu_fifths32, fu_nibbles32, gather8, scatter8, symmetric8,
    w8_any, w8_not, with_min8,
)
from simd cimport (
    f8, f8_add, f8_div, f8_gt, f8_load, f8_max, f8_min, f8_mul, f8_select, f8_set1, f8_store, f8_sub, f8_transpose, f8_zero,
    fu_f32_bf16, fu_f32_f16, w8,
)
from team cimport core_t, run_team

ctypedef fused Block:
    Q4_0
    Q4_1
    Q5_0
    Q5_1


cdef inline void pack(Block* p, const uint8_t* q) noexcept nogil:
    """32 codes to nibbles and fifth bits."""
    fu_nibbles32(p.qs, q)
    if Block is Q5_0 or Block is Q5_1:
        fu_fifths32(p.qh, q)


cdef inline f8 across(f8* v) noexcept nogil:
    """Lane j: the largest element of v[j]."""
    f8_transpose(v)
    return f8_max(f8_max(f8_max(v[0], v[1]), f8_max(v[2], v[3])), f8_max(f8_max(v[4], v[5]), f8_max(v[6], v[7])))


cdef inline void extremes(const float* const* rows, f8* high, f8* low) noexcept nogil:
    """The largest and the smallest of 32 elements, for eight blocks."""
    cdef f8 up[8]
    cdef f8 down[8]
    cdef f8 a, b, c, d
    cdef int j
    for j in range(8):
        a = f8_load(rows[j])
        b = f8_load(rows[j] + 8)
        c = f8_load(rows[j] + 16)
        d = f8_load(rows[j] + 24)
        up[j] = f8_max(f8_max(a, b), f8_max(c, d))
        down[j] = f8_sub(f8_zero(), f8_min(f8_min(a, b), f8_min(c, d)))
    high[0] = across(up)
    low[0] = f8_sub(f8_zero(), across(down))


cdef inline float first_zero(const float* x) noexcept nogil:
    """The first of the zeros in a block, which has one: its sign shows in the bytes."""
    cdef int i
    for i in range(32):
        if x[i] == 0:
            return x[i]
    return 0


cdef inline float first_of(const float* x, float size) noexcept nogil:
    """The first element of a magnitude that occurs; a zero is positive."""
    cdef int i
    for i in range(32):
        if x[i] == size or x[i] == -size:
            return x[i] + 0
    return 0


cdef inline f8 inverse8(f8 d) noexcept nogil:
    """1 / d, and 0 for 0 and for numbers so small that it is infinite: all codes come out as those of 0."""
    cdef w8 some = f8_ne(d, f8_zero())
    return f8_select(some, f8_div(f8_set1(1), f8_select(some, d, f8_set1(1))), f8_zero())


cdef inline void block_codes(const float* x, float inv, float low, float middle, float top, uint8_t* q) noexcept nogil:
    """Codes (x - low) * inv + middle of a block, truncated, at most ``top``; all 0 when ``inv`` is infinite."""
    cdef f8 v[4]
    cdef int i
    if fabsf(inv) == INFINITY:
        memset(q, 0, 32)
        return
    for i in range(4):
        v[i] = f8_mul(f8_sub(f8_load(x + 8 * i), f8_set1(low)), f8_set1(inv))
        # The order of operands: what is not a number becomes top, and no block gets here with one.
        v[i] = f8_min(f8_add(v[i], f8_set1(middle)), f8_set1(top))
    f8_codes32(q, v[0], v[1], v[2], v[3])


cdef void plain(Block* p, int count, const float* x) noexcept nogil:
    """Up to eight blocks without importance."""
    cdef const float* rows[8]
    cdef uint8_t q[32]
    cdef float tops[8]
    cdef float lows[8]
    cdef float d[8]
    cdef float inv[8]
    cdef float codes = 15 if Block is Q4_0 or Block is Q4_1 else 31
    cdef float middle = (codes + 1) / 2 if Block is Q4_0 or Block is Q5_0 else 0
    cdef f8 high, low, depth, scale
    cdef int j
    for j in range(8):
        rows[j] = x + 32 * min(j, count - 1)
    extremes(rows, &high, &low)
    f8_store(lows, low)
    if Block is Q4_0 or Block is Q5_0:
        depth = f8_sub(f8_zero(), low)
        f8_store(tops, f8_select(f8_gt(depth, high), low, high))
        if w8_any(w8_not(f8_ne(depth, high))):
            for j in range(8):
                if lows[j] == -tops[j]:
                    tops[j] = first_of(rows[j], tops[j])
        for j in range(8):
            lows[j] = 0
        scale = f8_div(f8_load(tops), f8_set1(-middle))
    else:
        for j in range(8):
            if lows[j] == 0:
                lows[j] = first_zero(rows[j])
        low = f8_load(lows)
        scale = f8_select(f8_ne(high, low), f8_div(f8_sub(high, low), f8_set1(codes)), f8_zero())
    f8_store(d, scale)
    f8_store(inv, inverse8(scale))
    for j in range(count):
        p[j].d = fu_f32_f16(d[j])
        if Block is Q4_1 or Block is Q5_1:
            p[j].m = fu_f32_f16(lows[j])
            if d[j] == INFINITY:
                lows[j] = 0
        block_codes(rows[j], inv[j], lows[j], middle + <float> 0.5, codes, q)
        pack(&p[j], q)


cdef void weighted(Block* p, int count, const float* x, const float* importance, float mean) noexcept nogil:
    """Up to eight blocks with importance."""
    cdef f8 v[32]
    cdef f8 w[32]
    cdef f8 code[32]
    cdef uint8_t q[256]
    cdef const float* xs[8]
    cdef const float* ws[8]
    cdef uint8_t* qs[8]
    cdef float weight[256]
    cdef float scales[8]
    cdef float lows[8]
    cdef f8 scale, low
    cdef int i, j
    for i in range(32 * count):
        weight[i] = importance[i] * sqrtf(mean + x[i] * x[i])
    for j in range(8):
        i = min(j, count - 1)
        xs[j] = x + 32 * i
        ws[j] = weight + 32 * i
        qs[j] = q + 32 * j
    gather8(xs, 32, v)
    gather8(ws, 32, w)
    if Block is Q4_0 or Block is Q5_0:
        symmetric8(32, 8 if Block is Q4_0 else 16, v, w, code, &scale)
    else:
        with_min8(32, 15 if Block is Q4_1 else 31, v, w, <float> -0.9, <float> 0.05, 36, False, code, &scale, &low)
        f8_store(lows, low)
    f8_store(scales, scale)
    scatter8(code, 32, qs)
    for j in range(count):
        p[j].d = fu_f32_f16(scales[j])
        if Block is Q4_1 or Block is Q5_1:
            p[j].m = fu_f32_f16(-lows[j])
        pack(&p[j], qs[j])


cdef void encode_row(Block* tag, const float* x, const float* importance, Py_ssize_t k, uint8_t* out) noexcept nogil:
    cdef Block* p = <Block*> out
    cdef Py_ssize_t b
    cdef float mean
    if importance == NULL:
        for b in range(0, k // 32, 8):
            plain(p + b, <int> min(8, k // 32 - b), x + 32 * b)
    else:
        mean = mean_square(x, k, 1)
        for b in range(0, k // 32, 8):
            weighted(p + b, <int> min(8, k // 32 - b), x + 32 * b, importance + 32 * b, mean)


cdef void q4_0(const float* x, const float* importance, Py_ssize_t k, const void* tables, uint8_t* out) noexcept nogil:
    encode_row(<Q4_0*> NULL, x, importance, k, out)


cdef void q4_1(const float* x, const float* importance, Py_ssize_t k, const void* tables, uint8_t* out) noexcept nogil:
    encode_row(<Q4_1*> NULL, x, importance, k, out)


cdef void q5_0(const float* x, const float* importance, Py_ssize_t k, const void* tables, uint8_t* out) noexcept nogil:
    encode_row(<Q5_0*> NULL, x, importance, k, out)


cdef void q5_1(const float* x, const float* importance, Py_ssize_t k, const void* tables, uint8_t* out) noexcept nogil:
    encode_row(<Q5_1*> NULL, x, importance, k, out)


cdef void q8_0(const float* x, const float* importance, Py_ssize_t k, const void* tables, uint8_t* out) noexcept nogil:
    cdef Q8_0* p = <Q8_0*> out
    cdef const float* rows[8]
    cdef float d[8]
    cdef float inv[8]
    cdef f8 v[4]
    cdef f8 high, low
    cdef Py_ssize_t b
    cdef int i, j, count
    for b in range(0, k // 32, 8):
        count = <int> min(8, k // 32 - b)
        for j in range(8):
            rows[j] = x + 32 * (b + min(j, count - 1))
        extremes(rows, &high, &low)
        high = f8_div(f8_max(high, f8_sub(f8_zero(), low)), f8_set1(127))
        f8_store(d, high)
        f8_store(inv, inverse8(high))
        for j in range(count):
            p[b + j].d = fu_f32_f16(d[j])
            if inv[j] == INFINITY:
                memset(p[b + j].qs, 0, 32)
                continue
            for i in range(4):
                v[i] = f8_half_away(f8_mul(f8_load(rows[j] + 8 * i), f8_set1(inv[j])))
            f8_codes32(p[b + j].qs, v[0], v[1], v[2], v[3])


cdef void f32(const float* x, const float* importance, Py_ssize_t k, const void* tables, uint8_t* out) noexcept nogil:
    memcpy(out, x, k * sizeof(float))


cdef void f16(const float* x, const float* importance, Py_ssize_t k, const void* tables, uint8_t* out) noexcept nogil:
    cdef uint16_t* half = <uint16_t*> out
    cdef Py_ssize_t i
    for i in range(k):
        half[i] = fu_f32_f16(x[i])


cdef void bf16(const float* x, const float* importance, Py_ssize_t k, const void* tables, uint8_t* out) noexcept nogil:
    cdef uint16_t* half = <uint16_t*> out
    cdef Py_ssize_t i
    for i in range(k):
        half[i] = fu_f32_bf16(x[i])


cdef encode_t encoder_of(int number) noexcept nogil:
    if number == -1:
        return f32
    if number == -2:
        return f16
    if number == -3:
        return bf16
    if number == NUM_Q4_0:
        return q4_0
    if number == NUM_Q4_1:
        return q4_1
    if number == NUM_Q5_0:
        return q5_0
    if number == NUM_Q5_1:
        return q5_1
    return q8_0


def encode_rows_into_unchecked(int number, const float[:, ::1] x, const float[::1] imatrix, unsigned char[:, ::1] out,
                               unsigned char[::1] finite, Py_ssize_t nth):
    """Rows of ``x`` to blocks; numbers -1, -2, -3 are f32, f16, bf16.

    ``imatrix`` (or None) weighs the errors where the format takes one. Rows that are not ``finite`` become zero bytes.
    """
    cdef EncodeArgs a
    a.x = &x[0, 0]
    a.importance = NULL
    if imatrix is not None:
        a.importance = &imatrix[0]
    a.tables = NULL
    a.out = &out[0, 0]
    a.finite = &finite[0]
    a.rows = x.shape[0]
    a.k = x.shape[1]
    a.row_bytes = out.shape[1]
    a.encode = encoder_of(number)
    with nogil:
        run_team(<core_t> encode_rows, &a, min(a.rows, 4 * nth), nth)
