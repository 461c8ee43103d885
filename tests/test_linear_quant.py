"""Products with quantized weights: every format, packed and raw, every tile, the extremes of codes and scales."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import (
    ACTIVATION_BLOCKS,
    HALVES,
    PRODUCTS,
    SPECIAL,
    THREADS,
    F,
    agree,
    close,
    fields,
    guarded,
    layouts,
    linear64,
    normal,
    random_blocks,
    same,
    set_half,
    set_scales,
    unit,
)
from tolerances import chain

from fucina import QTensor, ops
from fucina._scalar._f32 import fma
from fucina._scalar.act_quant import quantize_rows
from fucina.formats import FORMATS

formats = pytest.mark.parametrize("name", PRODUCTS)
COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 64)
# Where blocks keep the integer scales of their sub-blocks.
SCALES = {
    "q2_k": slice(0, 16), "q3_k": slice(96, 108), "q4_k": slice(4, 16), "q5_k": slice(4, 16), "q6_k": slice(192, 208),
    "iq4_xs": slice(2, 8), "nvfp4": slice(0, 4), "iq2_xs": slice(66, 74), "iq2_s": slice(74, 82),
    "iq3_s": slice(106, 110), "iq1_m": slice(48, 56),
}


def both(x, w, bias=None, **how) -> np.ndarray:
    """The product with raw blocks, after seeing the same bits with packed ones, on all engines."""
    y = agree(lambda: ops.linear(x, w, bias), **how)
    packed = w.pack()
    same(agree(lambda: ops.linear(x, packed, bias), **how), y, "packed against raw")
    return y


@formats
@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
def test_depths(name, blocks):
    k = blocks * unit(name)
    x, w, bias = normal(19, k), random_blocks(name, 20, k), normal(20)
    same(both(x, w, bias), both(x, w) + bias, "with bias")


@formats
def test_heights_and_widths(name):
    """A part of the product is the product of a part: every m and n give the bits of the specification."""
    k = 2 * unit(name)
    x, w = normal(64, k), random_blocks(name, 64, k)
    full = both(x, w)
    for m in COUNTS:
        for n in COUNTS:
            y = both(x[:m], w[:n], scalar=False, threads=THREADS if m == n else (1,))
            same(y, full[:m, :n], f"{m} x {n}")


@formats
def test_against_decoded_weights_and_activations(name):
    """The sum in float64 of the very numbers that the blocks stand for."""
    spec = FORMATS[name]
    k = 3072
    x, w = normal(17, k), random_blocks(name, 33, k)
    kind = list(ACTIVATION_BLOCKS).index(spec.activation)
    q, d, sums = quantize_rows(kind, x)
    decoded = (q * d[..., None].astype(np.float64)).reshape(x.shape)
    exact, size = linear64(decoded, w.dequantize())
    f = fields(w)
    if kind == 1:
        # The offsets meet the sums that are stored in half precision.
        m = f["m"].astype(np.float64)
        exact += sums @ m.T - (decoded.reshape(17, -1, 32).sum(-1) @ m.T)
        size += np.abs(sums) @ np.abs(m).T
    if "mn" in f:
        # In decoded weights codes and mins are rounded together; here they are summed apart.
        mins = (f["m"][..., None] * f["mn"]).astype(np.float64).reshape(33, -1)
        size += np.abs(decoded).reshape(17, mins.shape[1], -1).sum(-1) @ np.abs(mins).T
    y = both(x, w, scalar=False)
    close(y, exact, chain(2 * k // 16 + 4) * size, "against float64")


@formats
def test_close_to_the_product_without_quantized_activations(name):
    """Eight bits of activations cost about a part in two hundred and fifty of each block's largest."""
    k = 2048
    x, w = normal(8, k), random_blocks(name, 64, k)
    exact, _ = linear64(x, w.dequantize())
    y = ops.linear(x, w)
    assert np.abs(y - exact).max() < 0.02 * np.abs(exact).max()


