"""Reductions of f32 rows and columns: sum, product, maximum, minimum, squared deviation, dot.

Along rows: 64 lanes, lane l takes the values l, l + 64, ...; eight independent chains of eight lanes hide the latency of an
addition. Then a tree over the chains and the same tree over the lanes. Rows are cut into blocks of 16384 values, one
result each, which are reduced again: long rows have work for a team, and a sum in blocks is the more accurate one. Across
rows: one chain per column.

The order is fixed by these numbers alone, so bits depend neither on threads nor on the instruction set.
"""

from libc.math cimport INFINITY

from simd cimport f8, f8_add, f8_fma, f8_load, f8_max, f8_min, f8_mul, f8_set1, f8_store, f8_sub
from team cimport core_t, run_team, share_start, step_of
from vmath cimport load_part, store_part

cdef enum:
    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    DEVIATION = 4   # of (x - shift)^2
    DOT = 5         # of x * y

cdef enum:
    BLOCK = 16384
    CHUNK = 512     # columns whose results stay in the first-level cache while rows pass
    PIECE = 2048    # values that two passes read from the first-level cache

cdef struct Sum:
    char[1] x

cdef struct Prod:
    char[2] x

cdef struct Max:
    char[3] x

cdef struct Min:
    char[4] x

cdef struct Deviation:
    char[5] x

cdef struct Dot:
    char[6] x

ctypedef fused Kind:
    Sum
    Prod
    Max
    Min
    Deviation
    Dot

cdef struct Args:
    const float* x
    const float* y      # the second factor of DOT, the shifts of DEVIATION
    float* out
    Py_ssize_t rows, n, inner


cdef inline float identity(const Kind* kind) noexcept nogil:
    if Kind is Prod:
        return 1
    elif Kind is Max:
        return -INFINITY
    elif Kind is Min:
        return INFINITY
    else:
        return 0


cdef inline f8 step(const Kind* kind, f8 x, f8 y, f8 total) noexcept nogil:
    """One more value. A NaN is not larger and not smaller than the total, so it does not become the maximum."""
    if Kind is Prod:
        return f8_mul(total, x)
    elif Kind is Max:
        return f8_max(x, total)
    elif Kind is Min:
        return f8_min(x, total)
    elif Kind is Deviation:
        x = f8_sub(x, y)
        return f8_fma(x, x, total)
    elif Kind is Dot:
        return f8_fma(x, y, total)
    else:
        return f8_add(total, x)


cdef inline f8 join(const Kind* kind, f8 a, f8 b) noexcept nogil:
    if Kind is Prod:
        return f8_mul(a, b)
    elif Kind is Max:
        return f8_max(a, b)
    elif Kind is Min:
        return f8_min(a, b)
    else:
        return f8_add(a, b)


cdef inline f8 tree(const Kind* kind, const f8* v) noexcept nogil:
    return join(kind, join(kind, join(kind, v[0], v[4]), join(kind, v[2], v[6])),
                join(kind, join(kind, v[1], v[5]), join(kind, v[3], v[7])))


cdef float block(const Kind* kind, const float* x, const float* y, Py_ssize_t n) noexcept nogil:
    """One result for up to BLOCK values."""
    cdef f8 total[8]
    cdef f8 each[8]
    cdef float lane[8]
    cdef f8 second = f8_set1(y[0] if Kind is Deviation else 0)
    cdef float fill = y[0] if Kind is Deviation else identity(kind)
    cdef Py_ssize_t i = 0
    cdef int j
    for j in range(8):
        total[j] = f8_set1(identity(kind))
    while i + 64 <= n:
        for j in range(8):
            if Kind is Dot:
                second = f8_load(y + i + 8 * j)
            total[j] = step(kind, f8_load(x + i + 8 * j), second, total[j])
        i += 64
    for j in range(8):
        if i + 8 * j < n:
            if Kind is Dot:
                second = load_part(y + i + 8 * j, n - i - 8 * j, 0)
            total[j] = step(kind, load_part(x + i + 8 * j, n - i - 8 * j, fill), second, total[j])
    f8_store(lane, tree(kind, total))
    for j in range(8):
        each[j] = f8_set1(lane[j])
    f8_store(lane, tree(kind, each))
    return lane[0]


