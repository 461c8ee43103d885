"""Rows of keys or values into a cache: f32 to f32, f16 (to nearest even) or q8_0 blocks (as ``act.pxd`` quantizes).

A row is some heads; in the cache heads and positions may be any distance apart. Threads get whole rows. In a program the
rows go to the caches of several sequences.
"""

from libc.stdint cimport int8_t, uint16_t
from libc.string cimport memcpy

from act cimport Q8_0, block32
from simd cimport f8_load, f8_store_f16, fu_f32_f16
from span cimport Batch, Place, Span, position_of, span_of
from team cimport core_t, run_team, share_start, step_of

cdef struct Args:
    const float* x
    char* out
    Py_ssize_t rows, heads, n
    Py_ssize_t out_row, out_head    # bytes from one position, or head, to the next
    int code
    int values          # in a program: store values instead of keys
    Batch batch


cdef void kv_store(const Args* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef const Span* span = a.batch.spans
    cdef const Place* place
    cdef const float* x
    cdef char* y
    cdef Py_ssize_t r, h, i, to_head
    cdef float scale
    cdef uint16_t half
    cdef char aux[4]
    for r in range(share_start(a.rows, ith, nth), share_start(a.rows, ith + 1, nth)):
        if a.batch.count == NULL:
            y, to_head = a.out + r * a.out_row, a.out_head
        else:
            span = span_of(span, r)
            place = a.batch.places + (span - a.batch.spans)
            y = place.v if a.values else place.k
            y += position_of(span, r) * a.out_row
            to_head = place.head
        for h in range(a.heads):
            x = a.x + (r * a.heads + h) * a.n
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
            y += to_head


cdef Args filled(int code, const float[:, :, ::1] x, Py_ssize_t out_row, Py_ssize_t out_head):
    cdef Args a
    a.x = &x[0, 0, 0]
    a.rows = x.shape[0]
    a.heads = x.shape[1]
    a.n = x.shape[2]
    a.out_row = out_row
    a.out_head = out_head
    a.code = code
    a.out = NULL
    a.batch = Batch(NULL, NULL, NULL)
    a.values = False
    return a


def kv_store_into_unchecked(int code, const float[:, :, ::1] x, unsigned char[:, :, :] out, Py_ssize_t nth):
    """``out`` [rows, heads, bytes], contiguous along the last axis, = ``x`` [rows, heads, n] as f32 (code 0), f16 (1) or
    q8_0 (2)."""
    cdef Args a = filled(code, x, out.strides[0], out.strides[1])
    a.out = <char*> &out[0, 0, 0]
    with nogil:
        run_team(<core_t> kv_store, &a, min(a.rows, 4 * nth), nth)


def kv_store_step(int code, const float[:, :, ::1] x, Py_ssize_t cell_bytes, bint values, const long long[:, ::1] spans,
                  const long long[:, ::1] places, const long long[::1] count):
    """The same as a step of a program, to where ``places`` and ``spans`` (``span.pxd``) say; keys, or ``values``."""
    cdef Args a = filled(code, x, cell_bytes, 0)
    a.values = values
    a.batch = Batch(<const Span*> &spans[0, 0], <const Place*> &places[0, 0], <const Py_ssize_t*> &count[0])
    return step_of(<core_t> kv_store, &a, sizeof(a), &a.rows)
