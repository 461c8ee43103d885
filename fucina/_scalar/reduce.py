"""Reductions (specification of ``_kernels/reduce.pyx``)."""

import numpy as np

from ._f32 import F, fma

SUM, PROD, MAX, MIN, DEVIATION, DOT = range(6)
BLOCK = 16384

IDENTITY = {SUM: F(0), PROD: F(1), MAX: F(-np.inf), MIN: F(np.inf), DEVIATION: F(0), DOT: F(0)}


def larger(a, b):
    """``a`` where it is larger, else ``b``: a NaN in ``a`` never wins."""
    return np.where(a > b, a, b)


def smaller(a, b):
    """``a`` where it is smaller, else ``b``."""
    return np.where(a < b, a, b)


def step(kind, x, y, total):
    """One more value."""
    if kind == DEVIATION:
        return fma(x - y, x - y, total)
    if kind == DOT:
        return fma(x, y, total)
    return {SUM: lambda: total + x, PROD: lambda: total * x, MAX: lambda: larger(x, total),
            MIN: lambda: smaller(x, total)}[kind]()


def tree(kind, v):
    """Eight values (last axis) to one: (0, 4) with (2, 6), and that with (1, 5) with (3, 7)."""
    join = {PROD: np.multiply, MAX: larger, MIN: smaller}.get(kind, np.add)
    a, b, c, d = (join(v[..., i], v[..., i + 4]) for i in range(4))
    return join(join(a, c), join(b, d))


def rows_into_unchecked(kind, x, y, out):
    """64 lanes, a tree over eight chains of eight, the same tree over the eight lanes; one result per block."""
    x = np.asarray(x)
    for row in range(x.shape[0]):
        for i in range(out.shape[1]):
            part = slice(i * BLOCK, min((i + 1) * BLOCK, x.shape[1]))
            count = part.stop - part.start
            values = np.full(-(-count // 64) * 64, IDENTITY[kind], F)
            values[:count] = x[row, part]
            second = np.zeros_like(values)
            if kind == DOT:
                second[:count] = np.asarray(y).reshape(x.shape)[row, part]
            elif kind == DEVIATION:
                values[count:] = second[:] = y[row]
            total = np.full(64, IDENTITY[kind], F)
            with np.errstate(all="ignore"):
                for g in range(0, len(values), 64):
                    total = step(kind, values[g : g + 64], second[g : g + 64], total)
                out[row, i] = tree(kind, tree(kind, total.reshape(8, 8).T))


def columns_into_unchecked(kind, x, y, out):
    """One chain per column."""
    x = np.asarray(x)
    total = np.full(out.shape, IDENTITY[kind], F)
    with np.errstate(all="ignore"):
        for p in range(x.shape[1]):
            total = step(kind, x[:, p], None if y is None else np.asarray(y), total)
    out[...] = total


def argmax_into_unchecked(x, finite, out):
    """The first place of the largest value that is not NaN; 0 when there is none. ``finite``: -1 unless all values are."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        most = np.where(np.isnan(x), F(-np.inf), x).max(1, keepdims=True)
        out[...] = np.argmax(x == most, axis=1)
    if finite:
        out[~np.isfinite(x).all(1)] = -1
