"""Reductions of float32 arrays: over one axis, several or all."""

from __future__ import annotations

import math

import numpy as np

from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave

from . import _check

GATE = tuning.value("FUCINA_GATE_ROWS")

# Kinds of the kernel, and the values of it that make one result.
_SUM, _PROD, _MAX, _MIN, _DEVIATION, _DOT = range(6)
_BLOCK = 16384
_EMPTY = {_SUM: 0.0, _PROD: 1.0, _MAX: -math.inf, _MIN: math.inf, _DEVIATION: 0.0, _DOT: 0.0}

_TEMPLATE = """{formula}.

    Parameters
    ----------
    x : array_like of float32
    axis : int, tuple of int or None
        Over which axes; None means all.
    keepdims : bool
        Keep the axes with size 1.
    out : ndarray of float32, optional
        Of the shape of the result.

    Returns
    -------
    ndarray of float32
        {note}
    """


def _reduction(name: str, kind: int, formula: str, note: str):
    def op(x, axis=None, *, keepdims: bool = False, out=None) -> np.ndarray:
        x = _check.f32(x, "x")
        axes = _axes(axis, x.ndim)
        target = _check.Output(out, _shape(x.shape, axes, keepdims), x)
        _reduce(kind, x, axes, None, target.array)
        return target.done()

    op.__name__ = op.__qualname__ = name
    op.__doc__ = _TEMPLATE.format(formula=formula, note=note)
    return op


sum = _reduction("sum", _SUM, "The sum over axes", "0 where there is nothing to add.")
prod = _reduction("prod", _PROD, "The product over axes", "1 where there is nothing to multiply.")
max = _reduction("max", _MAX, "The largest value over axes", "NaN are passed over; -inf where nothing else is there.")
min = _reduction("min", _MIN, "The smallest value over axes", "NaN are passed over; inf where nothing else is there.")


def mean(x, axis=None, *, keepdims: bool = False, out=None) -> np.ndarray:
    """The mean over axes: the sum divided by the number of values.

    Parameters
    ----------
    x : array_like of float32
    axis : int, tuple of int or None
        Over which axes; None means all.
    keepdims : bool
        Keep the axes with size 1.
    out : ndarray of float32, optional
        Of the shape of the result.

    Returns
    -------
    ndarray of float32
        NaN where there are no values.
    """
    x = _check.f32(x, "x")
    axes = _axes(axis, x.ndim)
    target = _check.Output(out, _shape(x.shape, axes, keepdims), x)
    _reduce(_SUM, x, axes, None, target.array)
    _divide(target.array, _count(x.shape, axes))
    return target.done()


def var(x, axis=None, *, ddof: int = 0, keepdims: bool = False, out=None) -> np.ndarray:
    """The variance over axes: ``sum((x - mean)^2) / (count - ddof)``, in two passes.

    Parameters
    ----------
    x : array_like of float32
    axis : int, tuple of int or None
        Over which axes; None means all.
    ddof : int
        Subtracted from the number of values; 1 gives the unbiased estimate.
    keepdims : bool
        Keep the axes with size 1.
    out : ndarray of float32, optional
        Of the shape of the result.

    Returns
    -------
    ndarray of float32
        NaN where the count is not above ``ddof``.
    """
    x = _check.f32(x, "x")
    ddof = _check.integer(ddof, "ddof")
    axes = _axes(axis, x.ndim)
    target = _check.Output(out, _shape(x.shape, axes, keepdims), x)
    count = _count(x.shape, axes)
    middle = np.empty(_shape(x.shape, axes, True), np.float32)
    _reduce(_SUM, x, axes, None, middle)
    _divide(middle, count)
    _reduce(_DEVIATION, x, axes, middle, target.array)
    if count > ddof:
        _divide(target.array, count - ddof)
    else:
        target.array[...] = np.nan
    return target.done()


