"""The ruler itself: the single-precision arithmetic of the specification against exact rational numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from references import SPECIAL, F, same
from tolerances import U

from fucina._scalar import _f32

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def rounded(exact: Fraction) -> np.float32:
    """The float32 nearest to a rational number, ties to even, by integer arithmetic alone."""
    if exact == 0:
        return F(0)
    magnitude = abs(exact)
    exponent = max(math.floor(math.log2(magnitude.numerator) - math.log2(magnitude.denominator)) - 23, -149)
    while magnitude >= Fraction(2) ** (exponent + 24):
        exponent += 1
    while exponent > -149 and magnitude < Fraction(2) ** (exponent + 23):
        exponent -= 1
    units = round(magnitude / Fraction(2) ** exponent)
    with np.errstate(over="ignore"):
        value = F(math.inf if units * Fraction(2) ** exponent >= Fraction(2) ** 128 else math.ldexp(units, exponent))
    return -value if exact < 0 else value


@given(FINITE, FINITE, FINITE)
@example(1.0, 1.0, 2.0**-24)
@example(1 + 2.0**-23, 1 + 2.0**-23, 2.0**-60)
@example(1.0, 2.0**-149, -(2.0**-149))
@example(2.0**-100, 2.0**-49, 2.0**-149)
@example(-(2.0**-75), 2.0**-75, 2.0**-126)
@example(3.4e38, 2.0, -3.4e38)
@example(16777217.0, 1.0, 0.5)
def test_fma_rounds_once(a, b, c):
    a, b, c = F(a), F(b), F(c)
    assert _f32.fma(a, b, c) == rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def test_fma_rounds_once_where_it_is_hard():
    """Sums that lie within a hair of the middle between two float32 numbers, on either side."""
    rng = np.random.default_rng(1)
    a = rng.integers(1 << 23, 1 << 24, 3000).astype(F)
    b = rng.integers(1 << 23, 1 << 24, 3000).astype(F)
    p = a.astype(np.float64) * b
    # The product's distance to a half-way point, moved a little: c makes the sum nearly a tie.
    c = (np.ldexp(np.floor(np.ldexp(p, -24)) + 0.5, 24) - p).astype(F) + rng.integers(-1, 2, 3000).astype(F)
    c[::3] = np.nextafter(c[::3], F(0))
    fused = _f32.fma(a, b, c)
    for i in range(3000):
        assert fused[i] == rounded(Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i])))


def test_fma_of_special_values():
    a, b, c = (g.ravel() for g in np.meshgrid(SPECIAL, SPECIAL, SPECIAL))
    fused = _f32.fma(a, b, c)
    with np.errstate(all="ignore"):
        wide = a.astype(np.float64) * b + c
    same(np.isnan(fused), np.isnan(wide))
    same(np.isinf(fused) & np.isinf(wide), np.isinf(wide))
    zero = (wide == 0) & ~np.isnan(wide)
    same(np.signbit(fused[zero]), np.signbit(wide[zero]))


def test_exp_is_good_to_three_and_a_half_roundings():
    x = np.concatenate([np.linspace(-87.3, 88.7, 400001), np.linspace(-1, 1, 100001)]).astype(F)
    e = np.exp(x.astype(np.float64))
    assert (np.abs(_f32.exp(x) - e) / e).max() < 3.4 * U


def test_exp_at_the_ends():
    x = np.array([0, -0.0, np.inf, -np.inf, 89, 1e38, -104, -103.9, -1e38, 1e-45, np.nan], F)
    expected = np.array([1, 1, np.inf, 0, np.inf, np.inf, 0, 1.4e-45, 0, 1, np.nan], F)
    same(_f32.exp(x), expected)
    below = np.linspace(-103.9, -87.3, 10001).astype(F)
    subnormal = _f32.exp(below)
    assert (np.abs(subnormal - np.exp(below.astype(np.float64))) <= 2.0**-149 + 3.4 * U * subnormal).all()
    rising = _f32.exp(np.linspace(-105, 90, 300001).astype(F))
    assert (rising[1:] >= rising[:-1]).all()


@pytest.mark.parametrize("n", [1, 8, 15, 16, 17, 48, 257])
def test_sum_in_16_lanes(n):
    """Lane l adds elements l, l + 16, ...; then halves, then fours, pairs and the rest."""
    x = np.random.default_rng(n).standard_normal(n).astype(F)
    lanes = [F(0)] * 16
    for i, v in enumerate(x):
        lanes[i % 16] = lanes[i % 16] + v
    a = [lanes[i] + lanes[i + 8] for i in range(8)]
    b = [a[i] + a[i + 4] for i in range(4)]
    assert _f32.sum16(x) == (b[0] + b[2]) + (b[1] + b[3])
