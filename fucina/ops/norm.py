"""Normalization of rows."""

from __future__ import annotations

import numpy as np

from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave

from . import _check

GATE = tuning.value("FUCINA_GATE_ROWS")


def rms_norm(x, weight=None, eps: float = 1e-6, *, out=None) -> np.ndarray:
    """Root-mean-square normalization over the last axis: ``y = x / sqrt(mean(x²) + eps) * weight``.

    Parameters
    ----------
    x : array_like of float32, shape (..., n)
    weight : array_like of float32, shape (n,), optional
    eps : float
        Finite, not negative.
    out : ndarray of float32, shape ``x.shape``, optional
        May be ``x`` itself.

    Returns
    -------
    ndarray of float32, shape ``x.shape``
    """
    x = _check.f32(x, "x")
    if x.ndim == 0:
        raise ValueError("x must have at least one axis")
    n = x.shape[-1]
    if weight is not None:
        weight = _check.f32(weight, "weight", 1)
        if weight.shape[0] != n:
            raise ValueError(f"weight must have the {n} elements of the last axis of x, got shape {weight.shape}")
    eps = _check.number_(eps, "eps")
    if not 0 <= eps < float("inf"):
        raise ValueError(f"eps must be finite and not negative, got {eps}")
    target = _check.Output(out, x.shape, x, in_place=True)
    if out is not None and weight is not None and np.may_share_memory(target.array, weight):
        weight = weight.copy()
    if x.size:
        nth = enter(x.size, GATE)
        try:
            kernel("norm").rms_norm_into_unchecked(x.reshape(-1, n), weight, eps, target.array.reshape(-1, n), nth)
        finally:
            leave(nth)
    return target.done()
