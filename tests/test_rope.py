"""Rotary position embedding."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import SPECIAL, F, agree, close, guarded, layouts, normal, rope64, same
from tolerances import ROPE, U

from fucina import ops

modes = pytest.mark.parametrize("mode", ["half", "interleaved"])


def check(x, positions, **options):
    y = agree(lambda: ops.rope(x, positions, **options))
    exact = rope64(x, positions, **options)
    close(y, exact, ROPE * 2 * np.abs(x).max() if x.size else 0)
    return y


@modes
@pytest.mark.parametrize("d", [2, 4, 6, 16, 30, 34, 64, 80, 128, 256])
def test_sizes(mode, d):
    for seq, heads in ((1, 1), (1, 3), (2, 1), (7, 2), (17, 1)):
        check(normal(seq, heads, d), np.arange(seq) * 3, mode=mode)


@modes
def test_options(mode):
    x = normal(5, 2, 20)
    positions = np.array([0, 1, -7, 4095, 131071])
    for options in ({"theta": 5e5}, {"dims": 2}, {"dims": 12}, {"dims": np.int64(20)}, {"freq_scale": 0.125},
                    {"freq_factors": np.linspace(1, 9, 10)}, {"freq_factors": [1, 2, 3], "dims": 6, "theta": 100},
                    {"freq_factors": np.linspace(1, 4, 10, dtype=F), "freq_scale": 0.5}):
        y = check(x, positions, mode=mode, **options)
        dims = options.get("dims", 20)
        same(y[..., dims:], x[..., dims:], "features beyond dims are copied")
    same(ops.rope(x, positions), ops.rope(x, positions, mode="half", theta=10000.0, dims=20, freq_scale=1.0))


@modes
def test_position_zero_changes_nothing_and_negative_positions_turn_back(mode):
    x = normal(6, 3, 32)
    same(agree(lambda: ops.rope(x, [0] * 6, mode=mode)), x + F(0))
    there = ops.rope(x, [1, 2, 3, 50, 1000, 9], mode=mode)
    close(ops.rope(there, [-1, -2, -3, -50, -1000, -9], mode=mode), x.astype(np.float64), 4 * ROPE * np.abs(x).max())


@modes
def test_scores_depend_on_distances_only(mode):
    q, k = normal(1, 1, 64), normal(1, 1, 64, seed=1)

    def score(a, b):
        return float((ops.rope(q, [a], mode=mode).astype(float) * ops.rope(k, [b], mode=mode)).sum())

    assert abs(score(9, 4) - score(105, 100)) < 1e-4
    assert abs(score(9, 4) - score(9, 6)) > 1e-2


@pytest.mark.parametrize(("seq", "heads", "d"), [(300, 10, 100), (1, 1, 300000), (1009, 1, 64), (3, 337, 98)])
def test_large(seq, heads, d):
    x, positions = normal(seq, heads, d), np.arange(seq)
    for mode in ("half", "interleaved"):
        y = agree(lambda mode=mode: ops.rope(x, positions, mode=mode), scalar=False)
        i = seq // 2
        same(ops.rope(x[i : i + 1], positions[i : i + 1], mode=mode), y[i : i + 1], "a position alone")


@modes
def test_tables(mode):
    x, positions = normal(9, 2, 24), np.arange(9)
    tables = ops.rope_tables(positions, 12, theta=500.0, freq_scale=0.5, freq_factors=np.arange(1, 13))
    y = ops.rope(x, positions, mode=mode, theta=500.0, freq_scale=0.5, freq_factors=np.arange(1, 13))
    same(agree(lambda: ops.rope(x, positions, mode=mode, tables=tables)), y)
    same(agree(lambda: ops.rope(x, None, mode=mode, tables=tables)), y, "positions are not looked at")
    for wrong in (ops.rope_tables(positions, 11), ops.rope_tables(positions[:8], 12)):
        with pytest.raises(ValueError, match=r"tables must have shape \(9, 12\)"):
            ops.rope(x, positions, tables=wrong)
    with pytest.raises(TypeError, match="tables must be float32"):
        ops.rope(x, positions, tables=tuple(t.astype(float) for t in tables))
    cos, sin = ops.rope_tables([0, 3], 4, theta=16.0)
    angles = np.outer([0, 3], [1, 0.5, 0.25, 0.125])
    same(cos, np.cos(angles).astype(F))
    same(sin, np.sin(angles).astype(F))


def both_tables(*arguments, **options):
    """Cosines and sines as one array, the same on all engines."""
    return agree(lambda: np.stack(ops.rope_tables(*arguments, **options)))


FAR = [0, 1, -7, 4095, 131071, 2**20, 1647099, -(2**31) + 1, 2**39 + 12345, 2**40 - 1, -(2**40) + 7]


@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6, 0.5])
def test_tables_of_far_positions(theta):
    """Half a unit of float32, and next to nothing of float64."""
    pairs = 40
    positions = [p if theta > 1 else p // 2 for p in FAR]
    cos, sin = both_tables(positions, pairs, theta)
    with localcontext(prec=60):
        freq = [float((Decimal(theta).ln() * -i / pairs).exp()) for i in range(pairs)]
    angles = np.array(positions, np.float64)[:, None] * freq
    for table, function in ((cos, math.cos), (sin, math.sin)):
        exact = np.vectorize(function)(angles)
        assert (np.abs(table - exact) <= 0.5 * np.spacing(np.abs(table)) + 2.0**-51).all()
    assert (np.abs(cos.astype(float) ** 2 + sin.astype(float) ** 2 - 1) < 4 * U).all()


def test_tables_near_quarter_turns():
    """Where little is left of an angle, every bit of it is right."""
    for k in (1, 2, 3, 5, 1000, 333333, 2**20 + 1, 10**9 + 1):
        angle = k * math.pi / 2
        cos, sin = both_tables(np.array([angle, np.nextafter(angle, 0), np.nextafter(angle, 1e30)]), 1)
        for table, function in ((cos, math.cos), (sin, math.sin)):
            for x, got in zip((angle, np.nextafter(angle, 0), np.nextafter(angle, 1e30)), table[:, 0]):
                assert abs(got - function(x)) <= 2.0**-24 * abs(function(x)) + 2.0**-60


@given(st.lists(st.floats(-(2.0**39), 2.0**39), min_size=1, max_size=9), st.integers(1, 5), st.floats(0.01, 2))
def test_tables_of_any_angle(positions, pairs, freq_scale):
    cos, sin = both_tables(positions, pairs, 100.0, freq_scale)
    freq = freq_scale * np.array([100.0 ** (-i / pairs) for i in range(pairs)])
    slack = 2.0**-50 * (1 + 8 * np.abs(positions).max())     # of the frequencies
    for table, exact in ((cos, np.cos(np.outer(positions, freq))), (sin, np.sin(np.outer(positions, freq)))):
        assert (np.abs(table - exact) <= 2.0**-24 + slack).all()


def test_tables_have_limits():
    for positions in ([2**40], [0, -(2**41)], [2**62]):
        with pytest.raises(ValueError, match=r"angles must stay below 2\^40, got"):
            ops.rope_tables(positions, 4)
    with pytest.raises(ValueError, match=r"angles must stay below 2\^40"):
        ops.rope(normal(1, 1, 8), [2**41])
    for theta in (0, -1, np.inf):
        with pytest.raises(ValueError, match="theta must be a finite number above 0"):
            ops.rope_tables([1], 4, theta)
    assert ops.rope_tables([], 4)[0].shape == (0, 4)
    assert ops.rope_tables([1, 2], 0)[1].shape == (2, 0)


@modes
def test_special_values(mode):
    x = np.stack(np.meshgrid(SPECIAL, SPECIAL), -1).reshape(8, 16, -1)
    agree(lambda: ops.rope(x, [0, 1, 2, 3, -4, 5, 1000, 7], mode=mode))
    assert x.shape[-1] % 2 == 0


@modes
def test_what_is_not_finite_stays_in_its_pair(mode):
    x = normal(1, 3, 12)
    clean = ops.rope(x, [5], mode=mode)
    x[0, 1, 2] = np.nan
    y = agree(lambda: ops.rope(x, [5], mode=mode))
    ruined = np.isnan(y[0])
    assert sorted(zip(*np.nonzero(ruined))) == [(1, 2), (1, 8 if mode == "half" else 3)]
    same(y[0][~ruined], clean[0][~ruined])


@modes
def test_layouts(mode, tmp_path):
    for how, x in layouts(normal(5, 3, 8), tmp_path):
        same(agree(lambda x=x: ops.rope(x, range(5), mode=mode)), ops.rope(x.copy(), range(5), mode=mode), how)
    for how, p in layouts(np.arange(5), tmp_path):
        same(ops.rope(normal(5, 3, 8), p, mode=mode), ops.rope(normal(5, 3, 8), list(p), mode=mode), how)
    same(ops.rope(normal(2, 1, 4), np.array([3, 9], ">i2")), ops.rope(normal(2, 1, 4), [3, 9]))


@modes
def test_in_place_and_nothing_beyond(mode):
    x = normal(7, 2, 22)
    expected = ops.rope(x, range(7), mode=mode, dims=12)

    def call():
        out, check = guarded(x.shape)
        out[...] = x
        assert ops.rope(out, range(7), mode=mode, dims=12, out=out) is out
        check()
        return out

    same(agree(call), expected)


def test_wrong_arguments():
    x = normal(3, 2, 8)
    with pytest.raises(ValueError, match="mode must be 'half' or 'interleaved', got 'neox'"):
        ops.rope(x, range(3), mode="neox")
    for dims in (0, -2, 3, 10):
        with pytest.raises(ValueError, match=f"even and between 2 and the 8 features of a head, got {dims}"):
            ops.rope(x, range(3), dims=dims)
    with pytest.raises(TypeError, match="dims must be an integer"):
        ops.rope(x, range(3), dims=4.0)
    for positions in (range(2), [[0, 1, 2]], [0.0, 1.0, 2.0], 1, None):
        with pytest.raises(ValueError, match="positions must be 3 integers"):
            ops.rope(x, positions)
    for name in ("theta", "freq_scale"):
        for value in (0, -1, np.nan, np.inf):
            with pytest.raises(ValueError, match=f"{name} must be a finite number above 0"):
                ops.rope(x, range(3), **{name: value})
    with pytest.raises(ValueError, match=r"freq_factors must have shape \(4,\), got \(3,\)"):
        ops.rope(x, range(3), freq_factors=[1, 1, 1])
    for factors in ([1, 0, 1, 1], [1, -1, 1, 1], [1, np.nan, 1, 1], ["1"] * 4):
        with pytest.raises(ValueError, match="freq_factors must be numbers above 0"):
            ops.rope(x, range(3), freq_factors=factors)
    with pytest.raises(ValueError, match=r"x must have 3 axes, got shape \(3, 8\)"):
        ops.rope(normal(3, 8), range(3))


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 20), st.integers(0, 9), st.booleans())
def test_any_shape(seq, heads, pairs, rest, interleaved):
    x = normal(seq, heads, 2 * pairs + rest)
    check(x, np.arange(seq), mode="interleaved" if interleaved else "half", dims=2 * pairs)


@pytest.mark.parametrize(("positions", "pairs", "factors", "error"), [
    ([0, 1], 1, np.ones(1000), ValueError), ([0, 1], 4, [2.0], ValueError), ([0, 1], 2, [[1.0, 1.0]], ValueError),
    ([0, 1], 2, [1.0, -1e-20], ValueError), ([0, 1], 2, [1.0, 0.0], ValueError), ([0, 1], 2, [1.0, np.nan], ValueError),
    ([0, 1], 2, ["a", "b"], ValueError), ([[0, 1]], 2, None, ValueError), (3, 2, None, ValueError),
    ([1], -1, None, ValueError),
    ([1], 2.0, None, TypeError),
])  # fmt: skip
def test_tables_of_what_does_not_fit(positions, pairs, factors, error):
    with pytest.raises(error, match="freq_factors must|positions must have one axis|pairs must be"):
        ops.rope_tables(positions, pairs, freq_factors=factors)
