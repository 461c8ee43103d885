"""Between quantized and floating-point tensors: decode, look up rows, encode."""

from __future__ import annotations

import numpy as np

from fucina.formats import QTensor, lattices, lookup
from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave
from fucina.runtime.workspace import scratch

from . import _check

GATE = tuning.value("FUCINA_GATE_ELEMENTWISE")
_WIDEN = {"float32": -1, "float16": -2, "bfloat16": -3}


def dequantize(q: QTensor, *, dtype=np.float32, out=None) -> np.ndarray:
    """Decode a quantized tensor: every element is the value that its block format defines.

    Parameters
    ----------
    q : QTensor
    dtype : {float32, float16, float64}
        Type of a new result; values are decoded in float32 and then converted.
    out : ndarray of ``dtype``, shape ``q.shape``, optional

    Returns
    -------
    ndarray, shape ``q.shape``
        Bit for bit what the ``gguf`` package decodes.
    """
    if not isinstance(q, QTensor):
        raise TypeError(f"dequantize takes a QTensor, got {type(q).__name__}")
    dtype = np.dtype(dtype)
    if dtype.name not in ("float32", "float16", "float64") or not dtype.isnative:
        raise TypeError(f"dtype must be float32, float16 or float64, got {dtype}")
    target = _check.Output(out, q.shape, q.data, dtype=dtype)
    flat = target.array if dtype == np.float32 else np.empty(q.shape, np.float32)
    if flat.size:
        _decode(q, q.data.reshape(-1, q.data.shape[-1]), None, flat.reshape(-1, q.shape[-1]))
    if flat is not target.array:
        with np.errstate(over="ignore"):
            target.array[...] = flat
    return target.done()


def embedding(ids, table, *, out=None) -> np.ndarray:
    """Rows of a table: ``y[..., :] = table[ids[...], :]`` as float32.

    Parameters
    ----------
    ids : array_like of int
        Row numbers, each in ``[0, n)``.
    table : QTensor or ndarray of float32, float16 or bfloat16, shape (n, k)
        Only the rows asked for are decoded.
    out : ndarray of float32, shape ``ids.shape + (k,)``, optional

    Returns
    -------
    ndarray of float32, shape ``ids.shape + (k,)``

    Raises
    ------
    TypeError
        If ``ids`` are not integers or the table has another type.
    ValueError
        If an id is out of range.
    """
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu" and ids.size:
        raise TypeError(f"ids must be integers, got {ids.dtype}")
    if isinstance(table, QTensor):
        data = table.data
    elif isinstance(table, np.ndarray) and table.dtype.name in _WIDEN and table.dtype.isnative:
        data = table
    else:
        what = _check.describe(table) if isinstance(table, np.ndarray) else type(table).__name__
        raise TypeError(f"table must be a QTensor or an array of float32, float16 or bfloat16, got {what}")
    if table.ndim != 2:
        raise ValueError(f"table must be a matrix, got shape {table.shape}")
    n, k = table.shape
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < n:
        raise ValueError(f"ids must be in [0, {n}), got values from {ids.min()} to {ids.max()}")
    target = _check.Output(out, ids.shape + (k,), data)
    if target.array.size:
        if not (data.flags.c_contiguous and data.flags.aligned):
            # A copy of the rows asked for, not of the table.
            data, ids = np.ascontiguousarray(data[ids.reshape(-1)]), np.arange(ids.size)
        _decode(table, data.view(np.uint8), np.ascontiguousarray(ids.reshape(-1), np.int64), target.array.reshape(-1, k))
    return target.done()


def _decode(table, data, ids, out):
    """Rows ``ids`` of ``data``, the bytes of a QTensor or of a plain array."""
    data = data if data.flags.c_contiguous else np.ascontiguousarray(data)
    if isinstance(table, QTensor):
        spec = table.spec
        stem, given, scale = spec.decoder, [spec.number, spec.nbytes], table.scale
        given += [lattices.grid(spec.lattice)] if spec.lattice else []
    else:
        stem, given, scale = "dequantize", [_WIDEN[table.dtype.name], 1], None
    nth = enter(out.size, GATE)
    try:
        kernel(stem).dequantize_rows_into_unchecked(*given, data, ids, out, nth)
    finally:
        leave(nth)
    if scale is not None:
        np.multiply(out, scale, out=out)


def quantize(x, format: str) -> QTensor:
    """Encode the rows of ``x`` in a block format, byte for byte as ggml does.

    Parameters
    ----------
    x : array_like of float32, shape (..., k)
        Finite values; k is a whole number of blocks.
    format : {"q8_0"}
        Name of the format.

    Returns
    -------
    QTensor, shape ``x.shape``

    Raises
    ------
    ValueError
        If the format has no encoder, k does not fit, or ``x`` holds NaN or infinity.
    """
    x = _check.f32(x, "x")
    spec = lookup(format)
    if spec.name != "q8_0":
        raise ValueError(f"there is no encoder for format {spec.name}; available: q8_0")
    if x.ndim == 0:
        raise ValueError("x must have at least one axis")
    row_bytes = spec.row_bytes(x.shape[-1])
    if not np.isfinite(x).all():
        raise ValueError("x holds NaN or infinity, which no block format can store")
    data = np.empty(x.shape[:-1] + (row_bytes,), np.uint8)
    if x.size:
        # A q8_0 block is what the activation quantizer makes: a half-precision scale and 32 integers.
        rows = x.reshape(-1, x.shape[-1])
        blocks = x.size // 32
        space = scratch(8 * blocks + x.size)
        scale, aux, codes = space[: 4 * blocks].view(np.float32), space[4 * blocks : 8 * blocks], space[8 * blocks :]
        nth = enter(x.size, GATE)
        try:
            kernel("act_quant").quantize_act_into_unchecked(0, rows, 1, codes.view(np.int8), scale, aux, nth)
        finally:
            leave(nth)
        view = data.reshape(blocks, 34)
        view[:, :2] = scale.astype(np.float16).view(np.uint8).reshape(blocks, 2)
        view[:, 2:] = codes.reshape(blocks, 32)
    return QTensor(data, spec.name, x.shape)
