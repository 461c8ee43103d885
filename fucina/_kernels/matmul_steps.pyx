"""The first steps of the staircase that ends in ``matmul``: f32 products written plainly, for comparison.

Both compute the chains of the specification, so their results are the same bits. No operation uses them: they show in
``tools/bench_gemm.py`` what the loop order alone is worth, and the register tile after it.
"""

from simd cimport fu_fma


cdef void plain(const float* a, const float* b, float* c, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k) noexcept nogil:
    """Rows, columns, then k: the definition. It reads b down its columns."""
    cdef Py_ssize_t i, j, p
    cdef float total
    for i in range(m):
        for j in range(n):
            total = 0
            for p in range(k):
                total = fu_fma(a[i * k + p], b[p * n + j], total)
            c[i * n + j] = total


cdef void reordered(const float* a, const float* b, float* c, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k) noexcept nogil:
    """Rows, k, then columns: the inner loop runs along rows of b and c, and the compiler makes vectors of it."""
    cdef Py_ssize_t i, j, p
    for i in range(m):
        for j in range(n):
            c[i * n + j] = 0
        for p in range(k):
            for j in range(n):
                c[i * n + j] = fu_fma(a[i * k + p], b[p * n + j], c[i * n + j])


def plain_into_unchecked(const float[:, ::1] a, const float[:, ::1] b, float[:, ::1] c, Py_ssize_t nth):
    """``c`` [m, n] = ``a`` [m, k] times ``b`` [k, n], in the order of the definition, on one thread."""
    with nogil:
        plain(&a[0, 0], &b[0, 0], &c[0, 0], c.shape[0], c.shape[1], a.shape[1])


def reordered_into_unchecked(const float[:, ::1] a, const float[:, ::1] b, float[:, ::1] c, Py_ssize_t nth):
    """The same with k outside of the columns."""
    with nogil:
        reordered(&a[0, 0], &b[0, 0], &c[0, 0], c.shape[0], c.shape[1], a.shape[1])
