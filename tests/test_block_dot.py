"""Dots of two kinds of blocks: exact integers, one order of floating-point steps, and pairs that fit."""

from __future__ import annotations

import numpy as np
import pytest
from references import F, agree, fields, normal, random_blocks, same, set_half

from fucina import QTensor, ops
from fucina.formats import FORMATS
from fucina.formats.activations import LAYOUTS, QActivations, pair, partners

WEIGHTS = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"]
PAIRS = [(name, layout) for name in WEIGHTS for layout in partners(FORMATS[name])]
pairs = pytest.mark.parametrize(("name", "layout"), PAIRS)


def random_activations(layout: str, m: int, k: int, seed: int = 0, finite: bool = True) -> QActivations:
    """Any bytes: codes of -128 and sums that are not sums included."""
    spec = LAYOUTS[layout]
    rng = np.random.default_rng([seed, m, k])
    blocks = rng.integers(0, 256, (m * k // spec.block, spec.nbytes), np.uint8)
    if finite:
        if spec.scale == "<f4":
            blocks[:, :4] = rng.uniform(-0.02, 0.02, (len(blocks), 1)).astype(F).view(np.uint8)
        else:
            set_half(blocks, 0, rng.uniform(-0.02, 0.02, len(blocks)))
        if layout == "q8_1":
            set_half(blocks, 2, rng.uniform(-2, 2, len(blocks)))
    return QActivations(blocks.reshape(-1), layout, (m, k))


def one(name: str, layout: str, f: dict, i: int, a: QActivations) -> F:
    """Row ``i`` of the weights times row 0 of the activations with Python's integers, one float32 step after the other."""
    s = F(0)
    with np.errstate(all="ignore"):
        for b in range(a.scales.shape[1]):
            d, da = f["d"][i, b], a.scales[0, b]
            q, c = f["q"][i, b].tolist(), a.codes[0, b].tolist()
            products = [x * y for x, y in zip(q, c)]
            if name in ("q4_0", "q8_0"):
                s = s + F(sum(products)) * d * da
            elif name == "q5_0":
                s = s + F(sum(products)) * (d * da)
            elif layout == "q8_1":
                s = s + (F(sum(products)) * (d * da) + f["m"][i, b] * F(a.sums[0, b, 0]))
            elif name in ("q4_1", "q5_1"):
                s = s + da * (d * F(sum(products)) + f["m"][i, b] * F(sum(c)))
            elif name == "q6_k":
                for g in range(16):
                    s = s + d * da * F(f["sc"][i, b, g]) * F(sum(products[16 * g : 16 * g + 16]))
            else:
                sums = a.sums[0, b].tolist()
                mins = sum(int(f["mn"][i, b, j]) * (sums[2 * j] + sums[2 * j + 1]) for j in range(8))
                s = s - f["m"][i, b] * da * F(mins)
                total = sum(int(f["sc"][i, b, j]) * sum(products[32 * j : 32 * j + 32]) for j in range(8))
                s = s + d * da * F(total)
    return s


@pairs
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 64])
def test_the_order_of_the_steps(name, layout, blocks):
    """On random bytes, per block and for whole rows."""
    k = min(blocks * LAYOUTS[layout].block, 4096)
    w, a = random_blocks(name, 5, k, seed=blocks), random_activations(layout, 1, k, seed=blocks)
    y = agree(lambda: ops.block_dot(a, w))
    f = fields(w)
    same(y, np.array([[one(name, layout, f, i, a) for i in range(5)]], F))


@pairs
def test_any_scale(name, layout):
    """Infinities, NaN and subnormal numbers among the scales."""
    w, a = random_blocks(name, 33, 512, finite=False), random_activations(layout, 7, 512, finite=False)
    with np.errstate(all="ignore"):
        agree(lambda: ops.block_dot(a, w))


