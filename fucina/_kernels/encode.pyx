"""Encoding to blocks of 32 elements with uniform codes and to 16-bit floats, byte for byte as ggml does.

Without an importance matrix a block is scaled by its extremes and rounded. With one, weights w = importance *
sqrt(mean(row^2) + x^2) enter a search for the scale (``search.pxd``), eight blocks side by side. The specification is
``fucina._scalar.encode``.
"""

from libc.math cimport INFINITY, sqrtf
from libc.stdint cimport uint8_t, uint16_t
from libc.string cimport memcpy

from blocks cimport NUM_Q4_0, NUM_Q4_1, NUM_Q5_0, NUM_Q5_1, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from encode_rows cimport EncodeArgs, encode_rows, encode_t, mean_square
from search cimport f8_codes, gather8, scatter8, symmetric8, with_min8
from simd cimport (
    f8, f8_abs, f8_add, f8_hmax, f8_load, f8_max, f8_mul, f8_round_away_i8, f8_set1, f8_store, f8_sub, fu_f32_bf16,
    fu_f32_f16,
)
from team cimport core_t, run_team

ctypedef fused Block:
    Q4_0
    Q4_1
    Q5_0
    Q5_1


cdef inline void pack(Block* p, const uint8_t* q) noexcept nogil:
    """32 codes to nibbles, the first half low, and fifth bits."""
    cdef int i, j
    for i in range(16):
        p.qs[i] = q[i] & 15 | q[i + 16] << 4
    if Block is Q5_0 or Block is Q5_1:
        for i in range(4):
            p.qh[i] = 0
            for j in range(8):
                p.qh[i] |= (q[8 * i + j] >> 4 & 1) << j


cdef inline float extreme(const float* x) noexcept nogil:
    """The first of 32 elements of largest magnitude."""
    cdef f8 up = f8_load(x)
    cdef f8 down = f8_sub(f8_set1(0), up)
    cdef f8 v
    cdef float high, low
    cdef int i
    for i in range(8, 32, 8):
        v = f8_load(x + i)
        up = f8_max(up, v)
        down = f8_max(down, f8_sub(f8_set1(0), v))
    high = f8_hmax(up)
    low = f8_hmax(down)
    if high != low:
        return high if high > low else -low
    for i in range(32):
        if x[i] == high:
            return high
        if x[i] == -high:
            return -high
    return high


cdef inline float inverse(float d) noexcept nogil:
    return <float> 1.0 / d if d != 0 else <float> 0.0


cdef void plain(Block* p, const float* x) noexcept nogil:
    """One block without importance."""
    cdef uint8_t q[32]
    cdef float d, low, middle
    cdef float top = 15 if Block is Q4_0 or Block is Q4_1 else 31
    cdef f8 v, down
    cdef int i
    if Block is Q4_0 or Block is Q5_0:
        middle = (top + 1) / 2
        d = (extreme(x) + 0) / -middle
        for i in range(0, 32, 8):
            f8_codes(q + i, f8_add(f8_mul(f8_load(x + i), f8_set1(inverse(d))), f8_set1(middle + <float> 0.5)), top)
    else:
        v = f8_load(x)
        down = f8_sub(f8_set1(0), v)
        for i in range(8, 32, 8):
            v = f8_max(v, f8_load(x + i))
            down = f8_max(down, f8_sub(f8_set1(0), f8_load(x + i)))
        low = -f8_hmax(down)
        if low == 0:
            # Which zero it is shows in the bytes: the first one.
            for i in range(32):
                if x[i] == 0:
                    low = x[i]
                    break
        d = f8_hmax(v)
        d = (d - low) / top if d != low else <float> 0.0
        for i in range(0, 32, 8):
            v = f8_mul(f8_sub(f8_load(x + i), f8_set1(low)), f8_set1(inverse(d)))
            f8_codes(q + i, f8_add(v, f8_set1(<float> 0.5)), top)
        p.m = fu_f32_f16(low)
    p.d = fu_f32_f16(d)
    pack(p, q)


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
        for b in range(k // 32):
            plain(p + b, x + 32 * b)
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
    cdef Py_ssize_t b
    cdef float d, inv
    cdef f8 top
    cdef int i
    for b in range(k // 32):
        top = f8_abs(f8_load(x))
        for i in range(8, 32, 8):
            top = f8_max(top, f8_abs(f8_load(x + i)))
        d = f8_hmax(top) / <float> 127.0
        inv = inverse(d)
        for i in range(0, 32, 8):
            f8_round_away_i8(p[b].qs + i, f8_mul(f8_load(x + i), f8_set1(inv)), inv < INFINITY)
        p[b].d = fu_f32_f16(d)
        x += 32


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
