"""Scaled dot-product attention with grouped heads."""

from __future__ import annotations

import math

import numpy as np

from fucina.formats import QTensor
from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave
from fucina.runtime.workspace import scratch

from . import _check

GATE = tuning.value("FUCINA_GATE_MATMUL")
_CELLS = {"float32": 0, "float16": 1}
_Q8_0 = 2
_NAMES = ("float32", "float16", "q8_0")

# A task holds at most about this many scores, 2 MiB. Leaving the second-level cache costs them less than fewer rows cost
# keys and values: 43 GMAC/s with 64 Ki scores, 58 with 512 Ki (512 queries behind 4096 keys, 16 heads of 128, AMD Zen 3,
# 2 threads, by turns, 2026-11-30).
SCORES = 524288
# Rows of a task (queries times heads) beyond which converting keys and values no longer shows.
ROWS = 48


def attention(q, k, v, *, causal: bool = True, scale: float | None = None, window: int = 0, bias=None,
              out=None) -> np.ndarray:
    """Attention: ``y = softmax(scale * q kᵀ + bias) v`` per head.

    Query i stands at position ``kv_seq - seq + i`` and sees the keys up to its own position (``causal``), of these only
    the last ``window`` (when it is not 0). Query heads share key-value heads in order: head h uses head
    ``h // (heads / kv_heads)``.

    Parameters
    ----------
    q : array_like of float32, shape (seq, heads, d)
    k, v : ndarray of float32 or float16, or QTensor "q8_0", shape (kv_seq, kv_heads, d)
        Both of the same type. Only the last axis has to be contiguous, so slices of a cache are used in place.
    causal : bool
    scale : float, optional
        1 / sqrt(d) by default.
    window : int
        Number of keys that a query sees, its own included; 0 is unlimited. Only the past is limited: without ``causal``
        a query sees all keys behind it as well.
    bias : array_like of float32, shape (seq, kv_seq), optional
        Added to the scaled scores.
    out : ndarray of float32, shape (seq, heads, d), optional

    Returns
    -------
    ndarray of float32, shape (seq, heads, d)
        The same bits whether queries are evaluated together, in chunks or one by one, for any number of threads.
    """
    q = _check.f32(q, "q", 3)
    seq, heads, d = q.shape
    code, kd, k_shape = _cells(k, "k")
    v_code, vd, v_shape = _cells(v, "v")
    if code != v_code or k_shape != v_shape:
        kinds = (f"{name} of shape {shape}" for name, shape in ((_NAMES[code], k_shape), (_NAMES[v_code], v_shape)))
        raise ValueError(f"k and v must have the same type and shape, got {' and '.join(kinds)}")
    kv_seq, kv_heads, kv_d = k_shape
    if kv_d != d:
        raise ValueError(f"q and k must have the same features per head, got {q.shape} and {k_shape}")
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} key-value heads evenly")
    if seq > kv_seq:
        raise ValueError(f"{seq} queries need at least as many keys, got {kv_seq}")
    scale = 1.0 / math.sqrt(d) if scale is None and d else _check.number_(0.0 if scale is None else scale, "scale")
    window = _check.integer(window, "window")
    if window < 0:
        raise ValueError(f"window must not be negative, got {window}")
    window = min(window, kv_seq)
    if bias is not None:
        bias = _check.f32(bias, "bias", 2)
        if bias.shape != (seq, kv_seq):
            raise ValueError(f"bias must have shape ({seq}, {kv_seq}), got {bias.shape}")
    target = _check.Output(out, q.shape, q, kd, vd, bias)
    if not q.size:
        return target.done()
    group = heads // kv_heads
    keys = min(kv_seq, window + seq) if window else kv_seq
    nth = enter(seq * keys * heads * d, GATE)
    try:
        tile = queries_of_a_task(seq, group, keys)
        # Few tasks, as in decoding: split the heads that share a key-value head too.
        part = group
        while nth > 1 and part > 1 and -(-seq // tile) * kv_heads * -(-group // part) < 2 * nth:
            part = -(-part // 2)
        shares = 1 if nth == 1 else min(4 * nth, -(-seq // tile) * kv_heads * -(-group // part))
        kernels = kernel("attention")
        floats = -(-kernels.scratch_floats(tile * part, d, keys + tile) // 16) * 16
        space = scratch(4 * shares * floats).view(np.float32).reshape(shares, floats)
        kernels.attention_into_unchecked(
            code, q, kd, vd, bias, scale, bool(causal), window, target.array, tile, part, space, nth
        )
    finally:
        leave(nth)
    return target.done()


def queries_of_a_task(seq: int, group: int, keys: int) -> int:
    """How many of ``seq`` queries a task takes for a group of heads."""
    return min(seq, max(1, max(group, min(ROWS, SCORES // max(keys, 1))) // group))


def _cells(x, name: str):
    """Type code, bytes [kv_seq, kv_heads, row] and logical shape of keys or values."""
    if isinstance(x, QTensor):
        if x.format != "q8_0":
            raise ValueError(f"{name} may be quantized as q8_0 only, got {x.format}")
        code, data, shape = _Q8_0, x.data, x.shape
    else:
        if not isinstance(x, np.ndarray):
            x = np.asarray(x)
        code = _CELLS.get(x.dtype.name)
        if code is None or not x.dtype.isnative:
            raise TypeError(f"{name} must be float32, float16 or a q8_0 QTensor, got {_check.describe(x)}")
        data, shape = x, x.shape
    if len(shape) != 3:
        raise ValueError(f"{name} must have the axes (kv_seq, kv_heads, d), got shape {shape}")
    if data.size and (data.strides[2] != data.itemsize or data.ctypes.data % data.itemsize):
        data = np.ascontiguousarray(data)
    return code, data.view(np.uint8), shape
