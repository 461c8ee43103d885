"""Activations as blocks of bytes, and the dot of such blocks with blocks of weights.

``ops.linear`` does all of this inside and faster. Here are the pieces, for those who keep quantized activations, check
another implementation against ours, or want to see what a product does.
"""

from __future__ import annotations

import numpy as np

from fucina.formats import QTensor
from fucina.formats.activations import QActivations, layout_of, pair
from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave

from . import _check

GATE = tuning.value("FUCINA_GATE_ELEMENTWISE")
GATE_DOT = tuning.value("FUCINA_GATE_MATMUL")
_DOTS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")


def quantize_activations(x, layout: str, *, rounding: str | None = None) -> QActivations:
    """Round activations to blocks of 8-bit codes: ``x ≈ d * q``, one scale d per block.

    ============  ========  =====  ========================================================================
    layout        elements  bytes  content
    ============  ========  =====  ========================================================================
    ``q8_0``      32        34     float16 d, int8 q[32]
    ``q8_1``      32        36     float16 d, float16 d * sum(q), int8 q[32]
    ``q8_k``      256       292    float32 d, int8 q[256], int16 sums[16] (each of 16 codes)
    ``q8_k306``   256       306    float16 d, int8 q[256], 16 zero bytes, int16 sums[16]
    ============  ========  =====  ========================================================================

    In all but ``q8_k``, d = max|x| / 127 and q = round(x * (1 / d)), with d in float32; it is stored rounded. ``q8_k`` is
    ggml's: d = 1 / c and q = min(round(c * x), 127) with c = -127 / (the first x of the largest magnitude).

    Parameters
    ----------
    x : array_like of float32, shape (..., k)
        k is a whole number of blocks.
    layout : str
    rounding : {"away", "even"}, optional
        What becomes of halves. ``q8_0`` and ``q8_1`` take both and round away from zero by default, as ggml's reference
        does; the other two round to even.

    Returns
    -------
    QActivations, shape ``x.shape``
        Codes are in [-127, 127]. A block of zeros, or one too small for its scale to have an inverse, has d = 0 and
        q = 0; a block with NaN or infinity has d = NaN and q = 0. Bits depend neither on threads nor instruction set.

    Raises
    ------
    TypeError
        If ``x`` is not float32.
    ValueError
        If the layout or rounding is unknown or k does not fit.
    """
    x = _check.f32(x, "x")
    spec = layout_of(layout)
    rounding = spec.rounding if rounding is None else rounding
    if rounding not in ("away", "even") or spec.summed and rounding != "even":
        allowed = "'even'" if spec.summed else "'away' or 'even'"
        raise ValueError(f"rounding of {spec.name} must be {allowed}, got {rounding!r}")
    if x.ndim == 0:
        raise ValueError("x must have at least one axis")
    k = x.shape[-1]
    if k % spec.block:
        raise ValueError(f"{spec.name} rows hold a multiple of {spec.block} elements, got {k}")
    data = np.empty(x.shape[:-1] + (k // spec.block * spec.nbytes,), np.uint8)
    if data.size:
        nth = enter(x.size, GATE)
        try:
            kernel("act_blocks").quantize_blocks_into_unchecked(
                spec.number, rounding == "even", x.reshape(-1, k), data.reshape(-1, data.shape[-1]), nth
            )
        finally:
            leave(nth)
    return QActivations(data, spec.name, x.shape)


def block_dot(a: QActivations, w: QTensor, *, out=None) -> np.ndarray:
    """Product of quantized activations with quantized weights: ``y[..., n] = sum_k a[..., k] * w[n, k]``.

    Parameters
    ----------
    a : QActivations, shape (..., k)
        In a layout that belongs to the weights: ``q8_0`` for q4_0, q5_0 and q8_0, ``q8_1`` or ``q8_0`` for q4_1 and
        q5_1, ``q8_k`` or ``q8_k306`` for q4_k, q5_k and q6_k.
    w : QTensor, shape (n, k)
        In one of these eight formats.
    out : ndarray of float32, shape (..., n), optional

    Returns
    -------
    ndarray of float32, shape (..., n)
        Exact integer sums per block; scales are applied in the order that ``fucina._scalar.block_dot`` writes down, every
        step rounded. The same bits for any number of threads and any instruction set. ``ops.linear`` fuses some of these
        steps, so it may differ in the last bits.

    Raises
    ------
    TypeError
        If ``a`` or ``w`` is something else.
    ValueError
        If the two do not belong together or the shapes do not fit.
    """
    if not isinstance(a, QActivations):
        raise TypeError(f"a must be QActivations (see quantize_activations), got {type(a).__name__}")
    if not isinstance(w, QTensor):
        raise TypeError(f"w must be a QTensor, got {type(w).__name__}")
    spec = pair(w.spec, a.layout)
    if w.format not in _DOTS:
        raise ValueError(f"block_dot takes weights in {', '.join(_DOTS)}, got {w.format}")
    if w.ndim != 2:
        raise ValueError(f"w must be a matrix (n, k), got shape {w.shape}")
    n, k = w.shape
    if a.shape[-1] != k:
        raise ValueError(f"the last axis of a must have the {k} columns of w {w.shape}, got a of shape {a.shape}")
    rows = a.data.reshape(-1, a.data.shape[-1]) if a.data.size else a.data
    target = _check.Output(out, a.shape[:-1] + (n,), a.data, w.data)
    if not target.array.size or not k:
        target.array[...] = 0
        return target.done()
    nth = enter(len(rows) * n * k, GATE_DOT)
    try:
        kernel("block_dot").block_dot_into_unchecked(
            w.spec.number, spec.number, _check.contiguous(w.data), rows, target.array.reshape(len(rows), n), nth
        )
    finally:
        leave(nth)
    return target.done()
