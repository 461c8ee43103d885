"""Storing keys and values: equal to the specification, to NumPy's rounding and to the q8_0 encoder."""

from __future__ import annotations

import numpy as np
import pytest
from references import guarded, same

from fucina import ops
from fucina._scalar import kv_store as specification

SPECIAL = [0.0, -0.0, 1e-8, 6e-8, 65504.0, 65519.9, 65520.0, -1e30, np.inf, -np.inf, np.nan, 1 / 3, 5.960464e-08]


def rows(n, m=5):
    x = np.random.default_rng(n).standard_normal((m, n)).astype(np.float32) * 10
    x[0, : min(n, len(SPECIAL))] = SPECIAL[:n]
    return x


@pytest.mark.parametrize("n", [1, 3, 7, 8, 15, 16, 17, 31, 64, 128, 257])
@pytest.mark.parametrize(("code", "dtype"), [(0, np.float32), (1, np.float16)])
def test_floats_equal_numpy(variant, n, code, dtype):
    x = rows(n)
    with np.errstate(over="ignore"):
        expected = x.astype(dtype)
    for nth in (1, 2, 3):
        out = np.zeros((len(x), n), dtype)
        variant.kernel("kv_store").kv_store_into_unchecked(code, x[:, None], out.view(np.uint8)[:, None], nth)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("n", [32, 64, 96, 256])
def test_q8_0_equals_specification_and_encoder(variant, n):
    x = np.random.default_rng(n).standard_normal((5, n)).astype(np.float32)
    x[1, :32], x[2, 3] = 0, 1e4
    expected = np.zeros((5, n // 32 * 34), np.uint8)
    specification.kv_store_into_unchecked(2, x[:, None], expected[:, None])
    for nth in (1, 2, 3):
        out = np.zeros_like(expected)
        variant.kernel("kv_store").kv_store_into_unchecked(2, x[:, None], out[:, None], nth)
        assert (out == expected).all()
    assert (ops.quantize(x, "q8_0").data == expected).all()


@pytest.mark.parametrize("code", [0, 1, 2])
def test_heads_and_positions_at_any_distance(variant, code):
    heads, n = 3, 64
    width = (4 * n, 2 * n, 68)[code]
    x = rows(heads * n).reshape(5, heads, n)
    expected = np.zeros((5, heads, width), np.uint8)
    specification.kv_store_into_unchecked(code, x, expected)
    memory = np.zeros((heads, 9, width + 8), np.uint8)
    for nth in (1, 3):
        memory[...] = 7
        variant.kernel("kv_store").kv_store_into_unchecked(code, x, memory.transpose(1, 0, 2)[2:7, :, :width], nth)
        assert (memory.transpose(1, 0, 2)[2:7, :, :width] == expected).all()
        assert (memory[:, :2] == 7).all() and (memory[:, 7:] == 7).all() and (memory[..., width:] == 7).all()


def test_arguments():
    x = rows(32).reshape(5, 1, 32)
    cache = np.zeros((9, 1, 32), np.float16)
    ops.kv_store(x[1:], cache[2:6])
    assert (cache[2:6] == x[1:].astype(np.float16)).all() and not cache[:2].any() and not cache[6:].any()
    with pytest.raises(ValueError, match=r"shape \(5, 1, 34\)"):
        ops.kv_store(x, np.zeros((5, 1, 32), np.uint8))
    with pytest.raises(ValueError, match="multiple of 32"):
        ops.kv_store(x[..., :31], np.zeros((5, 1, 34), np.uint8))
    with pytest.raises(TypeError, match="float32, float16 or uint8"):
        ops.kv_store(x, np.zeros(x.shape))
    with pytest.raises(ValueError, match="contiguous along its last axis"):
        ops.kv_store(x, np.zeros((5, 1, 64), np.float32)[..., ::2])


def test_rows_may_lie_where_they_go():
    y = rows(32, 9)
    expected = y[:-1].copy()
    ops.kv_store(y[:-1], y[1:])
    same(y[1:], expected)


def test_halves_round_to_nearest_even(variant):
    """Every half-precision number, every middle between two and its neighbours, in vectors and in the rest of a row."""
    half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = np.append((half[:-1] + half[1:]) / 2, np.float32(65520))
    x = np.concatenate([half, middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(1e9))])
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    for shape in ((1, len(x)), (len(x), 1)):
        out, check = guarded(shape, np.float16)
        variant.kernel("kv_store").kv_store_into_unchecked(1, x.reshape(shape)[:, None], out.view(np.uint8)[:, None], 1)
        check()
        same(out.reshape(-1), expected)
