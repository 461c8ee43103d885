"""Products with f32, f16 and bf16 weights: one chain of fused multiply-adds per output, wherever it is computed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import SPECIAL, THREADS, F, agree, close, guarded, layouts, linear64, normal, same
from tolerances import chain

from fucina import ops
from fucina._scalar._f32 import fma

ml_dtypes = pytest.importorskip("ml_dtypes")
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
types = pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 31, 33, 64)


@types
@pytest.mark.parametrize("k", [1, 3, 7, 8, 15, 16, 17, 31, 64, 255, 256, 257, 520])
def test_depths(dtype, k):
    x, w, bias = normal(33, k), normal(40, k, seed=1).astype(dtype), normal(40)
    y = agree(lambda: ops.linear(x, w))
    exact, size = linear64(x, w)
    close(y, exact, chain(k) * size, "against float64")
    same(agree(lambda: ops.linear(x, w, bias)), y + bias, "with bias")


@types
@pytest.mark.parametrize("k", [19, 257])
def test_heights_and_widths(dtype, k):
    """Every height and width of the tiles: a part of the product is the product of a part."""
    x, w = normal(64, k), normal(64, k, seed=1).astype(dtype)
    full = agree(lambda: ops.linear(x, w))
    for m in ROWS:
        for n in ROWS:
            y = agree(lambda m=m, n=n: ops.linear(x[:m], w[:n]), scalar=False, threads=THREADS if m == n else (1,))
            same(y, full[:m, :n], f"{m} x {n}")


def test_the_chain_in_words():
    x, w = normal(1, 300)[0], normal(1, 300, seed=1)[0]
    y = F(0)
    for a, b in zip(x, w):
        y = fma(a, b, y)
    same(ops.linear(x, w[None]), np.array([y], F))


@types
@pytest.mark.parametrize(("m", "n", "k"), [
    (1, 3, 100000), (1, 99991, 3), (300, 1000, 1), (2, 17, 16661), (7, 251, 193),
])
def test_large_and_prime(dtype, m, n, k):
    x, w = normal(m, k), normal(n, k, seed=1).astype(dtype)
    y = agree(lambda: ops.linear(x, w), scalar=False)
    close(y, linear64(x, w)[0], chain(k) * linear64(x, w)[1])


@types
def test_rows_alone_and_in_a_batch(dtype):
    x, w = normal(40, 300), normal(50, 300, seed=1).astype(dtype)
    y = agree(lambda: ops.linear(x, w))
    for i in range(40):
        same(agree(lambda i=i: ops.linear(x[i], w), scalar=False, threads=(1, 3)), y[i], f"row {i}")
    for size in (3, 7, 16):
        parts = [ops.linear(x[i : i + size], w) for i in range(0, 40, size)]
        same(np.concatenate(parts), y, f"batches of {size}")
    same(ops.linear(x.reshape(2, 4, 5, 300), w), y.reshape(2, 4, 5, 50))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_every_16_bit_weight(dtype):
    """Widened exactly, in vectors (k = 8) and one by one (k = 1)."""
    w = np.arange(65536, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):
        wide = w.astype(F) + F(0)
    same(agree(lambda: ops.linear(np.ones((1, 1), F), w[:, None]), threads=(1, 3))[0], wide)
    rows = np.zeros((65536, 8), dtype)
    rows[:, 5] = w
    unit = (np.arange(8) == 5).astype(F)
    same(agree(lambda: ops.linear(unit, rows), threads=(1, 3)), wide)


@types
def test_special_values(dtype):
    with np.errstate(over="ignore"):
        w = SPECIAL[:, None].astype(dtype)
    agree(lambda: ops.linear(SPECIAL[:, None], w))
    agree(lambda: ops.linear(SPECIAL[:, None], w, np.full(len(w), -0.0, F)))
    pairs = np.stack(np.meshgrid(SPECIAL, SPECIAL), -1).reshape(-1, 2).astype(F)
    with np.errstate(over="ignore"):
        agree(lambda: ops.linear(pairs[:40], pairs.astype(dtype)))


@types
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row_or_column(dtype, value):
    k = 37
    x, w = normal(k, k), normal(23, k, seed=1).astype(dtype)
    clean = ops.linear(x, w)
    bad = x.copy()
    bad[np.arange(k), np.arange(k)] = value     # every place
    assert not np.isfinite(agree(lambda: ops.linear(bad, w))).any()
    bad = x.copy()
    bad[5, 7] = value
    y = agree(lambda: ops.linear(bad, w))
    same(np.delete(y, 5, 0), np.delete(clean, 5, 0))
    bad = w.copy()
    bad[11, 3] = value
    y = agree(lambda: ops.linear(x, bad))
    same(np.delete(y, 11, 1), np.delete(clean, 11, 1))
    assert not np.isfinite(y[:, 11]).any()


def test_signs_of_zero():
    """A chain starts at +0, so a sum of negative zeros is +0 and the bias -0 does not change it."""
    x, w = np.full((3, 5), -0.0, F), np.ones((17, 5), F)
    y = agree(lambda: ops.linear(x, w, np.full(17, -0.0, F)))
    assert (y == 0).all() and not np.signbit(y).any()


@types
def test_layouts(dtype, tmp_path):
    x, w, bias = normal(5, 19), normal(18, 19, seed=1).astype(dtype), normal(18, seed=2)
    for how, a in layouts(x, tmp_path):
        same(agree(lambda a=a: ops.linear(a, w, bias)), ops.linear(a.copy(), w, bias), f"x {how}")
    for how, a in layouts(w, tmp_path):
        same(agree(lambda a=a: ops.linear(x, a, bias)), ops.linear(x, a.copy(), bias), f"w {how}")
    for how, a in layouts(bias, tmp_path):
        same(agree(lambda a=a: ops.linear(x, w, a)), ops.linear(x, w, a.copy()), f"bias {how}")


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 15), (6, 16), (7, 17), (13, 33)])
def test_nothing_is_written_beyond_out(m, n):
    x, w = normal(m, 21), normal(n, 21, seed=1)

    def call():
        out, check = guarded((m, n))
        assert ops.linear(x, w, out=out) is out
        check()
        return out

    same(agree(call), ops.linear(x, w))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 70), st.sampled_from(sorted(TYPES)), st.booleans())
def test_any_shape(m, n, k, dtype, biased):
    x, w = normal(m, k), normal(n, k, seed=1).astype(TYPES[dtype])
    bias = normal(n) if biased else None
    y = agree(lambda: ops.linear(x, w, bias))
    close(y, linear64(x, w, bias)[0], chain(k + 1) * linear64(x, w, bias)[1])
