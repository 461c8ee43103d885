"""Every format has all its parts; formats that share an id are told apart; a scale per tensor travels with it."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from references import normal, same

from fucina import QTensor, open_gguf, ops
from fucina._scalar import _blocks, encode, encode_iq, encode_k, encode_tiny
from fucina.formats import BY_ID, FORMATS, lattices, resolve
from fucina.quantizer.writer import Writer

BLOCKS = [spec for spec in FORMATS.values() if spec.is_block]
ENCODERS = {"encode": dict(enumerate(encode.ENCODERS)), "encode_k": encode_k.ENCODERS, "encode_iq": encode_iq.ENCODERS,
            "encode_tiny": {n: pair[0] for n, pair in encode_tiny.ENCODERS.items()}}
SHARED = {"q2_0_g128": "q2_0"}


def test_numbers_are_a_row_without_gaps():
    assert sorted(spec.number for spec in BLOCKS) == list(range(len(BLOCKS)))
    assert all(spec.number == -1 and not spec.decoder for spec in FORMATS.values() if not spec.is_block)


@pytest.mark.parametrize("spec", BLOCKS, ids=lambda spec: spec.name)
def test_every_format_has_its_parts(spec, variant):
    """The specification knows the number by the name of the table; both families exist in every variant."""
    name = SHARED.get(spec.name, spec.name)
    assert _blocks.FIELDS[spec.number].__name__ == name
    assert ENCODERS[spec.encoder][spec.number].__name__ == name
    for stem, entry in ((spec.decoder, "dequantize_rows_into_unchecked"), (spec.encoder, "encode_rows_into_unchecked")):
        assert hasattr(variant.kernel(stem), entry)
        assert hasattr(importlib.import_module(f"fucina._scalar.{stem}"), entry)
    assert spec.imatrix in ("ignored", "optional", "required")
    assert spec.activation in ("q8_0", "q8_1", "q8_k")
    assert not spec.lattice or spec.lattice in lattices.LATTICES
    assert spec.row_bytes(spec.block * 3) == spec.nbytes * 3


def test_lattices_are_all_used():
    assert {spec.lattice for spec in BLOCKS} - {""} == set(lattices.LATTICES)


def test_the_sizes_of_the_lattices():
    assert {name: len(lattices.grid(name)) for name in lattices.LATTICES} == {
        "iq1": 2048, "iq2_xxs": 256, "iq2_xs": 512, "iq2_s": 1024, "iq3_xxs": 256, "iq3_s": 512}
    assert not lattices.grid("iq1").flags.writeable


# ---- two formats with one id --------------------------------------------------------------------------------------


def test_ggml_comes_first_where_an_id_is_shared():
    assert BY_ID[42].name == "q2_0" and FORMATS["q2_0_g128"].ggml_id == 42


@pytest.mark.parametrize("shape", [(4, 128), (7, 256), (3, 5, 384), (1, 128)])
def test_the_length_tells_shared_ids_apart(shape):
    for name in ("q2_0", "q2_0_g128"):
        spec = FORMATS[name]
        nbytes = spec.tensor_bytes(shape)
        for room in (nbytes, nbytes + 5, -(-nbytes // 32) * 32):
            other = FORMATS["q2_0" if name == "q2_0_g128" else "q2_0_g128"].tensor_bytes(shape)
            if not other <= room < other + 32:
                assert resolve(42, shape, room) is spec


def test_resolving_without_a_choice():
    assert resolve(2, (4, 32), 10**6) is FORMATS["q4_0"]
    assert resolve(99, (4, 32), 100) is None
    # Rows that only fit one of the two, and a length that fits neither.
    assert resolve(42, (4, 64), 72) is FORMATS["q2_0"]
    assert resolve(42, (4, 128), 10**6) is FORMATS["q2_0"]


def test_files_with_both_formats_of_an_id(tmp_path):
    """The reader looks how far away the next tensor, or the end of the file, is."""
    x = normal(6, 256)
    names = ["q2_0", "q2_0_g128", "q8_0", "q2_0_g128", "q2_0"]
    tensors = [(f"{i}.{name}", name, x.shape) for i, name in enumerate(names)]
    with Writer(tmp_path / "a.gguf", [], tensors) as out:
        for _, name, _ in tensors:
            out.write(ops.quantize(x, name).data)
    with open_gguf(tmp_path / "a.gguf") as model:
        for key, name, _ in tensors:
            assert model.tensors[key].type_name == model[key].format == name
            same(model[key].dequantize(), ops.quantize(x, name).dequantize())


# ---- a scale per tensor -------------------------------------------------------------------------------------------


def test_a_scale_behind_the_blocks():
    x = np.random.default_rng(1).integers(-1, 2, (6, 256)).astype(np.float32)
    codes = ops.quantize(x, "i2_s")
    assert codes.scale == 1
    for padding in (0, 28):
        flat = np.concatenate([codes.data.reshape(-1), np.float32([-2.5]).view(np.uint8), np.zeros(padding, np.uint8)])
        q = QTensor(flat, "i2_s", (6, 256))
        assert q.scale == np.float32(-2.5) and q.nbytes == 6 * 64
        np.testing.assert_array_equal(q.dequantize(), x * np.float32(-2.5))
        np.testing.assert_array_equal(q.rows([4, 1]), x[[4, 1]] * np.float32(-2.5))
        np.testing.assert_array_equal(q[2:4].dequantize(), x[2:4] * np.float32(-2.5))
    assert FORMATS["i2_s"].tensor_bytes((6, 256)) == 6 * 64 + 32


def test_a_file_with_a_scale_per_tensor(tmp_path):
    x = np.random.default_rng(2).integers(-1, 2, (5, 384)).astype(np.float32) * np.float32(0.3)
    q = ops.quantize(x, "i2_s")
    with Writer(tmp_path / "a.gguf", [], [("a", "i2_s", x.shape), ("b", "q8_0", x.shape)]) as out:
        out.write(q.data)
        out.write(np.concatenate([np.float32([q.scale]).view(np.uint8), np.zeros(28, np.uint8)]))
        out.write(ops.quantize(x, "q8_0").data)
    with open_gguf(tmp_path / "a.gguf") as model:
        same(model["a"].dequantize(), x)
        assert model.tensors["a"].nbytes == 5 * 96 + 32 and model["b"].format == "q8_0"


def test_a_scale_given_by_hand():
    q = ops.quantize(np.ones((2, 128), np.float32), "i2_s")
    same(QTensor(q.data, "i2_s", q.shape, scale=0.25).dequantize(), np.full((2, 128), 0.25, np.float32))
    assert QTensor(q.data, "i2_s", q.shape).scale == 1
    with pytest.raises(ValueError, match="q8_0 has no scale per tensor, got 2.0"):
        QTensor(np.zeros((1, 34), np.uint8), "q8_0", (1, 32), scale=2.0)
    with pytest.raises(ValueError, match="needs 64 bytes, got 101"):
        QTensor(np.zeros(101, np.uint8), "i2_s", (2, 128))
    assert QTensor(np.zeros((1, 34), np.uint8), "q8_0", (1, 32)).scale is None


def test_a_tensor_of_zeros_has_a_scale_of_zero():
    q = ops.quantize(np.zeros((2, 128), np.float32), "i2_s")
    assert q.scale == 0 and not q.dequantize().any()
