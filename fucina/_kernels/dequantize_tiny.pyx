"""Decoding of blocks with a level table, of ternary blocks and of blocks of one or two bits; see ``dequantize``.

Layouts: ``blocks.pxd``; levels: ``levels.pxd``. Every product of a scale and a code is exact or rounded once, as in
ggml.
"""

from libc.stdint cimport uint8_t

from blocks cimport (
    I2_S, IQ4_NL, IQ4_XS, MXFP4, NUM_IQ4_NL, NUM_IQ4_XS, NUM_MXFP4, NUM_NVFP4, NUM_Q1_0, NUM_Q2_0,
    NUM_Q2_0_G128, NUM_TQ1_0, NUM_TQ2_0, NVFP4, Q1_0, Q2_0, TQ1_0, TQ2_0,
)
from decode cimport DecodeArgs, decode_args, decode_rows, decode_t
from levels cimport e8m0_half, fu_fp4_levels, fu_iq4_levels, ue4m3_half
from simd cimport fu_f16_f32
from team cimport core_t, run_team, step_of


cdef void iq4_nl(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    cdef const IQ4_NL* p = <const IQ4_NL*> block
    cdef float d = fu_f16_f32(p.d)
    cdef int i
    for i in range(16):
        y[i] = d * <float> fu_iq4_levels[p.qs[i] & 15]
        y[i + 16] = d * <float> fu_iq4_levels[p.qs[i] >> 4]


cdef void iq4_xs(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    """Six bits of scale per 32 elements: nibbles hold the lower four, a 16-bit word the upper two."""
    cdef const IQ4_XS* p = <const IQ4_XS*> block
    cdef float d = fu_f16_f32(p.d)
    cdef float scale
    cdef int i, j
    for j in range(8):
        scale = d * <float> ((p.scales_l[j >> 1] >> 4 * (j & 1) & 15 | (p.scales_h >> 2 * j & 3) << 4) - 32)
        for i in range(16):
            y[32 * j + i] = scale * <float> fu_iq4_levels[p.qs[16 * j + i] & 15]
            y[32 * j + i + 16] = scale * <float> fu_iq4_levels[p.qs[16 * j + i] >> 4]


cdef inline void trits(const uint8_t* qs, int width, int count, float d, float* y) noexcept nogil:
    """``count`` base-3 digits of each byte; multiplying by 3 brings the next digit to the top."""
    cdef int i, n
    cdef int power = 1
    for n in range(count):
        for i in range(width):
            y[n * width + i] = <float> (((qs[i] * power & 255) * 3 >> 8) - 1) * d
        power *= 3


cdef void tq1_0(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    cdef const TQ1_0* p = <const TQ1_0*> block
    cdef float d = fu_f16_f32(p.d)
    trits(p.qs, 32, 5, d, y)
    trits(p.qs + 32, 16, 5, d, y + 160)
    trits(p.qh, 4, 4, d, y + 240)


cdef void tq2_0(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    cdef const TQ2_0* p = <const TQ2_0*> block
    cdef float d = fu_f16_f32(p.d)
    cdef int i, j
    for j in range(8):
        for i in range(32):
            y[32 * j + i] = <float> ((p.qs[32 * (j >> 2) + i] >> 2 * (j & 3) & 3) - 1) * d


cdef void mxfp4(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    cdef const MXFP4* p = <const MXFP4*> block
    cdef float d = e8m0_half(p.e)
    cdef int i
    for i in range(16):
        y[i] = d * <float> fu_fp4_levels[p.qs[i] & 15]
        y[i + 16] = d * <float> fu_fp4_levels[p.qs[i] >> 4]


cdef void nvfp4(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    cdef const NVFP4* p = <const NVFP4*> block
    cdef float d
    cdef int i, j
    for j in range(4):
        d = ue4m3_half(p.d[j])
        for i in range(8):
            y[16 * j + i] = d * <float> fu_fp4_levels[p.qs[8 * j + i] & 15]
            y[16 * j + i + 8] = d * <float> fu_fp4_levels[p.qs[8 * j + i] >> 4]


cdef void q1_0(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    cdef const Q1_0* p = <const Q1_0*> block
    cdef float d = fu_f16_f32(p.d)
    cdef int i
    for i in range(128):
        y[i] = d if p.qs[i >> 3] >> (i & 7) & 1 else -d


cdef inline void crumbs(const Q2_0* p, int n, float* y) noexcept nogil:
    """``n`` codes, four per byte."""
    cdef float d = fu_f16_f32(p.d)
    cdef const uint8_t* qs = p.qs
    cdef int i
    for i in range(n):
        y[i] = <float> ((qs[i >> 2] >> 2 * (i & 3) & 3) - 1) * d


cdef void q2_0(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    crumbs(<const Q2_0*> block, 64, y)


cdef void q2_0_g128(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    crumbs(<const Q2_0*> block, 128, y)


cdef void i2_s(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    """Codes only: the scale belongs to the whole tensor. The first plane is in the highest bits."""
    cdef const I2_S* p = <const I2_S*> block
    cdef int i, j
    for j in range(4):
        for i in range(32):
            y[32 * j + i] = <float> ((p.qs[i] >> 6 - 2 * j & 3) - 1)


cdef decode_t decoder_of(int number) noexcept nogil:
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


def dequantize_rows_into_unchecked(int number, int nbytes,
                                   const unsigned char[:, ::1] table, const long long[::1] ids, float[:, ::1] out,
                                   Py_ssize_t nth):
    """Rows ``ids`` of ``table`` (all rows when ``ids`` is None) as f32."""
    cdef DecodeArgs a = decode_args(decoder_of(number), nbytes, NULL, table, ids, out)
    with nogil:
        run_team(<core_t> decode_rows, &a, min(a.rows, 4 * nth), nth)


def dequantize_rows_step(int number, int nbytes, const unsigned char[:, ::1] table,
                         const long long[::1] ids, float[:, ::1] out):
    """The same as a step of a program, which reads ``ids`` at every run."""
    cdef DecodeArgs a = decode_args(decoder_of(number), nbytes, NULL, table, ids, out)
    return step_of(<core_t> decode_rows, &a, sizeof(a), &a.rows)
