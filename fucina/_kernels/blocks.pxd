"""The block layouts of GGUF, byte for byte, and the fused type over all of them."""

from libc.stdint cimport int8_t, uint8_t, uint16_t


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