cdef void rows_core(const Kind* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """The pointer's type only selects the operation; it points to ``Args``."""
    cdef const Args* a = <const Args*> args
    cdef Py_ssize_t blocks = (a.n + BLOCK - 1) // BLOCK
    cdef Py_ssize_t t, row, at
    cdef const float* y
    for t in range(share_start(a.rows * blocks, ith, nth), share_start(a.rows * blocks, ith + 1, nth)):
        row = t // blocks
        at = row * a.n + t % blocks * BLOCK
        y = a.y + row if Kind is Deviation else a.y + at if Kind is Dot else NULL
        a.out[t] = block(args, a.x + at, y, min(<Py_ssize_t> BLOCK, a.n - t % blocks * BLOCK))


cdef void columns_core(const Kind* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef const Args* a = <const Args*> args
    cdef Py_ssize_t chunks = (a.inner + CHUNK - 1) // CHUNK
    cdef Py_ssize_t t, outer, i, end, p
    cdef const float* x
    cdef const float* y
    cdef float* out
    cdef f8 second = f8_set1(0)
    for t in range(share_start(a.rows * chunks, ith, nth), share_start(a.rows * chunks, ith + 1, nth)):
        outer = t // chunks
        x = a.x + outer * a.n * a.inner + t % chunks * CHUNK
        y = a.y + outer * a.inner + t % chunks * CHUNK if Kind is Deviation else NULL
        out = a.out + outer * a.inner + t % chunks * CHUNK
        end = min(<Py_ssize_t> CHUNK, a.inner - t % chunks * CHUNK)
        for i in range(end):
            out[i] = identity(args)
        for p in range(a.n):
            i = 0
            while i < end:
                if Kind is Deviation:
                    second = load_part(y + i, end - i, 0)
                store_part(out + i, step(args, load_part(x + p * a.inner + i, end - i, 0), second,
                                         load_part(out + i, end - i, 0)), end - i)
                i += 8


cdef core_t core_of(int kind, bint columns) noexcept nogil:
    if kind == PROD:
        return <core_t> columns_core[Prod] if columns else <core_t> rows_core[Prod]
    if kind == MAX:
        return <core_t> columns_core[Max] if columns else <core_t> rows_core[Max]
    if kind == MIN:
        return <core_t> columns_core[Min] if columns else <core_t> rows_core[Min]
    if kind == DEVIATION:
        return <core_t> columns_core[Deviation] if columns else <core_t> rows_core[Deviation]
    if kind == DOT:
        return <core_t> rows_core[Dot]
    return <core_t> columns_core[Sum] if columns else <core_t> rows_core[Sum]


def rows_into_unchecked(int kind, const float[:, ::1] x, const float[::1] y, float[:, ::1] out, Py_ssize_t nth):
    """``out`` [rows, blocks]: a result for every BLOCK values of the rows ``x`` [rows, n], n > 0.

    ``y`` is None, for DOT the second factor, as many values as x, and for DEVIATION the shift of every row.
    """
    cdef Args a = Args(&x[0, 0], NULL, &out[0, 0], x.shape[0], x.shape[1], 1)
    if y is not None:
        a.y = &y[0]
    with nogil:
        run_team(core_of(kind, False), &a, 4 * nth, nth)


def columns_into_unchecked(int kind, const float[:, :, ::1] x, const float[:, ::1] y, float[:, ::1] out, Py_ssize_t nth):
    """``out`` [outer, inner] from ``x`` [outer, n, inner], n > 0; ``y`` is None or the shifts of DEVIATION."""
    cdef Args a = Args(&x[0, 0, 0], NULL, &out[0, 0], x.shape[0], x.shape[1], x.shape[2])
    if y is not None:
        a.y = &y[0, 0]
    with nogil:
        run_team(core_of(kind, True), &a, 4 * nth, nth)


cdef struct ArgmaxArgs:
    const float* x
    long long* out
    Py_ssize_t rows, n
    int finite


cdef void argmax_core(const ArgmaxArgs* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t row, i, lo, count, at
    cdef const float* x
    cdef float most, here, total
    for row in range(share_start(a.rows, ith, nth), share_start(a.rows, ith + 1, nth)):
        x = a.x + row * a.n
        most, total = -INFINITY, 0
        lo = at = 0
        while lo < a.n:
            count = min(<Py_ssize_t> PIECE, a.n - lo)
            here = block(<const Max*> NULL, x + lo, NULL, count)
            if here > most:
                most, at = here, lo
            if a.finite:
                total = total + 0 * block(<const Sum*> NULL, x + lo, NULL, count)
            lo += count
        if total != 0:
            # Something is not finite, or a sum has overflowed.
            total = 0
            for i in range(a.n):
                total = total + 0 * x[i]
        while at < a.n and x[at] != most:
            at += 1
        a.out[row] = -1 if total != 0 else at if at < a.n else 0


def argmax_into_unchecked(const float[:, ::1] x, bint finite, long long[::1] out, Py_ssize_t nth):
    """``out`` [rows]: where the maximum of each row of ``x`` [rows, n], n > 0, stands first; 0 if all are NaN, and -1 if
    they have to be ``finite`` and are not."""
    cdef ArgmaxArgs a = ArgmaxArgs(&x[0, 0], &out[0], x.shape[0], x.shape[1], finite)
    with nogil:
        run_team(<core_t> argmax_core, &a, 4 * nth, nth)


def argmax_step(const float[:, ::1] x, bint finite, long long[::1] out):
    """The same as a step of a program."""
    cdef ArgmaxArgs a = ArgmaxArgs(&x[0, 0], &out[0], x.shape[0], x.shape[1], finite)
    return step_of(<core_t> argmax_core, &a, sizeof(a), &a.rows)
