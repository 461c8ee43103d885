"""Softmax."""

from __future__ import annotations

import numpy as np

from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave

from . import _check

GATE = tuning.value("FUCINA_GATE_ROWS")


def softmax(x, axis: int = -1, *, scale: float = 1.0, mask=None, out=None) -> np.ndarray:
    """``y = e^t / sum(e^t)`` along an axis, ``t = scale * x + mask - max``.

    Parameters
    ----------
    x : array_like of float32
    axis : int
    scale : float
    mask : array_like of float32, optional
        Added after scaling; of a shape that broadcasts to ``x.shape``. -inf excludes a place.
    out : ndarray of float32, shape ``x.shape``, optional
        May be ``x`` itself.

    Returns
    -------
    ndarray of float32, shape ``x.shape``
        A row with NaN or +inf, or with nothing but -inf, is NaN.
    """
    x = _check.f32(x, "x")
    if x.ndim == 0:
        raise ValueError("x must have at least one axis")
    axis = _check.axis_index(axis, x.ndim)
    scale = _check.number_(scale, "scale")
    if mask is not None:
        mask = _check.f32(mask, "mask")
        try:
            mask = np.broadcast_to(mask, x.shape)
        except ValueError:
            raise ValueError(f"mask of shape {mask.shape} does not broadcast to x {x.shape}") from None
    target = _check.Output(out, x.shape, x, mask, in_place=True)
    if not x.size:
        return target.done()
    last = axis == x.ndim - 1
    n = x.shape[axis]
    rows = x if last else np.ascontiguousarray(np.moveaxis(x, axis, -1))
    y = target.array if last else np.empty_like(rows)
    if mask is not None:
        mask = np.ascontiguousarray(np.moveaxis(mask, axis, -1)).reshape(-1, n)
    nth = enter(x.size, GATE)
    try:
        kernel("softmax").softmax_into_unchecked(rows.reshape(-1, n), scale, mask, y.reshape(-1, n), nth)
    finally:
        leave(nth)
    if not last:
        target.array[...] = np.moveaxis(y, -1, axis)
    return target.done()
