"""Encoding to level tables, ternary blocks and blocks of one or two bits, byte for byte as ggml does.

The formats with sixteen levels search for a scale, eight groups side by side; the others are scaled by their extremes
or their mean and rounded. The specification is ``fucina._scalar.encode_tiny``.
"""

from libc.math cimport INFINITY, fabsf, floorf, log2
from libc.stdint cimport uint8_t, uint16_t
from libc.string cimport memset

from blocks cimport (
    I2_S, IQ4_NL, IQ4_XS, MXFP4, NUM_IQ4_NL, NUM_IQ4_XS, NUM_MXFP4, NUM_NVFP4, NUM_Q1_0, NUM_Q2_0, NUM_Q2_0_G128,
    NUM_TQ1_0, NUM_TQ2_0, NVFP4, Q1_0, Q2_0, TQ1_0, TQ2_0,
)
from encode_rows cimport EncodeArgs, encode_rows, encode_t, sum_squares
from levels cimport e8m0_half, f8_fp4, f8_iq4, fu_fp4_levels, ue4m3_half, ue4m3_of
from search cimport (
    FU_TINY, f8_codes, f8_codes32, f8_half_away, f8_ne, fu_nearest, fu_nibbles32, gather8, largest8, quotient8, scatter8, w8_any, w8_not,
)
from simd cimport (
    f8, f8_abs, f8_add, f8_div, f8_gt, f8_load, f8_max, f8_mul, f8_select, f8_set1, f8_sqrt, f8_store, f8_zero,
    fu_f32_f16, w8, w8_and,
)
from team cimport core_t, run_team


cdef inline float inverse(float d) noexcept nogil:
    return <float> 1.0 / d if d != 0 else <float> 0.0


cdef inline float larger(float a, float b) noexcept nogil:
    return a if a > b else b


cdef inline float amax(const float* x, int n) noexcept nogil:
    """max|x| of n elements, a multiple of 8."""
    cdef f8 top[4]
    cdef float[8] lane
    cdef int i, j
    # Four at once: a maximum waits for the one before.
    for j in range(4):
        top[j] = f8_abs(f8_load(x))
    i = 0
    while i + 32 <= n:
        for j in range(4):
            top[j] = f8_max(top[j], f8_abs(f8_load(x + i + 8 * j)))
        i += 32
    while i < n:
        top[0] = f8_max(top[0], f8_abs(f8_load(x + i)))
        i += 8
    f8_store(&lane[0], f8_max(f8_max(top[0], top[1]), f8_max(top[2], top[3])))
    return larger(larger(larger(lane[0], lane[1]), larger(lane[2], lane[3])),
                  larger(larger(lane[4], lane[5]), larger(lane[6], lane[7])))


# ---- sixteen levels ----------------------------------------------------------------------------------------

cdef inline f8 iq4_scale(const f8* x, const f8* w) noexcept nogil:
    """The best of sixteen scales around the one that maps the largest of 32 magnitudes to the lowest level."""
    cdef f8 wq, inv, scale, best, qx, qq, index, level
    cdef f8 top = largest8(x, 32)
    cdef w8 live = w8_not(f8_gt(f8_set1(FU_TINY), f8_abs(top)))
    cdef w8 better
    cdef int i, step
    top = f8_select(live, top, f8_set1(1))
    scale = best = f8_zero()
    for step in range(-8, 8):
        # First the mirrored one, which maps the largest magnitude to the top, then fifteen around the lowest level.
        if step == -8:
            inv = f8_div(f8_set1(1), f8_div(top, f8_set1(127)))
        else:
            inv = f8_div(f8_set1(<float> step - <float> 127.0), top)
        qx = qq = f8_zero()
        for i in range(32):
            f8_iq4(f8_mul(inv, x[i]), &index, &level)
            wq = f8_mul(w[i], level)
            qx = f8_add(qx, f8_mul(wq, x[i]))
            qq = f8_add(qq, f8_mul(wq, level))
        if step == -8:
            scale = quotient8(qx, qq)
            best = f8_mul(scale, qx)
            continue
        better = w8_and(f8_gt(qq, f8_zero()), f8_gt(f8_mul(qx, qx), f8_mul(best, qq)))
        if w8_any(better):
            scale = f8_select(better, quotient8(qx, qq), scale)
            best = f8_select(better, f8_mul(scale, qx), best)
    return f8_select(live, scale, f8_zero())


