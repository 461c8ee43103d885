"""Decoding of grid blocks: indices of lattice points with signs, or with a common shift; see ``dequantize``.

Layouts: ``blocks.pxd``; what the points decode to is handed in as ``grid``, bytes [points, 8 or 4]. All products of a
half-precision scale, a 4-bit scale, a point and a power of two are exact.
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t, uint32_t

from blocks cimport (
    IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, NUM_IQ1_S, NUM_IQ2_S, NUM_IQ2_XS, NUM_IQ2_XXS, NUM_IQ3_S,
    NUM_IQ3_XXS,
)
from decode cimport DecodeArgs, decode_args, decode_rows, decode_t
from simd cimport fu_f16_f32
from team cimport core_t, run_team, step_of


cdef inline uint32_t word32(const uint8_t* p) noexcept nogil:
    return p[0] | p[1] << 8 | p[2] << 16 | <uint32_t> p[3] << 24


cdef inline int parity8(int s) noexcept nogil:
    """Seven signs, and an eighth that makes the number of minus signs even."""
    cdef int p = s ^ s >> 4
    p ^= p >> 2
    p ^= p >> 1
    return s | (p & 1) << 7


cdef inline void points(const uint8_t* grid, int n, int signs, float scale, float* y) noexcept nogil:
    """``n`` coordinates; a set bit of ``signs`` is a minus."""
    cdef int i
    cdef float v
    for i in range(n):
        v = scale * <float> grid[i]
        y[i] = -v if signs >> i & 1 else v


cdef inline void shifted(const uint8_t* grid, float shift, float scale, float* y) noexcept nogil:
    """A point of -1, 0, 1 and a shift."""
    cdef int i
    for i in range(8):
        y[i] = scale * (<float> <int8_t> grid[i] + shift)


cdef void iq2_xxs(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    cdef const IQ2_XXS* p = <const IQ2_XXS*> block
    cdef float d = fu_f16_f32(p.d) * <float> 0.125
    cdef const uint8_t* q
    cdef uint32_t word
    cdef int i, j
    for j in range(8):
        q = p.qs + 8 * j
        word = word32(q + 4)
        for i in range(4):
            points(grid + 8 * q[i], 8, parity8(word >> 7 * i & 127), d * <float> <int> (2 * (word >> 28) + 1),
                   y + 32 * j + 8 * i)


cdef void iq2_xs(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    cdef const IQ2_XS* p = <const IQ2_XS*> block
    cdef float d = fu_f16_f32(p.d) * <float> 0.125
    cdef int i, scale
    for i in range(32):
        scale = 2 * (p.scales[i >> 2] >> 2 * (i & 2) & 15) + 1
        points(grid + 8 * (p.qs[i] & 511), 8, parity8(p.qs[i] >> 9), d * <float> scale, y + 8 * i)


cdef void iq2_s(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    cdef const IQ2_S* p = <const IQ2_S*> block
    cdef float d = fu_f16_f32(p.d) * <float> 0.125
    cdef int i, index, scale
    for i in range(32):
        scale = 2 * (p.scales[i >> 2] >> 2 * (i & 2) & 15) + 1
        index = p.qs[i] | (p.qh[i >> 2] >> 2 * (i & 3) & 3) << 8
        points(grid + 8 * index, 8, p.signs[i], d * <float> scale, y + 8 * i)


cdef void iq3_xxs(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    cdef const IQ3_XXS* p = <const IQ3_XXS*> block
    cdef float d = fu_f16_f32(p.d) * <float> 0.25
    cdef float scale
    cdef uint32_t word
    cdef int i, j, signs
    for j in range(8):
        word = word32(p.gas + 4 * j)
        scale = d * <float> <int> (2 * (word >> 28) + 1)
        for i in range(4):
            signs = parity8(word >> 7 * i & 127)
            points(grid + 4 * p.qs[8 * j + 2 * i], 4, signs, scale, y + 32 * j + 8 * i)
            points(grid + 4 * p.qs[8 * j + 2 * i + 1], 4, signs >> 4, scale, y + 32 * j + 8 * i + 4)


cdef void iq3_s(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    cdef const IQ3_S* p = <const IQ3_S*> block
    cdef float d = fu_f16_f32(p.d)
    cdef int i, index, scale
    for i in range(64):
        scale = 2 * (p.scales[i >> 4] >> (i >> 1 & 4) & 15) + 1
        index = p.qs[i] | (p.qh[i >> 3] >> (i & 7) & 1) << 8
        points(grid + 4 * index, 4, p.signs[i >> 1] >> 4 * (i & 1), d * <float> scale, y + 4 * i)


cdef void iq1_s(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    cdef const IQ1_S* p = <const IQ1_S*> block
    cdef float d = fu_f16_f32(p.d)
    cdef float scale, shift
    cdef int i, j, word
    for j in range(8):
        word = p.qh[j]
        scale = d * <float> (2 * (word >> 12 & 7) + 1)
        shift = <float> -0.125 if word & 0x8000 else <float> 0.125
        for i in range(4):
            shifted(grid + 8 * (p.qs[4 * j + i] | (word >> 3 * i & 7) << 8), shift, scale, y + 32 * j + 8 * i)


cdef void iq1_m(const void* block, const uint8_t* grid, float* y) noexcept nogil:
    """The top nibbles of the four words of scales make up the scale of the block."""
    cdef const IQ1_M* p = <const IQ1_M*> block
    cdef int word = p.scales[0] >> 12 | p.scales[1] >> 12 << 4 | p.scales[2] >> 12 << 8 | p.scales[3] >> 12 << 12
    cdef float d = fu_f16_f32(<uint16_t> word)
    cdef float scale, shift
    cdef int i, nibble
    for i in range(32):
        nibble = p.qh[i >> 1] >> 4 * (i & 1)
        scale = d * <float> (2 * (p.scales[i >> 3] >> 3 * (i >> 1 & 3) & 7) + 1)
        shift = <float> -0.125 if nibble & 8 else <float> 0.125
        shifted(grid + 8 * (p.qs[i] | (nibble & 7) << 8), shift, scale, y + 8 * i)


cdef decode_t decoder_of(int number) noexcept nogil:
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


def dequantize_rows_into_unchecked(int number, int nbytes, const unsigned char[:, ::1] grid,
                                   const unsigned char[:, ::1] table, const long long[::1] ids, float[:, ::1] out,
                                   Py_ssize_t nth):
    """Rows ``ids`` of ``table`` (all rows when ``ids`` is None) as f32; ``grid`` is what the points decode to."""
    cdef DecodeArgs a = decode_args(decoder_of(number), nbytes, &grid[0, 0], table, ids, out)
    with nogil:
        run_team(<core_t> decode_rows, &a, min(a.rows, 4 * nth), nth)


def dequantize_rows_step(int number, int nbytes, const unsigned char[:, ::1] grid, const unsigned char[:, ::1] table,
                         const long long[::1] ids, float[:, ::1] out):
    """The same as a step of a program, which reads ``ids`` at every run."""
    cdef DecodeArgs a = decode_args(decoder_of(number), nbytes, &grid[0, 0], table, ids, out)
    return step_of(<core_t> decode_rows, &a, sizeof(a), &a.rows)
