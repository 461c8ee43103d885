"""q6_k: 256 elements of six bits, scales of 8 bits per 16 elements, the codes as packing leaves them (``recode.pxd``).

``expand_q6_k`` makes code panels (``codes.pxd``) for many columns, ``row_q6_k`` multiplies what it unpacks with one column.
Codes: + 32 (0 to 63). Two products fit into 16 bits, 2 * 2 * 63 * 127 = 32004.
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t

from codes cimport AT_D, UNIT_K, add_offset, put, put_f8, put_four_scales
from dot cimport w8_dot_by
from panel cimport fetch_ahead
from recode cimport HEAD, six_bits
from simd cimport (
    f8, f8_fma, f8_from_i32, f8_load_f16, f8_mul, f8_set1, w8, w8_add32, w8_dup_i8_i16, w8_here, w8_load, w8_shl32,
    w8_sub32, w8_zero,
)

cdef enum:
    NBYTES = 8 * 210    # of a block of 8 rows


cdef inline void expand_q6_k(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil:
    cdef w8 w[4]
    cdef Py_ssize_t _
    cdef int g, i
    for _ in range(nb):
        put_f8(to, AT_D, f8_load_f16(<const uint16_t*> p))
        p += HEAD
        for g in range(4):
            put_four_scales(to, g, w8_load(p + 32 * g), 5)
        p += 128
        for g in range(16):
            six_bits(p, w)
            for i in range(4):
                put(to, 4 * g + i, w[i])
            p += 96
        to += UNIT_K


cdef inline void row_q6_k(const char* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                          const char* aux, f8* acc) noexcept nogil:
    """Add one column times ``nb`` blocks of 8 rows."""
    cdef w8 w[4]
    cdef w8 scales, scale, total, sums
    cdef f8 dw, y = acc[0]
    cdef const char* at
    cdef Py_ssize_t b
    cdef int g, j
    for b in range(nb):
        fetch_ahead(p, HEAD + 128)
        dw = f8_load_f16(<const uint16_t*> p)
        at = p + HEAD + 128
        total = w8_zero()
        sums = w8_zero()
        for g in range(4):
            scales = w8_load(p + HEAD + 32 * g)
            sums = add_offset(sums, scales, aux + 8 * g)
            for j in range(4):
                if j % 2 == 0:
                    fetch_ahead(at, 192)
                six_bits(at, w)
                scale = w8_dup_i8_i16(scales, j)
                total = w8_here(w8_add32(total, w8_dot_by(w, qs, 4, 2, scale)))
                at += 96
                qs += 16
        total = w8_sub32(total, w8_shl32(sums, 5))
        y = f8_fma(f8_mul(dw, f8_set1(d[b])), f8_from_i32(total), y)
        p += NBYTES
        aux += 48
    acc[0] = y
