"""Mixtures of experts: choose experts for each token, and multiply each token by the matrices of its experts."""

from __future__ import annotations

import numpy as np

from fucina.formats import PackedQTensor, QTensor
from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave

from . import _check
from .elementwise import sigmoid
from .linear import DENSE, linear
from .matmul import PackedWeight
from .softmax import softmax

GATE = tuning.value("FUCINA_GATE_ROWS")


def top_k(x, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest elements of each row, largest first.

    Parameters
    ----------
    x : array_like of float32, shape (..., n)
    k : int
        From 1 to n.

    Returns
    -------
    values : ndarray of float32, shape (..., k)
    ids : ndarray of int64, shape (..., k)
        Where they are. Of equal elements the first comes first; NaN is below everything.

    Raises
    ------
    TypeError
        If ``x`` is not float32 or ``k`` no integer.
    ValueError
        If ``k`` is out of range.
    """
    x = _check.f32(x, "x")
    ids = _choose(x, k, "x")
    return np.take_along_axis(x, ids, axis=-1), ids


def moe_route(logits, k: int, *, scoring: str = "softmax", normalize: bool = True, scale: float = 1.0,
              bias=None) -> tuple[np.ndarray, np.ndarray]:
    """Choose k experts for each token: the largest scores, and what part of each expert's result to take.

    ``s = softmax(logits)`` over all experts; ``ids`` are those of the k largest logits (plus ``bias``); ``w = s[ids]``, then
    ``w / sum(w)`` if ``normalize``, then ``w * scale``.

    Parameters
    ----------
    logits : array_like of float32, shape (..., experts)
    k : int
        From 1 to the number of experts.
    scoring : {"softmax", "sigmoid", "chosen"}
        ``"sigmoid"``: s = sigmoid(logits), chosen by s + bias. ``"chosen"``: softmax over the k chosen logits only, which
        needs no normalization.
    normalize : bool
        Divide by the sum of the k weights, or by 2^-14 where that is larger.
    scale : float
    bias : array_like of float32, shape (experts,), optional
        Added for the choice, not for the weights.

    Returns
    -------
    ids : ndarray of int64, shape (..., k)
        Largest first; of equal experts the first.
    weights : ndarray of float32, shape (..., k)
        The same bits for any number of threads, and for a token alone or among others.

    Raises
    ------
    TypeError
        If an array is not float32 or ``k`` no integer.
    ValueError
        If ``k`` is out of range, ``scoring`` is unknown or the shape of ``bias`` does not fit.
    """
    logits = _check.f32(logits, "logits")
    scale = _check.number_(scale, "scale")
    if scoring not in ("softmax", "sigmoid", "chosen"):
        raise ValueError(f"scoring must be 'softmax', 'sigmoid' or 'chosen', got {scoring!r}")
    scores = sigmoid(logits) if scoring == "sigmoid" else logits
    keys = scores
    if bias is not None:
        bias = _check.f32(bias, "bias", 1)
        if bias.shape != logits.shape[-1:]:
            raise ValueError(f"bias must have one number for each of {logits.shape[-1:]} experts, got {bias.shape}")
        keys = scores + bias
    ids = _choose(keys, k, "logits")
    if scoring == "chosen":
        scores, at, normalize = softmax(np.take_along_axis(logits, ids, axis=-1)), np.arange(ids.shape[-1]), False
        at = np.broadcast_to(at, ids.shape).copy()
    else:
        scores, at = softmax(logits) if scoring == "softmax" else scores, ids
    weights = np.empty(ids.shape, np.float32)
    if weights.size:
        nth = enter(weights.size, GATE)
        try:
            kernel("moe").weigh_into_unchecked(
                scores.reshape(-1, scores.shape[-1]), at.reshape(-1, at.shape[-1]), bool(normalize), scale,
                weights.reshape(-1, ids.shape[-1]), nth,
            )
        finally:
            leave(nth)
    return ids, weights


def moe_linear(x, w, ids, weights=None, bias=None, *, out=None) -> np.ndarray:
    """Product of each token with the matrices of its experts, added up with weights or one by one.

    ``y[..., j, n] = sum_k x[..., k] * w[ids[..., j]][n, k] + bias[ids[..., j]][n]``, and with ``weights``
    ``y[..., n] = sum_j weights[..., j] * y[..., j, n]``.

    Parameters
    ----------
    x : array_like of float32, shape (..., k) or (..., slots, k)
        One row for each token, or an own one for each of its slots.
    w : QTensor or ndarray, shape (experts, n, k), or a sequence of matrices (n, k)
        Weights as ``linear`` takes them; a sequence may hold packed ones.
    ids : array_like of int, shape (..., slots)
        Experts of each token, each in ``[0, experts)``.
    weights : array_like of float32, shape (..., slots), optional
    bias : array_like of float32, shape (experts, n), optional
    out : ndarray of float32, optional
        Of the shape of the result.

    Returns
    -------
    ndarray of float32, shape (..., n), or (..., slots, n) without ``weights``
        Bit for bit what ``linear`` gives for every token and slot alone; the sum over slots multiplies, rounds and adds in
        the order of the slots.

    Raises
    ------
    TypeError
        For another dtype or kind of weight.
    ValueError
        If the shapes do not fit or an id is out of range.

    Notes
    -----
    Rows are sorted by expert (a counting sort), so every expert that is asked for is read once, in one product.
    """
    x = _check.f32(x, "x")
    count, (n, k) = _stack(w)
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu" and ids.size:
        raise TypeError(f"ids must be integers, got {ids.dtype}")
    if ids.ndim == 0:
        raise ValueError("ids must have at least one axis, of slots")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < count:
        raise ValueError(f"ids must be in [0, {count}), got values from {ids.min()} to {ids.max()}")
    slots = ids.shape[-1]
    shared = x.ndim == ids.ndim
    if x.shape != (ids.shape[:-1] if shared else ids.shape) + (k,):
        raise ValueError(f"x must have shape {(*ids.shape[:-1], k)} or {(*ids.shape, k)} for ids of shape {ids.shape} and "
                         f"experts of shape {(n, k)}, got {x.shape}")
    if weights is not None:
        weights = _check.f32(weights, "weights")
        if weights.shape != ids.shape:
            raise ValueError(f"weights must have the shape of ids {ids.shape}, got {weights.shape}")
    if bias is not None:
        bias = _check.f32(bias, "bias", 2)
        if bias.shape != (count, n):
            raise ValueError(f"bias must have shape {(count, n)}, got {bias.shape}")
    shape = (ids.shape if weights is None else ids.shape[:-1]) + (n,)
    target = _check.Output(out, shape, x, weights, bias, *_memory(w))
    if not target.array.size:
        return target.done()
    if not ids.size:
        target.array[...] = 0
        return target.done()
    share = slots if shared else 1
    rows = x.reshape(ids.size // share, k)
    products, order = _products(rows, w, np.ascontiguousarray(ids.reshape(-1), np.int64), share, bias, count, n)
    if weights is None:
        target.array.reshape(-1, n)[order] = products
        return target.done()
    at = np.empty(order.size, np.int64)
    at[order] = np.arange(order.size)
    nth = enter(products.size, GATE)
    try:
        kernel("moe").combine_into_unchecked(
            products, at.reshape(-1, slots), weights.reshape(-1, slots), target.array.reshape(-1, n), nth
        )
    finally:
        leave(nth)
    return target.done()


def _choose(x, k, name: str) -> np.ndarray:
    if isinstance(k, bool):
        raise TypeError("k must be an integer, got bool")
    k = _check.integer(k, "k")
    if x.ndim == 0:
        raise ValueError(f"{name} must have at least one axis")
    if not 1 <= k <= x.shape[-1]:
        raise ValueError(f"k must be from 1 to the {x.shape[-1]} elements of the last axis of {name}, got {k}")
    ids = np.empty(x.shape[:-1] + (k,), np.int64)
    if ids.size:
        nth = enter(x.size, GATE)
        try:
            kernel("moe").top_k_into_unchecked(x.reshape(-1, x.shape[-1]), ids.reshape(-1, k), nth)
        finally:
            leave(nth)
    return ids


def _stack(w) -> tuple[int, tuple[int, int]]:
    """How many experts, and the shape of each."""
    for one in w if isinstance(w, (list, tuple)) else [w]:
        if isinstance(one, np.ndarray) and (one.dtype.name not in DENSE or not one.dtype.isnative):
            raise TypeError(f"w must be float32, float16 or bfloat16 in native byte order, got {_check.describe(one)}")
    if isinstance(w, (QTensor, np.ndarray)):
        if w.ndim != 3:
            raise ValueError(f"w must have shape (experts, n, k), got {w.shape}")
        return w.shape[0], tuple(w.shape[1:])
    if not isinstance(w, (list, tuple)):
        raise TypeError(f"w must be a QTensor, an ndarray or a sequence of matrices, got {type(w).__name__}")
    if not w:
        raise ValueError("w holds no experts")
    for one in w:
        if not isinstance(one, (np.ndarray, PackedWeight, QTensor, PackedQTensor)):
            raise TypeError(f"experts must be an ndarray, PackedWeight, QTensor or PackedQTensor, got {type(one).__name__}")
    shapes = {tuple(one.shape) for one in w}
    if len(shapes) > 1 or len(w[0].shape) != 2:
        raise ValueError(f"experts must be matrices of one shape (n, k), got {sorted(shapes)}")
    return len(w), tuple(w[0].shape)


def _memory(w) -> list[np.ndarray]:
    """The arrays behind the weights, which a result must not overwrite."""
    return [one if isinstance(one, np.ndarray) else one.data for one in (w if isinstance(w, (list, tuple)) else [w])]


def _products(rows, w, ids, share, bias, count, n) -> tuple[np.ndarray, np.ndarray]:
    """Products of all slots, sorted by expert, and the slot that each row belongs to; ``share`` slots have one row of x."""
    starts, order = np.empty(count + 1, np.int64), np.empty(ids.size, np.int64)
    kernel("moe").group_into_unchecked(ids, starts, order, 1)
    gathered = rows[order // share]
    products = np.empty((ids.size, n), np.float32)
    for e in np.flatnonzero(np.diff(starts)):
        part = slice(starts[e], starts[e + 1])
        linear(gathered[part], w[e], None if bias is None else bias[e], out=products[part])
    return products, order
