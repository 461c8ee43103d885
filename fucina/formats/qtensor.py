"""Tensors that stay quantized: raw blocks plus a format and a logical shape."""

from __future__ import annotations

import operator

import numpy as np

from .table import Format, lookup

# What the methods of a QTensor call. A format does not know the operations above it: they introduce themselves.
_operations: dict = {}


def provide(**operations) -> None:
    """Called once by ``fucina.ops`` with the functions behind ``dequantize``, ``rows`` and ``pack``."""
    _operations.update(operations)


class QTensor:
    """A tensor stored in a block format; its bytes are never expanded as a whole.

    Parameters
    ----------
    data : array_like of uint8
        The blocks, one matrix row per row: shape ``shape[:-1] + (row_bytes,)``. A flat buffer of the right
        length is accepted and viewed with that shape. Memory-mapped and read-only arrays are used in place.
    format : str
        Name of a block format, see ``fucina.formats.FORMATS``.
    shape : tuple of int
        Logical shape; the last axis is a whole number of blocks.
    scale : float, optional
        Only for formats with one scale per tensor (``i2_s``): the factor of all elements. A flat buffer may carry it
        instead, as a float32 behind the blocks (with padding up to 32 bytes, as in files); 1 when neither says so.

    Raises
    ------
    TypeError
        If ``data`` is not uint8.
    ValueError
        If the format is unknown or not a block format, the byte count does not fit ``shape``, or a scale is given for a
        format that has none.
    """

    __slots__ = ("data", "format", "scale", "shape", "spec", "__weakref__")

    def __init__(self, data, format: str, shape, *, scale=None):
        spec = lookup(format)
        if not spec.is_block:
            raise ValueError(f"{spec.name} is a plain number type; use an ndarray instead of a QTensor")
        shape = tuple(operator.index(n) for n in shape)
        if not shape or min(shape) < 0:
            raise ValueError(f"QTensor needs a shape of at least one axis without negative sizes, got {shape}")
        data = np.asarray(data)
        if data.dtype != np.uint8:
            raise TypeError(f"QTensor data must be uint8, got {data.dtype}")
        full = shape[:-1] + (spec.row_bytes(shape[-1]),)
        if spec.tensor_scale:
            data, behind = _split_scale(data, int(np.prod(full, dtype=object)))
            scale = np.float32(behind if scale is None else scale)
        elif scale is not None:
            raise ValueError(f"{spec.name} has no scale per tensor, got {scale}")
        if data.shape != full:
            if data.size != int(np.prod(full, dtype=object)):
                needed = np.prod(full, dtype=object)
                raise ValueError(f"{spec.name} tensor of shape {shape} needs {needed} bytes, got {data.size}")
            if not data.flags.c_contiguous:
                raise ValueError(f"data of shape {data.shape} must be C-contiguous to be viewed as {full}")
            data = data.reshape(full)
        self.data = data
        self.spec: Format = spec
        self.format: str = spec.name
        self.shape: tuple[int, ...] = shape
        self.scale: np.float32 | None = scale

    @property
    def nbytes(self) -> int:
        """Bytes of the stored blocks."""
        return self.data.nbytes

    @property
    def ndim(self) -> int:
        """Number of logical axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"QTensor({self.format}, shape={self.shape}, {self.nbytes} bytes)"

    def __getitem__(self, index) -> QTensor:
        """Rows by indexing on the leading axes, as NumPy does it (the blocks of a row are not divisible)."""
        key = index if isinstance(index, tuple) else (index,)
        if not any(i is Ellipsis for i in key):
            key += (Ellipsis,)
        data = self.data[key + (slice(None),)]
        return QTensor(data, self.format, data.shape[:-1] + self.shape[-1:], scale=self.scale)

    def dequantize(self, dtype=np.float32) -> np.ndarray:
        """Decode to a new array of ``dtype`` (float32, float16 or float64)."""
        return _operations["dequantize"](self, dtype=dtype)

    def rows(self, ids) -> np.ndarray:
        """Decode the rows ``ids`` (an int or an integer array) of a matrix to float32."""
        return _operations["embedding"](ids, self)

    def pack(self) -> PackedQTensor:
        """Interleave rows by 8 for the fastest products; as many bytes as before (rows padded to 8)."""
        return _operations["pack"](self)


def _split_scale(data: np.ndarray, size: int) -> tuple[np.ndarray, np.float32]:
    """A flat buffer of ``size`` bytes of blocks and a float32 behind them, taken apart; without one the scale is 1."""
    if data.ndim == 1 and size + 4 <= data.size <= size + 32:
        return data[:size], data[size : size + 4].copy().view("<f4")[0]
    return data, np.float32(1)


class PackedQTensor:
    """A matrix of blocks with rows interleaved by 8 (layout: ``fucina._kernels.linear_quant``).

    Made by ``QTensor.pack()``. ``data`` has shape ``(ceil(n / 8), 8 * row_bytes)``; missing rows repeat the last one.
    """

    __slots__ = ("data", "format", "scale", "shape", "spec", "__weakref__")

    def __init__(self, data: np.ndarray, spec: Format, shape: tuple[int, int], scale: np.float32 | None = None):
        panels = (-(-shape[0] // 8), 8 * spec.row_bytes(shape[1]))
        if data.dtype != np.uint8 or data.shape != panels:
            raise ValueError(f"packed {spec.name} weights of shape {shape} are uint8 {panels}, got {data.dtype} {data.shape}")
        self.data = data
        self.scale = scale
        self.spec = spec
        self.format = spec.name
        self.shape = shape

    @property
    def nbytes(self) -> int:
        """Bytes of the stored blocks."""
        return self.data.nbytes

    def __repr__(self) -> str:
        return f"PackedQTensor({self.format}, shape={self.shape}, {self.nbytes} bytes)"
