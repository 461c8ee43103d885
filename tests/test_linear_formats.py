"""Products of the formats that are expanded to code panels: equal to the specification, exact at the extremes."""

from __future__ import annotations

import numpy as np
import pytest
from references import F, agree, linear64, normal, same, set_half

from fucina import QTensor, ops
from fucina._scalar import _blocks
from fucina._scalar.act_quant import BLOCK, quantize_rows
from fucina.formats import FORMATS, PackedQTensor, lattices
from fucina.ops.linear import ACTIVATIONS
from fucina.ops.program import Activations, Program

# Format -> where its blocks keep half-precision scales.
HALVES = {
    "q2_k": [80, 82], "q3_k": [108], "iq4_nl": [0], "iq4_xs": [0], "tq1_0": [52], "tq2_0": [64], "mxfp4": [],
    "nvfp4": [], "q1_0": [0], "q2_0": [0], "q2_0_g128": [0], "i2_s": [], "iq2_xxs": [0], "iq2_xs": [0], "iq2_s": [0],
    "iq3_xxs": [0], "iq3_s": [0], "iq1_s": [0], "iq1_m": [],
}
COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33)
formats = pytest.mark.parametrize("name", HALVES)


def set_scale(name: str, blocks: np.ndarray, values) -> None:
    """Give blocks [count, nbytes] finite scales."""
    values = np.broadcast_to(np.asarray(values, F), len(blocks))
    for at in HALVES[name]:
        set_half(blocks, at, values)
    if name == "mxfp4":
        blocks[:, 0] = np.frexp(values)[1] + 127
    if name == "iq1_m":
        # A nibble of the half-precision number in the top of each of four words.
        bits = values.astype(np.float16).view(np.uint16)
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (bits >> 4 * i & 15) << 4


