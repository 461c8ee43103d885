"""Element-wise operations: special values, every size, accuracy against float64, ggml's table of gelu."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import (
    LARGE,
    SIZES,
    SPECIAL,
    THREADS,
    UNARY64,
    F,
    agree,
    close,
    gelu64,
    guarded,
    layouts,
    normal,
    same,
)
from tolerances import ELEMENTWISE, GELU_QUANT

from fucina import ops

TABLE = importlib.import_module("fucina.ops.elementwise")
UNARY = sorted(TABLE.UNARY)
BINARY = sorted(TABLE.BINARY)
unary = pytest.mark.parametrize("name", UNARY)
binary = pytest.mark.parametrize("name", [*BINARY, "swiglu", "geglu"])


def sweep() -> np.ndarray:
    """Arguments over all magnitudes, and dense where the functions bend."""
    line = np.concatenate([np.linspace(-110, 110, 40001), np.linspace(-4, 4, 40001), np.logspace(-44, 38, 3001)])
    return np.concatenate([line, -line[-3001:]]).astype(F)


@unary
def test_sizes(name):
    op = getattr(ops, name)
    for n in SIZES:
        x = normal(n) * F(5)
        agree(lambda x=x: op(x))


@unary
def test_large(name):
    op = getattr(ops, name)
    for n in LARGE:
        x = normal(n) * F(5)
        y = agree(lambda x=x: op(x), scalar=False)
        part = slice(n // 2, n // 2 + 999)
        same(op(x[part]), y[part], "a part alone")


@unary
def test_special_values_in_every_lane(name):
    op = getattr(ops, name)
    for shift in range(16):
        x = np.concatenate([np.zeros(shift, F), SPECIAL, SPECIAL])
        y = agree(lambda x=x: op(x), threads=(1, 2))
        same(y[shift : shift + len(SPECIAL)], op(SPECIAL))
        same(y[shift + len(SPECIAL) :], op(SPECIAL))


@pytest.mark.parametrize("name", [name for name in UNARY if name in ELEMENTWISE])
def test_against_float64(name):
    x = sweep()
    with np.errstate(all="ignore"):
        expected = UNARY64[name](x.astype(np.float64))
        # What does not fit into float32 is infinite there too.
        expected = np.where(np.abs(expected) > np.finfo(F).max, np.sign(expected) * np.inf, expected)
    relative, of_x, absolute = ELEMENTWISE[name]
    with np.errstate(invalid="ignore"):
        bound = relative * np.abs(expected) + of_x * np.abs(x.astype(np.float64)) + absolute
    y = agree(lambda: getattr(ops, name)(x), threads=(1, 3))
    edge = np.isinf(y) & (np.abs(expected) > np.finfo(F).max * (1 - 1e-6))
    close(np.where(edge, expected, y), expected, bound, name)


def test_every_operation_has_a_tolerance():
    assert set(UNARY) - set(ELEMENTWISE) == {"gelu_quant"} and set(ELEMENTWISE) == set(UNARY64) <= set(UNARY)


def test_limits():
    inf, nan = np.inf, np.nan

    def values(op, *x):
        return agree(lambda: op(np.array(x, F))).tolist()

    assert values(ops.relu, -inf, -1, -0.0, 0, 2, inf, nan) == [0, 0, 0, 0, 2, inf, 0]
    assert values(ops.exp, -inf, -200, 0, 200, inf) == [0, 0, 1, inf, inf]
    assert values(ops.sigmoid, -inf, -200, 0, 200, inf) == [0, 0, 0.5, 1, 1]
    assert values(ops.silu, -200, 0, 200, inf) == [0, 0, 200, inf]
    assert values(ops.tanh, -inf, -200, -9.2, 0, 9.2, 200, inf) == [-1, -1, -1, 0, 1, 1, 1]
    assert values(ops.gelu, -200, -1e30, 0, 200, 1e30, inf) == [0, 0, 0, 200, F(1e30), inf]
    assert values(ops.quick_gelu, -200, 0, 200, inf) == [0, 0, 200, inf]
    assert values(ops.gelu_quant, -inf, -10, 0, 10, 1e30, inf) == [0, 0, 0, 10, F(1e30), inf]
    assert values(ops.sqrt, 0, 4, inf) == [0, 2, inf]
    for name in UNARY:
        assert name == "relu" or np.isnan(values(getattr(ops, name), nan)).all(), name
    for name in ("sqrt", "tanh", "gelu", "silu", "quick_gelu"):
        assert np.signbit(values(getattr(ops, name), *[-0.0] * 9)).all(), f"{name}(-0.0)"
    assert np.isnan(values(ops.sqrt, -1)).all()


def ggml_gelu(x: np.ndarray) -> np.ndarray:
    """An entry of ggml's table: float32 with one rounding per operation, then half precision."""
    u = F(0.7978845608028654) * x * (F(1) + F(0.044715) * x * x)
    return (F(0.5) * x * (F(1) + np.tanh(u.astype(np.float64)).astype(F))).astype(np.float16)


