"""Rotary position embedding."""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np

from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave

from . import _check

GATE = tuning.value("FUCINA_GATE_ROWS")
# Angles that the tables are made for.
_FAR = 2.0**40


@lru_cache(maxsize=64)
def _frequencies(pairs: int, theta: float, freq_scale: float) -> np.ndarray:
    """Angle per position of every pair: ``freq_scale * theta^(-i / pairs)`` in float64.

    The power is rounded once, from many decimals: those of C libraries and of NumPy differ from processor to processor.
    """
    with localcontext(prec=40):
        base = Decimal(theta).ln()
        powers = [float((base * -i / pairs).exp()) for i in range(pairs)]
    return freq_scale * np.array(powers)


def rope_tables(positions, pairs: int, theta: float = 1e4, freq_scale: float = 1.0, freq_factors=None):
    """Cosines and sines of ``position * freq_scale * theta^(-i / pairs) / freq_factors[i]``.

    Parameters
    ----------
    positions : array_like of int, shape (seq,)
    pairs : int
    theta, freq_scale : float
    freq_factors : array_like, shape (pairs,), optional

    Returns
    -------
    cos, sin : ndarray of float32, shape (seq, pairs)
        Computed in float64, within 2^-51, and rounded once; the same bits with every C library and processor.

    Raises
    ------
    TypeError
        If ``pairs`` is no integer.
    ValueError
        If it is negative, shapes do not fit, a factor is not above 0, or an angle is 2^40 or more.
    """
    if (pairs := _check.integer(pairs, "pairs")) < 0:
        raise ValueError(f"pairs must be at least 0, got {pairs}")
    freq = _frequencies(pairs, _check.positive(theta, "theta"), _check.positive(freq_scale, "freq_scale"))
    if freq_factors is not None:
        freq_factors = np.asarray(freq_factors)
        if freq_factors.shape != (pairs,):
            raise ValueError(f"freq_factors must have shape ({pairs},), got {freq_factors.shape}")
        if freq_factors.dtype.kind not in "iuf" or not (freq_factors > 0).all():
            raise ValueError(f"freq_factors must be numbers above 0, got {_check.describe(freq_factors)}")
        freq = freq / freq_factors.astype(np.float64)
    positions = np.asarray(positions, np.float64, order="C")
    if positions.ndim != 1:
        raise ValueError(f"positions must have one axis, got shape {positions.shape}")
    cos, sin = np.empty((2, len(positions), pairs), np.float32)
    if cos.size:
        farthest = np.abs(positions).max() * freq.max()
        if not farthest < _FAR:
            raise ValueError(f"angles must stay below 2^40, got {farthest:g}")
        nth = enter(cos.size, GATE)
        try:
            kernel("rope").rope_tables_into_unchecked(positions, freq, cos, sin, nth)
        finally:
            leave(nth)
    return cos, sin


def rope(x, positions, *, mode: str = "half", theta: float = 1e4, dims: int | None = None, freq_scale: float = 1.0,
         freq_factors=None, tables=None, out=None) -> np.ndarray:
    """Rotate pairs of features by angles that grow with the position.

    Pair i of the token at position p turns by ``p * freq_scale * theta^(-2i / dims) / freq_factors[i]``.

    Parameters
    ----------
    x : array_like of float32, shape (seq, heads, d)
    positions : array_like of int, shape (seq,)
        May be negative.
    mode : {"half", "interleaved"}
        Feature i pairs with i + dims/2, or 2i with 2i + 1.
    theta : float
        Base of the frequencies.
    dims : int, optional
        How many leading features are rotated (even, at most d); the rest is copied. All by default.
    freq_scale : float
        1 / factor for linear position interpolation.
    freq_factors : array_like, shape (dims / 2,), optional
        Divisors of the frequencies, above 0.
    tables : tuple of two ndarrays, optional
        Result of ``rope_tables`` for these positions, to be shared by several calls; the parameters that make the
        tables are then not looked at.
    out : ndarray of float32, shape ``x.shape``, optional
        May be ``x`` itself.

    Returns
    -------
    ndarray of float32, shape ``x.shape``
    """
    x = _check.f32(x, "x", 3)
    seq, _, d = x.shape
    if mode not in ("half", "interleaved"):
        raise ValueError(f"mode must be 'half' or 'interleaved', got {mode!r}")
    dims = d if dims is None else _check.integer(dims, "dims")
    if dims % 2 or not 0 < dims <= d:
        raise ValueError(f"dims must be even and between 2 and the {d} features of a head, got {dims}")
    pairs = dims // 2
    if tables is None:
        positions = np.asarray(positions)
        if positions.shape != (seq,) or seq and positions.dtype.kind not in "iu":
            raise ValueError(f"positions must be {seq} integers, got {_check.describe(positions)}")
        tables = rope_tables(positions, pairs, theta, freq_scale, freq_factors)
    cos, sin = (_check.f32(t, "tables", 2) for t in tables)
    if cos.shape != (seq, pairs) or sin.shape != (seq, pairs):
        raise ValueError(f"tables must have shape ({seq}, {pairs}), got {cos.shape} and {sin.shape}")
    target = _check.Output(out, x.shape, x, cos, sin, in_place=True)
    if x.size:
        nth = enter(x.size, GATE)
        try:
            kernel("rope").rope_into_unchecked(x, cos, sin, mode == "interleaved", target.array, nth)
        finally:
            leave(nth)
    return target.done()
