"""Argument checks that the operations share. Everything a kernel relies on is established here, once.

Inputs may be strided, read-only or memory-mapped: what is not C-contiguous and aligned is copied. ``out`` must have the
exact shape and dtype; where a kernel cannot write into it directly (strided, not aligned, or overlapping an input) the
result is computed aside and copied into it, so the caller's array always holds the result.
"""

from __future__ import annotations

import operator

import numpy as np

F32 = np.dtype(np.float32)


def f32(x, name: str, ndim: int | None = None) -> np.ndarray:
    """``x`` as a C-contiguous float32 array; TypeError for any other dtype or byte order."""
    if type(x) is not np.ndarray:
        x = np.asarray(x)
    if x.dtype != F32:
        raise TypeError(f"{name} must be float32 in native byte order, got {describe(x)}")
    if ndim is not None and x.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes, got shape {x.shape}")
    return contiguous(x)


def contiguous(x: np.ndarray) -> np.ndarray:
    """``x`` itself when it is C-contiguous and aligned, else a copy that is."""
    return x if x.flags.c_contiguous and x.flags.aligned else x.copy(order="C")


def layer(x: np.ndarray, shape: tuple[int, ...], bias) -> np.ndarray | None:
    """Check that x [..., k] and a bias fit a weight matrix of ``shape`` (n, k); the bias as float32."""
    if len(shape) != 2:
        raise ValueError(f"w must be a matrix (n, k), got shape {shape}")
    n, k = shape
    if x.ndim == 0 or x.shape[-1] != k:
        raise ValueError(f"the last axis of x must have the {k} columns of w {shape}, got x of shape {x.shape}")
    if bias is None:
        return None
    bias = f32(bias, "bias", 1)
    if bias.shape[0] != n:
        raise ValueError(f"bias must have the {n} rows of w {shape}, got shape {bias.shape}")
    return bias


def describe(x: np.ndarray) -> str:
    """Dtype and shape for messages; says so when the byte order is foreign."""
    order = "" if x.dtype.isnative else " (foreign byte order)"
    return f"{x.dtype.name}{order} of shape {x.shape}"


class Output:
    """Where a result goes: ``array`` is what the kernel writes, ``done()`` returns what the caller gets."""

    __slots__ = ("array", "final")

    def __init__(self, out, shape: tuple[int, ...], *inputs, in_place: bool = False, dtype=F32):
        if out is None:
            self.array = self.final = np.empty(shape, dtype)
            return
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out must be a NumPy array, got {type(out).__name__}")
        if out.dtype != dtype:
            raise TypeError(f"out must be {np.dtype(dtype).name} in native byte order, got {describe(out)}")
        if out.shape != shape:
            raise ValueError(f"out must have shape {shape}, got {out.shape}")
        if not out.flags.writeable:
            raise ValueError("out is read-only")
        self.final = out
        direct = out.flags.c_contiguous and out.flags.aligned and not any(
            np.may_share_memory(out, x) and not (in_place and same_memory(out, x)) for x in inputs if x is not None
        )
        self.array = out if direct else np.empty(shape, dtype)

    def done(self) -> np.ndarray:
        if self.array is not self.final:
            self.final[...] = self.array
        return self.final


def same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """True when two contiguous arrays of the same size start at the same place."""
    return a.nbytes == b.nbytes and a.__array_interface__["data"][0] == b.__array_interface__["data"][0]


def positive(value, name: str) -> float:
    """A finite float above zero."""
    number = number_(value, name)
    if not 0 < number < float("inf"):
        raise ValueError(f"{name} must be a finite number above 0, got {value}")
    return number


def number_(value, name: str) -> float:
    """Any real number as a float; TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is beyond the range of a float") from None


def integer(value, name: str) -> int:
    """Any integer; TypeError for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}") from None


def axis_index(axis, ndim: int) -> int:
    """``axis`` as a non-negative index; ValueError when out of range."""
    index = integer(axis, "axis")
    if not -ndim <= index < ndim:
        raise ValueError(f"axis {axis} is out of range for {ndim} axes")
    return index % ndim


def below(ids: np.ndarray, n: int) -> bool:
    """True when all ``ids``, integers of any type, are in ``[0, n)``. There must be at least one."""
    # Without its sign a negative number is larger than any n, if it has 64 bits.
    unsigned = ids if ids.dtype.kind == "u" else ids.astype(np.int64, copy=False).view(np.uint64)
    return int(unsigned.max()) < n
