"""Tensors that stay quantized: raw blocks plus a format and a logical shape."""

from __future__ import annotations

import numpy as np

from .table import Format, lookup


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

    Raises
    ------
    TypeError
        If ``data`` is not uint8.
    ValueError
        If the format is unknown or not a block format, or the byte count does not fit ``shape``.
    """

    __slots__ = ("data", "format", "shape", "spec", "__weakref__")

    def __init__(self, data, format: str, shape):
        spec = lookup(format)
        if not spec.is_block:
            raise ValueError(f"{spec.name} is a plain number type; use an ndarray instead of a QTensor")
        shape = tuple(int(n) for n in shape)
        if not shape or min(shape) < 0:
            raise ValueError(f"QTensor needs a shape of at least one axis without negative sizes, got {shape}")
        data = np.asarray(data)
        if data.dtype != np.uint8:
            raise TypeError(f"QTensor data must be uint8, got {data.dtype}")
        full = shape[:-1] + (spec.row_bytes(shape[-1]),)
        if data.shape != full:
            if data.size != int(np.prod(full, dtype=object)):
                raise ValueError(f"{spec.name} tensor of shape {shape} needs {np.prod(full, dtype=object)} bytes, got {data.size}")
            if not data.flags.c_contiguous:
                raise ValueError(f"data of shape {data.shape} must be C-contiguous to be viewed as {full}")
            data = data.reshape(full)
        self.data = data
        self.spec: Format = spec
        self.format: str = spec.name
        self.shape: tuple[int, ...] = shape

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
        """Rows by basic indexing on the leading axes (the blocks of a row are not divisible)."""
        key = index if isinstance(index, tuple) else (index,)
        if len(key) >= self.ndim and Ellipsis not in key or self.ndim == 1:
            raise IndexError(f"a QTensor is indexed on its leading {self.ndim - 1} axes only")
        data = self.data[key + (Ellipsis,)] if Ellipsis not in key else self.data[key]
        if data.shape[-1:] != self.data.shape[-1:]:
            raise IndexError("a QTensor cannot be indexed inside a row of blocks")
        return QTensor(data, self.format, data.shape[:-1] + self.shape[-1:])

    def dequantize(self, dtype=np.float32) -> np.ndarray:
        """Decode to a new array of ``dtype`` (float32, float16 or float64)."""
        from fucina import ops

        return ops.dequantize(self, dtype=dtype)

    def rows(self, ids) -> np.ndarray:
        """Decode the rows ``ids`` (an int or an integer array) of a matrix to float32."""
        from fucina import ops

        ids = np.asarray(ids)
        out = ops.embedding(ids.reshape(-1), self)
        return out.reshape(ids.shape + self.shape[-1:])

    def pack(self) -> PackedQTensor:
        """Interleave rows by 8 for the fastest products; as many bytes as before (rows padded to 8)."""
        from fucina import ops

        return ops.pack(self)


class PackedQTensor:
    """A matrix of blocks with rows interleaved by 8 (layout: ``fucina._kernels.linear_quant``).

    Made by ``QTensor.pack()``. ``data`` has shape ``(ceil(n / 8), 8 * row_bytes)``; missing rows are zero.
    """

    __slots__ = ("data", "format", "shape", "spec", "__weakref__")

    def __init__(self, data: np.ndarray, spec: Format, shape: tuple[int, int]):
        self.data = data
        self.spec = spec
        self.format = spec.name
        self.shape = shape

    @property
    def nbytes(self) -> int:
        """Bytes of the stored blocks."""
        return self.data.nbytes

    def __repr__(self) -> str:
        return f"PackedQTensor({self.format}, shape={self.shape}, {self.nbytes} bytes)"