def random_weights(name: str, n: int, k: int, seed: int = 0) -> QTensor:
    spec = FORMATS[name]
    rng = np.random.default_rng([seed, n, k])
    blocks = rng.integers(0, 256, (n * k // spec.block, spec.nbytes), np.uint8)
    set_scale(name, blocks, rng.uniform(-0.02, 0.02, len(blocks)))
    return QTensor(blocks.reshape(-1), name, (n, k), **({"scale": 0.37} if spec.tensor_scale else {}))


def size_of(name: str) -> int:
    """Elements that weights and activations both have whole blocks of."""
    return max(FORMATS[name].block, BLOCK[ACTIVATIONS[FORMATS[name].activation]])


def both(x, w, bias=None, **how) -> np.ndarray:
    """The product on all engines, which must be the same with packed weights."""
    y = agree(lambda: ops.linear(x, w, bias), **how)
    packed = w.pack()
    same(agree(lambda: ops.linear(x, packed, bias), **how), y, "packed against raw")
    return y


def test_every_format_has_a_product():
    blocks = [f for f in FORMATS.values() if f.is_block]
    assert all(f.product for f in blocks)
    assert {f.name for f in blocks if f.number >= 8} == set(HALVES)
    assert sorted(f.code for f in blocks) == list(range(27))


@formats
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_against_the_specification(name, blocks):
    k = blocks * size_of(name)
    x, w, bias = normal(19, k), random_weights(name, 21, k), normal(21)
    same(both(x, w, bias), both(x, w) + bias, "with bias")


@formats
def test_heights(name):
    """A part of the product is the product of a part; deep enough for more than one piece."""
    k = 1024 + size_of(name)
    x, w = normal(33, k), random_weights(name, 13, k)
    full = both(x, w)
    for m in COUNTS:
        for n in (1, 7, 13):
            same(both(x[:m], w[:n], scalar=False, threads=(2,)), full[:m, :n], f"{m} x {n}")
    for i in (0, 15, 16, 32):
        same(ops.linear(x[i], w), full[i], f"row {i} alone")


@pytest.mark.parametrize("name", [f.name for f in FORMATS.values() if f.is_block])
@pytest.mark.parametrize("pieces", [1, 3, 11])
def test_one_row_meets_any_number_of_panels(name, pieces):
    """Panels are read by turns, several at a time; what is left over is read all the same."""
    k = pieces * size_of(name)
    spec = FORMATS[name]
    blocks = np.random.default_rng(k).integers(0, 256, (1000 * k // spec.block, spec.nbytes), np.uint8)
    w = QTensor(blocks.reshape(-1), name, (1000, k))
    x = normal(5, k)
    with np.errstate(invalid="ignore"):
        full = ops.linear(x, w.pack())
        for n in (1, 7, 8, 9, 16, 17, 31, 33, 64, 65, 257, 1000):
            packed = w[:n].pack()
            y = agree(lambda packed=packed: ops.linear(x[3], packed), scalar=False, threads=(1, 2, 3))
            same(y, full[3, :n], f"{n} rows")


@pytest.mark.parametrize("name", [f.name for f in FORMATS.values() if f.is_block])
def test_one_row_meets_long_streams(name):
    """From half a megabyte on panels are read as several streams, which need not be equally long."""
    k, spec = 3 * size_of(name), FORMATS[name]
    n = (700_000 // spec.row_bytes(k)) | 1
    data = np.random.default_rng(n).integers(0, 256, (n, spec.row_bytes(k)), np.uint8)
    packed, x = QTensor(data, name, (n, k)).pack(), normal(2, k)
    with np.errstate(invalid="ignore"):
        full = ops.linear(x, packed)
        same(agree(lambda: ops.linear(x[1], packed), scalar=False, threads=(1,)), full[1])


@formats
def test_against_float64(name):
    """Decoded weights times decoded activations."""
    k = 2048
    x, w = normal(9, k), random_weights(name, 17, k)
    q, d, _ = quantize_rows(ACTIVATIONS[w.spec.activation], x)
    decoded = (q * d[..., None].astype(np.float64)).reshape(x.shape)
    exact, size = linear64(decoded, w.dequantize())
    y = both(x, w, scalar=False)
    assert np.isfinite(y).all()
    largest = np.abs(decoded).max() * np.abs(w.dequantize()).max()
    assert (np.abs(y - exact) <= 1e-5 * k * largest).all()
    # Rounding errors are far below: in proportion to the terms, but for the mins of q2_k, which decoding subtracts.
    assert (np.abs(y - exact) <= (1e-4 if name == "q2_k" else 4e-6) * size).all()


def integers(w: QTensor):
    """Codes times integer scales, and what the mins subtract, for one block of activations; scales must be 1."""
    n, k = w.shape
    grid = lattices.grid(w.spec.lattice) if w.spec.lattice else None
    f = _blocks.fields(w.spec.number, w.data.reshape(n, -1, w.spec.nbytes), grid)
    q = f["q"].reshape(n, k).astype(np.int64)
    spread = lambda key: np.repeat(f[key].reshape(n, -1), k // f[key].reshape(n, -1).shape[1], axis=1).astype(np.int64)
    return q * spread("sc") if "sc" in f else q, spread("mn") if "mn" in f else np.zeros_like(q), f["d"]


def extremes(size: int) -> np.ndarray:
    """Activations of 127 in magnitude, the first of them negative, so that quantizing changes nothing."""
    i = np.arange(size)
    rows = [np.full(size, -127)] + [np.where(i // run % 2, 127, -127) for run in (1, 2, 4, 8, 16, 32, 64) if run < size]
    rows += [np.where(i % 4 == 0, -127, 0), np.where(i % 32 == 0, -127, 127)]
    return np.array(rows, F)


@formats
def test_extreme_blocks_are_exact(name):
    """No 16-bit sum overflows: every byte at its ends, activations at theirs, in all arrangements."""
    spec = FORMATS[name]
    rng = np.random.default_rng(7)
    fills = (0x00, 0xFF, 0x0F, 0xF0, 0x55, 0xAA, 0x7F, 0x80, 0x88, 0x77, 0x33, 0xCC)
    k = size_of(name)
    blocks = np.array([np.full(spec.nbytes * k // spec.block, fill) for fill in fills], np.uint8)
    blocks = np.concatenate([blocks, rng.choice([0, 0xFF], (12, blocks.shape[1])).astype(np.uint8)])
    each = blocks.reshape(-1, spec.nbytes)
    set_scale(name, each, 1.0)
    if name == "nvfp4":
        each[:, :4] = 0x78          # 2 ** 8, halved: exact
    w = QTensor(blocks, name, (len(blocks), k))
    both(np.concatenate([extremes(k), -extremes(k)]), w)
    x = extremes(k)
    codes, mins, d = integers(w)
    y = both(x, w)
    terms = x.astype(np.int64) @ codes.T
    if name == "q2_k":
        expected = terms.astype(F) - (x.astype(np.int64) @ mins.T).astype(F)
    else:
        expected = terms.astype(F) * d.reshape(-1)[0]
    # One sum per block, rounded once; where there are several (nvfp4, q1_0, q2_0) they are small or round numbers.
    same(y, expected, "against exact integers")


@pytest.mark.parametrize("name", ["q1_0", "tq1_0"])
@pytest.mark.parametrize("n", [121, 129, 160, 163])
def test_sums_that_are_looked_up(name, n):
    """One row times many meets tables of sums. No digit of them overflows: activations and weights at their ends."""
    k = 3 * 256
    spec = FORMATS[name]
    rng = np.random.default_rng(n)
    fills = rng.choice(np.array([0x00, 0xFF, 0x55, 0xAA], np.uint8), (n, 1))
    data = np.where(rng.random((n, 1)) < 0.3, fills, rng.integers(0, 256, (n, spec.row_bytes(k)), np.uint8))
    set_scale(name, data.reshape(-1, spec.nbytes), rng.uniform(-1, 1, data.size // spec.nbytes))
    w, bias = QTensor(data, name, (n, k)), normal(n)
    x = np.concatenate([np.tile(extremes(256), 3), -np.tile(extremes(256), 3), normal(3, k)])
    x[-1, 300] = np.nan
    full = agree(lambda: ops.linear(x, w, bias), threads=(1,))
    packed = w.pack()
    for row, expected in zip(x, full, strict=True):
        same(agree(lambda row=row: ops.linear(row, packed, bias), scalar=False, threads=(1, 2)), expected)


@formats
def test_an_activation_that_is_not_finite_ruins_its_row_only(name):
    k = size_of(name)
    x, w = normal(5, 2 * k), random_weights(name, 9, 2 * k)
    clean = ops.linear(x, w)
    x[1, k + 3], x[3, 0] = np.nan, np.inf
    y = both(x, w, threads=(1, 2))
    assert np.isnan(y[[1, 3]]).all()
    same(y[[0, 2, 4]], clean[[0, 2, 4]])


@formats
def test_any_bytes(name):
    """Infinite and NaN scales as they come in random bytes: the same bits everywhere."""
    spec = FORMATS[name]
    k = 2 * size_of(name)
    data = np.random.default_rng(3).integers(0, 256, (40, spec.row_bytes(k)), np.uint8)
    both(normal(3, k), QTensor(data, name, (40, k)))


@formats
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("m", [1, 17])
def test_programs(name, packed, m):
    """Recorded products give the bits of ``ops.linear``."""
    k, n = 4 * size_of(name), 133
    w, bias, x = random_weights(name, n, k), normal(n), normal(m, k)
    w = w.pack() if packed else w
    program = Program(m)
    a, out = Activations(program.buffer(k)), program.buffer(n)
    program.quantize(a, [w])
    program.barrier()
    program.linear(a, w, bias, out)
    for seed in (0, 1):
        a.x[...] = normal(m, k, seed=seed)
        program.run(m)
        same(out.copy(), ops.linear(normal(m, k, seed=seed), w, bias))
        program.run(1)      # one row, in the room of many
        same(out[:1].copy(), ops.linear(normal(m, k, seed=seed), w, bias)[:1])
    assert not np.array_equal(out, ops.linear(x, w, bias))


def test_the_scale_of_a_tensor_comes_before_the_bias():
    x, w, bias = normal(3, 256), random_weights("i2_s", 5, 256), normal(5)
    plain = QTensor(w.data, "i2_s", (5, 256))
    assert plain.scale == 1 and w.scale == F(0.37)
    packed = w.pack()
    assert isinstance(packed, PackedQTensor) and packed.scale == w.scale
    same(ops.linear(x, w, bias), ops.linear(x, plain) * F(0.37) + bias)
    same(ops.linear(x, packed, bias), ops.linear(x, w, bias))


def test_rows_that_are_no_whole_number_of_activation_blocks():
    w = QTensor(np.zeros((2, 32), np.uint8), "i2_s", (2, 128))
    with pytest.raises(ValueError, match="i2_s weights need rows of a multiple of 256 elements, got 128"):
        ops.linear(normal(1, 128), w)