cdef inline f8 inverse8(f8 d) noexcept nogil:
    cdef w8 some = f8_ne(d, f8_zero())
    return f8_select(some, f8_div(f8_set1(1), f8_select(some, d, f8_set1(1))), f8_zero())


cdef inline void iq4_levels(const f8* x, f8 inv, uint8_t* const* rows) noexcept nogil:
    """Numbers of the levels nearest to inv * x, as bytes of eight rows."""
    cdef f8 code[32]
    cdef f8 level
    cdef int i
    for i in range(32):
        f8_iq4(f8_mul(inv, x[i]), code + i, &level)
    scatter8(code, 32, rows)


cdef void iq4_nl(const float* x, const float* importance, Py_ssize_t n, const void* tables,
                 uint8_t* out) noexcept nogil:
    """Eight blocks at a time; the last group repeats its last block."""
    cdef IQ4_NL* p = <IQ4_NL*> out
    cdef const float* xs[8]
    cdef const float* ws[8]
    cdef uint8_t* qs[8]
    cdef uint8_t q[256]
    cdef float scale[8]
    cdef f8 v[32]
    cdef f8 w[32]
    cdef f8 d, sigma2
    cdef Py_ssize_t b
    cdef Py_ssize_t blocks = n // 32
    cdef int i, j, count
    for j in range(8):
        qs[j] = q + 32 * j
    for b in range(0, blocks, 8):
        count = <int> min(8, blocks - b)
        for j in range(8):
            i = min(j, count - 1)
            xs[j] = x + 32 * (b + i)
            ws[j] = importance + 32 * (b + i) if importance != NULL else NULL
        gather8(xs, 32, v)
        if importance == NULL:
            for i in range(32):
                w[i] = f8_mul(v[i], v[i])
        else:
            gather8(ws, 32, w)
            sigma2 = f8_mul(v[0], v[0])
            for i in range(1, 32):
                sigma2 = f8_add(sigma2, f8_mul(v[i], v[i]))
            sigma2 = f8_mul(sigma2, f8_set1(<float> 0.0625))
            for i in range(32):
                w[i] = f8_mul(w[i], f8_sqrt(f8_add(sigma2, f8_mul(v[i], v[i]))))
        d = iq4_scale(v, w)
        iq4_levels(v, inverse8(d), qs)
        f8_store(scale, d)
        for j in range(count):
            p[b + j].d = fu_f32_f16(scale[j])
            fu_nibbles32(p[b + j].qs, qs[j])


