"""Softmax over any axis."""

from __future__ import annotations

import numpy as np
import pytest
import tolerances
from hypothesis import given
from hypothesis import strategies as st
from references import LARGE, SIZES, SPECIAL, F, agree, close, guarded, layouts, normal, same, softmax64

from fucina import ops

TINY = 2.0**-126    # results below the normal numbers lose digits


def against_float64(y, x, **options):
    exact = softmax64(x, **options)
    mask = options.get("mask")
    largest = np.abs(x).max() * abs(options.get("scale", 1.0))
    if mask is not None:
        largest += np.abs(mask[np.isfinite(mask)]).max(initial=0)
    n = x.shape[options.get("axis", -1)]
    close(y, exact, tolerances.softmax(n, largest) * exact + TINY)


@pytest.mark.parametrize("n", [*SIZES, 2, 9, 33, 255])
@pytest.mark.parametrize("rows", [1, 2, 5, 13])
def test_sizes(rows, n):
    x = normal(rows, n) * F(3)
    for scale in (1.0, 0.125, -2, 0):
        against_float64(agree(lambda s=scale: ops.softmax(x, scale=s), threads=(1, 3)), x, scale=scale)
    same(agree(lambda: ops.softmax(x)), ops.softmax(x, -1, scale=1.0, mask=None))
    assert np.abs(ops.softmax(x).sum(-1, dtype=np.float64) - 1).max() < 1e-5


@pytest.mark.parametrize(("rows", "n"), [(1, LARGE[0]), (3, LARGE[1]), (1009, 1), (307, 977)])
def test_large(rows, n):
    x = normal(rows, n)
    y = agree(lambda: ops.softmax(x), scalar=False)
    against_float64(y, x)
    same(ops.softmax(x[rows // 2]), y[rows // 2], "a row alone")


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2, -3, -4, np.int64(1)])
def test_axes(axis):
    x = normal(3, 5, 1, 19)
    y = agree(lambda: ops.softmax(x, axis))
    against_float64(y, x, axis=axis)
    rows = np.moveaxis(x, axis, -1)
    same(np.moveaxis(y, axis, -1), ops.softmax(np.ascontiguousarray(rows)))


@pytest.mark.parametrize("shape", [(4, 3, 9), (9,), (1,), (3, 1), (4, 1, 1), (1, 3, 9), ()])
def test_masks_broadcast(shape):
    x, mask = normal(4, 3, 9), normal(*shape, seed=1) if shape else np.full((), 0.5, F)
    y = agree(lambda: ops.softmax(x, scale=0.5, mask=mask))
    against_float64(y, x, scale=0.5, mask=np.broadcast_to(mask, x.shape))
    same(ops.softmax(x, scale=0.5, mask=np.broadcast_to(mask, x.shape).copy()), y)
    z = agree(lambda: ops.softmax(x, 1, scale=0.5, mask=mask))
    against_float64(z, x, axis=1, scale=0.5, mask=np.broadcast_to(mask, x.shape))


def test_masked_places_are_zero_and_do_not_count():
    x = normal(40, 37)
    mask = np.where(np.random.default_rng(0).random((40, 37)) < 0.4, F(-np.inf), F(0))
    mask[:, 0] = 0
    y = agree(lambda: ops.softmax(x, mask=mask))
    assert (y[np.isinf(mask)] == 0).all() and not np.signbit(y).any()
    for i in (0, 17, 39):
        keep = np.isfinite(mask[i])
        close(y[i, keep], softmax64(x[i, keep]), 1e-6 * y[i, keep])
    # What was excluded may be huge, but not infinite or NaN: -inf + inf is no number.
    x[np.isinf(mask)] = 3e38
    same(ops.softmax(x, mask=mask), y)


def test_rows_without_an_answer():
    n = 21
    x = normal(5, n)
    clean = ops.softmax(x)
    x[1, 20] = np.nan
    x[2, 3] = np.inf
    x[3] = -np.inf
    y = agree(lambda: ops.softmax(x))
    assert np.isnan(y[[1, 3]]).all() and np.isnan(y[2, 3])
    same(y[[0, 4]], clean[[0, 4]])
    for value in (np.nan, np.inf):
        x = np.zeros((n, n), F)
        x[np.arange(n), np.arange(n)] = value
        y = agree(lambda x=x: ops.softmax(x))
        assert np.isnan(y).all(), "every place ruins its row"


def test_equal_and_extreme_scores():
    for n in SIZES:
        same(agree(lambda n=n: ops.softmax(np.full((2, n), 3.5, F))), np.full((2, n), F(1) / F(n)))
    x = np.array([[3e38, -3e38, 0, 3e38], [-3e38, -3e38, -3.4e38, -3e38], [0, -1e-45, 1e-45, -0.0]], F)
    y = agree(lambda: ops.softmax(x))
    same(y[0], np.array([0.5, 0, 0, 0.5], F))
    assert (y[2] == 0.25).all()
    same(agree(lambda: ops.softmax(np.array([[0, -1000.0]], F))), np.array([[1, 0]], F))


def test_special_values():
    pairs = np.stack(np.meshgrid(SPECIAL, SPECIAL), -1).reshape(-1, 2).astype(F)
    agree(lambda: ops.softmax(pairs))
    agree(lambda: ops.softmax(pairs[:, :1], mask=pairs[:, 1:]))
    agree(lambda: ops.softmax(np.tile(SPECIAL, (3, 1))))
    for scale in (np.inf, np.nan, -0.0, 1e300, 1e-300):
        agree(lambda scale=scale: ops.softmax(pairs, scale=scale))


@pytest.mark.parametrize("axis", [0, 1])
def test_layouts(axis, tmp_path):
    x, mask = normal(7, 9), normal(7, 9, seed=1)
    for how, a in layouts(x, tmp_path):
        same(agree(lambda a=a: ops.softmax(a, axis, mask=mask)), ops.softmax(a.copy(), axis, mask=mask), how)
    for how, m in layouts(mask, tmp_path):
        same(agree(lambda m=m: ops.softmax(x, axis, mask=m)), ops.softmax(x, axis, mask=m.copy()), f"mask {how}")


@pytest.mark.parametrize("n", SIZES)
def test_nothing_is_written_beyond_out(n):
    x = normal(3, n)

    def call():
        out, check = guarded((3, n))
        assert ops.softmax(x, out=out) is out
        check()
        return out

    same(agree(call), ops.softmax(x))


def test_wrong_arguments():
    x = normal(2, 5)
    for axis in (2, -3, 2**70):
        with pytest.raises(ValueError, match="out of range for 2 axes"):
            ops.softmax(x, axis)
    for axis in (0.0, None, "0"):
        with pytest.raises(TypeError, match="axis must be an integer"):
            ops.softmax(x, axis)
    with pytest.raises(ValueError, match="at least one axis"):
        ops.softmax(F(1))
    for mask in (normal(4), normal(3, 5), normal(1, 2, 5)):
        with pytest.raises(ValueError, match="does not broadcast"):
            ops.softmax(x, mask=mask)
    with pytest.raises(TypeError, match="mask must be float32"):
        ops.softmax(x, mask=np.ones((2, 5), bool))
    with pytest.raises(TypeError, match="scale must be a number"):
        ops.softmax(x, scale="1")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 3), st.floats(-4, 4), st.booleans())
def test_any_shape(shape, axis, scale, masked):
    x = normal(*shape)
    axis %= len(shape)
    mask = normal(*shape[1:], seed=1) if masked and len(shape) > 1 else None
    agree(lambda: ops.softmax(x, axis, scale=scale, mask=mask), threads=(1, 2))
