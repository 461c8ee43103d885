"""Few rows times a matrix whose columns are contiguous along k, as weights are stored: each weight is read once.

Sixteen columns at a time (eight of f64), so that memory sees few long streams: eight to sixteen of them reached 95 % of
the read bandwidth where sixty-four reached 60 % (AMD Zen 3, rows 16 KiB apart, 2026-11). Columns become lanes in
registers, on the way from memory to the multiply-add; nothing is packed.
"""

from libc.stdint cimport uint16_t

from dense_pack cimport Elem, bf16, move1
from simd cimport (
    d4, d4_fma, d4_load, d4_set1, d4_store, d4_transpose, f8, f8_fma, f8_from_bf16_high, f8_from_bf16_low,
    f8_from_f16_half, f8_load, f8_load_columns, f8_set1, f8_store, w8, w8_load_columns16,
)

# The number of rows is a constant to the compiler: the size of a tag type.
cdef struct Row1:
    char[1] x

cdef struct Row2:
    char[2] x

cdef struct Row3:
    char[3] x

cdef struct Row4:
    char[4] x

ctypedef fused Rows:
    Row1
    Row2
    Row3
    Row4


cdef inline void stream(const Rows* rows, const Elem* w, Py_ssize_t cs, Py_ssize_t k, const char* a, Py_ssize_t ars,
                        char* c) noexcept nogil:
    """c [rows, one panel], rows 64 bytes apart, goes on over all k. ``ars`` is the distance of the rows of a in bytes."""
    cdef f8 s[8]
    cdef f8 r[8]
    cdef w8 q[8]
    cdef d4 t[8]
    cdef d4 d[4]
    cdef char[64] rest
    cdef const char* col = <const char*> w
    cdef Py_ssize_t p = 0
    cdef int i, g, n, u
    cdef int line = 64 // <int> sizeof(Elem)
    if Elem is double:
        for n in range(<int> sizeof(Rows)):
            for g in range(2):
                t[2 * n + g] = d4_load(<const double*> (c + 64 * n + 32 * g))
    else:
        for n in range(<int> sizeof(Rows)):
            for g in range(2):
                s[2 * n + g] = f8_load(<const float*> (c + 64 * n + 32 * g))
    while p + line <= k:
        # A whole cache line of eight columns, then of the other eight: lines of columns that lie a power of two apart
        # compete for the same eight places of the cache.
        for g in range(2 if Elem is float or Elem is double else 0):
            if Elem is double:
                for u in range(2):
                    for i in range(4):
                        d[i] = d4_load(<const double*> (col + (4 * g + i) * cs + 32 * u))
                    d4_transpose(d)
                    for i in range(4):
                        for n in range(<int> sizeof(Rows)):
                            t[2 * n + g] = d4_fma(d4_set1((<const double*> (a + n * ars))[p + 4 * u + i]), d[i], t[2 * n + g])
            elif Elem is float:
                for u in range(4):
                    f8_load_columns(col + 8 * g * cs + 16 * u, cs, r)
                    for i in range(4):
                        for n in range(<int> sizeof(Rows)):
                            s[2 * n + g] = f8_fma(f8_set1((<const float*> (a + n * ars))[p + 4 * u + i]), r[i], s[2 * n + g])
        # Half a line where it holds twice as many numbers: two chains need the other columns soon.
        for u in range(0 if Elem is float or Elem is double else 2):
            for g in range(2):
                if Elem is uint16_t:
                    w8_load_columns16(col + 8 * g * cs + 32 * u, cs, q)
                    for i in range(8):
                        for n in range(<int> sizeof(Rows)):
                            s[2 * n + g] = f8_fma(f8_set1((<const float*> (a + n * ars))[p + 16 * u + i]),
                                                  f8_from_f16_half(q[i], 0), s[2 * n + g])
                    for i in range(8):
                        for n in range(<int> sizeof(Rows)):
                            s[2 * n + g] = f8_fma(f8_set1((<const float*> (a + n * ars))[p + 16 * u + 8 + i]),
                                                  f8_from_f16_half(q[i], 1), s[2 * n + g])
                elif Elem is bf16:
                    f8_load_columns(col + 8 * g * cs + 32 * u, cs, r)
                    f8_load_columns(col + 8 * g * cs + 32 * u + 16, cs, r + 4)
                    for i in range(8):
                        for n in range(<int> sizeof(Rows)):
                            s[2 * n + g] = f8_fma(f8_set1((<const float*> (a + n * ars))[p + 16 * u + 2 * i]),
                                                  f8_from_bf16_low(r[i]), s[2 * n + g])
                            s[2 * n + g] = f8_fma(f8_set1((<const float*> (a + n * ars))[p + 16 * u + 2 * i + 1]),
                                                  f8_from_bf16_high(r[i]), s[2 * n + g])
        p += line
        col += 64
    while p < k:
        for i in range(8 if Elem is double else 16):
            move1(<const Elem*> (col + i * cs), rest + (8 if Elem is double else 4) * i)
        for n in range(<int> sizeof(Rows)):
            for g in range(2):
                if Elem is double:
                    t[2 * n + g] = d4_fma(d4_set1((<const double*> (a + n * ars))[p]), d4_load(<const double*> rest + 4 * g),
                                          t[2 * n + g])
                else:
                    s[2 * n + g] = f8_fma(f8_set1((<const float*> (a + n * ars))[p]), f8_load(<const float*> rest + 8 * g),
                                          s[2 * n + g])
        p += 1
        col += sizeof(Elem)
    for n in range(<int> sizeof(Rows)):
        for g in range(2):
            if Elem is double:
                d4_store(<double*> (c + 64 * n + 32 * g), t[2 * n + g])
            else:
                f8_store(<float*> (c + 64 * n + 32 * g), s[2 * n + g])
