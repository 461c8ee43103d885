"""The linear layer: y = x wᵀ + b with dense or quantized weights."""

from __future__ import annotations

import math

import numpy as np

from fucina.formats import LAYOUTS, PackedQTensor, QTensor, lattices, pair
from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave
from fucina.runtime.workspace import aligned_empty, scratch

from . import _check
from .matmul import F32, PackedWeight, multiply, whole_strides

GATE = tuning.value("FUCINA_GATE_MATMUL")

# The activations that products make on the fly, by the numbers of their kernels; ``pair`` says which weights meet which.
ACTIVATIONS = {name: LAYOUTS[name].number for name in ("q8_0", "q8_1", "q8_k")}
DENSE = {"float32": 0, "float16": 1, "bfloat16": 2}


def linear(x, w, bias=None, *, out=None) -> np.ndarray:
    """Product with the rows of a weight matrix: ``y[..., n] = sum_k x[..., k] * w[n, k] + bias[n]``.

    Parameters
    ----------
    x : array_like of float32, shape (..., k)
    w : ndarray, PackedWeight, QTensor or PackedQTensor, shape (n, k)
        Weights in float32, float16, bfloat16 or a block format. They are used as they are stored: block formats
        meet activations that are quantized to 8 bits by ggml's rules, 16-bit weights are widened on the fly.
    bias : array_like of float32, shape (n,), optional
    out : ndarray of float32, shape (..., n), optional

    Returns
    -------
    ndarray of float32, shape (..., n)
        The same bits for any number of threads, any instruction set, packed or not, and for a row of ``x`` alone
        or in a batch.

    Raises
    ------
    TypeError
        For another dtype or kind of weight.
    ValueError
        If the shapes do not fit.
    """
    x = _check.f32(x, "x")
    quantized = isinstance(w, (QTensor, PackedQTensor))
    if not quantized:
        if not isinstance(w, (np.ndarray, PackedWeight)):
            raise TypeError(
                f"w must be an ndarray, PackedWeight, QTensor or PackedQTensor, got {type(w).__name__}"
            )
        if w.dtype.name not in DENSE or not w.dtype.isnative:
            raise TypeError(f"w must be float32, float16 or bfloat16 in native byte order, got {_check.describe(w)}")
    elif w.spec.code < 0:
        raise ValueError(f"there is no product for weights of format {w.format}")
    elif w.spec.activation == "q8_k" and w.shape[-1] % 256:
        raise ValueError(f"products with {w.format} weights need rows of a multiple of 256 elements, got {w.shape[-1]}")
    bias = _check.layer(x, w.shape, bias)
    n, k = w.shape
    m = math.prod(x.shape[:-1])
    rows = x.reshape(m, k) if x.ndim != 2 else x
    target = _check.Output(out, x.shape[:-1] + (n,), x, bias, w if isinstance(w, np.ndarray) else w.data)
    y = target.array.reshape(m, n)
    if m == 0 or n == 0:
        return target.done()
    if k == 0:
        y[...] = 0 if bias is None else bias
        return target.done()
    nth = enter(m * n * k, GATE)
    try:
        if quantized:
            _quantized(rows, w, bias, y, nth)
        else:
            _dense(rows, w, bias, y, nth)
    finally:
        leave(nth)
    return target.done()


def weight_args(w) -> tuple:
    """What the kernels have to know of quantized weights: contiguous bytes, lattice or None, scale of the tensor."""
    spec = w.spec
    data = _check.contiguous(w.data)
    return data, lattices.grid(spec.lattice) if spec.lattice else None, 1.0 if w.scale is None else float(w.scale)


def _quantized(x, w, bias, y, nth):
    spec = w.spec
    packed = isinstance(w, PackedQTensor)
    kernels = kernel("linear_quant")
    kind = pair(spec).number
    space = scratch(kernels.scratch_bytes(spec.code, kind, x.shape[0], x.shape[1], spec.row_bytes(x.shape[1]), nth))
    kernels.linear_quant_into_unchecked(
        spec.code, kind, spec.nbytes, spec.half_at, packed, *weight_args(w), x, bias, y, space, nth
    )


def _dense(x, w, bias, y, nth):
    code = DENSE[w.dtype.name]
    if type(w) is not PackedWeight:
        w = (w if w.flags.aligned and whole_strides(w) else w.copy()).T
    multiply(x, F32, w, code, y, F32, bias, False, nth)


def pack(w: QTensor) -> PackedQTensor:
    """Interleave the rows of a quantized matrix by 8, the layout of the fastest products.

    The bytes of q3_k, q4_1, q5_0, q5_1, q5_k, q6_k, q1_0 and tq1_0 are also put into another order, in which they are
    unpacked with fewer operations. The numbers are the same.

    Parameters
    ----------
    w : QTensor, shape (n, k)

    Returns
    -------
    PackedQTensor
        As many bytes as before, with n rounded up to a multiple of 8.
    """
    if not isinstance(w, QTensor):
        raise TypeError(f"pack takes a QTensor, got {type(w).__name__}")
    if w.ndim != 2:
        raise ValueError(f"pack takes a matrix, got shape {w.shape}")
    if w.spec.code < 0:
        raise ValueError(f"there is no packed layout for format {w.format}")
    n, row_bytes = w.data.shape
    panels = aligned_empty((-(-n // 8), 8 * row_bytes), np.uint8)
    if panels.size:
        data = _check.contiguous(w.data)
        nth = enter(panels.size, GATE)
        try:
            kernel("linear_quant").pack_rows_into_unchecked(w.spec.code, w.spec.nbytes, w.spec.half_at, data, panels, nth)
        finally:
            leave(nth)
    return PackedQTensor(panels, w.spec, w.shape, w.scale)
