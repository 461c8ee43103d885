"""Dense products of arrays: ``matmul``, and ``pack_weight`` for right operands that stay the same."""

from __future__ import annotations

import numpy as np

from fucina.runtime import providers, tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave
from fucina.runtime.workspace import aligned_empty, scratch

from . import _check

GATE = tuning.value("FUCINA_GATE_MATMUL")

# Number types as the kernel has them. bfloat16 joins when the first array of it comes along.
F32, F16, BF16, F64 = 0, 1, 2, 3
CODES = {np.dtype(np.float32): F32, np.dtype(np.float16): F16, np.dtype(np.float64): F64}
PACKED = 16
# Products of so few outputs mostly find their workspace on the stack; they ask again where they do not.
_SMALL = 64
_SPACE = 1 << 20


class PackedWeight:
    """A weight matrix in the panels that the register tile reads; made by :func:`pack_weight`.

    ``data`` has one row per panel of 16 rows of the matrix (8 of float64): for every k their values side by side. Missing
    rows are zero.
    """

    __slots__ = ("code", "data", "dtype", "shape", "__weakref__")

    def __init__(self, data: np.ndarray, dtype: np.dtype, code: int, shape: tuple[int, int]):
        self.data = data
        self.dtype = dtype
        self.code = code
        self.shape = shape

    @property
    def nbytes(self) -> int:
        """Bytes of the panels."""
        return self.data.nbytes

    @property
    def ndim(self) -> int:
        """2: a matrix."""
        return 2

    def __repr__(self) -> str:
        return f"PackedWeight({self.dtype.name}, shape={self.shape}, {self.nbytes} bytes)"


def matmul(a, b, *, trans_a: bool = False, trans_b: bool = False, out=None, accumulate: bool = False,
           dtype=None) -> np.ndarray:
    """Matrix product: ``c[..., i, j] = sum_p a[..., i, p] * b[..., p, j]``, or added to what ``out`` holds.

    Parameters
    ----------
    a : array_like, shape (..., m, k), or (..., k, m) with ``trans_a``
    b : array_like or PackedWeight, shape (..., k, n), or (..., n, k) with ``trans_b``
        float32, float16 and bfloat16 in any combination, or both float64. Leading axes broadcast. Views with any
        strides are used as they are. A PackedWeight (n, k) is used with ``trans_b``.
    out : ndarray, shape (..., m, n), optional
        Of any of the types that ``a`` may have (float64 with float64). A strided one is written in place.
    accumulate : bool
        Add the product to ``out`` instead of replacing what it holds.
    dtype : dtype-like, optional
        Type of a new result. By default the type of the operands if they have the same one, else float32.

    Returns
    -------
    ndarray, shape (..., m, n)
        Each element is one chain of fused multiply-adds over p in ascending order, in float32 (float64 for float64),
        and then rounded to the type of the result. The same bits for any layout, number of threads and instruction
        set, for a row alone or among others, and for packed weights. Products that a provider or the BLAS library
        takes over (only when asked to, see docs/numerics.md) have other roundings.

    Raises
    ------
    TypeError
        For other types or byte orders.
    ValueError
        If shapes do not fit, or ``accumulate`` has no ``out``.
    """
    packed = type(b) is PackedWeight
    if packed:
        if not trans_b:
            raise ValueError(f"a PackedWeight holds the matrix (n, k) = {b.shape}; use it with trans_b=True")
        b_code = b.code
    else:
        b, b_code = _operand(b, "b")
    a, a_code = _operand(a, "a")
    if (a_code == F64) != (b_code == F64):
        raise TypeError(
            f"float64 meets only float64, got {_check.describe(a)} and {b.dtype.name} of shape {b.shape}"
        )
    if trans_a:
        a = a.swapaxes(-1, -2)
    shape, b_shape = a.shape, b.shape
    if trans_b:
        b_shape = (*b_shape[:-2], b_shape[-1], b_shape[-2])
        if not packed:
            b = b.swapaxes(-1, -2)
    k = shape[-1]
    if b_shape[-2] != k:
        raise ValueError(f"the inner sizes differ: a {shape} times b {b_shape}")
    if len(shape) == len(b_shape) == 2:
        shape = (shape[0], b_shape[1])
    else:
        shape = _stacked(shape, b_shape)
    if dtype is None and out is None:
        dtype, c_code = (a.dtype, a_code) if a_code == b_code else (_check.F32, F32)
    else:
        dtype = np.dtype(dtype) if dtype is not None else out.dtype if isinstance(out, np.ndarray) else a.dtype
        c_code = CODES.get(dtype)
        if c_code is None:
            c_code = _other(dtype, "the result")
        if (c_code == F64) != (a_code == F64):
            raise TypeError(f"the result of {a.dtype.name} and {b.dtype.name} cannot be {dtype.name}")
    if out is None:
        if accumulate:
            raise ValueError("accumulate adds to out, which is missing")
        c = np.empty(shape, dtype)
    else:
        c = _target(out, shape, dtype, a, b.data if packed else b, accumulate)
    if not c.size:
        pass
    elif not k:
        if not accumulate:
            c[...] = 0
    elif c.ndim == 2:
        _product(a, a_code, b, b_code, c, c_code, accumulate)
    else:
        _batches(a, a_code, b, b_code, c, c_code, accumulate)
    if out is not None and c is not out:
        out[...] = c
        return out
    return c


