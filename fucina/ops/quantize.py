"""Between quantized and floating-point tensors: decode, look up rows, encode."""

from __future__ import annotations

import numpy as np

from fucina.formats import QTensor, lattices, lookup
from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave

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
    if ids.size and not _check.below(ids, n):
        raise ValueError(f"ids must be in [0, {n}), got values from {ids.min()} to {ids.max()}")
    target = _check.Output(out, ids.shape + (k,), data, ids)
    if target.array.size:
        if not (data.flags.c_contiguous and data.flags.aligned):
            # A copy of the rows asked for, not of the table.
            data, ids = np.ascontiguousarray(data[ids.reshape(-1)]), np.arange(ids.size)
        flat = np.ascontiguousarray(ids.reshape(-1), np.int64)
        _decode(table, data.view(np.uint8), flat, target.array.reshape(-1, k))
    return target.done()


def decoder_of(table) -> tuple[str, list, float | None]:
    """How rows of a QTensor or of a plain array are decoded: kernel family, its first arguments, a factor or None."""
    if not isinstance(table, QTensor):
        return "dequantize", [_WIDEN[table.dtype.name], 1], None
    spec = table.spec
    return spec.decoder, [spec.number, spec.nbytes, *([lattices.grid(spec.lattice)] if spec.lattice else [])], table.scale


def _decode(table, data, ids, out):
    """Rows ``ids`` of ``data``, the bytes of a QTensor or of a plain array."""
    data = data if data.flags.c_contiguous else np.ascontiguousarray(data)
    stem, given, scale = decoder_of(table)
    nth = enter(out.size, GATE)
    try:
        kernel(stem).dequantize_rows_into_unchecked(*given, data, ids, out, nth)
    finally:
        leave(nth)
    if scale is not None:
        np.multiply(out, scale, out=out)


def quantize(x, format: str, *, imatrix=None) -> QTensor | np.ndarray:
    """Encode the rows of ``x`` in a format, byte for byte as ggml does.

    Parameters
    ----------
    x : array_like of float32, shape (..., k)
        Finite values; k is a whole number of blocks.
    format : str
        Name of a block format, or ``"f32"``, ``"f16"`` or ``"bf16"``. Of ``"i2_s"``, ``x`` should hold three values:
        zero and plus or minus the scale of the tensor.
    imatrix : array_like of float32, shape (k,) or (e, k), optional
        Importance of the columns, not negative: how much an error there counts. With two axes, ``x`` of shape (e, n, k)
        is a stack of matrices and each has its own. Formats without a use for it ignore it; ``iq1_s``, ``iq2_xxs`` and
        ``iq2_xs`` need it.

    Returns
    -------
    QTensor, shape ``x.shape``
        For the three plain number types an ndarray of that type.

    Raises
    ------
    TypeError
        If ``x`` or ``imatrix`` is not float32.
    ValueError
        If the format has no encoder, k or the shape of ``imatrix`` does not fit, ``x`` holds NaN or infinity,
        ``imatrix`` holds negative or non-finite numbers, or the format needs one and there is none.

    Notes
    -----
    The algorithms are ggml's (quantize_row_* of ggml-quants.c, ggml 0.25), written down in ``fucina._scalar.encode*``.
    """
    x = _check.f32(x, "x")
    spec = lookup(format)
    if x.ndim == 0:
        raise ValueError("x must have at least one axis")
    if not spec.is_block and spec.name not in _NARROW:
        raise ValueError(f"there is no encoder for format {spec.name}")
    data = np.empty(x.shape[:-1] + (spec.row_bytes(x.shape[-1]),), np.uint8)
    weights = _importance(imatrix, spec, x.shape)
    scale = None
    if x.size:
        if spec.tensor_scale:
            scale = max(x.max(), -x.min())
            # What is not finite stays so and is refused below.
            x = x / scale if 0 < scale < np.inf else x
        stack = x.reshape((len(weights), -1, x.shape[-1]))
        for i, (part, weight, out) in enumerate(zip(stack, weights, data.reshape(stack.shape[:2] + (-1,)))):
            _encode(spec, part, weight, out, i * stack.shape[1])
    if spec.is_block:
        return QTensor(data, spec.name, x.shape, scale=scale)
    return data.view(_plain_dtype(spec)).reshape(x.shape)


# Numbers by which the encoder knows plain number types, as the decoder does.
_NARROW = {"f32": -1, "f16": -2, "bf16": -3}


def _plain_dtype(spec):
    if spec.name != "bf16":
        return np.dtype(spec.numpy)
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError("bf16 arrays need the ml_dtypes package (pip install ml_dtypes)") from None
    return np.dtype(ml_dtypes.bfloat16)


def _importance(imatrix, spec, shape) -> list:
    """One row of importances, or None, for every matrix of a stack."""
    if imatrix is None:
        if spec.imatrix == "required":
            raise ValueError(f"{spec.name} cannot be encoded without an importance matrix; pass imatrix")
        return [None]
    imatrix = _check.f32(imatrix, "imatrix")
    stacked = len(shape) == 3 and imatrix.shape == (shape[0], shape[2])
    if imatrix.shape != shape[-1:] and not stacked:
        raise ValueError(f"imatrix must have shape ({shape[-1]},) or, for a stack of matrices, one row for each; got "
                         f"{imatrix.shape} for x of shape {shape}")
    if not (imatrix >= 0).all() or np.isinf(imatrix).any():
        raise ValueError("imatrix holds negative numbers, NaN or infinity")
    if spec.imatrix == "ignored":
        return [None]
    return list(imatrix.reshape(-1, shape[-1]))


def _encode(spec, x, imatrix, out, first):
    """Rows of one matrix; ``first`` is the number of its first row among all, for the message."""
    stem, given = spec.encoder or "encode", [spec.number if spec.is_block else _NARROW[spec.name]]
    given += lattices.search_tables(spec.lattice) if spec.lattice else ()
    finite = np.empty(len(x), np.uint8)
    nth = enter(x.size, GATE)
    try:
        kernel(stem).encode_rows_into_unchecked(*given, x, imatrix, out, finite, nth)
    finally:
        leave(nth)
    if not finite.all():
        row = first + int(np.argmin(finite))
        raise ValueError(f"x holds NaN or infinity (first in row {row}), which cannot be encoded")