def test_gelu_quant_over_all_its_arguments():
    half = np.arange(65536, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        x = half.astype(F)
        rounded = gelu64(x.astype(np.float64)).astype(np.float16)
        references = {"correctly rounded": rounded, "ggml's table": ggml_gelu(x)}
    y = agree(lambda: ops.gelu_quant(x))
    number = ~np.isnan(x)
    assert np.isnan(y[~number]).all()
    with np.errstate(over="ignore"):
        coarse = y.astype(np.float16)
    inside = number & (np.abs(x) < 10)
    same(coarse[inside].astype(F), y[inside], "results are half-precision numbers")
    for name, reference in references.items():
        # Half-precision numbers of one sign are in the order of their bits.
        steps = np.abs(coarse.view(np.int16).astype(int) - reference.view(np.int16))[inside & (x != 0)]
        count, size = GELU_QUANT[name]
        assert np.count_nonzero(steps) <= count and steps.max() <= size, name
    same(y[number & ~inside], np.where(x > 0, x, F(0))[number & ~inside])


def test_gelu_quant_rounds_its_argument():
    half = np.arange(0x4900, dtype=np.uint16).view(np.float16).astype(F)       # below 10
    middle = (half[:-1] + half[1:]) / 2
    x = np.concatenate([np.linspace(-9.99, 9.99, 20001).astype(F), middle, -middle])
    same(ops.gelu_quant(x), ops.gelu_quant(x.astype(np.float16).astype(F)))


# ---- two operands ------------------------------------------------------------------------------------------------

NUMPY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}


@binary
def test_binary_sizes(name):
    op = getattr(ops, name)
    for n in SIZES:
        x, y = normal(n), normal(n, seed=1)
        agree(lambda x=x, y=y: op(x, y))
    x, y = normal(LARGE[0]), normal(LARGE[0], seed=1)
    z = agree(lambda: op(x, y), scalar=False)
    same(op(x[1000:1999], y[1000:1999]), z[1000:1999], "a part alone")


@binary
def test_binary_special_values(name):
    x, y = (np.ascontiguousarray(g.ravel()) for g in np.meshgrid(SPECIAL, SPECIAL))
    z = agree(lambda: getattr(ops, name)(x, y))
    if name in NUMPY:
        with np.errstate(all="ignore"):
            same(z, NUMPY[name](x, y))
    if name in ("maximum", "minimum"):
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(z, getattr(np, name)(x, y))     # zeros of either sign are equal here


@binary
@pytest.mark.parametrize(("a", "b"), [
    ((3, 1), (1, 5)), ((4,), (3, 4)), ((2, 1, 3), (5, 1)), ((), (7,)), ((1,), ()), ((), ()),
])
def test_broadcasting(name, a, b):
    x, y = normal(*a), normal(*b, seed=1)
    z = agree(lambda: getattr(ops, name)(x, y))
    wide = [np.ascontiguousarray(v) for v in np.broadcast_arrays(x, y)]
    same(z, getattr(ops, name)(*wide).reshape(np.broadcast_shapes(a, b)))


def test_scale():
    for n in SIZES:
        x = normal(n)
        same(agree(lambda x=x: ops.scale(x, 1.7)), x * F(1.7))
    with np.errstate(all="ignore"):
        for s in (0, -0.0, np.inf, np.nan, 1e-45, 3, np.float64(0.1), np.int8(-2)):
            same(agree(lambda s=s: ops.scale(SPECIAL, s)), SPECIAL * F(s), str(s))
        same(agree(lambda: ops.scale(SPECIAL, 1e300)), SPECIAL * F(np.inf), "beyond float32")
    x = normal(LARGE[0])
    same(agree(lambda: ops.scale(x, 0.3), scalar=False), x * F(0.3))


def test_gates():
    x, gate = normal(6, 20), normal(6, 20, seed=1) * F(3)
    same(ops.swiglu(x, gate), x * ops.silu(gate))
    same(ops.geglu(x, gate), x * ops.gelu(gate))
    same(agree(lambda: ops.geglu(x, gate, approximate="quant")), x * ops.gelu_quant(gate))
    both = np.concatenate([gate, x], -1)
    same(agree(lambda: ops.swiglu(both)), ops.swiglu(x, gate), "the first half is the gate")
    same(agree(lambda: ops.geglu(both)), ops.geglu(x, gate))
    for wrong in (normal(3, 5), normal(1)[0]):
        with pytest.raises(ValueError, match="split in two"):
            ops.swiglu(wrong)
    with pytest.raises(ValueError, match=r"approximate must be one of \['quant', 'tanh'\], got 'erf'"):
        ops.geglu(x, gate, approximate="erf")


# ---- arrays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["silu", "gelu_quant"])
def test_layouts(name, tmp_path):
    for how, x in layouts(normal(7, 9), tmp_path):
        same(agree(lambda x=x: getattr(ops, name)(x)), getattr(ops, name)(x.copy()), how)


def test_binary_layouts(tmp_path):
    for how, x in layouts(normal(7, 9), tmp_path):
        y = x[:, 2:3]
        same(agree(lambda x=x, y=y: ops.subtract(x, y)), ops.subtract(x.copy(), y.copy()), how)


@pytest.mark.parametrize("n", SIZES)
def test_nothing_is_written_beyond_out(n):
    x, y = normal(n), normal(n, seed=1)
    for op, args in ((ops.silu, (x,)), (ops.multiply, (x, y)), (ops.scale, (x, 3)), (ops.swiglu, (x, y))):
        for nth in THREADS:

            def call(op=op, args=args):
                out, check = guarded((n,))
                assert op(*args, out=out) is out
                check()
                return out

            same(agree(call, threads=(nth,)), op(*args))


@given(st.sampled_from(UNARY), st.binary(min_size=4, max_size=400))
def test_any_bits(name, bits):
    x = np.frombuffer(bits, np.uint32, len(bits) // 4).view(F)
    agree(lambda: getattr(ops, name)(x), threads=(1, 2))


@given(st.sampled_from([*BINARY, "swiglu", "geglu"]), st.binary(min_size=8, max_size=400))
def test_any_bits_of_two(name, bits):
    x, y = np.frombuffer(bits, np.uint32, len(bits) // 8 * 2).view(F).reshape(2, -1)
    agree(lambda: getattr(ops, name)(x, y), threads=(1, 2))
