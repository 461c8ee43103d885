"""Encoding to the K formats, blocks of 256 with scaled sub-blocks, byte for byte as ggml does.

Two levels: a search (``search.pxd``) finds scale and min of every sub-block, eight sub-blocks side by side; these are
quantized to a few bits relative to the block; then the codes are rounded again with the scales that came out. A
sub-block whose scale became zero keeps the codes of the search. With importance the weights of the errors are
importance * sqrt(sigma2 + x^2). The specification is ``fucina._scalar.encode_k``.
"""

from libc.math cimport fabsf
from libc.stdint cimport int8_t, uint8_t
from libc.string cimport memset

from blocks cimport NUM_Q2_K, NUM_Q3_K, NUM_Q4_K, NUM_Q5_K, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
from encode_rows cimport EncodeArgs, encode_rows, encode_t, mean_square
from search cimport (
    FU_TINY, f8_ne, f8_nearest, fu_nearest, gather8, positive, scatter8, sum8, symmetric8, symmetric_descent8,
    with_min8,
)
from simd cimport (
    f8, f8_abs, f8_add, f8_div, f8_load, f8_mul, f8_select, f8_set1, f8_sqrt, f8_store, f8_zero, fu_f16_f32, fu_f32_f16,
)
from team cimport core_t, run_team

cdef enum:
    Q2 = 0
    Q3 = 1
    Q45 = 2
    Q6 = 3

# What the first level leaves behind: per sub-block the scale, the min and the sum of weights; all elements and codes
# in lanes of eight sub-blocks.
cdef struct Work:
    f8 x[32]
    f8 code[32]
    float scale[16]
    float low[16]
    float total[16]


cdef inline void rows_of(const float* x, int n, int lanes, const float** rows) noexcept nogil:
    cdef int j
    for j in range(8):
        rows[j] = x + n * (8 * lanes + j)


