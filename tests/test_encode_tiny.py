"""Encoding to level tables, ternary blocks and blocks of one or two bits: ggml's bytes."""

from __future__ import annotations

import numpy as np
import pytest
from encoding import check_awkward, check_error, check_golden, encode, keys, names
from references import agree, normal, same

from fucina import QTensor, ops
from fucina._scalar import _blocks_tiny, encode_tiny

FORMAT = pytest.mark.parametrize("name", names("encode_tiny"))


@pytest.mark.parametrize("key", keys("encode_tiny"))
def test_golden(key):
    check_golden(key)


@FORMAT
@pytest.mark.parametrize("imatrix", [False, True])
def test_awkward_rows(name, imatrix):
    check_awkward(name, 768, imatrix)


@FORMAT
def test_error(name):
    check_error(name, 10000)


def test_a_short_row():
    """Fewer blocks than are encoded side by side."""
    x = normal(3, 352)
    rows = agree(lambda: encode("iq4_nl", x, None))
    same(rows.reshape(-1, 18), agree(lambda: encode("iq4_nl", x.reshape(-1, 32), None)))


def test_four_bit_floats_take_the_nearest_level(variant):
    """The kernel counts middles that lie below; here they, their neighbours and numbers far out are tried."""
    levels = _blocks_tiny.FP4_LEVELS[:8].astype(np.float64)
    for top in (1.0, 0.37, 700.0, 1e5, 1e12):
        step = top / 12
        at = np.concatenate([levels, (levels[1:] + levels[:-1]) / 2]) * step
        x = np.concatenate([at, at * (1 + 1e-6), at * (1 - 1e-6), -at, [top, 0]]).astype(np.float32)
        x = np.resize(x, (64,))[None]
        for name in ("mxfp4", "nvfp4"):
            same(agree(lambda x=x, name=name: encode(name, x, None)), encode(name, x, None))


def test_small_floats_of_nvfp4_round_trip():
    """Every scale is the nearest to itself."""
    codes = np.arange(1, 0x77, dtype=np.uint8)
    blocks = np.zeros((len(codes), 36), np.uint8)
    blocks[:, 0] = codes
    blocks[:, 4] = 7
    x = ops.dequantize(QTensor(blocks.reshape(-1), "nvfp4", (len(codes), 64)))
    again = ops.quantize(x, "nvfp4").data
    np.testing.assert_array_equal(again[:, 0], codes)
    np.testing.assert_array_equal(ops.dequantize(ops.quantize(x, "nvfp4")), x)


def test_exponents_of_mxfp4_follow_the_logarithm_in_single_precision():
    """Just below a power of two that is far from 1, the logarithm rounds up to it."""
    for power in (-100, -64, -3, 0, 1, 5, 40, 100):
        x = np.zeros((3, 32), np.float32)
        x[:, 0] = np.float32(2.0) ** power * (1 - np.float32([0, 2.0**-24, 2.0**-12]))
        e = ops.quantize(x, "mxfp4").data[:, 0].astype(int)
        assert e[0] == power + 125 and e[2] == power + 124 and e[1] in (power + 124, power + 125)
        same(agree(lambda x=x: encode("mxfp4", x, None)), ops.quantize(x, "mxfp4").data)


@pytest.mark.parametrize("name", ["tq1_0", "tq2_0", "q2_0", "q2_0_g128", "i2_s"])
def test_ternary_numbers_are_stored_exactly(name):
    x = np.random.default_rng(5).integers(-1, 2, (6, 512)).astype(np.float32) * np.float32(0.375)
    q = ops.quantize(x, name)
    np.testing.assert_array_equal(ops.dequantize(q), x)
    assert (q.scale == 0.375) if name == "i2_s" else (q.scale is None)


def test_signs_are_stored_exactly():
    x = np.random.default_rng(6).choice(np.float32([-0.5, 0.5]), (6, 512))
    np.testing.assert_array_equal(ops.dequantize(ops.quantize(x, "q1_0")), x)


def test_nearest_of_sixteen_levels():
    levels = _blocks_tiny.IQ4_LEVELS.astype(np.float32)
    middle = (levels[1:] + levels[:-1]) / 2
    below = np.nextafter(middle, -np.inf)
    index = encode_tiny._iq4_level(np.concatenate([levels, middle, below, np.float32([-999, 999])]))
    assert index.tolist() == [*range(16), *range(1, 16), *range(15), 0, 15]
