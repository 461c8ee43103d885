"""Storing keys and values in a cache."""

from __future__ import annotations

import numpy as np

from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave

from . import _check

GATE = tuning.value("FUCINA_GATE_ELEMENTWISE")
_CODES = {"float32": 0, "float16": 1, "uint8": 2}


def kv_store(x, cache) -> None:
    """Write rows into a piece of a cache, in the type that the cache has.

    Parameters
    ----------
    x : array_like of float32, shape (rows, ..., n)
    cache : ndarray, contiguous along its last axis
        float32 or float16 of the shape of ``x`` (float16 is rounded to nearest even), or uint8 for q8_0 blocks: the
        shape of ``x`` with ``n / 32 * 34`` bytes on the last axis.

    Raises
    ------
    TypeError, ValueError
        If the type or the shape of the cache does not fit, or it cannot be written to in place.
    """
    x = _check.f32(x, "x")
    if not isinstance(cache, np.ndarray) or cache.dtype.name not in _CODES or not cache.dtype.isnative:
        kind = _check.describe(cache) if isinstance(cache, np.ndarray) else type(cache).__name__
        raise TypeError(f"cache must be an array of float32, float16 or uint8, got {kind}")
    code = _CODES[cache.dtype.name]
    if x.ndim < 2:
        raise ValueError(f"x must have at least two axes, got shape {x.shape}")
    last = x.shape[-1]
    if code == 2 and last % 32:
        raise ValueError(f"q8_0 rows hold a multiple of 32 elements, got {last}")
    shape = x.shape if code < 2 else x.shape[:-1] + (last // 32 * 34,)
    if cache.shape != shape:
        raise ValueError(f"cache must have shape {shape} for x {x.shape}, got {cache.shape}")
    dense = cache.flags.c_contiguous or cache.ndim < 4 and last and cache.strides[-1] == cache.itemsize
    if not dense or not cache.flags.writeable:
        raise ValueError("cache must be contiguous along its last axis (in all with more than three), and writeable")
    if x.size:
        if np.may_share_memory(x, cache):
            x = x.copy()
        rows = len(x)
        cells = cache if cache.ndim == 3 else cache[:, None] if cache.ndim == 2 else cache.reshape(rows, -1, shape[-1])
        nth = enter(x.size, GATE)
        try:
            kernel("kv_store").kv_store_into_unchecked(code, x.reshape(rows, -1, last), cells.view(np.uint8), nth)
        finally:
            leave(nth)