@formats
@pytest.mark.parametrize(("m", "n", "blocks"), [
    (1, 16, 73), (1, 2003, 1), (2, 9, 41), (130, 11, 1), (37, 1, 5), (5, 67, 3),
])
def test_large_and_prime(name, m, n, blocks):
    k = blocks * unit(name)
    x, w = normal(m, k), random_blocks(name, n, k)
    y = both(x, w, scalar=False)
    for i in (0, m // 2, m - 1):
        same(ops.linear(x[i], w), y[i], f"row {i} alone")
        same(ops.linear(x[i], w.pack()), y[i], f"row {i} alone, packed")


@formats
def test_batches(name):
    k = unit(name)
    x, w = normal(50, k), random_blocks(name, 24, k)
    y = both(x, w)
    for size in (1, 3, 7, 16, 17):
        parts = [ops.linear(x[i : i + size], w) for i in range(0, 50, size)]
        same(np.concatenate(parts), y, f"batches of {size}")
    same(ops.linear(x.reshape(2, 5, 5, k), w), y.reshape(2, 5, 5, 24))
    same(ops.linear(x[3], w.pack()), y[3])


# ---- extremes ----------------------------------------------------------------------------------------------------


def exact_product(w: QTensor, x: np.ndarray) -> np.ndarray:
    """Products of whole numbers as integers, rounded where the specification rounds; all scales are powers of two."""
    f = fields(w)
    n, k = w.shape
    q, a = f["q"].reshape(n, k).astype(np.int64), x.astype(np.int64)
    if w.spec.activation != "q8_k":
        y = np.zeros((len(x), n), F)
        runs = f["sc"].size // n if "sc" in f else k // 32
        scale = np.repeat(f["d"], runs // f["d"].shape[1], axis=1) * (f["sc"].reshape(n, -1) if "sc" in f else 1)
        for i in range(runs):
            run = slice(i * k // runs, (i + 1) * k // runs)
            y = fma(scale[:, i].astype(F), (a[:, run] @ q[:, run].T).astype(F), y)
        # The offset of 1 meets the sum rounded to half precision.
        return y + a.sum(-1)[:, None].astype(np.float16) if "m" in f else y
    ints = {key: np.repeat(f[key].reshape(n, -1), k // (f[key].size // n), axis=1) for key in ("sc", "mn") if key in f}
    y = (a @ (q * ints.get("sc", 1)).T).astype(F) * f["d"][:, 0]
    if "mn" in ints:
        mins = (a @ ints["mn"].T).astype(F) * f["m"][:, 0]
        y = (y.astype(np.float64) - mins).astype(F)
    return y


def extreme_activations(size: int) -> np.ndarray:
    """Rows with ±127 in every arrangement that fills a 16-bit sum; 127 is there, so quantizing changes nothing.

    For blocks of 256 the first of largest magnitude is negative, so that the scale is +1.
    """
    i = np.arange(size)
    rows = [np.full(size, s) for s in (127, -127)]
    rows += [np.where(i // run % 2, s, -s) for run in (1, 2, 4, 8, 16, 32, 128) if run < size for s in (127, -127)]
    rows += [np.where(i % step == at, -127, 0) for step, at in ((4, 0), (4, 3), (32, 31), (8, 5))]
    rows = np.array(rows)
    if size == 256:
        first = np.take_along_axis(rows, (rows != 0).argmax(-1)[:, None], -1)
        rows = rows * -np.sign(first)
    return rows.astype(F)


@formats
def test_extreme_blocks_in_exact_integers(name):
    """No intermediate 16-bit sum overflows: all codes at their ends against all activations at theirs."""
    spec = FORMATS[name]
    rng = np.random.default_rng(0)
    fills = [0x00, 0x0F, 0xF0, 0xFF, 0x7F, 0x80, 0x81, 0x55, 0xAA, 0x3F, 0xC0]
    blocks = [np.full(spec.nbytes, fill) for fill in fills] + [rng.choice([0, 0x80, 0x7F, 0xFF], spec.nbytes)]
    if name in SCALES:
        # Extreme codes also with the largest scales of either sign.
        for fill in (0xFF, 0x7F, 0x80, 0x3F):
            for block in blocks[: len(fills)]:
                block = block.copy()
                block[SCALES[name]] = fill
                blocks.append(block)
    k = unit(name)
    # The largest codes that the format's own encoder makes, in several patterns of signs.
    signs = np.stack([np.ones(k), np.resize([1, -1], k), rng.choice([1, -1], k), rng.choice([1, 1, -1], k)]).astype(F)
    encoded = ops.quantize(signs, name, imatrix=np.ones(k, F)).data.reshape(-1, spec.nbytes)
    blocks = np.concatenate([np.repeat(np.array(blocks, np.uint8), k // spec.block, axis=0), encoded])
    set_scales(name, blocks, 1.0)
    w = QTensor(blocks.reshape(-1), name, (len(blocks) * spec.block // k, k))
    x = extreme_activations(ACTIVATION_BLOCKS[spec.activation])
    # And for every row the activations that bring its products to one sign.
    along = np.where(fields(w)["q"].reshape(-1, k) < 0, F(-127), F(127))
    x = np.concatenate([np.tile(x, k // x.shape[1]), along, -along])
    y = both(x, w)
    same(y, exact_product(w, x), "against exact integers")


@formats
def test_extreme_rows_of_many_blocks(name):
    spec = FORMATS[name]
    k = 4 * unit(name)
    x = extreme_activations(ACTIVATION_BLOCKS[spec.activation]) * F(1e-3)
    x = np.tile(x, k // x.shape[1])
    for byte in (0x00, 0x7F, 0x80, 0xFF):
        w = QTensor(np.full((9, spec.row_bytes(k)), byte, np.uint8), name, (9, k))
        for i, row in enumerate(w.data):
            set_scales(name, row.reshape(-1, spec.nbytes), i / 2 - 2)
        both(x, w)


@formats
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_activation_that_is_not_finite_ruins_its_row_only(name, value):
    size = unit(name)
    x, w = normal(size + 3, 2 * size), random_blocks(name, 9, 2 * size)
    clean = ops.linear(x, w)
    x[np.arange(size), size + np.arange(size)] = value      # every place of a block
    y = both(x, w, threads=(1, 2))
    assert np.isnan(y[:size]).all()
    same(y[size:], clean[size:])


@formats
def test_any_scale_of_the_weights(name):
    """Infinite, NaN, subnormal and zero scales: the same bits everywhere, and no other row sees them."""
    spec = FORMATS[name]
    k = 2 * unit(name)
    x, w = normal(5, k), random_blocks(name, 64, k)
    clean = ops.linear(x, w)
    halves = np.array([np.nan, np.inf, -np.inf, 6e-8, -6e-8, 6e-5, 0.0, -0.0, 65504.0], np.float16)
    for at in HALVES.get(name, ()):
        ruined = QTensor(w.data.copy(), name, w.shape)
        set_half(ruined.data.reshape(64, -1, spec.nbytes)[::7, 1], at, np.resize(halves, 10))
        y = both(x, ruined)
        keep = np.arange(64) % 7 != 0
        same(y[:, keep], clean[:, keep])
        assert np.isnan(y[:, 0]).all()
    both(x, random_blocks(name, 64, k, finite=False))


@formats
@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-40, 3e-38, 1e-20, 1e20, 3e38])
def test_magnitudes_of_activations(name, size):
    with np.errstate(over="ignore", under="ignore"):
        x = np.clip(normal(4, 512) * F(size), -3.4e38, 3.4e38).astype(F)
    y = both(x, random_blocks(name, 9, 512))
    if size < 1e-39:
        assert (y == 0).all()


@formats
def test_special_activations(name):
    x = np.zeros((len(SPECIAL), 256), F)
    x[:, 13] = SPECIAL
    x[:, 14] = SPECIAL[::-1]
    both(x, random_blocks(name, 10, 256))


# ---- arrays ------------------------------------------------------------------------------------------------------


@formats
def test_layouts(name, tmp_path):
    k = 2 * unit(name)
    x, w, bias = normal(5, k), random_blocks(name, 9, k), normal(9)
    for how, a in layouts(x, tmp_path):
        same(agree(lambda a=a: ops.linear(a, w, bias)), ops.linear(a.copy(), w, bias), f"x {how}")
    for how, a in layouts(w.data, tmp_path):
        view, copy = QTensor(a, name, w.shape), QTensor(np.array(a), name, w.shape)
        same(agree(lambda view=view: ops.linear(x, view, bias)), ops.linear(x, copy, bias), f"w {how}")
        same(ops.linear(x, view.pack(), bias), ops.linear(x, copy, bias), f"packed w {how}")


@formats
@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 7), (16, 8), (17, 9), (33, 31)])
def test_nothing_is_written_beyond_out(name, m, n):
    k = unit(name)
    x, w, bias = normal(m, k), random_blocks(name, n, k), normal(n)

    def call(w):
        out, check = guarded((m, n))
        assert ops.linear(x, w, bias, out=out) is out
        check()
        return out

    packed = w.pack()
    same(agree(lambda: call(w), scalar=False), ops.linear(x, w, bias))
    same(agree(lambda: call(packed), scalar=False), ops.linear(x, w, bias))


@given(st.sampled_from(PRODUCTS), st.integers(1, 40), st.integers(1, 40), st.integers(1, 4), st.booleans())
def test_any_shape(name, m, n, blocks, finite):
    k = blocks * unit(name)
    both(normal(m, k), random_blocks(name, n, k, finite=finite), normal(n))
