"""Activations to int8 blocks: the specification, ggml's formats, and the promises that the products rely on."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import SPECIAL, THREADS, F, guarded, kernel_of, normal, same

from fucina import ops
from fucina._scalar.act_quant import AUX, BLOCK, quantize_rows
from fucina.runtime import isa

KINDS = {"q8_0": 0, "q8_1": 1, "q8_k": 2}
AUX_TYPE = (np.int32, F, np.int16)
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def run(name: str, kind: int, x: np.ndarray, tile: int, nth: int):
    """Codes, scales and sums as the kernel lays them out."""
    count = x.size // BLOCK[kind]
    (qs, q_ok), (d, d_ok), (aux, aux_ok) = (
        guarded((count * BLOCK[kind],), np.int8), guarded((count,)), guarded((count * AUX[kind],), np.uint8),
    )
    kernel_of(name)("act_quant").quantize_act_into_unchecked(kind, x, tile, qs, d, aux, nth)
    for check in (q_ok, d_ok, aux_ok):
        check()
    return qs, d, aux.view(AUX_TYPE[kind])


def everywhere(kind: int, x: np.ndarray, tile: int = 1):
    """The result of the specification, which every variant and number of threads must give."""
    expected = run("scalar", kind, x, tile, 1)
    for name in isa.runnable_variants():
        for nth in THREADS:
            for got, want, what in zip(run(name, kind, x, tile, nth), expected, ("codes", "scales", "sums")):
                same(got, want, f"{what} of {name} on {nth} threads")
    return expected


def rows_of(kind: int, x: np.ndarray):
    """Codes [m, nb, B], scales [m, nb] and sums [m, nb, ...] with tile 1, where rows lie one after the other."""
    qs, d, aux = everywhere(kind, x)
    m, nb = len(x), x.shape[1] // BLOCK[kind]
    return qs.reshape(m, nb, -1).astype(int), d.reshape(m, nb), aux.reshape(m, nb, -1)


@kinds
@pytest.mark.parametrize("tile", [1, 3, 16])
@pytest.mark.parametrize("m", [1, 2, 5, 16, 17, 33])
def test_layout_of_tiles(kind, tile, m):
    """Block b of row r of a tile of nc rows that starts at row t is entry t nb + b nc + (r - t)."""
    nb = 3
    x = normal(m, nb * BLOCK[kind])
    qs, d, aux = everywhere(kind, x, tile)
    q, scale, _ = rows_of(kind, x)
    qs = qs.reshape(-1, BLOCK[kind])
    for r in range(m):
        t = r // tile * tile
        for b in range(nb):
            at = t * nb + b * min(tile, m - t) + (r - t)
            assert (qs[at] == q[r, b]).all() and d[at] == scale[r, b]


@kinds
@pytest.mark.parametrize("size", [1e-40, 1e-38, 3e-38, 1e-30, 1.0, 1e5, 9e6, 1e30, 3e38])
def test_all_magnitudes(kind, size):
    with np.errstate(over="ignore", under="ignore"):
        x = np.clip(normal(7, 3 * BLOCK[kind], seed=kind) * F(size), -3.4e38, 3.4e38).astype(F)
    everywhere(kind, x)


@kinds
def test_codes_stay_within_127_and_reach_it(kind):
    x = normal(64, 4 * BLOCK[kind], seed=5)
    q, _, _ = rows_of(kind, x)
    assert (np.abs(q).max(-1) == 127).all()
    x = np.where(np.arange(BLOCK[kind]) % 2, F(1e-3), F(-1e-3))[None]
    q, _, _ = rows_of(kind, x)
    assert set(np.abs(q).ravel()) == {127}
    # Just below and at the largest magnitude, with either sign.
    x = np.stack([np.nextafter(F(s), F(0)) * np.ones(BLOCK[kind], F) for s in (1, -1, 3, -3, 1e-20)])
    x[:, -1] *= -1
    q, _, _ = rows_of(kind, x)
    assert q.min() == -127 and q.max() == 127


@kinds
def test_values_come_back_within_half_a_step(kind):
    x = normal(40, 2 * BLOCK[kind], seed=6)
    q, d, _ = rows_of(kind, x)
    back = q * d[..., None].astype(np.float64)
    half = np.abs(x.reshape(back.shape)).max(-1, keepdims=True) / 127 / 2
    # q8_0 and q8_1 store the scale in half precision: 127 steps of a scale that is off by 2^-11.
    assert (np.abs(back - x.reshape(back.shape)) <= half * (1 + 1e-5) + (127 * half * 2**-10 if kind < 2 else 0)).all()


@kinds
def test_sums_are_those_of_the_codes(kind):
    q, d, sums = rows_of(kind, normal(9, 3 * BLOCK[kind], seed=7))
    if kind == 0:
        same(sums[..., 0], q.sum(-1).astype(np.int32))
    elif kind == 1:
        # From the scale before it is rounded to half precision.
        x = normal(9, 3 * BLOCK[kind], seed=7).reshape(q.shape)
        exact = np.abs(x).max(-1) / F(127)
        same(sums[..., 0], (exact * q.sum(-1).astype(F)).astype(np.float16).astype(F))
    else:
        same(sums[..., :16], q.reshape(9, 3, 16, 16).sum(-1).astype(np.int16))
        same(sums[..., 16:], q.reshape(9, 3, 8, 32).sum(-1).astype(np.int16))
    if kind < 2:
        same(d.astype(np.float16).astype(F), d, "scales are half-precision numbers")


def test_ties_go_away_from_zero_in_blocks_of_32_and_to_even_in_blocks_of_256():
    x = np.zeros((1, 256), F)
    x[0, ::8] = np.arange(32) + 0.5 - 16
    x[0, 7::32] = 127
    q, _, _ = rows_of(0, x)
    half = x.reshape(q.shape)
    assert (q == np.where(half > 0, np.floor(half + 0.5), np.ceil(half - 0.5)))[half != 127].all()
    x[0, 7] = -127      # the first of largest magnitude: c = 1
    q, d, _ = rows_of(2, x)
    assert d[0, 0] == 1 and (q == np.rint(x.reshape(q.shape))).all()


def test_q8_k_scale_has_the_sign_of_the_first_largest_value():
    for at, later in ((0, 255), (100, 101), (254, 255)):
        for sign in (1, -1):
            x = np.full((1, 256), F(0.5))
            x[0, at], x[0, later] = 4 * sign, -4 * sign
            q, d, _ = rows_of(2, x)
            assert q[0, 0, at] == -127 and d[0, 0] == F(1) / (F(-127) / F(4 * sign))


def test_scales_round_to_nearest_even():
    """Scales that are half-precision numbers, middles between two of them, and the neighbours of those."""
    half = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16).astype(F)
    middle = np.append((half[:-1] + half[1:]) / 2, F(65520))
    d = np.concatenate([half, middle, np.nextafter(middle, F(0)), np.nextafter(middle, F(1e9))])
    x = np.zeros((len(d), 32), F)
    x[:, 9] = 127 * d
    exact = x[:, 9] / F(127)
    assert (exact == d)[: len(half) + len(middle)].all(), "the middles are really met"
    with np.errstate(over="ignore"):
        expected = exact.astype(np.float16).astype(F)
    for name in isa.runnable_variants():
        same(run(name, 0, x, 1, 1)[1], expected, name)
    same(run("scalar", 0, x, 1, 1)[1], expected, "the specification")


@kinds
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_poisons_its_block_only(kind, value):
    size = BLOCK[kind]
    x = np.tile(normal(1, 3 * size), (size, 1))
    x[np.arange(size), size + np.arange(size)] = value      # every place of the middle block
    q, d, _ = rows_of(kind, x)
    assert np.isnan(d[:, 1]).all() and (q[:, 1] == 0).all()
    assert np.isfinite(d[:, ::2]).all() and (d[:, ::2] == d[0, ::2]).all() and (q[:, ::2] == q[0, ::2]).all()


@kinds
def test_zero_and_hardly_anything_is_zero(kind):
    for value in (0.0, -0.0, 1e-45, -1e-45, 1e-42):
        q, d, sums = rows_of(kind, np.full((2, BLOCK[kind]), F(value)))
        assert (q == 0).all() and (d == 0).all() and (sums == 0).all()


@kinds
def test_special_values_in_turn(kind):
    """Pairs of special values at the borders of the vectors."""
    rows = []
    for a in SPECIAL:
        for b in SPECIAL[:8]:
            row = np.zeros(BLOCK[kind], F)
            row[7], row[8] = a, b
            rows.append(row)
    everywhere(kind, np.array(rows))


@kinds
def test_a_row_alone_is_the_row_in_a_batch(kind):
    x = normal(37, 2 * BLOCK[kind])
    q, d, sums = rows_of(kind, x)
    for r in (0, 15, 16, 36):
        one = rows_of(kind, x[r : r + 1])
        for got, want in zip(one, (q[r : r + 1], d[r : r + 1], sums[r : r + 1])):
            same(got, want)


def test_q8_0_is_the_gguf_packages():
    gguf = pytest.importorskip("gguf")
    x = np.concatenate([normal(50, 96), normal(50, 96) * F(1e-6), np.round(normal(50, 96) * 8) / 4])
    x[3] = 0
    expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)
    same(ops.quantize(x, "q8_0").data, expected)
    q, d, _ = quantize_rows(0, x)
    same(np.concatenate([d[..., None].astype(np.float16).view(np.int8), q.astype(np.int8)], -1).reshape(150, -1),
         expected.view(np.int8))


@given(st.binary(min_size=1024, max_size=1024), st.integers(0, 255), st.sampled_from(sorted(KINDS.values())))
def test_any_bits(bits, exponent, kind):
    """Random sign and mantissa, exponents random or all alike."""
    word = np.frombuffer(bits, np.uint32)[None]
    everywhere(kind, word.view(F))
    everywhere(kind, (word & np.uint32(0x807FFFFF) | np.uint32(exponent << 23)).view(F))


def test_a_wrong_code_is_found(monkeypatch):
    module = importlib.import_module("fucina._scalar.act_quant")
    right = module.quantize_rows

    def wrong(kind, x):
        q, d, sums = right(kind, x)
        q[-1, -1, -1] += 1
        return q, d, sums

    monkeypatch.setattr(module, "quantize_rows", wrong)
    with pytest.raises(AssertionError, match="codes of generic on 1 threads: 1 of 128 differ"):
        everywhere(0, normal(2, 64))
