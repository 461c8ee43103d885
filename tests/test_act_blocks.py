"""Activations as blocks of bytes: where each byte lies, how codes are rounded, and the same bytes everywhere."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import SPECIAL, THREADS, F, guarded, kernel_of, normal, same

from fucina import QTensor, ops
from fucina._scalar.act_blocks import BLOCK, NBYTES
from fucina._scalar.act_quant import quantize_rows
from fucina.formats.activations import LAYOUTS, QActivations, layout_of
from fucina.runtime import isa

# (layout, whether halves go to even)
KINDS = [("q8_0", False), ("q8_0", True), ("q8_1", False), ("q8_1", True), ("q8_k", True), ("q8_k306", True)]
kinds = pytest.mark.parametrize(("name", "to_even"), KINDS, ids=lambda v: v if isinstance(v, str) else ("away", "even")[v])


def run(engine: str, name: str, to_even: bool, x: np.ndarray, nth: int = 1) -> np.ndarray:
    spec = LAYOUTS[name]
    out, check = guarded((len(x), x.shape[1] // spec.block * spec.nbytes), np.uint8)
    kernel_of(engine)("act_blocks").quantize_blocks_into_unchecked(spec.number, to_even, x, out, nth)
    check()
    return out


def everywhere(name: str, to_even: bool, x: np.ndarray) -> QActivations:
    """What the specification, every variant and any number of threads must give."""
    expected = run("scalar", name, to_even, x)
    for engine in isa.runnable_variants():
        for nth in THREADS:
            found = run(engine, name, to_even, x, nth)
            # NaN scales may have any payload; codes and sums of their blocks are zero all the same.
            a, b = QActivations(found, name, x.shape), QActivations(expected, name, x.shape)
            same(a.scales, b.scales, f"scales of {engine} on {nth}")
            if not np.isnan(b.scales).any():
                same(found, expected, f"{engine} on {nth} threads")
            same(a.codes, b.codes, f"codes of {engine} on {nth}")
            if a.spec.summed:
                same(a.sums, b.sums, f"sums of {engine} on {nth}")
    return QActivations(expected, name, x.shape)


def rounded(t: float, to_even: bool) -> int:
    return round(t) if to_even else int(np.floor(abs(t) + 0.5)) * (1 if t >= 0 else -1)


def by_hand(name: str, to_even: bool, x: np.ndarray) -> bytes:
    """One block by its definition, with Python's numbers where they are exact."""
    if name == "q8_k":
        first = x[np.argmax(np.abs(x))]
        c = F(-127) / first
        q = [min(round(float(F(v * c))), 127) for v in x]
        sums = [sum(q[i : i + 16]) for i in range(0, 256, 16)]
        return struct.pack("<f256b16h", F(1) / c, *q, *sums)
    d = np.abs(x).max() / F(127)
    q = [rounded(float(F(v * (F(1) / d))), to_even) for v in x]
    if name == "q8_0":
        return struct.pack("<e32b", float(d), *q)
    if name == "q8_1":
        return struct.pack("<ee32b", float(d), float(d * F(sum(q))), *q)
    return struct.pack("<e256b16x16h", float(d), *q, *[sum(q[i : i + 16]) for i in range(0, 256, 16)])


def test_the_layouts_are_those_of_the_kernels():
    assert [(s.block, s.nbytes) for s in LAYOUTS.values()] == list(zip(BLOCK, NBYTES))
    assert [s.number for s in LAYOUTS.values()] == [0, 1, 2, 3]
    assert {name: s.nbytes for name, s in LAYOUTS.items()} == {"q8_0": 34, "q8_1": 36, "q8_k": 292, "q8_k306": 306}
    assert layout_of("Q8_K").nbytes == 292
    with pytest.raises(ValueError, match="unknown layout of activations 'q9'; known: q8_0, q8_1, q8_k, q8_k306"):
        layout_of("q9")