cdef inline void first_level(Work* k, const float* x, const float* importance, int n, int kind,
                             int nmax) noexcept nogil:
    """Search every sub-block of ``n`` elements."""
    cdef const float* rows[8]
    cdef f8 w[32]
    cdef f8 sigma2 = f8_zero()
    cdef f8 av, scale, low
    cdef f8* v
    cdef f8* code
    cdef int i, lanes
    if importance != NULL and kind != Q6:
        sigma2 = f8_set1(mean_square(x, 256, 1 if kind == Q2 else 2))
    for lanes in range(256 // (8 * n)):
        v = k.x + n * lanes
        code = k.code + n * lanes
        rows_of(x, n, lanes, rows)
        gather8(rows, n, v)
        if importance != NULL:
            rows_of(importance, n, lanes, rows)
            gather8(rows, n, w)
            if kind != Q6:
                for i in range(n):
                    w[i] = f8_mul(w[i], f8_sqrt(f8_add(sigma2, f8_mul(v[i], v[i]))))
            f8_store(k.total + 8 * lanes, sum8(w, n))
        elif kind == Q2:
            for i in range(n):
                w[i] = f8_abs(v[i])
        elif kind == Q45:
            av = f8_zero()
            for i in range(n):
                av = f8_add(av, f8_mul(v[i], v[i]))
            av = f8_sqrt(f8_div(av, f8_set1(32)))
            for i in range(n):
                w[i] = f8_add(av, f8_abs(v[i]))
        else:
            for i in range(n):
                w[i] = f8_mul(v[i], v[i])
        low = f8_zero()
        if kind == Q3 and importance == NULL:
            symmetric_descent8(n, nmax, v, code, &scale)
        elif kind == Q3 or kind == Q6:
            symmetric8(n, nmax, v, w, code, &scale)
        elif importance != NULL:
            with_min8(n, nmax, v, w, <float> -0.9, <float> 0.05, 36, False, code, &scale, &low)
        elif kind == Q2:
            with_min8(n, nmax, v, w, <float> -0.5, <float> 0.1, 15, True, code, &scale, &low)
        elif nmax == 15:
            with_min8(n, nmax, v, w, <float> -1.0, <float> 0.1, 20, False, code, &scale, &low)
        else:
            with_min8(n, nmax, v, w, <float> -0.5, <float> 0.1, 15, False, code, &scale, &low)
        f8_store(k.scale + 8 * lanes, scale)
        f8_store(k.low + 8 * lanes, low)


cdef inline void codes(Work* k, int n, int lo, int hi, const float* d, const float* m, uint8_t* q) noexcept nogil:
    """Codes (x + m) / d of all sub-blocks, counted from ``lo``; where d is 0 those of the search."""
    cdef uint8_t* rows[8]
    cdef f8 dv, mv, code
    cdef f8* v
    cdef int i, j, lanes
    for lanes in range(256 // (8 * n)):
        v = k.code + n * lanes
        dv = f8_load(d + 8 * lanes)
        mv = f8_load(m + 8 * lanes)
        for i in range(n):
            code = f8_nearest(f8_div(f8_add(k.x[n * lanes + i], mv), dv), lo, hi)
            v[i] = f8_select(f8_ne(dv, f8_zero()), f8_add(code, f8_set1(<float> -lo)), v[i])
        for j in range(8):
            rows[j] = q + n * (8 * lanes + j)
        scatter8(v, n, rows)


cdef inline float of_largest(const float* v, int n, int nmax, uint8_t* code) noexcept nogil:
    """Codes of non-negative numbers when the largest becomes ``nmax``; what one code is worth."""
    cdef float top = 0
    cdef int i
    for i in range(n):
        top = v[i] if v[i] > top else top
    for i in range(n):
        code[i] = <uint8_t> fu_nearest(<float> nmax / top * v[i]) if top > 0 else 0
    return top / <float> nmax


cdef inline float first_largest(const float* v, int n) noexcept nogil:
    cdef float top = 0
    cdef int i
    for i in range(n):
        if fabsf(v[i]) > fabsf(top):
            top = v[i]
    return top


cdef inline void planes(const uint8_t* q, int width, int count, int each, uint8_t* out) noexcept nogil:
    """The first ``width`` of ``count * width`` codes become the lowest fields of ``width`` bytes."""
    cdef int i, j
    for i in range(width):
        out[i] = q[i]
    for j in range(1, count):
        for i in range(width):
            out[i] |= q[j * width + i] << each * j


cdef void q2_k(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    cdef Q2_K* p = <Q2_K*> out
    cdef Work k
    cdef uint8_t q[256]
    cdef uint8_t sc[16]
    cdef uint8_t mn[16]
    cdef float d[16]
    cdef float m[16]
    cdef float dx, mx
    cdef Py_ssize_t b
    cdef int i
    for b in range(n // 256):
        first_level(&k, x + 256 * b, importance + 256 * b if importance != NULL else NULL, 16, Q2, 3)
        if importance == NULL:
            dx = of_largest(k.scale, 16, 15, sc)
            mx = of_largest(k.low, 16, 15, mn)
        else:
            dx = positive(16, 15, k.scale, k.total, sc)
            mx = positive(16, 15, k.low, k.total, mn)
        p[b].d = fu_f32_f16(dx)
        p[b].dmin = fu_f32_f16(mx)
        for i in range(16):
            p[b].scales[i] = sc[i] | mn[i] << 4
            d[i] = fu_f16_f32(p[b].d) * <float> (p[b].scales[i] & 15)
            m[i] = fu_f16_f32(p[b].dmin) * <float> (p[b].scales[i] >> 4)
        codes(&k, 16, 0, 3, d, m, q)
        planes(q, 32, 4, 2, p[b].qs)
        planes(q + 128, 32, 4, 2, p[b].qs + 32)


cdef void q3_k(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    cdef Q3_K* p = <Q3_K*> out
    cdef Work k
    cdef uint8_t q[256]
    cdef uint8_t high[256]
    cdef float d[16]
    cdef float m[16]
    cdef int sc[16]
    cdef float top, dx
    cdef Py_ssize_t b
    cdef int i
    for i in range(16):
        m[i] = 0
    for b in range(n // 256):
        first_level(&k, x + 256 * b, importance + 256 * b if importance != NULL else NULL, 16, Q3, 4)
        if importance == NULL:
            top = first_largest(k.scale, 16)
            dx = <float> -32.0 / top
            for i in range(16):
                sc[i] = max(-32, min(31, <int> <int8_t> fu_nearest(dx * k.scale[i]))) + 32 if top != 0 else 0
            dx = <float> 1.0 / dx if top != 0 else 0
        else:
            dx = symmetric16(k.scale, k.total, sc)
        p[b].d = fu_f32_f16(dx)
        memset(p[b].scales, 0, 12)
        for i in range(16):
            p[b].scales[i & 7] |= (sc[i] & 15) << (4 if i > 7 else 0)
            p[b].scales[8 + (i & 3)] |= sc[i] >> 4 << 2 * (i >> 2)
            d[i] = fu_f16_f32(p[b].d) * <float> (sc[i] - 32)
        codes(&k, 16, -4, 3, d, m, q)
        for i in range(256):
            high[i] = q[i] >> 2
            q[i] &= 3
        planes(high, 32, 8, 1, p[b].hmask)
        planes(q, 32, 4, 2, p[b].qs)
        planes(q + 128, 32, 4, 2, p[b].qs + 32)


cdef inline float symmetric16(const float* scale, const float* w, int* sc) noexcept nogil:
    """Sixteen scales as one group: 6-bit codes and what one code is worth."""
    cdef f8 x[16]
    cdef f8 weight[16]
    cdef f8 code[16]
    cdef f8 d
    cdef float lane[8]
    cdef int i
    for i in range(16):
        x[i] = f8_set1(scale[i])
        weight[i] = f8_set1(w[i])
    symmetric8(16, 32, x, weight, code, &d)
    for i in range(16):
        f8_store(lane, code[i])
        sc[i] = <int> lane[0]
    f8_store(lane, d)
    return lane[0]


cdef inline void scaled_min(Work* k, const float* x, const float* importance, int nmax, uint8_t* q, uint8_t* six,
                            float* dx, float* mx) noexcept nogil:
    """What q4_k and q5_k share: codes, the twelve bytes of 6-bit scales and mins, and the two scales of the block."""
    cdef uint8_t sc[8]
    cdef uint8_t mn[8]
    cdef float d[8]
    cdef float m[8]
    cdef int i
    first_level(k, x, importance, 32, Q45, nmax)
    if importance == NULL:
        dx[0] = of_largest(k.scale, 8, 63, sc)
        mx[0] = of_largest(k.low, 8, 63, mn)
    else:
        dx[0] = positive(8, 63, k.scale, k.total, sc)
        mx[0] = positive(8, 63, k.low, k.total, mn)
    for i in range(8):
        sc[i] = min(sc[i], 63)
        mn[i] = min(mn[i], 63)
        d[i] = fu_f16_f32(fu_f32_f16(dx[0])) * <float> sc[i]
        m[i] = fu_f16_f32(fu_f32_f16(mx[0])) * <float> mn[i]
    for i in range(4):
        six[i] = sc[i] | sc[i + 4] >> 4 << 6
        six[i + 4] = mn[i] | mn[i + 4] >> 4 << 6
        six[i + 8] = sc[i + 4] & 15 | mn[i + 4] << 4
    codes(k, 32, 0, nmax, d, m, q)


cdef void q4_k(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    cdef Q4_K* p = <Q4_K*> out
    cdef Work k
    cdef uint8_t q[256]
    cdef float d, m
    cdef Py_ssize_t b
    cdef int i
    for b in range(n // 256):
        scaled_min(&k, x + 256 * b, importance + 256 * b if importance != NULL else NULL, 15, q, p[b].scales, &d, &m)
        p[b].d = fu_f32_f16(d)
        p[b].dmin = fu_f32_f16(m)
        for i in range(4):
            planes(q + 64 * i, 32, 2, 4, p[b].qs + 32 * i)


cdef void q5_k(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    cdef Q5_K* p = <Q5_K*> out
    cdef Work k
    cdef uint8_t q[256]
    cdef uint8_t high[256]
    cdef float d, m
    cdef Py_ssize_t b
    cdef int i
    for b in range(n // 256):
        scaled_min(&k, x + 256 * b, importance + 256 * b if importance != NULL else NULL, 31, q, p[b].scales, &d, &m)
        p[b].d = fu_f32_f16(d)
        p[b].dmin = fu_f32_f16(m)
        for i in range(256):
            high[i] = q[i] >> 4
            q[i] &= 15
        planes(high, 32, 8, 1, p[b].qh)
        for i in range(4):
            planes(q + 64 * i, 32, 2, 4, p[b].qs + 32 * i)


cdef void q6_k(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    cdef Q6_K* p = <Q6_K*> out
    cdef Work k
    cdef uint8_t q[256]
    cdef uint8_t high[256]
    cdef float d[16]
    cdef float m[16]
    cdef float top, dx
    cdef Py_ssize_t b
    cdef int i
    for i in range(16):
        m[i] = 0
    for b in range(n // 256):
        first_level(&k, x + 256 * b, importance + 256 * b if importance != NULL else NULL, 16, Q6, 32)
        top = first_largest(k.scale, 16)
        if fabsf(top) < FU_TINY:
            memset(p + b, 0, sizeof(Q6_K))
            continue
        dx = <float> -128.0 / top
        p[b].d = fu_f32_f16(<float> 1.0 / dx)
        for i in range(16):
            p[b].scales[i] = <int8_t> min(127, fu_nearest(dx * k.scale[i]))
            d[i] = fu_f16_f32(p[b].d) * <float> p[b].scales[i]
        codes(&k, 16, -32, 31, d, m, q)
        for i in range(256):
            high[i] = q[i] >> 4
            q[i] &= 15
        planes(q, 64, 2, 4, p[b].ql)
        planes(q + 128, 64, 2, 4, p[b].ql + 64)
        planes(high, 32, 4, 2, p[b].qh)
        planes(high + 128, 32, 4, 2, p[b].qh + 32)


cdef encode_t encoder_of(int number) noexcept nogil:
    if number == NUM_Q2_K:
        return q2_k
    if number == NUM_Q3_K:
        return q3_k
    if number == NUM_Q4_K:
        return q4_k
    if number == NUM_Q5_K:
        return q5_k
    return q6_k


def encode_rows_into_unchecked(int number, const float[:, ::1] x, const float[::1] imatrix, unsigned char[:, ::1] out,
                               unsigned char[::1] finite, Py_ssize_t nth):
    """Rows of ``x`` to rows of blocks; ``imatrix`` (or None) weighs the errors; rows that are not ``finite`` are zero."""
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
