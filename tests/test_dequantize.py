"""Decoding: bit for bit the gguf package's values, for any bytes; look-up of rows in quantized and plain tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import (
    BLOCKS,
    HALVES,
    F,
    agree,
    engine,
    guarded,
    layouts,
    normal,
    random_blocks,
    same,
    set_half,
)

from fucina import QTensor, ops
from fucina.formats import FORMATS

gguf = pytest.importorskip("gguf")
ml_dtypes = pytest.importorskip("ml_dtypes")
formats = pytest.mark.parametrize("name", BLOCKS)
EVERY_HALF = np.arange(65536, dtype=np.uint16)
PLAIN = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def reference(q: QTensor) -> np.ndarray:
    """The values by the gguf package; by the specification for the few formats that the package does not decode."""
    kind = getattr(gguf.GGMLQuantizationType, q.format.upper(), None)
    if kind not in gguf.quants._type_traits:
        with engine("scalar"):
            return ops.dequantize(q)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(np.ascontiguousarray(q.data), kind).reshape(q.shape)


def test_the_package_decodes_nearly_all():
    known = {kind.name.lower() for kind in gguf.quants._type_traits}
    assert set(BLOCKS) - known <= {"q1_0", "q2_0", "q2_0_g128", "i2_s"}


@formats
@pytest.mark.parametrize("finite", [True, False])
def test_random_bytes(name, finite):
    block = FORMATS[name].block
    for rows, blocks in ((1, 1), (1, 7), (2, 1), (3, 2), (5, 1), (13, 3), (64, 4)):
        q = random_blocks(name, rows, blocks * block, finite=finite)
        same(agree(lambda q=q: ops.dequantize(q)), reference(q), f"{rows} rows of {blocks} blocks")


@pytest.mark.parametrize("name", HALVES)
def test_every_scale(name):
    """Each half-precision pattern in each field: all zeros, subnormal numbers, infinities and NaN, of the others every
    seventh in the large blocks."""
    block = FORMATS[name].block
    halves = EVERY_HALF[np.isin(EVERY_HALF & 0x7C00, (0, 0x7C00)) | (EVERY_HALF % (7 if block == 256 else 1) == 0)]
    for at in HALVES[name]:
        q = random_blocks(name, len(halves), block)
        q.data[:, at : at + 2] = halves[:, None].view(np.uint8)
        same(agree(lambda q=q: ops.dequantize(q), scalar=False, threads=(1, 3)), reference(q), f"scales at {at}")
        part = q[::41]
        same(agree(lambda q=part: ops.dequantize(q)), reference(part), f"scales at {at}")


@formats
@pytest.mark.parametrize("byte", [0x00, 0x0F, 0x7F, 0x80, 0xF0, 0xFF])
def test_extreme_codes(name, byte):
    spec = FORMATS[name]
    for half in (1.0, -65504.0, 6e-8):
        blocks = np.full((2, spec.nbytes), byte, np.uint8)
        for at in HALVES.get(name, ()):
            set_half(blocks, at, half)
        q = QTensor(blocks, name, (2, spec.block))
        same(agree(lambda q=q: ops.dequantize(q)), reference(q))


@given(st.sampled_from(BLOCKS), st.binary(min_size=210, max_size=210))
def test_any_block(name, data):
    spec = FORMATS[name]
    q = QTensor(np.frombuffer(data, np.uint8)[: spec.nbytes], name, (spec.block,))
    same(agree(lambda: ops.dequantize(q), threads=(1,)), reference(q))


def test_many_rows():
    q = random_blocks("q5_0", 9375, 32)     # 300000 elements
    same(agree(lambda: ops.dequantize(q), scalar=False), reference(q))


@formats
def test_layouts(name, tmp_path):
    q = random_blocks(name, 5, 2 * FORMATS[name].block)
    for how, data in layouts(q.data, tmp_path):
        view = QTensor(data, name, q.shape)
        same(agree(lambda view=view: ops.dequantize(view)), reference(view), how)


# ---- look-up of rows ---------------------------------------------------------------------------------------------

IDS = ([0], [3, 3, 0], [[6, 1], [2, 5]], [], 4, np.uint8([6]), np.array([5, 1], ">i4"), np.arange(7)[::-2])


@formats
def test_rows_by_index(name):
    table = random_blocks(name, 7, 2 * FORMATS[name].block, finite=False)
    for ids in IDS:
        y = agree(lambda ids=ids: ops.embedding(ids, table))
        same(y, reference(table)[np.asarray(ids, int)], str(ids))


@pytest.mark.parametrize("dtype", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("k", [1, 3, 8, 17, 31, 257])
def test_rows_of_plain_tables(dtype, k, tmp_path):
    for how, table in layouts(normal(7, k).astype(dtype), tmp_path):
        for ids in IDS:
            y = agree(lambda ids=ids, table=table: ops.embedding(ids, table))
            same(y, table.astype(F)[np.asarray(ids, int)], f"{how} {ids}")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_every_16_bit_number(dtype):
    table = EVERY_HALF.view(dtype)
    with np.errstate(invalid="ignore"):
        expected = table.astype(F)
    for shape in ((1, 65536), (65536, 1), (64, 1024)):
        y = agree(lambda shape=shape: ops.embedding(np.arange(shape[0]), table.reshape(shape)))
        same(y.reshape(-1), expected, str(shape))


def test_every_f32_is_copied():
    bits = np.random.default_rng(0).integers(0, 2**32, (3, 4096), np.uint32)
    y = agree(lambda: ops.embedding([2, 0], bits.view(F)))
    assert (y.view(np.uint32) == bits[[2, 0]]).all(), "NaN too keep their bits"


def test_repeated_rows_of_a_large_table():
    table = random_blocks("q6_k", 300, 256)
    ids = np.random.default_rng(0).integers(0, 300, 1171)       # 299776 elements
    same(agree(lambda: ops.embedding(ids, table), scalar=False), reference(table)[ids])


@pytest.mark.parametrize("name", [*BLOCKS, *PLAIN])
def test_nothing_is_written_beyond_out(name):
    table = normal(9, 256).astype(PLAIN[name]) if name in PLAIN else random_blocks(name, 9, 256)

    def call():
        out, check = guarded((9, 256))
        y = ops.embedding(np.arange(9), table, out=out)
        check()
        assert y is out
        return y

    same(agree(call), ops.embedding(np.arange(9), table))


def test_half_precision_overflows_to_infinity():
    q = random_blocks("q8_0", 4, 32)
    set_half(q.data, 0, 65504.0)
    expected = reference(q)
    with np.errstate(over="ignore"):
        same(ops.dequantize(q, dtype=np.float16), expected.astype(np.float16))
    same(ops.dequantize(q, dtype=np.float64), expected.astype(np.float64))
