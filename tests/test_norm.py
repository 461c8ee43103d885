"""Root-mean-square normalization of rows."""

from __future__ import annotations

import numpy as np
import pytest
import tolerances
from hypothesis import given
from hypothesis import strategies as st
from references import LARGE, SIZES, SPECIAL, F, agree, close, guarded, layouts, normal, rms_norm64, same

from fucina import ops

WIDTHS = (*SIZES, 2, 9, 24, 33, 255, 2304)


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("rows", [1, 2, 5, 13])
def test_sizes(rows, n):
    x, weight = normal(rows, n), normal(n, seed=1)
    for w in (None, weight):
        for eps in (0.0, 1e-6, 1e-5, 1.0):
            y = agree(lambda w=w, eps=eps: ops.rms_norm(x, w, eps), threads=(1, 3))
            exact = rms_norm64(x, w, eps)
            close(y, exact, tolerances.rms_norm(n) * np.abs(exact))
    same(agree(lambda: ops.rms_norm(x)), ops.rms_norm(x, None, 1e-6), "eps is 1e-6 unless told")


@pytest.mark.parametrize(("rows", "n"), [(1, LARGE[0]), (3, LARGE[1]), (1009, 1), (307, 977)])
def test_large(rows, n):
    x, weight = normal(rows, n), normal(n, seed=1)
    y = agree(lambda: ops.rms_norm(x, weight), scalar=False)
    exact = rms_norm64(x, weight)
    close(y, exact, tolerances.rms_norm(n) * np.abs(exact))
    same(ops.rms_norm(x[rows // 2], weight), y[rows // 2], "a row alone")


def test_rows_alone_and_in_a_batch():
    x, weight = normal(23, 77), normal(77, seed=1)
    y = agree(lambda: ops.rms_norm(x, weight))
    same(np.stack([ops.rms_norm(row, weight) for row in x]), y)
    cube = x.reshape(23, 7, 11)
    same(ops.rms_norm(cube, weight[:11]), ops.rms_norm(cube.reshape(-1, 11), weight[:11]).reshape(cube.shape))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [7, 16, 37])
def test_what_is_not_finite_stays_in_its_row(value, n):
    x = normal(2 * n, n)
    clean = ops.rms_norm(x)
    x[2 * np.arange(n), np.arange(n)] = value       # every place, every second row
    y = agree(lambda: ops.rms_norm(x))
    same(y[1::2], clean[1::2])
    ruined = y[::2]
    assert np.isnan(ruined[np.arange(n), np.arange(n)]).all()
    if np.isinf(value):
        assert (ruined[~np.eye(n, dtype=bool)] == 0).all(), "divided by infinity"
    else:
        assert np.isnan(ruined).all()


def test_special_values_and_magnitudes():
    agree(lambda: ops.rms_norm(np.tile(SPECIAL, (2, 2)), np.concatenate([SPECIAL, SPECIAL[::-1]])))
    agree(lambda: ops.rms_norm(SPECIAL[:, None]))
    agree(lambda: ops.rms_norm(SPECIAL[:, None], None, 0.0))
    for size in (1e-38, 1e-25, 1e-19, 1e18, 1e19, 3e38):
        with np.errstate(over="ignore", under="ignore"):
            x = np.clip(normal(3, 50) * F(size), -3.4e38, 3.4e38).astype(F)
        agree(lambda x=x: ops.rms_norm(x, None, 0.0))
    zero = np.full((2, 19), -0.0, F)
    y = agree(lambda: ops.rms_norm(zero))
    assert (y == 0).all() and np.signbit(y).all()
    assert np.isnan(agree(lambda: ops.rms_norm(zero, None, 0.0))).all()


def test_layouts(tmp_path):
    weight = normal(9, seed=1)
    for how, x in layouts(normal(7, 9), tmp_path):
        same(agree(lambda x=x: ops.rms_norm(x, weight)), ops.rms_norm(x.copy(), weight), how)
    x = normal(7, 9)
    for how, w in layouts(weight, tmp_path):
        same(agree(lambda w=w: ops.rms_norm(x, w)), ops.rms_norm(x, w.copy()), f"weight {how}")


@pytest.mark.parametrize("n", SIZES)
def test_nothing_is_written_beyond_out(n):
    x = normal(3, n)

    def call():
        out, check = guarded((3, n))
        assert ops.rms_norm(x, out=out) is out
        check()
        return out

    same(agree(call), ops.rms_norm(x))


def test_wrong_arguments():
    x = normal(2, 5)
    for eps in (-1e-9, np.nan, np.inf, 10**400):
        with pytest.raises(ValueError, match="eps"):
            ops.rms_norm(x, eps=eps)
    for eps in (None, "1", np.ones(1, F)):
        with pytest.raises(TypeError, match="eps must be a number"):
            ops.rms_norm(x, eps=eps)
    with pytest.raises(ValueError, match=r"5 elements of the last axis of x, got shape \(4,\)"):
        ops.rms_norm(x, normal(4))
    with pytest.raises(ValueError, match=r"weight must have 1 axes, got shape \(1, 5\)"):
        ops.rms_norm(x, normal(1, 5))
    with pytest.raises(ValueError, match="at least one axis"):
        ops.rms_norm(F(1))


@given(st.integers(1, 9), st.integers(1, 70), st.floats(0, 1, width=32), st.booleans())
def test_any_shape(rows, n, eps, weighted):
    agree(lambda: ops.rms_norm(normal(rows, n), normal(n) if weighted else None, eps), threads=(1, 2))