@kinds
def test_every_byte_is_where_the_definition_says(name, to_even):
    block = LAYOUTS[name].block
    x = normal(5, 3 * block, seed=4)
    found = everywhere(name, to_even, x).blocks.reshape(-1, LAYOUTS[name].nbytes)
    for i, part in enumerate(x.reshape(-1, block)):
        assert found[i].tobytes() == by_hand(name, to_even, part), f"block {i}"


def test_the_parts_of_the_306_byte_block():
    a = everywhere("q8_k306", True, normal(4, 512))
    assert a.data.shape == (4, 2 * 306) and not a.blocks[..., 258:274].any()
    same(a.sums, a.codes.reshape(4, 2, 16, 16).sum(-1, dtype=np.int16))
    same(a.blocks[..., 274:306].copy().view(np.int16), a.sums)
    same(a.scales, a.blocks[..., :2].copy().view(np.float16)[..., 0].astype(F))
    same(a.codes.copy(), a.blocks[..., 2:258].copy().view(np.int8))


@pytest.mark.parametrize(("name", "kind"), [("q8_0", 0), ("q8_1", 1), ("q8_k", 2)])
def test_blocks_hold_what_products_use(name, kind):
    x = normal(9, 512, seed=2)
    q, d, sums = quantize_rows(kind, x)
    a = everywhere(name, LAYOUTS[name].rounding == "even", x)
    np.testing.assert_array_equal(a.codes, q)
    np.testing.assert_array_equal(a.scales, d)
    if name == "q8_k":
        np.testing.assert_array_equal(a.sums, sums[..., :16])
    elif name == "q8_1":
        np.testing.assert_array_equal(a.sums[..., 0].astype(F), sums)


def test_q8_0_blocks_are_those_of_the_weight_format():
    x = normal(6, 64)
    same(ops.quantize_activations(x, "q8_0").data, ops.quantize(x, "q8_0").data)


@pytest.mark.parametrize("name", LAYOUTS)
def test_halves(name):
    """With a largest magnitude of 127 the scale is 1, and what is rounded is x itself."""
    block, ties = LAYOUTS[name].block, [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5]
    x = np.zeros((1, block), F)
    # ggml's q8_k scales by -127 over the first largest value, which makes c = 1 when that is negative.
    x[0, :9] = [-127, *ties]
    even = everywhere(name, True, x).codes[0, 0, 1:9].tolist()
    assert even == [0, 2, 2, 0, -2, -2, 126, -126]
    if not LAYOUTS[name].summed:
        assert everywhere(name, False, x).codes[0, 0, 1:9].tolist() == [1, 2, 3, -1, -2, -3, 127, -127]
    assert ops.quantize_activations(x, name).data.tobytes() == run("scalar", name, LAYOUTS[name].summed, x).tobytes()


@kinds
@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-38, 3e-38, 1e-30, 1.0, 1e5, 9e6, 1e30, 3e38])
def test_all_magnitudes_stay_within_127(name, to_even, size):
    with np.errstate(over="ignore", under="ignore"):
        x = np.clip(normal(7, 3 * LAYOUTS[name].block) * F(size), -3.4e38, 3.4e38).astype(F)
    codes = everywhere(name, to_even, x).codes
    assert codes.min() >= -127 and codes.max() <= 127


@kinds
def test_a_million_values(name, to_even):
    """More than 10,000 blocks with ties among them: one inverse on all paths."""
    x = normal(4000, 256, seed=3)
    x[::3] = np.round(x[::3] * 40) / 2
    codes = everywhere(name, to_even, x).codes
    assert (np.abs(codes.astype(int)).max(-1) == 127).all()


@kinds
def test_zeros_make_no_nan(name, to_even):
    x = np.zeros((2, LAYOUTS[name].block), F)
    x[1] = -0.0
    assert not everywhere(name, to_even, x).data.any()


@kinds
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_blocks_with_nan_or_infinity(name, to_even, bad):
    block = LAYOUTS[name].block
    x = normal(1, 3 * block)
    x[0, block + 5] = bad
    a = everywhere(name, to_even, x)
    assert np.isnan(a.scales).tolist() == [[False, True, False]]
    assert not a.codes[0, 1].any() and a.codes[0, 0].any() and a.codes[0, 2].any()
    if a.spec.summed:
        assert not a.sums[0, 1].any()


