"""The linear layer with ternary weights and float activations."""

from __future__ import annotations

import math

import numpy as np

from fucina.formats import QTensor
from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave

from . import _check
from .linear import weight_args

GATE = tuning.value("FUCINA_GATE_MATMUL")
_FORMATS = ("tq1_0", "tq2_0", "i2_s")


def ternary_linear(x, w, bias=None, *, out=None) -> np.ndarray:
    """Product with ternary weights by additions: ``y[..., n] = sum_b d[n, b] * (sum of ±x[..., k] in block b) + bias[n]``.

    Weights are -1, 0 or 1 times the scale of their block, so an element of x is subtracted, left out or added. Other than
    in ``linear``, x is not rounded to 8 bits first: slower, and as exact as float32 is.

    Parameters
    ----------
    x : array_like of float32, shape (..., k)
    w : QTensor, shape (n, k)
        In tq1_0, tq2_0 or i2_s.
    bias : array_like of float32, shape (n,), optional
    out : ndarray of float32, shape (..., n), optional

    Returns
    -------
    ndarray of float32, shape (..., n)
        The same bits for any number of threads, any instruction set, and a row alone or in a batch. What meets a weight
        of 0 is left out even if it is infinite or NaN.

    Raises
    ------
    TypeError
        If ``x`` or ``bias`` is not float32 or ``w`` no QTensor.
    ValueError
        If ``w`` has another format or the shapes do not fit.
    """
    x = _check.f32(x, "x")
    if not isinstance(w, QTensor):
        raise TypeError(f"w must be a QTensor, got {type(w).__name__}")
    if w.format not in _FORMATS:
        raise ValueError(f"ternary_linear takes weights in {', '.join(_FORMATS)}, got {w.format}")
    bias = _check.layer(x, w.shape, bias)
    n, k = w.shape
    target = _check.Output(out, x.shape[:-1] + (n,), x, bias, w.data)
    m = math.prod(x.shape[:-1])
    if m == 0 or n == 0:
        return target.done()
    if k == 0:
        target.array[...] = 0 if bias is None else bias
        return target.done()
    data, _, scale = weight_args(w)
    nth = enter(m * n * k, GATE)
    try:
        kernel("ternary").ternary_linear_into_unchecked(
            w.spec.number, w.spec.nbytes, data, scale, x.reshape(m, k), bias, target.array.reshape(m, n), nth,
        )
    finally:
        leave(nth)
    return target.done()