cdef void iq4_xs(const float* x, const float* importance, Py_ssize_t n, const void* tables,
                 uint8_t* out) noexcept nogil:
    cdef IQ4_XS* p = <IQ4_XS*> out
    cdef const float* rows[8]
    cdef uint8_t* qs[8]
    cdef uint8_t q[256]
    cdef float scale[8]
    cdef int sc[8]
    cdef f8 v[32]
    cdef f8 w[32]
    cdef f8 sigma2
    cdef float d, inv, top
    cdef Py_ssize_t b
    cdef int i, j
    for j in range(8):
        qs[j] = q + 32 * j
    for b in range(n // 256):
        for j in range(8):
            rows[j] = x + 256 * b + 32 * j
        gather8(rows, 32, v)
        if importance == NULL:
            for i in range(32):
                w[i] = f8_mul(v[i], v[i])
        else:
            for j in range(8):
                rows[j] = importance + 256 * b + 32 * j
            gather8(rows, 32, w)
            sigma2 = f8_set1(sum_squares(x + 256 * b, 256) * <float> 0.0078125)
            for i in range(32):
                w[i] = f8_mul(w[i], f8_sqrt(f8_add(sigma2, f8_mul(v[i], v[i]))))
        f8_store(scale, iq4_scale(v, w))
        top = 0
        for j in range(8):
            if fabsf(scale[j]) > fabsf(top):
                top = scale[j]
        d = -top / <float> 32.0
        inv = inverse(d)
        p[b].d = fu_f32_f16(d)
        p[b].scales_h = 0
        memset(p[b].scales_l, 0, 4)
        for j in range(8):
            i = max(-32, min(31, fu_nearest(inv * scale[j])))
            sc[j] = i + 32
            scale[j] = d * <float> i
            p[b].scales_l[j >> 1] |= (sc[j] & 15) << 4 * (j & 1)
            p[b].scales_h |= <uint16_t> (sc[j] >> 4 << 2 * j)
        iq4_levels(v, inverse8(f8_load(scale)), qs)
        for j in range(8):
            fu_nibbles32(p[b].qs + 16 * j, qs[j])


# ---- ternary and two bits ----------------------------------------------------------------------------------

cdef inline void rounded(const float* x, int n, float inv, int lost, uint8_t* q) noexcept nogil:
    """Codes round(x * inv) + 1 of n elements, a multiple of 32; all are ``lost`` when ``inv`` is infinite."""
    cdef f8 v[4]
    cdef int i, j
    if inv == INFINITY:
        memset(q, lost, n)
        return
    for i in range(0, n, 32):
        for j in range(4):
            v[j] = f8_half_away(f8_mul(f8_load(x + i + 8 * j), f8_set1(inv)))
        f8_codes32(q + i, v[0], v[1], v[2], v[3])
    for i in range(n):
        q[i] += 1


cdef inline void trits(const uint8_t* q, int width, int count, uint8_t* out) noexcept nogil:
    """``count`` planes of digits as one number per byte: ceil(256 v / 243) of the five-digit v."""
    cdef int i, j, v, power
    for i in range(width):
        v = 0
        power = 81
        for j in range(count):
            v += power * q[j * width + i]
            power //= 3
        # v + ceil(13 v / 243), by a multiplication that is exact for all v
        out[i] = <uint8_t> (v + ((13 * v + 242) * 2158 >> 19))


cdef void tq1_0(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    cdef TQ1_0* p = <TQ1_0*> out
    cdef uint8_t q[256]
    cdef float d
    cdef Py_ssize_t b
    for b in range(n // 256):
        d = amax(x + 256 * b, 256)
        rounded(x + 256 * b, 256, inverse(d), 1, q)
        trits(q, 32, 5, p[b].qs)
        trits(q + 160, 16, 5, p[b].qs + 32)
        trits(q + 240, 4, 4, p[b].qh)
        p[b].d = fu_f32_f16(d)


cdef void tq2_0(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    cdef TQ2_0* p = <TQ2_0*> out
    cdef uint8_t q[256]
    cdef float d
    cdef Py_ssize_t b
    cdef int i, j
    for b in range(n // 256):
        d = amax(x + 256 * b, 256)
        rounded(x + 256 * b, 256, inverse(d), 1, q)
        for j in range(2):
            for i in range(32):
                p[b].qs[32 * j + i] = (q[128 * j + i] | q[128 * j + 32 + i] << 2 | q[128 * j + 64 + i] << 4
                                       | q[128 * j + 96 + i] << 6)
        p[b].d = fu_f32_f16(d)


cdef inline void crumbs(const float* x, int size, Py_ssize_t blocks, uint8_t* out) noexcept nogil:
    """Blocks of ``size`` elements, four codes per byte."""
    cdef uint8_t q[128]
    cdef Q2_0* p
    cdef uint8_t* qs
    cdef float d
    cdef Py_ssize_t b
    cdef int i
    for b in range(blocks):
        p = <Q2_0*> (out + b * (2 + size // 4))
        qs = p.qs
        d = amax(x + size * b, size)
        rounded(x + size * b, size, inverse(d), 0, q)
        for i in range(size // 4):
            qs[i] = q[4 * i] | q[4 * i + 1] << 2 | q[4 * i + 2] << 4 | q[4 * i + 3] << 6
        p.d = fu_f32_f16(d)


cdef void q2_0(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    crumbs(x, 64, n // 64, out)


cdef void q2_0_g128(const float* x, const float* importance, Py_ssize_t n, const void* tables,
                    uint8_t* out) noexcept nogil:
    crumbs(x, 128, n // 128, out)


cdef void q1_0(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    """Signs, and the mean magnitude, added in order."""
    cdef Q1_0* p = <Q1_0*> out
    cdef const float* v
    cdef float total
    cdef Py_ssize_t b
    cdef int i, j, byte
    for b in range(n // 128):
        v = x + 128 * b
        total = 0
        for i in range(128):
            total += fabsf(v[i])
        p[b].d = fu_f32_f16(total / <float> 128.0)
        for i in range(16):
            byte = 0
            for j in range(8):
                byte |= (v[8 * i + j] >= 0) << j
            p[b].qs[i] = <uint8_t> byte


cdef void i2_s(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    """Codes only, of -1, 0 and 1: the caller has divided by the scale of the tensor. The first plane is highest."""
    cdef I2_S* p = <I2_S*> out
    cdef uint8_t q[128]
    cdef Py_ssize_t b
    cdef int i
    for b in range(n // 128):
        rounded(x + 128 * b, 128, 1, 1, q)
        for i in range(32):
            p[b].qs[i] = q[i] << 6 | q[i + 32] << 4 | q[i + 64] << 2 | q[i + 96]


# ---- four-bit floats ---------------------------------------------------------------------------------------

cdef void mxfp4(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    """The exponent of the largest magnitude, from its logarithm in single precision, minus 2."""
    cdef MXFP4* p = <MXFP4*> out
    cdef uint8_t q[32]
    cdef float top, d
    cdef Py_ssize_t b
    cdef int i
    for b in range(n // 32):
        top = amax(x + 32 * b, 32)
        p[b].e = <uint8_t> (<int> floorf(<float> log2(<double> top)) + 125) if top > 0 else 0
        d = e8m0_half(p[b].e)
        for i in range(0, 32, 8):
            f8_codes(q + i, f8_fp4(f8_load(x + 32 * b + i), d), 15)
        fu_nibbles32(p[b].qs, q)


cdef inline int fp4_far(float x, float d) noexcept nogil:
    """The level with the smallest |d * k - x| as it is rounded, for x so large that levels become equally far."""
    cdef int k
    cdef int found = 0
    for k in range(1, 16):
        if fabsf(d * <float> fu_fp4_levels[k] - x) < fabsf(d * <float> fu_fp4_levels[found] - x):
            found = k
    return found


cdef void nvfp4(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    cdef NVFP4* p = <NVFP4*> out
    cdef uint8_t q[16]
    cdef const float* v
    cdef float d, top
    cdef Py_ssize_t b
    cdef int i, j
    for b in range(n // 64):
        for j in range(4):
            v = x + 64 * b + 16 * j
            top = amax(v, 16)
            p[b].d[j] = <uint8_t> ue4m3_of(top / <float> 6.0)
            d = ue4m3_half(p[b].d[j])
            f8_codes(q, f8_fp4(f8_load(v), d), 15)
            f8_codes(q + 8, f8_fp4(f8_load(v + 8), d), 15)
            if top > d * <float> 1048576.0:
                for i in range(16):
                    q[i] = <uint8_t> fp4_far(v[i], d)
            for i in range(8):
                p[b].qs[8 * j + i] = q[i] | q[i + 8] << 4


cdef encode_t encoder_of(int number) noexcept nogil:
    if number == NUM_IQ4_NL:
        return iq4_nl
    if number == NUM_IQ4_XS:
        return iq4_xs
    if number == NUM_TQ1_0:
        return tq1_0
    if number == NUM_TQ2_0:
        return tq2_0
    if number == NUM_MXFP4:
        return mxfp4
    if number == NUM_NVFP4:
        return nvfp4
    if number == NUM_Q1_0:
        return q1_0
    if number == NUM_Q2_0:
        return q2_0
    if number == NUM_Q2_0_G128:
        return q2_0_g128
    return i2_s


def encode_rows_into_unchecked(int number, const float[:, ::1] x, const float[::1] imatrix, unsigned char[:, ::1] out,
                               unsigned char[::1] finite, Py_ssize_t nth):
    """Rows of ``x`` to rows of blocks; ``imatrix`` (or None) weighs the errors of the formats with sixteen levels.

    Rows that are not ``finite`` are zero.
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