@kinds
def test_the_way_back(name, to_even):
    """At most half a step off, and a little for the half-precision scale."""
    x = normal(50, 512, seed=6)
    a = everywhere(name, to_even, x)
    step = np.repeat(np.abs(a.scales), a.spec.block, axis=-1)
    assert (np.abs(x - a.dequantize()) <= 0.56 * step).all()
    assert a.dequantize().dtype == F and a.dequantize().shape == x.shape


@given(st.lists(st.sampled_from(SPECIAL.tolist()) | st.floats(-200, 200, width=32), min_size=256, max_size=256),
       st.sampled_from(KINDS))
def test_any_block(values, kind):
    everywhere(*kind, np.array([values], F))


# ---- the operation -----------------------------------------------------------------------------------------------


def test_any_shape_and_layout_in_memory():
    x = normal(2, 3, 512)
    for name in LAYOUTS:
        a = ops.quantize_activations(x, name)
        assert a.shape == x.shape and a.layout == name and repr(a).startswith(f"QActivations({name}, shape=(2, 3, 512)")
        same(a.data, ops.quantize_activations(x.reshape(6, 512), name).data.reshape(a.data.shape))
        same(a.data, ops.quantize_activations(np.asfortranarray(x), name).data)
        same(a.data[1, 2], ops.quantize_activations(x[1, 2], name).data, "alone and in a batch")
        assert ops.quantize_activations(x[:0], name).data.shape == (0, *a.data.shape[1:])
        assert ops.quantize_activations(x[..., :0], name).data.shape == (2, 3, 0)


def test_refusals():
    x = normal(2, 512)
    with pytest.raises(ValueError, match="q8_k306 rows hold a multiple of 256 elements, got 288"):
        ops.quantize_activations(normal(2, 288), "q8_k306")
    with pytest.raises(ValueError, match="q8_1 rows hold a multiple of 32 elements, got 33"):
        ops.quantize_activations(normal(33), "q8_1")
    with pytest.raises(TypeError, match="x must be float32"):
        ops.quantize_activations(x.astype(np.float64), "q8_0")
    with pytest.raises(ValueError, match="unknown layout"):
        ops.quantize_activations(x, "q4_0")
    with pytest.raises(ValueError, match="at least one axis"):
        ops.quantize_activations(F(1), "q8_0")
    with pytest.raises(ValueError, match="rounding of q8_k must be 'even', got 'away'"):
        ops.quantize_activations(x, "q8_k", rounding="away")
    with pytest.raises(ValueError, match="rounding of q8_0 must be 'away' or 'even', got 'up'"):
        ops.quantize_activations(x, "q8_0", rounding="up")


def test_bytes_from_elsewhere():
    x = normal(3, 256)
    a = ops.quantize_activations(x, "q8_k306")
    same(QActivations(a.data.reshape(-1), "Q8_K306", x.shape).dequantize(), a.dequantize())
    same(QActivations(ops.quantize(x, "q8_0").data, "q8_0", x.shape).dequantize(), QTensor.dequantize(ops.quantize(x, "q8_0")))
    with pytest.raises(TypeError, match="must be uint8, got int8"):
        QActivations(a.data.view(np.int8), "q8_k306", x.shape)
    with pytest.raises(ValueError, match="of shape \\(3, 256\\) need 876 bytes, got 918"):
        QActivations(a.data, "q8_k", x.shape)
    with pytest.raises(ValueError, match="multiple of 256 elements, got 255"):
        QActivations(a.data, "q8_k306", (3, 255))
    with pytest.raises(ValueError, match="without negative sizes"):
        QActivations(a.data, "q8_k306", ())
    with pytest.raises(TypeError, match="shape of activations must be integers, got \\(32.7,\\)"):
        QActivations(np.zeros(34, np.uint8), "q8_0", (32.7,))
    with pytest.raises(ValueError, match="more than memory can address"):
        QActivations(np.zeros(0, np.uint8), "q8_0", (2**40, 2**40, 0))
