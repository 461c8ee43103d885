"""The f32 register tile that dense products and attention share: up to 6 rows times 16 columns.

    c[i, 0:16] = fma(a[i, p], b[p, 0:16], c[i, 0:16])    for p = 0, 1, ... in order

Six rows need 12 accumulators, two vectors of b and one broadcast: 15 of AVX2's 16 registers, and 12 independent
chains cover the 2 x 4 cycles of the multiply-add pipes. Each output is one chain over p, so neither the tile height
nor the place of the tile changes a bit. The number of rows is the size of a tag type: a constant to the compiler.
"""

from simd cimport f8, f8_fma, f8_load, f8_set1, f8_store, f8_zero

cdef struct R1:
    char[1] x

cdef struct R2:
    char[2] x

cdef struct R3:
    char[3] x

cdef struct R4:
    char[4] x

cdef struct R6:
    char[6] x

ctypedef fused Rows:
    R1
    R2
    R3
    R4
    R6


cdef inline void tile16(const Rows* tag, const float* a, Py_ssize_t lda, const float* b, Py_ssize_t kc, float* c,
                        Py_ssize_t ldc, bint fresh) noexcept nogil:
    """``fresh`` starts from zero instead of from ``c``."""
    cdef f8 s[12]
    cdef f8 b0, b1, v
    cdef int i
    cdef Py_ssize_t p
    for i in range(<int> sizeof(Rows)):
        if fresh:
            s[2 * i] = f8_zero()
            s[2 * i + 1] = f8_zero()
        else:
            s[2 * i] = f8_load(c + i * ldc)
            s[2 * i + 1] = f8_load(c + i * ldc + 8)
    for p in range(kc):
        b0 = f8_load(b + 16 * p)
        b1 = f8_load(b + 16 * p + 8)
        for i in range(<int> sizeof(Rows)):
            v = f8_set1(a[i * lda + p])
            s[2 * i] = f8_fma(v, b0, s[2 * i])
            s[2 * i + 1] = f8_fma(v, b1, s[2 * i + 1])
    for i in range(<int> sizeof(Rows)):
        f8_store(c + i * ldc, s[2 * i])
        f8_store(c + i * ldc + 8, s[2 * i + 1])


cdef inline void rows_by_16(int rows, const float* a, Py_ssize_t lda, const float* b, Py_ssize_t kc, float* c,
                            Py_ssize_t ldc, bint fresh) noexcept nogil:
    """Any number of rows against one panel ``b`` [kc, 16]; ``c`` has 16 columns to write."""
    while rows >= 6:
        tile16(<const R6*> NULL, a, lda, b, kc, c, ldc, fresh)
        a += 6 * lda
        c += 6 * ldc
        rows -= 6
    if rows >= 4:
        tile16(<const R4*> NULL, a, lda, b, kc, c, ldc, fresh)
        a += 4 * lda
        c += 4 * ldc
        rows -= 4
    if rows == 3:
        tile16(<const R3*> NULL, a, lda, b, kc, c, ldc, fresh)
    elif rows == 2:
        tile16(<const R2*> NULL, a, lda, b, kc, c, ldc, fresh)
    elif rows == 1:
        tile16(<const R1*> NULL, a, lda, b, kc, c, ldc, fresh)
