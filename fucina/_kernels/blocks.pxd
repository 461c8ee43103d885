"""The block layouts of GGUF, byte for byte, the numbers of the formats, and fused types over them."""

from libc.stdint cimport int8_t, uint8_t, uint16_t

# Numbers of the format table (``fucina.formats.table``).
cdef enum:
    NUM_Q4_0 = 0
    NUM_Q4_1 = 1
    NUM_Q5_0 = 2
    NUM_Q5_1 = 3
    NUM_Q8_0 = 4
    NUM_Q4_K = 5
    NUM_Q5_K = 6
    NUM_Q6_K = 7
    NUM_Q2_K = 8
    NUM_Q3_K = 9
    NUM_IQ4_NL = 10
    NUM_IQ4_XS = 11
    NUM_TQ1_0 = 12
    NUM_TQ2_0 = 13
    NUM_MXFP4 = 14
    NUM_NVFP4 = 15
    NUM_Q1_0 = 16
    NUM_Q2_0 = 17
    NUM_Q2_0_G128 = 18
    NUM_I2_S = 19
    NUM_IQ2_XXS = 20
    NUM_IQ2_XS = 21
    NUM_IQ2_S = 22
    NUM_IQ3_XXS = 23
    NUM_IQ3_S = 24
    NUM_IQ1_S = 25
    NUM_IQ1_M = 26


cdef struct Q4_0:
    uint16_t d
    uint8_t[16] qs

cdef struct Q4_1:
    uint16_t d, m
    uint8_t[16] qs

cdef struct Q5_0:
    uint16_t d
    uint8_t[4] qh
    uint8_t[16] qs

cdef struct Q5_1:
    uint16_t d, m
    uint8_t[4] qh
    uint8_t[16] qs

cdef struct Q8_0:
    uint16_t d
    int8_t[32] qs

cdef struct Q4_K:
    uint16_t d, dmin
    uint8_t[12] scales
    uint8_t[128] qs

cdef struct Q5_K:
    uint16_t d, dmin
    uint8_t[12] scales
    uint8_t[32] qh
    uint8_t[128] qs

cdef struct Q6_K:
    uint8_t[128] ql
    uint8_t[64] qh
    int8_t[16] scales
    uint16_t d

cdef struct Q2_K:
    uint8_t[16] scales      # nibbles: scale, min
    uint8_t[64] qs
    uint16_t d, dmin

cdef struct Q3_K:
    uint8_t[32] hmask
    uint8_t[64] qs
    uint8_t[12] scales
    uint16_t d

cdef struct IQ4_NL:
    uint16_t d
    uint8_t[16] qs

cdef struct IQ4_XS:
    uint16_t d, scales_h
    uint8_t[4] scales_l
    uint8_t[128] qs

cdef struct TQ1_0:
    uint8_t[48] qs
    uint8_t[4] qh
    uint16_t d

cdef struct TQ2_0:
    uint8_t[64] qs
    uint16_t d

cdef struct MXFP4:
    uint8_t e
    uint8_t[16] qs

cdef struct NVFP4:
    uint8_t[4] d
    uint8_t[32] qs

cdef struct Q1_0:
    uint16_t d
    uint8_t[16] qs

cdef struct Q2_0:
    uint16_t d
    uint8_t[16] qs

cdef struct Q2_0_G128:
    uint16_t d
    uint8_t[32] qs

cdef struct I2_S:
    uint8_t[32] qs

cdef struct IQ2_XXS:
    uint16_t d
    uint8_t[64] qs          # per 32 elements: 4 indices, then a 32-bit word of signs and scale

cdef struct IQ2_XS:
    uint16_t d
    uint16_t[32] qs
    uint8_t[8] scales

cdef struct IQ2_S:
    uint16_t d
    uint8_t[32] qs
    uint8_t[32] signs
    uint8_t[8] qh
    uint8_t[8] scales

cdef struct IQ3_XXS:
    uint16_t d
    uint8_t[64] qs
    uint8_t[32] gas         # per 32 elements: a 32-bit word of signs and scale

cdef struct IQ3_S:
    uint16_t d
    uint8_t[64] qs
    uint8_t[8] qh
    uint8_t[32] signs
    uint8_t[4] scales

cdef struct IQ1_S:
    uint16_t d
    uint8_t[32] qs
    uint16_t[8] qh

cdef struct IQ1_M:
    uint8_t[32] qs
    uint8_t[16] qh
    uint16_t[4] scales

# As the type of a pointer this selects a format's code at compile time.
ctypedef fused Block:
    Q4_0
    Q4_1
    Q5_0
    Q5_1
    Q8_0
    Q4_K
    Q5_K
    Q6_K
