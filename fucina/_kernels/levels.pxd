"""Level tables and small floats of the formats with few bits."""

from libc.stdint cimport int8_t, uint32_t

from simd cimport f8

cdef extern from "simd.h" nogil:
    float fu_bits_f32(uint32_t u)
    uint32_t fu_f32_bits(float f)

cdef extern from "levels.h" nogil:
    const int8_t fu_iq4_levels[16]
    const int8_t fu_iq4_codes[16]
    const int8_t fu_fp4_levels[16]
    void f8_iq4(f8 v, f8* index, f8* level)
    f8 f8_fp4(f8 x, float d)


cdef inline float e8m0_half(int e) noexcept nogil:
    """2 ** (e - 128); the two smallest are subnormal."""
    return fu_bits_f32(<uint32_t> 0x00200000 << e) if e < 2 else fu_bits_f32(<uint32_t> (e - 1) << 23)


cdef inline float ue4m3_half(int u) noexcept nogil:
    """Half of an unsigned float with 4 exponent (bias 7) and 3 mantissa bits; 127 counts as zero."""
    cdef int exponent = u >> 3 & 15
    cdef int mantissa = u & 7
    if u == 127:
        return 0
    if exponent == 0:
        return <float> mantissa * <float> 0.0009765625
    return <float> (mantissa + 8 << exponent - 1) * <float> 0.0009765625


cdef inline int ue4m3_of(float v) noexcept nogil:
    """The inverse for non-negative numbers, halves rounded up; from 248 on it is the largest, 448."""
    cdef int bits, exponent, code
    if not v > 0:
        return 0
    bits = <int> fu_f32_bits(min(v, <float> 448.0))
    exponent = (bits >> 23) - 120
    if exponent <= 0:
        return min(<int> (v * <float> 512.0 + <float> 0.5), 7)
    code = (exponent << 3) + ((bits >> 19 & 15) + 1 >> 1)
    return code if code < 15 << 3 else 0x7E
