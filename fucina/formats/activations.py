"""The byte layouts of activations in 8 bits, and the one place that pairs them with formats of weights."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import numpy as np

from .table import Format

__all__ = ["LAYOUTS", "Layout", "QActivations", "layout_of", "pair", "partners"]


@dataclass(frozen=True)
class Layout:
    """Where a block of activations keeps what.

    Attributes
    ----------
    name : str
    number : int
        By which the kernels know it.
    block : int
        Elements per block.
    nbytes : int
        Bytes per block.
    scale : str
        NumPy dtype of the scale, which is at the start of the block.
    codes_at : int
        Byte offset of the int8 codes.
    sums_at : int
        Byte offset of what the layout knows of the sums of codes: 16 int16, each of 16 codes, or (``q8_1``) one float16,
        the scale times the sum of all; -1 where there are none.
    rounding : str
        How codes are rounded unless told otherwise: ``"away"`` or ``"even"``, which is what happens to halves.
    """

    name: str
    number: int
    block: int
    nbytes: int
    scale: str
    codes_at: int
    sums_at: int
    rounding: str

    @property
    def summed(self) -> bool:
        """True where a block ends with 16 integer sums."""
        return self.block == 256


LAYOUTS: dict[str, Layout] = {
    row.name: row
    for row in (
        Layout("q8_0", 0, 32, 34, "<f2", 2, -1, "away"),
        Layout("q8_1", 1, 32, 36, "<f2", 4, 2, "away"),
        Layout("q8_k", 2, 256, 292, "<f4", 4, 260, "even"),
        # Half-precision scale; the 16 bytes before the sums are reserved and zero.
        Layout("q8_k306", 3, 256, 306, "<f2", 2, 274, "even"),
    )
}

# Besides what ggml pairs them with.
_ALSO = {
    "q4_1": ("q8_0",), "q5_1": ("q8_0",),
    "q4_k": ("q8_k306",), "q5_k": ("q8_k306",), "q6_k": ("q8_k306",),
}


def layout_of(name: str) -> Layout:
    """The layout called ``name``, any case; ValueError that lists the known ones otherwise."""
    try:
        return LAYOUTS[str(name).lower()]
    except KeyError:
        raise ValueError(f"unknown layout of activations {name!r}; known: {', '.join(LAYOUTS)}") from None


def partners(weights: Format) -> tuple[str, ...]:
    """Layouts that a format of weights multiplies with: first ggml's, which ``ops.linear`` uses, then others."""
    return () if weights.activation is None else (weights.activation, *_ALSO.get(weights.name, ()))


def pair(weights: Format, layout: str | None = None) -> Layout:
    """The layout of the activations that ``weights`` meet.

    Parameters
    ----------
    weights : Format
    layout : str, optional
        The layout that is at hand; ggml's for these weights when None.

    Returns
    -------
    Layout

    Raises
    ------
    ValueError
        If the two do not belong together: the sub-blocks of one would meet the wrong bytes of the other.
    """
    allowed = partners(weights)
    if not allowed:
        raise ValueError(f"{weights.name} weights multiply floating-point activations, not blocks")
    if layout is None:
        return LAYOUTS[allowed[0]]
    found = layout_of(layout)
    if found.name not in allowed:
        raise ValueError(f"{weights.name} weights multiply {' or '.join(allowed)} activations, got {found.name}")
    return found


class QActivations:
    """Activations in blocks of 8-bit codes.

    Parameters
    ----------
    data : array_like of uint8
        The blocks, one row per row: shape ``shape[:-1] + (blocks * layout.nbytes,)``, or a flat buffer of that length.
    layout : str
        ``"q8_0"``, ``"q8_1"``, ``"q8_k"`` or ``"q8_k306"``.
    shape : tuple of int
        Logical shape; the last axis is a whole number of blocks.

    Raises
    ------
    TypeError
        If ``data`` is not uint8, or a size is no integer.
    ValueError
        If the layout is unknown, or the bytes do not fit ``shape``.
    """

    __slots__ = ("data", "layout", "shape", "spec")

    def __init__(self, data, layout: str, shape):
        spec = layout_of(layout)
        try:
            shape = tuple(operator.index(n) for n in shape)
        except TypeError:
            raise TypeError(f"the shape of activations must be integers, got {shape}") from None
        if not shape or min(shape) < 0:
            raise ValueError(f"activations need a shape of at least one axis without negative sizes, got {shape}")
        data = np.asarray(data)
        if data.dtype != np.uint8:
            raise TypeError(f"the bytes of activations must be uint8, got {data.dtype}")
        if shape[-1] % spec.block:
            raise ValueError(f"{spec.name} rows hold a multiple of {spec.block} elements, got {shape[-1]}")
        full = shape[:-1] + (shape[-1] // spec.block * spec.nbytes,)
        # A zero must not hide sizes that NumPy cannot count; float32 elements take four times the bytes of codes.
        if math.prod(max(n, 1) for n in full) > np.iinfo(np.intp).max // 4:
            raise ValueError(f"activations of shape {shape} are more than memory can address")
        if data.size != math.prod(full):
            raise ValueError(f"{spec.name} activations of shape {shape} need {math.prod(full)} bytes, got {data.size}")
        self.data = np.ascontiguousarray(data).reshape(full)
        self.spec = spec
        self.layout = spec.name
        self.shape = shape

    @property
    def blocks(self) -> np.ndarray:
        """The bytes as uint8 ``shape[:-1] + (blocks, layout.nbytes)``, a view."""
        return self.data.reshape(self.shape[:-1] + (self.shape[-1] // self.spec.block, self.spec.nbytes))

    @property
    def scales(self) -> np.ndarray:
        """Scales of the blocks as float32 ``shape[:-1] + (blocks,)``."""
        size = np.dtype(self.spec.scale).itemsize
        return np.ascontiguousarray(self.blocks[..., :size]).view(self.spec.scale)[..., 0].astype(np.float32)

    @property
    def codes(self) -> np.ndarray:
        """Codes as int8 ``shape[:-1] + (blocks, layout.block)``, a view."""
        return self.blocks[..., self.spec.codes_at : self.spec.codes_at + self.spec.block].view(np.int8)

    @property
    def sums(self) -> np.ndarray | None:
        """What the blocks hold of sums: int16 ``(..., blocks, 16)``, float16 ``(..., blocks, 1)`` or None."""
        if self.spec.sums_at < 0:
            return None
        size, kind = (32, "<i2") if self.spec.summed else (2, "<f2")
        part = self.blocks[..., self.spec.sums_at : self.spec.sums_at + size]
        return np.ascontiguousarray(part).view(kind)

    def dequantize(self) -> np.ndarray:
        """Scales times codes: float32 of ``shape``."""
        return (self.scales[..., None] * self.codes.astype(np.float32)).reshape(self.shape)

    def __repr__(self) -> str:
        return f"QActivations({self.layout}, shape={self.shape}, {self.data.nbytes} bytes)"

