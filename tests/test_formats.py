"""The format table against the gguf package, and what a QTensor accepts, refuses and gives back."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from references import BLOCKS, PRODUCTS, layouts, random_blocks, same

import fucina
from fucina import QTensor, ops
from fucina.formats import BY_ID, FORMATS, KNOWN_IDS, PackedQTensor, lookup

gguf = pytest.importorskip("gguf")


# ---- the table ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", gguf.GGML_QUANT_SIZES, ids=lambda kind: kind.name)
def test_table_agrees_with_the_gguf_package(kind):
    if kind.value in KNOWN_IDS:
        assert KNOWN_IDS[kind.value] == kind.name.lower()
        return
    spec = BY_ID[kind.value]
    assert spec.name == kind.name.lower()
    assert (spec.block, spec.nbytes) == gguf.GGML_QUANT_SIZES[kind]


def test_names_and_ids_are_used_once():
    assert all(name == spec.name == name.lower() for name, spec in FORMATS.items())
    assert all(spec.ggml_id == number for number, spec in BY_ID.items())
    assert {spec.ggml_id for spec in FORMATS.values()} == set(BY_ID)
    assert not set(BY_ID) & set(KNOWN_IDS)


def test_plain_number_types_are_numpy_types():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for spec in FORMATS.values():
        if spec.numpy:
            dtype = np.dtype(ml_dtypes.bfloat16 if spec.numpy == "bfloat16" else spec.numpy)
            assert (spec.block, spec.nbytes, spec.is_block) == (1, dtype.itemsize, False)
            assert spec.code == -1 and spec.activation is None


def test_lookup_takes_any_case_and_lists_what_there_is():
    assert lookup("Q4_K") is lookup("q4_k") is FORMATS["q4_k"]
    for wrong in ("q4", "", None, 12):
        with pytest.raises(ValueError, match="known: f32, f16, .*q4_0.*q6_k"):
            lookup(wrong)


def test_rows_are_whole_blocks():
    assert FORMATS["q4_0"].row_bytes(96) == 54
    assert FORMATS["q6_k"].row_bytes(0) == 0
    assert FORMATS["f16"].row_bytes(5) == 10
    with pytest.raises(ValueError, match="q4_k rows hold a multiple of 256 elements, got 128"):
        FORMATS["q4_k"].row_bytes(128)


# ---- QTensor -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("shape", [(256,), (3, 512), (2, 3, 256), (0, 256), (3, 0)])
def test_shape_and_bytes(name, shape):
    spec = FORMATS[name]
    nbytes = int(np.prod(shape)) // spec.block * spec.nbytes
    q = QTensor(np.zeros(nbytes, np.uint8), name.upper(), shape)
    assert (q.format, q.shape, q.ndim, q.nbytes, len(q)) == (name, shape, len(shape), nbytes, shape[0])
    assert q.data.shape == shape[:-1] + (spec.row_bytes(shape[-1]),) and q.data.dtype == np.uint8
    assert name in repr(q) and str(shape) in repr(q)


def test_bytes_are_used_in_place(tmp_path):
    raw = random_blocks("q4_0", 4, 64).data.reshape(-1)
    assert np.shares_memory(QTensor(raw, "q4_0", (4, 64)).data, raw)
    for how, data in layouts(raw.reshape(4, 36), tmp_path):
        q = QTensor(data, "q4_0", (4, 64))
        assert np.shares_memory(q.data, data), how
        same(q.data.copy(), np.array(data), how)


def test_wrong_data_and_shapes_are_refused():
    raw = np.zeros(36, np.uint8)
    for data in (raw.astype(np.int8), raw.astype(np.float32), bytes(36), [0.0] * 36, None):
        with pytest.raises(TypeError, match="uint8, got"):
            QTensor(data, "q4_0", (2, 32))
    for shape in ((3, 32), (2, 64), (1, 32)):
        with pytest.raises(ValueError, match=rf"of shape \({shape[0]}, {shape[1]}\) needs \d+ bytes, got 36"):
            QTensor(raw, "q4_0", shape)
    with pytest.raises(ValueError, match="multiple of 32 elements, got 16"):
        QTensor(raw, "q4_0", (4, 16))
    for shape in ((), (-2, 32), (-2, -32)):
        with pytest.raises(ValueError, match="at least one axis without negative sizes"):
            QTensor(raw, "q4_0", shape)
    for shape in (5, (2.0, 32), ("2", 32), None):
        with pytest.raises(TypeError):
            QTensor(raw, "q4_0", shape)
    with pytest.raises(ValueError, match="C-contiguous"):
        QTensor(np.zeros((36, 2), np.uint8)[:, 0], "q4_0", (2, 32))
    with pytest.raises(ValueError, match="needs 18000000000000000000000 bytes, got 36"):
        QTensor(raw, "q4_0", (10**15, 32 * 10**6))
    with pytest.raises(ValueError, match="plain number type"):
        QTensor(raw, "f16", (18,))
    with pytest.raises(ValueError, match="unknown format 'q9'"):
        QTensor(raw, "q9", (2, 32))


def test_indexing_keeps_whole_rows():
    # 34 rows of 34 bytes: an axis of rows and an axis of bytes look alike.
    q = random_blocks("q8_0", 34, 32)
    values = q.dequantize()
    for index in (0, -1, np.int64(7), slice(3, 9), slice(None, None, -2), [5, 0, 5], np.arange(34) % 3 == 1, ..., None,
                  (..., 0), (0, ...), (None, 4), (..., slice(1, 2)), (), slice(0, 0)):
        part = q[index]
        assert isinstance(part, QTensor) and part.format == "q8_0"
        same(part.dequantize(), values[np.arange(34)[index]], str(index))
    assert np.shares_memory(q[3:5].data, q.data)
    assert [row.shape for row in q] == [(32,)] * 34
    for index in (34, (0, 0), (0, ..., 0), "a", 1.5):
        with pytest.raises(IndexError):
            q[index]
    with pytest.raises(IndexError):
        q[0][0]
    cube = random_blocks("q4_k", 2, 3, 256)
    same(cube[1, 2].dequantize(), cube.dequantize()[1, 2])
    same(cube[:, 1].dequantize(), cube.dequantize()[:, 1])


def test_rows():
    q = random_blocks("q6_k", 5, 256)
    values = q.dequantize()
    for ids in (3, [0, 4, 4], np.array([[1, 2], [3, 0]]), [], np.uint8([2])):
        same(q.rows(ids), values[np.asarray(ids, int)])
    for ids in (5, -1, [0, 9]):
        with pytest.raises(ValueError, match=r"ids must be in \[0, 5\)"):
            q.rows(ids)
    with pytest.raises(TypeError, match="integers, got float64"):
        q.rows([0.0])


@pytest.mark.parametrize("name", PRODUCTS)
def test_pack_keeps_every_byte(name):
    """The specification takes panels apart again. Bytes of tq1_0 come back as the ones that encoders write."""
    spec = FORMATS[name]
    unpack_rows = importlib.import_module("fucina._scalar.linear_quant").unpack_rows
    for n in (1, 7, 8, 9, 33):
        q = random_blocks(name, n, 512, finite=False)
        packed = q.pack()
        assert isinstance(packed, PackedQTensor) and (packed.format, packed.shape) == (name, (n, 512))
        assert packed.nbytes == -(-n // 8) * 8 * spec.row_bytes(512) and name in repr(packed)
        rows = unpack_rows(spec.code, spec.nbytes, spec.half_at, packed.data, n)
        if name != "tq1_0":
            same(rows, q.data)
        again = QTensor(rows, name, q.shape)
        same(again.dequantize(), q.dequantize())
        same(again.pack().data, packed.data)


def test_pack_refuses_what_is_not_a_matrix():
    with pytest.raises(TypeError, match="QTensor, got ndarray"):
        ops.pack(np.zeros((2, 32), np.float32))
    for shape in ((32,), (1, 2, 32)):
        with pytest.raises(ValueError, match="takes a matrix"):
            random_blocks("q4_0", *shape).pack()
    assert random_blocks("q4_0", 0, 32).pack().nbytes == 0


def test_dequantize_takes_three_types():
    q = random_blocks("q5_1", 3, 64)
    values = q.dequantize()
    for dtype in (np.float16, np.float64, "float16"):
        same(q.dequantize(dtype), values.astype(dtype))
    assert q.dequantize().flags.writeable and q.dequantize() is not q.dequantize()
    for dtype in (np.int32, ">f4", np.complex64):
        with pytest.raises(TypeError, match="float32, float16 or float64"):
            q.dequantize(dtype)


def test_front_door():
    assert fucina.QTensor is QTensor
