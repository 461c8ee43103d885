"""Decoding of rows, given how to decode one block: what the decoders of rarer formats share.

A row holds hundreds of elements per block, so one call through a pointer per block does not show.
"""

from libc.stdint cimport int64_t, uint8_t

from team cimport share_start

# Block to elements; ``grid`` is what the points of a lattice decode to, or NULL.
ctypedef void (*decode_t)(const void* block, const uint8_t* grid, float* y) noexcept nogil

cdef struct DecodeArgs:
    const char* table
    const int64_t* ids      # or NULL: row r is row r
    const uint8_t* grid
    float* out
    decode_t decode
    Py_ssize_t rows, n, row_bytes, nbytes


cdef inline DecodeArgs decode_args(decode_t decode, int nbytes, const uint8_t* grid, const unsigned char[:, ::1] table,
                                   const long long[::1] ids, float[:, ::1] out):
    """Rows ``ids`` of ``table``, or all when ``ids`` is None, to ``out``."""
    cdef DecodeArgs a
    a.table = <const char*> &table[0, 0]
    a.ids = NULL
    if ids is not None:
        a.ids = <const int64_t*> &ids[0]
    a.grid = grid
    a.out = &out[0, 0]
    a.decode = decode
    a.rows = out.shape[0]
    a.n = out.shape[1]
    a.row_bytes = table.shape[1]
    a.nbytes = nbytes
    return a


cdef inline void decode_rows(const DecodeArgs* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t r, b, at
    cdef Py_ssize_t blocks = a.row_bytes // a.nbytes
    cdef Py_ssize_t size = a.n // blocks if blocks > 0 else 0
    for r in range(share_start(a.rows, ith, nth), share_start(a.rows, ith + 1, nth)):
        at = r if a.ids == NULL else a.ids[r]
        for b in range(blocks):
            a.decode(a.table + at * a.row_bytes + b * a.nbytes, a.grid, a.out + r * a.n + b * size)
