"""Reductions: 64 lanes and trees along rows, one chain per column across them; the same bits on every engine."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import SPECIAL, F, agree, close, guarded, layouts, normal, same
from tolerances import U

from fucina import ops

SIZES = (1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 200, 1000, 16384, 16385, 40000)
NUMPY = {"sum": np.sum, "prod": np.prod, "mean": np.mean, "max": np.max, "min": np.min, "var": np.var}
names = pytest.mark.parametrize("name", NUMPY)


def bound(name, x, axis):
    """Largest error against float64: as many roundings as the longest path has, of the magnitudes that meet."""
    count = x.size if axis is None else np.prod([x.shape[a] for a in np.atleast_1d(axis)])
    terms = count + 8
    size = np.abs(x.astype(np.float64))
    if name in ("max", "min"):
        return 0
    if name == "prod":
        return terms * U * size.prod(axis) * 1.01
    if name == "var":
        return 3 * terms * U * (size**2).mean(axis)
    return terms * U * (size.sum(axis) if name == "sum" else size.mean(axis))


@names
@pytest.mark.parametrize("n", SIZES)
def test_rows(name, n):
    x = normal(3, n)
    if name == "prod":
        x = (1 + x / 50).astype(F)
    y = agree(lambda: getattr(ops, name)(x, -1), scalar=n < 20000)
    close(y, NUMPY[name](x.astype(np.float64), -1), bound(name, x, -1))
    for i in range(3):
        same(getattr(ops, name)(x[i]), y[i], "a row alone")


@names
@pytest.mark.parametrize(("shape", "axis"), [
    ((5, 7), 0), ((1, 1), 0), ((130, 1), 0), ((300, 513), 0), ((2, 9, 17), 1), ((3, 4, 5, 6), (1, 2)), ((4, 1000), 0),
])
def test_columns(name, shape, axis):
    x = (1 + normal(*shape) / 50).astype(F)
    y = agree(lambda: getattr(ops, name)(x, axis))
    close(y, NUMPY[name](x.astype(np.float64), axis), bound(name, x, axis))


@names
@pytest.mark.parametrize("axis", [None, (), 0, 1, 2, -1, (0, 1), (0, 2), (1, 2), (2, 0), (-1, -3), (0, 1, 2)])
def test_axes(name, axis):
    x = (1 + normal(3, 5, 6) / 10).astype(F)
    for keep in (False, True):
        y = agree(lambda keep=keep: getattr(ops, name)(x, axis, keepdims=keep))
        expected = NUMPY[name](x.astype(np.float64), axis, keepdims=keep)
        close(y, np.asarray(expected), 1e-5 * np.abs(expected) + 1e-6)
        out = np.empty(y.shape, F)
        assert getattr(ops, name)(x, axis, keepdims=keep, out=out) is out
        same(out, y)


def test_the_order_in_words():
    """64 lanes, eight chains of eight; chains and then lanes join as (0+4)+(2+6) + (1+5)+(3+7)."""
    x = normal(1000)
    lanes = np.zeros((8, 8), F)
    for i, value in enumerate(x):
        lanes[i % 64 // 8, i % 8] += value

    def tree(v):
        return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))

    same(ops.sum(x), np.asarray(tree(tree(lanes))))
    blocks = normal(3, 16384)
    same(ops.sum(blocks.reshape(-1)), ops.sum(np.array([ops.sum(b) for b in blocks], F)))


def test_many_small_numbers_do_not_vanish():
    """2^25 ones: a single chain would stop at 2^24."""
    x = np.broadcast_to(F(1), (2**25,))
    assert ops.sum(x) == 2**25 and ops.mean(x) == 1 and ops.var(x) == 0


@pytest.mark.parametrize("n", SIZES)
def test_dot(n):
    x, y = normal(4, n), normal(4, n, seed=1)
    z = agree(lambda: ops.dot(x, y), scalar=n < 20000)
    exact = (x.astype(np.float64) * y).sum(-1)
    close(z, exact, (n / 64 + 16) * U * np.abs(x.astype(np.float64) * y).sum(-1))
    same(ops.dot(x[1], y[1]), z[1])
    same(ops.dot(x.reshape(2, 2, n), y.reshape(2, 2, n)), z.reshape(2, 2))


def test_dot_fuses():
    """One rounding per term: a product that would be rounded away alone."""
    x = np.array([1 + 2.0**-12, 1.0], F)
    y = np.array([1 + 2.0**-12, -(1 + 2.0**-11)], F)
    total = F(np.float64(x[0]) * y[0])
    assert ops.dot(x, y) == total + x[1] * y[1] or ops.dot(x, y) == 2.0**-24


@pytest.mark.parametrize(("axis", "shape"), [(-1, (40, 7)), (0, (7, 40)), (-1, (3, 20000)), (None, (4, 5)), (1, (2, 9, 3))])
def test_argmax(axis, shape):
    x = np.round(normal(*shape) * 3).astype(F)
    y = agree(lambda: ops.argmax(x, axis))
    same(y, np.asarray(np.argmax(x, axis)))
    same(ops.argmax(x, axis, keepdims=True), np.asarray(np.argmax(x, axis, keepdims=True)))
    out = np.empty(y.shape, np.int64)
    assert ops.argmax(x, axis, out=out) is out
    same(out, y)


def test_nan_never_wins():
    n, i = F(np.nan), F(np.inf)
    x = np.array([[n, 1, 2, n], [n, n, n, n], [n, -i, n, -i], [i, n, i, 3], [-1, n, -1, -2]], F)
    same(agree(lambda: ops.max(x, 1)), np.array([2, -i, -i, i, -1], F))
    same(agree(lambda: ops.min(x, 1)), np.array([1, i, -i, 3, -2], F))
    same(agree(lambda: ops.argmax(x, 1)), np.array([2, 0, 1, 0, 0]))
    same(agree(lambda: ops.max(x.T.copy(), 0)), np.array([2, -i, -i, i, -1], F))
    long = np.full(50000, n, F)
    long[[17000, 40000]] = [5, 7]
    assert ops.max(long) == 7 and ops.min(long) == 5 and ops.argmax(long) == 40000
    assert np.isnan(ops.sum(x, 1)).all() and np.isnan(ops.prod(x, 1)).all()


def test_special_values():
    for n in (len(SPECIAL), 64, 100):
        x = np.stack([np.roll(np.resize(SPECIAL, n), i) for i in range(20)])
        finite = np.where(np.isfinite(x), x, F(1))
        for name in NUMPY:
            for values in (x, finite):
                agree(lambda name=name, values=values: getattr(ops, name)(values, 1))
                agree(lambda name=name, values=values: getattr(ops, name)(values, 0))
        agree(lambda x=x: ops.dot(x, x[::-1].copy()))
        agree(lambda x=x: ops.argmax(x, 1))


@pytest.mark.parametrize(("name", "value"), [("sum", 0), ("prod", 1), ("max", -np.inf), ("min", np.inf), ("mean", np.nan),
                                             ("var", np.nan)])
def test_nothing_to_reduce(name, value):
    op = getattr(ops, name)
    same(op(np.zeros((3, 0), F), 1), np.full(3, value, F))
    same(op(np.zeros((3, 0), F), 0), np.zeros(0, F))
    same(op(np.zeros((0, 2), F), 0), np.full(2, value, F))
    same(op(np.zeros(0, F)), np.asarray(F(value)))


def test_variance_of_few():
    assert np.isnan(ops.var(normal(5, 1), 1, ddof=1)).all() and np.isnan(ops.var(normal(3), ddof=5))
    same(ops.var(normal(5, 1), 1), np.zeros(5, F))
    x = normal(7, 30)
    close(ops.var(x, 1, ddof=1), x.astype(np.float64).var(1, ddof=1), 1e-6)
    close(ops.var(x + F(1000), 1), (x + F(1000)).astype(np.float64).var(1), 1e-6)


def test_layouts(tmp_path):
    x = normal(9, 21)
    for how, a in layouts(x, tmp_path):
        for axis in (0, 1, None):
            same(agree(lambda a=a, axis=axis: ops.sum(a, axis)), ops.sum(a.copy(), axis), f"{how} {axis}")


@pytest.mark.parametrize("shape", [(3, 5), (1, 64), (17, 100), (5, 17000)])
def test_nothing_is_written_beyond_out(shape):
    for axis in (0, 1):
        out, check = guarded((shape[1 - axis],))
        ops.sum(normal(*shape), axis, out=out)
        check()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_any_shape(shape, data):
    x = normal(*shape)
    choices = [axes for r in range(len(shape) + 1) for axes in itertools.combinations(range(len(shape)), r)]
    axis = data.draw(st.sampled_from([None, *choices]))
    name = data.draw(st.sampled_from(sorted(NUMPY)))
    y = agree(lambda: getattr(ops, name)(x, axis))
    close(y, np.asarray(NUMPY[name](x.astype(np.float64), axis)), bound(name, x, axis) + 1e-30)


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: ops.sum(normal(2, 3), 2), ValueError, "axis 2 is out of range"),
    (lambda: ops.sum(normal(2, 3), (0, 0)), ValueError, "named twice"),
    (lambda: ops.sum(normal(2, 3), (0, -2)), ValueError, "named twice"),
    (lambda: ops.sum(normal(2, 3), 1.5), TypeError, "axis must be an integer"),
    (lambda: ops.sum(np.ones(3)), TypeError, "x must be float32"),
    (lambda: ops.sum(normal(2, 3), 0, out=normal(2)), ValueError, r"out must have shape \(3,\)"),
    (lambda: ops.argmax(normal(2, 3), (0, 1)), ValueError, "one axis"),
    (lambda: ops.argmax(np.zeros((2, 0), F), 1), ValueError, "argmax of nothing"),
    (lambda: ops.argmax(normal(2, 3), out=np.zeros((), np.int32)), TypeError, "out must be int64"),
    (lambda: ops.var(normal(2, 3), ddof=1.5), TypeError, "ddof must be an integer"),
    (lambda: ops.dot(normal(3), normal(4)), ValueError, "equal shapes"),
    (lambda: ops.dot(F(1), F(1)), ValueError, "at least one axis"),
    (lambda: ops.dot(normal(3), np.ones(3)), TypeError, "y must be float32"),
])
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
