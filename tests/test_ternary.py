"""Ternary weights and float activations: additions only, one order, the values of the decoder."""

from __future__ import annotations

import numpy as np
import pytest
from references import SPECIAL, F, agree, close, fields, guarded, kernel_of, linear64, normal, random_blocks, same
from tolerances import LANES, U

from fucina import QTensor, ops
from fucina.formats import FORMATS
from fucina.runtime import isa

NAMES = ["tq1_0", "tq2_0", "i2_s"]
names = pytest.mark.parametrize("name", NAMES)


@names
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8, 9, 31])
@pytest.mark.parametrize(("n", "k"), [(1, 256), (7, 512), (17, 1024)])
def test_the_same_bits_everywhere(name, m, n, k):
    """Random bytes: also the code that no encoder writes."""
    x, w, bias = normal(m, k), random_blocks(name, n, k, seed=m), normal(n)
    y = agree(lambda: ops.ternary_linear(x, w, bias))
    for t in (0, m - 1):
        same(ops.ternary_linear(x[t], w, bias), y[t], "a row alone")
    expected, size = linear64(x, ops.dequantize(w), bias)
    close(y, expected, (k / LANES + k / FORMATS[name].block + 8) * U * size, "float64 of the decoded weights")


@names
def test_one_sum_by_hand(name):
    """Sixteen lanes, the tree, the scale; elements one after the other in plain Python."""
    k = 512
    x, w = normal(k), random_blocks(name, 3, k)
    f, block = fields(w), FORMATS[name].block
    y = ops.ternary_linear(x, w)
    for r in range(3):
        total = F(0)
        for b in range(k // block):
            lane = [F(0)] * 16
            for i in range(block):
                v, code = x[b * block + i], int(f["q"][r, b, i])
                lane[i % 16] = lane[i % 16] + (F(0) if code == 0 else -v if code < 0 else v + v if code == 2 else v)
            v = [lane[i] + lane[i + 8] for i in range(8)]
            s = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
            total = F(float(f["d"][r, b]) * float(s) + float(total))     # exact in float64 but for one rounding
        assert abs(y[r] - total) <= np.spacing(abs(total))


@names
def test_special_numbers(name):
    """Infinity and NaN reach the outputs whose weight there is not 0, and only these."""
    k = 512
    x = normal(6, k)
    for t in range(1, 6):
        x[t, 37 * t] = SPECIAL[[4, 5, 6, 4, 11][t - 1]]
    x[5, 100] = -np.inf
    w = random_blocks(name, 33, k)
    with np.errstate(all="ignore"):
        y = agree(lambda: ops.ternary_linear(x, w))
    zero = ops.dequantize(w)[:, 37] == 0
    assert np.isfinite(y[1, zero]).all() and np.isinf(y[1, ~zero]).all() and np.isfinite(y[0]).all()


@names
def test_it_is_linear_without_rounding_the_activations(name):
    rng = np.random.default_rng(3)
    values = rng.integers(-1, 2, (9, 512)).astype(F)
    w = ops.quantize(values * F(0.25), name)
    np.testing.assert_array_equal(ops.dequantize(w), values * 0.25)
    x = normal(5, 512)
    expected = x.astype(float) @ values.T * 0.25
    assert np.abs(ops.ternary_linear(x, w) - expected).max() < 2e-5
    assert 2e-5 < np.abs(ops.linear(x, w) - expected).max() < 0.5
    whole = np.round(x * 64)
    np.testing.assert_array_equal(ops.ternary_linear(whole, w), whole @ values.T * 0.25)


def test_the_scale_of_a_tensor():
    x, w = normal(4, 256), random_blocks("i2_s", 6, 256)
    scaled = QTensor(w.data, "i2_s", w.shape, scale=0.375)
    same(ops.ternary_linear(x, scaled), ops.ternary_linear(x, w) * F(0.375))
    # Blocks of 128: half of what products with rounded activations need.
    assert ops.ternary_linear(normal(4, 384), random_blocks("i2_s", 6, 384)).shape == (4, 6)


@names
def test_it_keeps_within_its_arrays(name):
    spec, x = FORMATS[name], normal(5, 512)
    w = random_blocks(name, 7, 512)
    for engine in ("scalar", *isa.runnable_variants()):
        out, check = guarded((5, 7))
        kernel_of(engine)("ternary").ternary_linear_into_unchecked(spec.number, spec.nbytes, w.data, 1.0, x, None, out, 2)
        check()
        same(out, ops.ternary_linear(x, w))


def test_refusals():
    x, w = normal(2, 256), random_blocks("tq2_0", 3, 256)
    with pytest.raises(ValueError, match="takes weights in tq1_0, tq2_0, i2_s, got q4_k"):
        ops.ternary_linear(x, random_blocks("q4_k", 3, 256))
    with pytest.raises(TypeError, match="w must be a QTensor, got PackedQTensor"):
        ops.ternary_linear(x, w.pack())
    with pytest.raises(ValueError, match="must have the 256 columns"):
        ops.ternary_linear(normal(2, 255), w)
    with pytest.raises(ValueError, match="w must be a matrix"):
        ops.ternary_linear(x, random_blocks("tq2_0", 2, 3, 256))
    with pytest.raises(ValueError, match="bias must have the 3 rows"):
        ops.ternary_linear(x, w, normal(4))
    same(ops.ternary_linear(normal(2, 0), QTensor(np.empty(0, np.uint8), "tq2_0", (3, 0)), normal(3)),
         np.tile(normal(3), (2, 1)))
    assert ops.ternary_linear(normal(0, 256), w).shape == (0, 3)