def argmax(x, axis=None, *, keepdims: bool = False, out=None) -> np.ndarray:
    """Where the largest value stands, the first of equal ones.

    Parameters
    ----------
    x : array_like of float32
    axis : int or None
        Along which axis; None means the place in the flattened array.
    keepdims : bool
        Keep the axis with size 1.
    out : ndarray of int64, optional
        Of the shape of the result.

    Returns
    -------
    ndarray of int64
        NaN are passed over; 0 where nothing else is there.

    Raises
    ------
    ValueError
        If there are no values along the axis.
    """
    x = _check.f32(x, "x")
    axes = _axes(axis, x.ndim)
    if axis is not None and len(axes) != 1:
        raise ValueError(f"argmax takes one axis or None, got {axis}")
    target = _check.Output(out, _shape(x.shape, axes, keepdims), x, dtype=np.dtype(np.int64))
    count = _count(x.shape, axes)
    if target.array.size:
        if count == 0:
            raise ValueError(f"argmax of nothing: x has shape {x.shape}, axis {axis}")
        rows = np.ascontiguousarray(_last(x, axes)).reshape(-1, count)
        nth = enter(x.size, GATE)
        try:
            kernel("reduce").argmax_into_unchecked(rows, False, target.array.reshape(-1), nth)
        finally:
            leave(nth)
    return target.done()


def dot(x, y, *, out=None) -> np.ndarray:
    """Products along the last axis, summed: ``z[...] = sum_i x[..., i] * y[..., i]``.

    Parameters
    ----------
    x, y : array_like of float32
        Of equal shapes.
    out : ndarray of float32, shape ``x.shape[:-1]``, optional

    Returns
    -------
    ndarray of float32, shape ``x.shape[:-1]``
        Summed in 64 lanes with fused multiply-adds. (Elements of a matrix product are single chains; see ``matmul``.)

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    x, y = _check.f32(x, "x"), _check.f32(y, "y")
    if x.shape != y.shape or x.ndim == 0:
        raise ValueError(f"dot takes two arrays of equal shapes with at least one axis, got {x.shape} and {y.shape}")
    target = _check.Output(out, x.shape[:-1], x, y)
    _reduce(_DOT, x, (x.ndim - 1,), y, target.array)
    return target.done()


def _axes(axis, ndim: int) -> tuple[int, ...]:
    """Axes in ascending order; ValueError when one is out of range or named twice."""
    if axis is None:
        return tuple(range(ndim))
    axes = sorted(_check.axis_index(a, ndim) for a in (axis if isinstance(axis, tuple) else (axis,)))
    if len(set(axes)) != len(axes):
        raise ValueError(f"an axis is named twice in {axis}")
    return tuple(axes)


def _shape(shape, axes, keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def _count(shape, axes) -> int:
    return math.prod(shape[i] for i in axes)


def _last(x: np.ndarray, axes) -> np.ndarray:
    """``x`` with the axes to reduce at the end."""
    return x.transpose([i for i in range(x.ndim) if i not in axes] + list(axes))


def _divide(x: np.ndarray, count: int) -> None:
    with np.errstate(all="ignore"):
        x /= np.float32(count)


def _reduce(kind: int, x: np.ndarray, axes, second, out: np.ndarray) -> None:
    """Reduce contiguous ``x`` into contiguous ``out``. ``second``: the other factor, or what to subtract."""
    count = _count(x.shape, axes)
    if out.size == 0:
        return
    if count == 0:
        out[...] = _EMPTY[kind]
        return
    inner = math.prod(x.shape[axes[-1] + 1 :]) if axes else 1
    if inner > 1 and axes == tuple(range(axes[0], axes[-1] + 1)):
        # Neighbouring axes before the last one: columns.
        planes = x.reshape(-1, count, inner)
        shift = None if second is None else second.reshape(-1, inner)
        nth = enter(x.size, GATE)
        try:
            kernel("reduce").columns_into_unchecked(kind, planes, shift, out.reshape(-1, inner), nth)
        finally:
            leave(nth)
        return
    rows = np.ascontiguousarray(_last(x, axes)).reshape(-1, count)
    second = None if second is None else second.reshape(-1)
    while True:
        blocks = -(-rows.shape[1] // _BLOCK)
        into = out.reshape(-1, 1) if blocks == 1 else np.empty((rows.shape[0], blocks), np.float32)
        nth = enter(rows.size, GATE)
        try:
            kernel("reduce").rows_into_unchecked(kind, rows, second, into, nth)
        finally:
            leave(nth)
        if blocks == 1:
            return
        # The results of the blocks are values to be reduced in turn.
        rows, second = into, None
        kind = _SUM if kind in (_DEVIATION, _DOT) else kind


__all__ = ["argmax", "dot", "max", "mean", "min", "prod", "sum", "var"]
