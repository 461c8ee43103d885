"""The elementary functions of include/vmath.h, and loads and stores of rows that end inside a vector."""

from simd cimport f8, f8_load, f8_store

from libc.string cimport memcpy


cdef extern from "vmath.h" nogil:
    f8 f8_exp(f8 x)
    f8 f8_sigmoid(f8 x)
    f8 f8_silu(f8 x)
    f8 f8_gelu(f8 x)
    f8 f8_gelu_quant(f8 x)
    f8 f8_tanh(f8 x)
    f8 f8_maximum(f8 a, f8 b)
    f8 f8_minimum(f8 a, f8 b)


cdef inline f8 load_part(const float* p, Py_ssize_t count, float fill) noexcept nogil:
    """The first ``count`` (at most 8) lanes from memory, the rest ``fill``: the tail does the body's arithmetic."""
    cdef float lane[8]
    cdef int i
    if count >= 8:
        return f8_load(p)
    for i in range(8):
        lane[i] = p[i] if i < count else fill
    return f8_load(lane)


cdef inline void store_part(float* p, f8 v, Py_ssize_t count) noexcept nogil:
    cdef float lane[8]
    if count >= 8:
        f8_store(p, v)
        return
    f8_store(lane, v)
    memcpy(p, lane, count * sizeof(float))