def _stacked(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the product of stacks of matrices."""
    if max(len(a), len(b)) > 32:
        raise ValueError(f"matmul takes at most 32 axes, got {len(a)} and {len(b)}")
    lead = a[:-2]
    if lead != b[:-2]:
        try:
            lead = np.broadcast_shapes(lead, b[:-2])
        except ValueError:
            raise ValueError(f"the leading axes of shapes {a} and {b} do not broadcast") from None
    return (*lead, a[-2], b[-1])


def _operand(x, name: str) -> tuple[np.ndarray, int]:
    """A matrix or a stack of them, and its number type; copied only where the kernel could not read it."""
    if type(x) is not np.ndarray:
        x = np.asarray(x)
    code = CODES.get(x.dtype)
    if code is None:
        code = _other(x.dtype, name)
    if x.ndim < 2:
        raise ValueError(f"{name} must be a matrix or a stack of matrices, got shape {x.shape}")
    if not x.flags.carray and not _readable(x):
        x = x.copy()
    return x, code


def _readable(x: np.ndarray) -> bool:
    """Whether the kernel can use x as it is."""
    flags = x.flags
    return flags.aligned and (flags.forc or whole_strides(x))


def _other(dtype: np.dtype, name: str) -> int:
    if dtype.name == "bfloat16" and dtype.isnative:
        CODES[dtype] = BF16
        return BF16
    order = "" if dtype.isnative else " in foreign byte order"
    raise TypeError(f"{name} must be float32, float16, bfloat16 or float64 in native byte order, got {dtype.name}{order}")


def whole_strides(x: np.ndarray) -> bool:
    """Whether strides are whole numbers of elements: fields of a structured array need not be."""
    return not any(stride % x.itemsize for stride in x.strides)


def _target(out, shape, dtype, a, b, accumulate) -> np.ndarray:
    """``out`` itself where the kernel can write it in place, else an array that is copied to it afterwards."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, got {type(out).__name__}")
    if out.dtype != dtype:
        raise TypeError(f"out must be {dtype.name}, got {_check.describe(out)}")
    if out.shape != shape:
        raise ValueError(f"out must have shape {shape}, got {out.shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    itself = out.flags.c_contiguous or whole_strides(out) and not _folded(out)
    if itself and out.flags.aligned and not np.may_share_memory(out, a) and not np.may_share_memory(out, b):
        return out if type(out) is np.ndarray else np.asarray(out)
    return out.copy() if accumulate else np.empty(shape, dtype)


def _folded(x: np.ndarray) -> bool:
    """Whether elements of x may share memory with each other."""
    sizes = sorted((abs(s), n) for s, n in zip(x.strides, x.shape) if n > 1)
    reach = x.itemsize
    for stride, n in sizes:
        if stride < reach:
            return True
        reach = stride * (n - 1) + reach
    return False


def _batches(a, a_code, b, b_code, c, c_code, accumulate) -> None:
    """Bring the leading axes to equal terms and multiply."""
    lead = c.shape[:-2]
    if b.ndim == 2 and a.flags.c_contiguous and c.flags.c_contiguous:
        # One right operand for all: one tall product.
        a, c = a.reshape(-1, a.shape[-1]), c.reshape(-1, c.shape[-1])
    elif type(b) is PackedWeight:
        for i in np.ndindex(lead):
            _product(a[i], a_code, b, b_code, c[i], c_code, accumulate)
        return
    else:
        if a.shape[:-2] != lead:
            a = np.broadcast_to(a, lead + a.shape[-2:])
        if b.shape[:-2] != lead:
            b = np.broadcast_to(b, lead + b.shape[-2:])
    _product(a, a_code, b, b_code, c, c_code, accumulate)


def _product(a, a_code, b, b_code, c, c_code, accumulate) -> None:
    nth = enter(c.size * a.shape[-1], GATE)
    try:
        multiply(a, a_code, b, b_code, c, c_code, None, accumulate, nth)
    finally:
        leave(nth)


def multiply(a, a_code: int, b, b_code: int, c, c_code: int, bias, accumulate: bool, nth: int, route: int = 0) -> None:
    """The tiers of a checked product, none of them empty: whoever takes it first has it; the kernel always does."""
    if type(b) is PackedWeight:
        b, b_code = b.data, b_code + PACKED
    else:
        for _, offer in providers.chain:
            if offer(a, b, c, accumulate, nth):
                if bias is not None:
                    c += bias
                return
    if a_code == BF16:
        a = a.view(np.uint16)
    if b_code == BF16:
        b = b.view(np.uint16)
    if c_code == BF16:
        c = c.view(np.uint16)
    space = scratch(_SPACE) if c.size > _SMALL else None
    product = kernel("matmul").matmul_into_unchecked
    need = product(a_code, a, b_code, b, c_code, c, bias, accumulate, route, space, nth)
    if need:
        product(a_code, a, b_code, b, c_code, c, bias, accumulate, route, scratch(need), nth)


def pack_weight(w) -> PackedWeight:
    """Arrange a weight matrix once for all products with it: ``ops.linear(x, pack_weight(w))`` packs nothing.

    Parameters
    ----------
    w : array_like of float32, float16, bfloat16 or float64, shape (n, k)

    Returns
    -------
    PackedWeight
        As many bytes as before, with n rounded up to a multiple of 16 (8 for float64). For ``ops.linear`` and, with
        ``trans_b=True``, ``ops.matmul``; the same bits as ``w`` itself gives.

    Raises
    ------
    TypeError
        For other types.
    ValueError
        If ``w`` is not a matrix.
    """
    w, code = _operand(w, "w")
    if w.ndim != 2:
        raise ValueError(f"w must be a matrix (n, k), got shape {w.shape}")
    n, k = w.shape
    w = _check.contiguous(w)
    width = 8 if code == F64 else 16
    panels = aligned_empty((-(-n // width), width * k * w.itemsize), np.uint8)
    if panels.size:
        nth = enter(w.size, tuning.value("FUCINA_GATE_ELEMENTWISE"))
        try:
            kernel("matmul").pack_weight_into_unchecked(code, w.view(np.uint8), panels, nth)
        finally:
            leave(nth)
    return PackedWeight(panels, w.dtype, code, (n, k))
