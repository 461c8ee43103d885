"""Encoding to the K formats: ggml's bytes, with and without an importance matrix."""

from __future__ import annotations

import numpy as np
import pytest
from encoding import check_awkward, check_error, check_golden, keys, names

from fucina._scalar import _search

FORMAT = pytest.mark.parametrize("name", names("encode_k"))


@pytest.mark.parametrize("key", keys("encode_k"))
def test_golden(key):
    check_golden(key)


@FORMAT
@pytest.mark.parametrize("imatrix", [False, True])
def test_awkward_rows(name, imatrix):
    check_awkward(name, 768, imatrix)


@FORMAT
def test_error(name):
    check_error(name, 10000)


# ---- the searches find what they look for -------------------------------------------------------------------------


def weighted_error(x, w, values):
    return (w * (x - values) ** 2).sum(-1)


def test_symmetric_search_beats_plain_rounding():
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((50, 16)).astype(np.float32), rng.random((50, 16)).astype(np.float32)
    code, scale = _search.symmetric(x, 4, w)
    assert code.min() >= 0 and code.max() <= 7
    found = weighted_error(x, w, scale[:, None] * (code - 4))
    step = -_search.largest(x)[:, None] / 4
    plain = weighted_error(x, w, step * np.clip(np.rint(x / step), -4, 3))
    assert (found <= plain * 1.0001).all() and found.sum() < 0.9 * plain.sum()


def test_search_with_min_beats_plain_rounding():
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((50, 32)).astype(np.float32), rng.random((50, 32)).astype(np.float32)
    code, scale, low = _search.with_min(x, 15, w, -1.0, 0.1, 20)
    assert code.min() >= 0 and code.max() <= 15 and (low >= 0).all()
    found = weighted_error(x, w, scale[:, None] * code - low[:, None])
    bottom = np.minimum(x.min(-1, keepdims=True), 0)
    step = (x.max(-1, keepdims=True) - bottom) / 15
    plain = weighted_error(x, w, step * np.rint((x - bottom) / step) + bottom)
    assert (found <= plain * 1.0001).all() and found.sum() < 0.9 * plain.sum()


def test_positive_search_beats_plain_rounding():
    rng = np.random.default_rng(3)
    x, w = rng.random((50, 8)).astype(np.float32), rng.random((50, 8)).astype(np.float32)
    code, scale = _search.positive(x, 15, w)
    assert code.min() >= 0 and code.max() <= 15
    found = weighted_error(x, w, scale[:, None] * code)
    step = x.max(-1, keepdims=True) / 15
    plain = weighted_error(x, w, step * np.rint(x / step))
    assert found.sum() < 0.9 * plain.sum()


def test_nearest_rounds_to_even_and_wraps():
    v = np.float32([0.5, 1.5, -0.5, -1.5, 2.4999998, 4194303, np.inf, -np.inf, np.nan])
    assert _search.nearest(v).tolist() == [0, 2, 0, -2, 2, 4194303, -4194304, -4194304, 0]
