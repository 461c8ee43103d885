"""Element-wise operations on f32: unary, binary, gated, and scaling by a number.

Computes z[i] = f(x[i]), f(x[i], y[i]) or x[i] * act(gate[i]) over contiguous memory. Work is memory bound, so the
operation is chosen inside the loop by a branch that never changes. Shares end on multiples of 16 elements, or of a row,
and the last vector is padded, so every element sees the same arithmetic whatever the number of threads. In place is
allowed.
"""

from simd cimport (
    f8, f8_abs, f8_add, f8_div, f8_max, f8_mul, f8_set1, f8_sqrt, f8_sub, f8_zero,
)
from team cimport core_t, run_team, share_start, step_of
from vmath cimport (
    f8_exp, f8_gelu, f8_gelu_quant, f8_maximum, f8_minimum, f8_sigmoid, f8_silu, f8_tanh, load_part, store_part,
)

cdef enum:
    SCALE = 0
    ADD = 1
    SUBTRACT = 2
    MULTIPLY = 3
    DIVIDE = 4
    MAXIMUM = 5
    MINIMUM = 6
    RELU = 10
    EXP = 11
    SQRT = 12
    SIGMOID = 13
    SILU = 14
    TANH = 15
    GELU = 16
    GELU_QUANT = 17
    QUICK_GELU = 18
    NEGATIVE = 19
    ABS = 20
    GATED = 100     # GATED + u: x * u(y)

cdef struct Args:
    const float* x
    const float* y
    float* z
    Py_ssize_t n
    Py_ssize_t unit     # elements that stay together when threads share the work
    int op
    float s


cdef inline f8 unary(int op, f8 x) noexcept nogil:
    if op == RELU:
        return f8_max(x, f8_zero())
    if op == EXP:
        return f8_exp(x)
    if op == SQRT:
        return f8_sqrt(x)
    if op == SIGMOID:
        return f8_sigmoid(x)
    if op == SILU:
        return f8_silu(x)
    if op == TANH:
        return f8_tanh(x)
    if op == GELU:
        return f8_gelu(x)
    if op == GELU_QUANT:
        return f8_gelu_quant(x)
    if op == QUICK_GELU:
        return f8_mul(x, f8_sigmoid(f8_mul(f8_set1(<float>1.702), x)))
    if op == NEGATIVE:
        return f8_mul(x, f8_set1(-1))
    return f8_abs(x)


cdef inline f8 binary(int op, f8 x, f8 y) noexcept nogil:
    if op == ADD:
        return f8_add(x, y)
    if op == SUBTRACT:
        return f8_sub(x, y)
    if op == MULTIPLY:
        return f8_mul(x, y)
    if op == DIVIDE:
        return f8_div(x, y)
    if op == MAXIMUM:
        return f8_maximum(x, y)
    if op == MINIMUM:
        return f8_minimum(x, y)
    return f8_mul(x, unary(op - GATED, y))


cdef void elementwise(const Args* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t units = (a.n + a.unit - 1) // a.unit
    cdef Py_ssize_t i = a.unit * share_start(units, ith, nth)
    cdef Py_ssize_t end = min(a.n, a.unit * share_start(units, ith + 1, nth))
    cdef f8 x
    while i < end:
        x = load_part(a.x + i, end - i, 1)
        if a.op == SCALE:
            x = f8_mul(x, f8_set1(a.s))
        elif a.y == NULL:
            x = unary(a.op, x)
        else:
            x = binary(a.op, x, load_part(a.y + i, end - i, 1))
        store_part(a.z + i, x, end - i)
        i += 8


def unary_into_unchecked(int op, const float[::1] x, float[::1] out, Py_ssize_t nth):
    """``out = op(x)``; codes are in ``fucina.ops.elementwise``."""
    cdef Args a = Args(&x[0], NULL, &out[0], x.shape[0], 16, op, 0)
    with nogil:
        run_team(<core_t> elementwise, &a, 4 * nth, nth)


def binary_into_unchecked(int op, const float[::1] x, const float[::1] y, float[::1] out, Py_ssize_t nth):
    """``out = op(x, y)``, or ``x * u(y)`` for code 100 + u."""
    cdef Args a = Args(&x[0], &y[0], &out[0], x.shape[0], 16, op, 0)
    with nogil:
        run_team(<core_t> elementwise, &a, 4 * nth, nth)


def scale_into_unchecked(const float[::1] x, float s, float[::1] out, Py_ssize_t nth):
    """``out = x * s``."""
    cdef Args a = Args(&x[0], NULL, &out[0], x.shape[0], 16, SCALE, s)
    with nogil:
        run_team(<core_t> elementwise, &a, 4 * nth, nth)


def scale_step(const float[:, ::1] x, float s, float[:, ::1] out):
    """``scale_into_unchecked`` of rows as a step of a program."""
    cdef Args a = Args(&x[0, 0], NULL, &out[0, 0], x.shape[0] * x.shape[1], x.shape[1], SCALE, s)
    return step_of(<core_t> elementwise, &a, sizeof(a), &a.n)


def binary_step(int op, const float[:, ::1] x, const float[:, ::1] y, float[:, ::1] out):
    """``binary_into_unchecked`` of rows as a step of a program."""
    cdef Args a = Args(&x[0, 0], &y[0, 0], &out[0, 0], x.shape[0] * x.shape[1], x.shape[1], op, 0)
    return step_of(<core_t> elementwise, &a, sizeof(a), &a.n)
