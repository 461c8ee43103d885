"""Rows of keys or values into a cache: f32 to f32, f16 (to nearest even) or q8_0 blocks (as ``act.pxd`` quantizes).

Rows are contiguous on both sides; threads get whole rows.
"""

from libc.stdint cimport int8_t, uint16_t
from libc.string cimport memcpy

from act cimport Q8_0, block32
from simd cimport f8_load, f8_store_f16, fu_f32_f16
from team cimport core_t, run_team, share_start, step_of

cdef struct Args:
    const float* x
    char* out
    Py_ssize_t rows, n, row_bytes
    int code
    # In a program: where the cache is now, and how many rows it has with these.
    char* const* cache
    const Py_ssize_t* length


cdef void kv_store(const Args* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef char* out = a.out
    cdef const float* x
    cdef char* y
    cdef Py_ssize_t r, i
    cdef float scale
    cdef uint16_t half
    cdef char aux[4]
    if a.cache != NULL:
        out = a.cache[0] + (a.length[0] - a.rows) * a.row_bytes
    for r in range(share_start(a.rows, ith, nth), share_start(a.rows, ith + 1, nth)):
        x = a.x + r * a.n
        y = out + r * a.row_bytes
        if a.code == 0:
            memcpy(y, x, a.n * sizeof(float))
        elif a.code == 1:
            i = 0
            while i + 8 <= a.n:
                f8_store_f16(<uint16_t*> y + i, f8_load(x + i))
                i += 8
            while i < a.n:
                (<uint16_t*> y)[i] = fu_f32_f16(x[i])
                i += 1
        else:
            for i in range(a.n // 32):
                block32(x + 32 * i, <int8_t*> y + 34 * i + 2, &scale, aux, Q8_0)
                half = fu_f32_f16(scale)
                memcpy(y + 34 * i, &half, 2)


cdef Args filled(int code, const float[:, ::1] x, Py_ssize_t row_bytes):
    cdef Args a
    a.x = &x[0, 0]
    a.rows = x.shape[0]
    a.n = x.shape[1]
    a.row_bytes = row_bytes
    a.code = code
    a.out = NULL
    a.cache = NULL
    a.length = NULL
    return a


def kv_store_into_unchecked(int code, const float[:, ::1] x, unsigned char[:, ::1] out, Py_ssize_t nth):
    """``out`` [rows, bytes] = ``x`` [rows, n] as f32 (code 0), f16 (1) or q8_0 (2)."""
    cdef Args a = filled(code, x, out.shape[1])
    a.out = <char*> &out[0, 0]
    with nogil:
        run_team(<core_t> kv_store, &a, min(a.rows, 4 * nth), nth)


def kv_store_step(int code, const float[:, ::1] x, Py_ssize_t row_bytes, const long long[::1] cache,
                  const long long[::1] length):
    """The same as a step of a program: ``cache`` [1] holds the address of row 0, ``length`` [1] the rows with these."""
    cdef Args a = filled(code, x, row_bytes)
    a.cache = <char* const*> &cache[0]
    a.length = <const Py_ssize_t*> &length[0]
    return step_of(<core_t> kv_store, &a, sizeof(a))
