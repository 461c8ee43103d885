"""Element-wise operations on float32 arrays: unary, binary with broadcasting, and gated."""

from __future__ import annotations

import numpy as np

from fucina.runtime import tuning
from fucina.runtime.isa import kernel
from fucina.runtime.threads import enter, leave

from . import _check

GATE = tuning.value("FUCINA_GATE_ELEMENTWISE")

# Operation codes of the elementwise kernel, with the formula that becomes the docstring.
BINARY = {
    "add": (1, "x + y"),
    "subtract": (2, "x - y"),
    "multiply": (3, "x * y"),
    "divide": (4, "x / y"),
    "maximum": (5, "the larger of x and y, NaN where either is NaN"),
    "minimum": (6, "the smaller of x and y, NaN where either is NaN"),
}
UNARY = {
    "relu": (10, "x where x > 0, else 0 (also for NaN)"),
    "exp": (11, "e^x; relative error below 2e-7 where the result is a normal number"),
    "sqrt": (12, "the square root of x"),
    "sigmoid": (13, "1 / (1 + e^-x)"),
    "silu": (14, "x / (1 + e^-x)"),
    "tanh": (15, "the hyperbolic tangent; absolute error below 3e-7"),
    "gelu": (16, "0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))"),
    "gelu_quant": (17, "gelu of x rounded to half precision, rounded to half precision; 0 for x <= -10, x for x >= 10. "
                       "ggml's table of 65536 values, of which 273, around -4, differ by one or two steps"),
    "quick_gelu": (18, "x / (1 + e^(-1.702 x))"),
    "negative": (19, "-x"),
    "abs": (20, "the magnitude of x"),
}
_GATED = 100


def _unary(name: str, code: int, formula: str):
    def op(x, *, out=None):
        x = _check.f32(x, "x")
        target = _check.Output(out, x.shape, x, in_place=True)
        if x.size:
            nth = enter(x.size, GATE)
            try:
                kernel("elementwise").unary_into_unchecked(code, x.reshape(-1), target.array.reshape(-1), nth)
            finally:
                leave(nth)
        return target.done()

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"""Element-wise ``y = f(x)``: {formula}.

    Parameters
    ----------
    x : array_like of float32
    out : ndarray of float32, shape ``x.shape``, optional
        May be ``x`` itself.

    Returns
    -------
    ndarray of float32, shape ``x.shape``
    """
    return op


def _apply(code: int, x, y, out, names=("x", "y")) -> np.ndarray:
    x, y = _check.f32(x, names[0]), _check.f32(y, names[1])
    if x.shape != y.shape:
        try:
            shape = np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            raise ValueError(f"shapes {x.shape} and {y.shape} do not broadcast") from None
        x, y = (np.ascontiguousarray(np.broadcast_to(v, shape)) for v in (x, y))
    target = _check.Output(out, x.shape, x, y, in_place=True)
    if x.size:
        nth = enter(x.size, GATE)
        try:
            kernel("elementwise").binary_into_unchecked(
                code, x.reshape(-1), y.reshape(-1), target.array.reshape(-1), nth
            )
        finally:
            leave(nth)
    return target.done()


def _binary(name: str, code: int, formula: str):
    def op(x, y, *, out=None):
        return _apply(code, x, y, out)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"""Element-wise, with broadcasting: {formula}.

    Parameters
    ----------
    x, y : array_like of float32
        Of shapes that broadcast.
    out : ndarray of float32 of the broadcast shape, optional
        May be ``x`` or ``y`` itself.

    Returns
    -------
    ndarray of float32
    """
    return op


for _name, (_code, _formula) in UNARY.items():
    globals()[_name] = _unary(_name, _code, _formula)
for _name, (_code, _formula) in BINARY.items():
    globals()[_name] = _binary(_name, _code, _formula)


def scale(x, s, *, out=None) -> np.ndarray:
    """``y = x * s`` for a number ``s``, rounded to float32 first.

    Parameters
    ----------
    x : array_like of float32
    s : float
    out : ndarray of float32, shape ``x.shape``, optional
        May be ``x`` itself.

    Returns
    -------
    ndarray of float32, shape ``x.shape``
    """
    x = _check.f32(x, "x")
    s = _check.number_(s, "s")
    target = _check.Output(out, x.shape, x, in_place=True)
    if x.size:
        nth = enter(x.size, GATE)
        try:
            kernel("elementwise").scale_into_unchecked(x.reshape(-1), s, target.array.reshape(-1), nth)
        finally:
            leave(nth)
    return target.done()


def _gated(x, gate, act: str, out) -> np.ndarray:
    if gate is None:
        x = _check.f32(x, "x")
        if x.ndim == 0 or x.shape[-1] % 2:
            raise ValueError(f"without a gate the last axis of x is split in two; got shape {x.shape}")
        half = x.shape[-1] // 2
        # The first half is the gate, as ggml has it.
        gate, x = x[..., :half], x[..., half:]
    return _apply(_GATED + UNARY[act][0], x, gate, out, ("x", "gate"))


def swiglu(x, gate=None, *, out=None) -> np.ndarray:
    """``y = x * silu(gate)``.

    Parameters
    ----------
    x : array_like of float32
    gate : array_like of float32, optional
        Without it the last axis of ``x`` is split: the first half is the gate, the second half the values.
    out : ndarray of float32, optional

    Returns
    -------
    ndarray of float32
    """
    return _gated(x, gate, "silu", out)


def geglu(x, gate=None, *, approximate: str = "tanh", out=None) -> np.ndarray:
    """``y = x * gelu(gate)``.

    Parameters
    ----------
    x : array_like of float32
    gate : array_like of float32, optional
        Without it the last axis of ``x`` is split: the first half is the gate, the second half the values.
    approximate : {"tanh", "quant"}
        ``gelu`` or ``gelu_quant``.
    out : ndarray of float32, optional

    Returns
    -------
    ndarray of float32
    """
    names = {"tanh": "gelu", "quant": "gelu_quant"}
    if approximate not in names:
        raise ValueError(f"approximate must be one of {sorted(names)}, got {approximate!r}")
    return _gated(x, gate, names[approximate], out)


__all__ = [*UNARY, *BINARY, "geglu", "scale", "swiglu"]
