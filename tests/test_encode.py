"""Encoding: ggml's bytes, in every variant, on any number of threads; and what the operation accepts and refuses."""

from __future__ import annotations

import numpy as np
import pytest
from encoding import check_awkward, check_error, check_golden, encode, golden, keys, names
from references import agree, layouts, normal, same

from fucina import QTensor, ops
from fucina.formats import FORMATS, lattices

FORMAT = pytest.mark.parametrize("name", names("encode"))


@pytest.mark.parametrize("key", keys("encode"))
def test_golden(key):
    check_golden(key)


def test_every_golden_result_is_tested():
    tested = [key for family in ("encode", "encode_k", "encode_tiny", "encode_iq") for key in keys(family)]
    assert sorted(tested) == sorted(set(golden()) - {"x", "imatrix"})


@FORMAT
@pytest.mark.parametrize("imatrix", [False, True])
def test_awkward_rows(name, imatrix):
    check_awkward(name, 480, imatrix)


@FORMAT
def test_error(name):
    check_error(name, 10000)


@FORMAT
def test_a_short_row(name):
    """Fewer blocks than are encoded side by side: each on its own gives the same, when it weighs alone."""
    for k in (32, 96, 288):
        x = normal(3, k)
        rows = agree(lambda x=x: encode(name, x, None))
        each = agree(lambda x=x: encode(name, x.reshape(-1, 32), None))
        same(rows.reshape(each.shape), each, f"{k} elements")


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_plain_number_types(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    corners = np.float32([0, -0.0, 1e-45, 6e-8, -65519, 65520, 3.4e38, 1.0009765625, 1.00390625])
    x = np.concatenate([normal(999), corners])
    dtype = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[name]
    y = agree(lambda: ops.quantize(x.reshape(48, 21), name))
    with np.errstate(over="ignore"):
        same(y, x.reshape(48, 21).astype(dtype))


# ---- the operation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [spec.name for spec in FORMATS.values() if spec.is_block])
def test_every_block_format_has_an_encoder(name):
    spec = FORMATS[name]
    x = np.random.default_rng(4).uniform(-1, 1, (2, 3, 2 * spec.block)).astype(np.float32)
    imatrix = np.ones(2 * spec.block, np.float32)
    q = ops.quantize(x, name.upper(), imatrix=imatrix if spec.imatrix == "required" else None)
    assert isinstance(q, QTensor) and q.format == name and q.shape == x.shape
    assert q.data.shape == (2, 3, spec.row_bytes(x.shape[-1]))
    error = ops.dequantize(q) - x
    # Even one bit per element leaves a quarter of the energy of uniform numbers as error.
    assert (error * error).mean() < 0.3 * (x * x).mean(), "the values have nothing to do with x"


def test_layouts(tmp_path):
    x = normal(5, 64)
    expected = ops.quantize(x, "q4_0").data
    for how, view in layouts(x, tmp_path):
        same(ops.quantize(view, "q4_0").data, expected if how != "broadcast" else expected[[0] * 5], how)


def test_empty():
    for shape in ((0, 64), (3, 0), (0,)):
        q = ops.quantize(np.empty(shape, np.float32), "q5_1")
        assert q.shape == shape and q.nbytes == 0


def test_one_axis():
    x = normal(256)
    same(ops.quantize(x, "q4_k").data, ops.quantize(x[None], "q4_k").data[0])


def test_importance_for_each_of_a_stack():
    x = normal(3, 4, 256)
    imatrix = np.abs(normal(3, 256, seed=1))
    for name in ("q4_0", "q3_k", "iq4_nl", "iq2_xs"):
        stack = ops.quantize(x, name, imatrix=imatrix).data
        for i in range(3):
            same(stack[i], ops.quantize(x[i], name, imatrix=imatrix[i]).data)
        assert (stack[0] != ops.quantize(x[0], name, imatrix=imatrix[1]).data).any(), "the importance does not matter"
        same(ops.quantize(x, name, imatrix=imatrix[0]).data[1], ops.quantize(x[1], name, imatrix=imatrix[0]).data)


def test_importance_that_has_no_effect():
    x, imatrix = normal(4, 256), np.abs(normal(256))
    for name in [spec.name for spec in FORMATS.values() if spec.is_block and spec.imatrix == "ignored"]:
        same(ops.quantize(x, name, imatrix=imatrix).data, ops.quantize(x, name).data, name)


def test_refusals():
    x = normal(4, 256)
    good = np.ones(256, np.float32)
    with pytest.raises(ValueError, match="unknown format 'q4_2'; known: f32"):
        ops.quantize(x, "q4_2")
    with pytest.raises(ValueError, match="no encoder for format i8"):
        ops.quantize(x, "i8")
    with pytest.raises(ValueError, match="at least one axis"):
        ops.quantize(np.float32(1), "q8_0")
    with pytest.raises(ValueError, match="q4_0 rows hold a multiple of 32 elements, got 33"):
        ops.quantize(normal(2, 33), "q4_0")
    with pytest.raises(TypeError, match="x must be float32.*float64"):
        ops.quantize(x.astype(np.float64), "q4_0")
    with pytest.raises(TypeError, match="imatrix must be float32"):
        ops.quantize(x, "q4_0", imatrix=good.astype(np.float64))
    for wrong in (good[:128], good[None], np.ones((4, 256), np.float32)):
        with pytest.raises(ValueError, match=r"imatrix must have shape \(256,\)"):
            ops.quantize(x, "q4_0", imatrix=wrong)
    for name in ("iq2_xxs", "iq2_xs", "iq1_s"):
        with pytest.raises(ValueError, match=f"{name} cannot be encoded without an importance matrix"):
            ops.quantize(x, name)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_are_refused(bad):
    x = normal(7, 256)
    x[3, 200] = bad
    for name in ("q4_0", "q6_k", "mxfp4", "iq3_s", "i2_s", "f16"):
        with pytest.raises(ValueError, match=r"NaN or infinity \(first in row 3\)"):
            ops.quantize(x, name)
    stack = np.concatenate([normal(1, 7, 256), x[None]])
    with pytest.raises(ValueError, match=r"first in row 10\)"):
        ops.quantize(stack, "q4_k", imatrix=np.ones((2, 256), np.float32))
    imatrix = np.ones(256, np.float32)
    for wrong in (bad, -1.0):
        imatrix[5] = wrong
        with pytest.raises(ValueError, match="imatrix holds negative numbers, NaN or infinity"):
            ops.quantize(normal(2, 256), "q4_0", imatrix=imatrix)


def test_rows_that_are_not_finite_are_reported_and_zero(variant):
    x = normal(33, 256)
    x[[0, 7, 32], [255, 0, 50]] = np.nan, np.inf, -np.inf
    x[5] = 1e9
    for name in ("q4_0", "q4_k", "iq4_nl", "iq3_s"):
        spec = FORMATS[name]
        tables = lattices.search_tables(spec.lattice) if spec.lattice else ()
        for nth in (1, 2, 3):
            finite, out = np.full(33, 9, np.uint8), np.full((33, spec.row_bytes(256)), 0x55, np.uint8)
            variant.kernel(spec.encoder).encode_rows_into_unchecked(spec.number, *tables, x, None, out, finite, nth)
            assert np.flatnonzero(finite == 0).tolist() == [0, 7, 32] and set(finite) == {0, 1}
            assert not out[[0, 7, 32]].any() and (out != 0x55).any(-1).all()
