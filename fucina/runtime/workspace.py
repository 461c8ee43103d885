"""Scratch memory: aligned, one buffer per Python thread, grown when needed and reused."""

from __future__ import annotations

import math
import threading

import numpy as np

__all__ = ["ALIGNMENT", "aligned_empty", "release", "scratch"]

ALIGNMENT = 64  # bytes: a cache line, and the widest vector that any variant loads
_GRAIN = 1 << 16

_local = threading.local()


def scratch(nbytes: int) -> np.ndarray:
    """Uninitialized bytes for the current call.

    Parameters
    ----------
    nbytes : int

    Returns
    -------
    ndarray of uint8, shape (nbytes,)
        Starts on a 64-byte border. It belongs to this Python thread until its next call of ``scratch``; a call
        that needs several areas asks once and slices.

    Raises
    ------
    ValueError
        If ``nbytes`` is negative.
    """
    if nbytes < 0:
        raise ValueError(f"scratch needs a size of at least 0 bytes, got {nbytes}")
    buffer = getattr(_local, "buffer", None)
    if buffer is None or buffer.size < nbytes:
        grown = nbytes if buffer is None else max(nbytes, buffer.size + buffer.size // 4)
        buffer = _local.buffer = None  # let the old one go first
        buffer = _local.buffer = aligned_empty(-(-grown // _GRAIN) * _GRAIN, np.uint8)
    return buffer[:nbytes]


def release() -> None:
    """Give the scratch memory of this Python thread back."""
    _local.buffer = None


def aligned_empty(shape: int | tuple[int, ...], dtype) -> np.ndarray:
    """Uninitialized C-contiguous array whose data starts on a 64-byte border.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype-like
    """
    dtype = np.dtype(dtype)
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    nbytes = count * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)