@pairs
@pytest.mark.parametrize("codes", [(127, 127), (-128, -128), (-128, 127), (127, -128), (-127, -127)])
def test_extreme_blocks_are_exact(name, layout, codes):
    """Activations at the ends of their range against weights with all bits set, none set, and every other one."""
    spec = LAYOUTS[layout]
    for fill in (0x00, 0xFF, 0x55, 0xAA):
        blocks = np.full((3 * 512 // FORMATS[name].block, FORMATS[name].nbytes), fill, np.uint8)
        for at in {"q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}.get(name, (0,)):
            set_half(blocks, at, 1.0)
        w = QTensor(blocks.reshape(-1), name, (3, 512))
        raw = np.zeros((2 * 512 // spec.block, spec.nbytes), np.uint8)
        a = QActivations(raw, layout, (2, 512))
        a.codes[0], a.codes[1] = codes[0], np.tile(codes, spec.block // 2)
        if spec.scale == "<f4":
            a.blocks[..., :4] = np.array([1], F).view(np.uint8)
        else:
            a.blocks[..., :2] = np.array([1], np.float16).view(np.uint8)
        if spec.summed:
            sums = a.codes.reshape(2, -1, 16, 16).sum(-1, dtype=np.int16)
            a.blocks[..., spec.sums_at : spec.sums_at + 32] = sums.view(np.uint8)
        elif layout == "q8_1":
            a.blocks[..., 2:4] = a.codes.sum(-1, keepdims=True, dtype=np.int16).astype(np.float16).view(np.uint8)
        y = agree(lambda a=a, w=w: ops.block_dot(a, w))
        exact = a.codes.reshape(2, 512).astype(float) @ ops.dequantize(w).astype(float).T
        assert (np.abs(y - exact) <= 1e-6 * np.abs(exact).max()).all()


@pytest.mark.parametrize("name", ["q4_k", "q5_k"])
@pytest.mark.parametrize("layout", ["q8_k", "q8_k306"])
def test_the_minimum_term_alone(name, layout):
    """Codes and scales 0, random mins: minus dmin times the sum of mins and block sums."""
    rng = np.random.default_rng(1)
    spec = FORMATS[name]
    mins = rng.integers(0, 64, 8)
    blocks = np.zeros((1, spec.nbytes), np.uint8)
    set_half(blocks, 0, 1.0)
    set_half(blocks, 2, 0.25)
    blocks[0, 8:12] = mins[:4] | mins[4:] >> 4 << 6
    blocks[0, 12:16] = (mins[4:] & 15) << 4
    a = ops.quantize_activations(normal(1, 256), layout)
    total = int((mins * a.sums.reshape(8, 2).sum(-1)).sum())
    y = agree(lambda: ops.block_dot(a, QTensor(blocks.reshape(-1), name, (1, 256))))
    assert y[0, 0] == F(0) - F(0.25) * a.scales[0, 0] * F(total) and total != 0


@pairs
def test_it_is_the_product_of_what_both_sides_mean(name, layout):
    """Against float64 of the decoded blocks, and, less sharply, of the activations before they were rounded."""
    x, w = normal(5, 1024), random_blocks(name, 9, 1024)
    a = ops.quantize_activations(x, layout)
    y = agree(lambda: ops.block_dot(a, w), scalar=False)
    decoded = ops.dequantize(w).astype(float)
    size = np.abs(a.dequantize().astype(float)) @ np.abs(decoded).T
    # The half-precision sum of q8_1 has an error of its own.
    bound = 1e-5 if layout != "q8_1" else 4e-4
    assert (np.abs(y - a.dequantize().astype(float) @ decoded.T) <= bound * size).all()
    assert (np.abs(y - x.astype(float) @ decoded.T) <= 0.01 * size).all()
    assert (np.abs(y - ops.linear(x, w)) <= (1e-5 if layout == FORMATS[name].activation else 0.01) * size).all()


@pairs
def test_rows_do_not_know_each_other(name, layout):
    """Rows of activations come first; a row alone has the same bits."""
    a, w = random_activations(layout, 5, 512), random_blocks(name, 11, 512)
    y = agree(lambda: ops.block_dot(a, w))
    assert y.shape == (5, 11)
    for t in range(5):
        alone = QActivations(a.data[t], layout, (512,))
        same(ops.block_dot(alone, w), y[t])
    same(ops.block_dot(QActivations(a.data[:4], layout, (2, 2, 512)), w).reshape(4, 11), y[:4])


def test_one_function_pairs_weights_with_activations():
    """What belongs together is accepted, everything else is refused, here and by the function itself."""
    assert pair(FORMATS["q4_k"]).name == "q8_k" and pair(FORMATS["q4_1"]).name == "q8_1"
    assert {name: partners(FORMATS[name]) for name in WEIGHTS} == {
        "q4_0": ("q8_0",), "q4_1": ("q8_1", "q8_0"), "q5_0": ("q8_0",), "q5_1": ("q8_1", "q8_0"), "q8_0": ("q8_0",),
        "q4_k": ("q8_k", "q8_k306"), "q5_k": ("q8_k", "q8_k306"), "q6_k": ("q8_k", "q8_k306"),
    }
    for name in FORMATS:
        for layout in LAYOUTS:
            if layout in partners(FORMATS[name]):
                assert pair(FORMATS[name], layout).name == layout
                continue
            with pytest.raises(ValueError, match=f"{name} weights multiply"):
                pair(FORMATS[name], layout)
            if name in WEIGHTS:
                with pytest.raises(ValueError, match=f"{name} weights multiply .* activations, got {layout}"):
                    ops.block_dot(random_activations(layout, 1, 256), random_blocks(name, 1, 256))


def test_refusals():
    a, w = random_activations("q8_k", 2, 512), random_blocks("q4_k", 3, 512)
    with pytest.raises(TypeError, match="a must be QActivations .*got ndarray"):
        ops.block_dot(a.data, w)
    with pytest.raises(TypeError, match="w must be a QTensor, got ndarray"):
        ops.block_dot(a, w.data)
    with pytest.raises(TypeError, match="w must be a QTensor, got PackedQTensor"):
        ops.block_dot(a, w.pack())
    with pytest.raises(ValueError, match="must have the 512 columns"):
        ops.block_dot(random_activations("q8_k", 2, 256), w)
    with pytest.raises(ValueError, match="w must be a matrix"):
        ops.block_dot(a, random_blocks("q4_k", 2, 3, 512))
    with pytest.raises(ValueError, match="block_dot takes weights in q4_0, .*, got q2_k"):
        ops.block_dot(a, random_blocks("q2_k", 3, 512))
    with pytest.raises(ValueError, match="out must have shape \\(2, 3\\)"):
        ops.block_dot(a, w, out=np.empty((3, 2), F))
    assert ops.block_dot(QActivations(np.empty(0, np.uint8), "q8_k", (0, 512)), w).shape == (0, 3)
    nothing = QTensor(np.empty(0, np.uint8), "q4_k", (3, 0))
    same(ops.block_dot(QActivations(np.empty(0, np.uint8), "q8_k", (2, 0)), nothing), np.zeros((2, 3), F))
