"""Keys, which are contiguous along their features, become lanes: 16 of them at a time, for the tiles of ``micro.pxd``.

f16 keys are turned as they are and widened by the tile. In q8_0 the four features of a word stay together while words are
turned; a shift then brings each into place. Missing keys repeat the last.
"""

from libc.stdint cimport uint16_t

from blocks cimport Q8_0
from simd cimport (
    f8, f8_from_i32, f8_load, f8_load_f16, f8_mul, f8_store, f8_transpose, fu_prefetch, w8,
    w8_load, w8_sar32, w8_shl32, w8_store_half, w8_transpose16, w8_transpose32,
)


cdef inline void fetch_rows(const char* at, Py_ssize_t stride, Py_ssize_t nbytes, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    """Rows ``start`` to ``end`` of ``nbytes``, line by line in the order of memory."""
    cdef Py_ssize_t i, b
    for i in range(start, end):
        b = 0
        while b < nbytes:
            fu_prefetch(at + i * stride + b)
            b += 64


cdef inline void turn_f32(const char* k, Py_ssize_t stride, int count, Py_ssize_t d, float* panel, Py_ssize_t ahead) noexcept nogil:
    """Up to 16 keys to [d][16]."""
    cdef f8 r[8]
    cdef Py_ssize_t e = 0
    cdef int i, g
    while e + 8 <= d:
        if ahead and e % 16 == 0:
            fetch_rows(k + ahead, stride, 4 * d, 16 * e // d, 16 * (e + 16) // d)
        for g in range(2):
            for i in range(8):
                r[i] = f8_load(<const float*> (k + min(8 * g + i, count - 1) * stride) + e)
            f8_transpose(r)
            for i in range(8):
                f8_store(panel + 16 * (e + i) + 8 * g, r[i])
        e += 8
    while e < d:
        for i in range(16):
            panel[16 * e + i] = (<const float*> (k + min(i, count - 1) * stride))[e]
        e += 1


cdef inline void turn_f16(const char* k, Py_ssize_t stride, int count, Py_ssize_t d, uint16_t* panel, Py_ssize_t ahead) noexcept nogil:
    """Up to 16 keys to [d][16] of f16."""
    cdef w8 r[8]
    cdef Py_ssize_t e = 0
    cdef int i, g
    while e + 16 <= d:
        if ahead and e % 32 == 0:
            fetch_rows(k + ahead, stride, 2 * d, 16 * e // d, 16 * (e + 32) // d)
        for g in range(2):
            for i in range(8):
                r[i] = w8_load(k + min(8 * g + i, count - 1) * stride + 2 * e)
            w8_transpose16(r)
            for i in range(8):
                w8_store_half(panel + 16 * (e + i) + 8 * g, r[i], 0)
                w8_store_half(panel + 16 * (e + 8 + i) + 8 * g, r[i], 1)
        e += 16
    while e < d:
        for i in range(16):
            panel[16 * e + i] = (<const uint16_t*> (k + min(i, count - 1) * stride))[e]
        e += 1


cdef inline f8 turn_block(const char* k, Py_ssize_t stride, int first, int count, w8* words) noexcept nogil:
    """A block of the keys ``first`` to ``first + 7``: words of four features with keys as lanes, and the scales."""
    cdef uint16_t d[8]
    cdef const Q8_0* p
    cdef int i
    for i in range(8):
        p = <const Q8_0*> (k + min(first + i, count - 1) * stride)
        d[i] = p.d
        words[i] = w8_load(p.qs)
    w8_transpose32(words)
    return f8_load_f16(d)


cdef inline f8 feature(w8 word, int i, f8 scale) noexcept nogil:
    """Feature ``i`` of a word."""
    return f8_mul(scale, f8_from_i32(w8_sar32(w8_shl32(word, 24 - 8 * i), 24)))


cdef inline void turn_q8_0(const char* k, Py_ssize_t stride, int count, Py_ssize_t d, float* panel, Py_ssize_t ahead) noexcept nogil:
    """Up to 16 keys of whole blocks to [d][16] of f32."""
    cdef w8 words[8]
    cdef f8 scale
    cdef Py_ssize_t e = 0
    cdef int i, g
    while e < d:
        if ahead:
            fetch_rows(k + ahead, stride, 34 * d // 32, 16 * e // d, 16 * (e + 32) // d)
        for g in range(2):
            scale = turn_block(k, stride, 8 * g, count, words)
            for i in range(32):
                f8_store(panel + 16 * (e + i) + 8 * g, feature(words[i >> 2], i & 3, scale))
        k += sizeof(Q8_0)
        e += 32
