"""The GGUF reader: what good files hold, and what it says about bad ones."""

from __future__ import annotations

import gc
import os
import pathlib
import random
import shutil
import tracemalloc

import gguf as reference
import gguf_builder as build
import ml_dtypes
import numpy as np
import pytest

import fucina.gguf
from fucina import QTensor, open_gguf
from fucina.formats import FORMATS, KNOWN_IDS

TINY = pathlib.Path(__file__).parent / "golden" / "tiny"


@pytest.fixture
def save(tmp_path):
    """Write bytes to a file and return its path."""

    def save(blob: bytes, name: str = "model.gguf") -> str:
        path = tmp_path / name
        path.write_bytes(blob)
        return str(path)

    return save


def refused(path: str, message: str, at: int) -> None:
    """Opening must raise a ValueError that names the file, the problem and the byte."""
    with pytest.raises(ValueError) as caught:
        open_gguf(path)
    text = str(caught.value)
    assert path in text and message in text and text.endswith(f"(byte {at})"), text


def use_everything(path: str) -> None:
    """Open a file and read every value in it; ValueError is the only way out."""
    try:
        with open_gguf(path) as model:
            for value in model.metadata.values():
                if isinstance(value, fucina.gguf.StringArray):
                    assert len(value.tolist()) == len(value)
                elif isinstance(value, np.ndarray):
                    value.sum()
            for info in model.tensors.values():
                try:
                    value = model[info.name]
                except ValueError:
                    continue
                assert value.shape == info.shape and value.nbytes == info.nbytes
                raw = value.data if isinstance(value, QTensor) else value.view(np.uint8) if value.ndim else value
                raw.sum()
    except ValueError as error:
        assert path in str(error) and "(byte " in str(error)


# --- good files -------------------------------------------------------------------------------------------------


def write_reference(path, alignment=None, **writer):
    """A file by the reference writer with one entry of every kind and tensors of many types."""
    rng = np.random.default_rng(7)
    out = reference.GGUFWriter(path, "test", **writer)
    if alignment:
        out.add_custom_alignment(alignment)
    scalars = {
        "uint8": 255, "int8": -128, "uint16": 65535, "int16": -32768, "uint32": 2**32 - 1, "int32": -(2**31),
        "uint64": 2**64 - 1, "int64": -(2**63), "float32": 0.5, "float64": 0.1, "bool": True,
        "string": "così è, 火",
    }
    for kind, value in scalars.items():
        getattr(out, f"add_{kind}")(f"s.{kind}", value)
    out.add_bool("s.no", False)
    arrays = {"int32": [1, -2, 3], "float32": [0.5, -1.25], "bool": [True, False], "string": ["a", "", "火 b"]}
    for kind, value in arrays.items():
        out.add_array(f"a.{kind}", value)
    tensors = {
        "f32": rng.standard_normal((3, 5), np.float32),
        "f16": rng.standard_normal((2, 3, 4), np.float32).astype(np.float16),
        "f64": rng.standard_normal(7),
        "i8": rng.integers(-128, 128, (5, 3)).astype(np.int8),
        "i16": rng.integers(-999, 999, 9).astype(np.int16),
        "i32": rng.integers(-999, 999, (1, 2, 3, 4)).astype(np.int32),
        "i64": rng.integers(-999, 999, 3),
    }
    for name, value in tensors.items():
        out.add_tensor(name, value)
    bf16 = rng.standard_normal((4, 6)).astype(ml_dtypes.bfloat16)
    out.add_tensor("bf16", bf16.view(np.uint8), raw_dtype=reference.GGMLQuantizationType.BF16)
    tensors["bf16"] = bf16
    blocks = {}
    known = {kind.value for kind in reference.GGMLQuantizationType}
    for name, spec in FORMATS.items():
        if spec.is_block and spec.ggml_id in known:
            blocks[name] = rng.integers(0, 256, (3, 2 * spec.nbytes)).astype(np.uint8)
            out.add_tensor(name, blocks[name], raw_dtype=reference.GGMLQuantizationType(spec.ggml_id))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return scalars, arrays, tensors, blocks


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_round_trip_with_the_reference_writer(tmp_path, version, alignment):
    path = tmp_path / "model.gguf"
    scalars, arrays, tensors, blocks = write_reference(path, alignment)
    with open(path, "r+b") as file:
        file.seek(4)
        file.write(build.u32(version))

    with open_gguf(path) as model:
        assert model.version == version and model.alignment == (alignment or 32)
        for kind, value in scalars.items():
            found = model.metadata[f"s.{kind}"]
            assert found == value and type(found) is type(value)
            assert model.metadata.types[f"s.{kind}"] == kind
        assert model.metadata["s.no"] is False
        for kind, value in arrays.items():
            found = model.metadata[f"a.{kind}"]
            assert found.tolist() == value
            assert model.metadata.types[f"a.{kind}"] == f"array[{kind}]"
            if kind != "string":
                assert found.dtype == kind and not found.flags.owndata and not found.flags.writeable
        assert list(model) == list(model.tensors) == [*tensors, *blocks]
        for name, value in tensors.items():
            found, info = model[name], model.tensors[name]
            assert found.dtype == value.dtype and found.shape == value.shape == info.shape
            assert found.tobytes() == value.tobytes() and info.nbytes == value.nbytes
            assert info.type_name == name and info.offset % model.alignment == 0
            assert found.flags.aligned and not found.flags.owndata and not found.flags.writeable
        for name, value in blocks.items():
            found = model[name]
            assert isinstance(found, QTensor) and found.format == name == model.tensors[name].type_name
            assert found.shape == (3, 2 * FORMATS[name].block) == model.tensors[name].shape
            np.testing.assert_array_equal(found.data, value)
            assert not found.data.flags.owndata and not found.data.flags.writeable


@pytest.mark.parametrize("path", sorted(TINY.glob("*.gguf")), ids=lambda path: path.stem)
def test_agrees_with_the_reference_reader(path):
    theirs = reference.GGUFReader(path)
    with open_gguf(path) as ours:
        fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
        assert list(ours.metadata) == list(fields) and len(ours.metadata) == len(fields)
        for key, field in fields.items():
            value = ours.metadata[key]
            assert (value.tolist() if hasattr(value, "tolist") else value) == field.contents()
        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            info = ours.tensors[tensor.name]
            assert (info.ggml_id, info.offset, info.nbytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)
            assert info.shape == tuple(tensor.shape.tolist()[::-1]) and info.part == 0
            np.testing.assert_array_equal(ours[tensor.name], tensor.data)


NUMBERS = [
    (build.UINT8, "uint8", [0, 255]), (build.INT8, "int8", [-128, 127]), (build.UINT16, "uint16", [0, 65535]),
    (build.INT16, "int16", [-32768, 7]), (build.UINT32, "uint32", [2**32 - 1]), (build.INT32, "int32", [-7, 7]),
    (build.FLOAT32, "float32", [0.5, -np.inf]), (build.BOOL, "bool", [False, True, True]),
    (build.UINT64, "uint64", [2**64 - 1]), (build.INT64, "int64", [-(2**63)]), (build.FLOAT64, "float64", [0.1]),
]


@pytest.mark.parametrize(("kind", "dtype", "values"), NUMBERS, ids=[name for _, name, _ in NUMBERS])
def test_number_types(save, kind, dtype, values):
    raw = [np.array(value, dtype).tobytes() for value in values]
    blob = build.gguf([
        build.entry("odd", build.STRING, build.string("x")),  # moves the rest to an odd address
        build.entry("one", kind, raw[-1]),
        build.entry("many", build.ARRAY, build.array(kind, raw)),
        build.entry("none", build.ARRAY, build.array(kind, [])),
    ])
    with open_gguf(save(blob)) as model:
        one, many, none = (model.metadata[key] for key in ("one", "many", "none"))
        assert one == values[-1] and type(one) is type(values[-1])
        assert many.dtype == none.dtype == dtype and many.tolist() == values and none.shape == (0,)
        assert model.metadata.types == {"odd": "string", "one": dtype, "many": f"array[{dtype}]",
                                        "none": f"array[{dtype}]"}


def test_string_arrays(save):
    words = ["", "a", "è", "火" * 50, "x" * 300]
    blob = build.gguf([build.entry("w", build.ARRAY, build.array(build.STRING, [build.string(w) for w in words])),
                       build.entry("none", build.ARRAY, build.array(build.STRING, [])),
                       build.entry("empty", build.STRING, build.string(""))])
    with open_gguf(save(blob)) as model:
        found = model.metadata["w"]
        assert len(found) == 5 and found.tolist() == list(found) == words
        assert [found[i] for i in range(-5, 5)] == words + words
        assert found[np.int64(3)] == words[3] and found[1:4] == words[1:4] and found[::-2] == words[::-2]
        assert "a" in found and "b" not in found and found.index("è") == 2
        for i in (5, -6):
            with pytest.raises(IndexError, match="out of range for 5 strings"):
                found[i]
        with pytest.raises(TypeError):
            found["a"]
        assert model.metadata["empty"] == ""
        assert model.metadata["none"].tolist() == [] == list(model.metadata["none"])


def test_bytes_that_are_not_utf8_come_back(save):
    raw = [b"\xff\xfe", b"ok\x80", b"\xed\xa0\x80", b"\x00"]
    blob = build.gguf([build.entry("one", build.STRING, build.string(raw[0])),
                       build.entry("many", build.ARRAY, build.array(build.STRING, [build.string(r) for r in raw]))])
    with open_gguf(save(blob)) as model:
        many = model.metadata["many"]
        assert model.metadata["one"].encode("utf-8", "surrogateescape") == raw[0]
        assert [s.encode("utf-8", "surrogateescape") for s in many.tolist()] == raw
        assert [many[i] for i in range(4)] == many.tolist() and len(set(many.tolist())) == 4


def test_smallest_file(save):
    with open_gguf(save(build.gguf(alignment=1))) as model:
        assert len(model) == len(model.metadata) == 0 and list(model) == []


def test_scalars_and_empty_tensors(save):
    tensors = [build.tensor("scalar", [], build.F32, 0), build.tensor("empty", [4, 0], build.F32, 32),
               build.tensor("no rows", [32, 0], build.Q8_0, 32), build.tensor("no columns", [0, 3], build.Q8_0, 32),
               build.tensor("last", [1], build.F32, 32)]
    with open_gguf(save(build.gguf([], tensors, np.float32(1.5).tobytes() + bytes(28) + bytes(4)))) as model:
        assert model["scalar"].shape == () and model["scalar"] == 1.5
        assert model["empty"].shape == (0, 4) and model["empty"].dtype == np.float32
        assert model["no rows"].shape == (0, 32) and model["no rows"].nbytes == 0
        assert model["no columns"].shape == (3, 0) and model["no columns"].nbytes == 0
        assert model["last"].shape == (1,)


def test_gaps_order_and_trailing_bytes_do_not_matter(save):
    data = np.arange(64, dtype=np.float32)
    tensors = [build.tensor("late", [8], build.F32, 192), build.tensor("early", [8], build.F32, 32)]
    with open_gguf(save(build.gguf([], tensors, data.tobytes()))) as model:
        np.testing.assert_array_equal(model["late"], data[48:56])
        np.testing.assert_array_equal(model["early"], data[8:16])


def test_types_outside_the_table_are_listed_and_refused_on_use(save):
    known, name = next(iter(KNOWN_IDS.items()))
    tensors = [build.tensor("a", [32], known, 0), build.tensor("b", [3, 5], 4_000_000_000, 32),
               build.tensor("c", [2], build.F32, 64)]
    path = save(build.gguf([], tensors, bytes(72)))
    with open_gguf(path) as model:
        assert list(model) == ["a", "b", "c"] and "b" in model
        assert (model.tensors["a"].type_name, model.tensors["a"].nbytes) == (name, None)
        assert (model.tensors["b"].type_name, model.tensors["b"].shape) == ("type_4000000000", (5, 3))
        with pytest.raises(ValueError, match=rf"tensor 'a' has type {name}, ggml type {known}") as caught:
            model["a"]
        assert path in str(caught.value) and f"(byte {model.tensors['a'].offset})" in str(caught.value)
        with pytest.raises(ValueError, match="tensor 'b' has type type_4000000000"):
            model["b"]
        assert model["c"].shape == (2,)


# --- the mapping ------------------------------------------------------------------------------------------------


def test_mapping(tmp_path):
    path = TINY / "llama-f16.gguf"
    with open_gguf(path) as model:
        assert "output_norm.weight" in model and "nope" not in model and len(model) == len(list(model.items()))
        for mapping in (model, model.metadata):
            with pytest.raises(KeyError, match="nope"):
                mapping["nope"]
            assert mapping.get("nope") is None
        assert model == model and model != open_gguf(path) and hash(model) == hash(model)
        assert "21 tensors" in repr(model) and "entries" in repr(model.metadata)
        with pytest.raises(TypeError):
            model["x"] = 1
        with pytest.raises(ValueError, match="read-only"):
            model["output_norm.weight"][0] = 1


@pytest.mark.parametrize("kind", [str, os.fsencode, pathlib.Path])
def test_path_types(kind):
    with open_gguf(kind(TINY / "llama-f16.gguf")) as model:
        assert model.path == str(TINY / "llama-f16.gguf")
    with pytest.raises(TypeError):
        open_gguf(3)


def test_views_outlive_the_file(save):
    values = np.arange(8, dtype=np.float32)
    blob = build.gguf(
        [build.entry("n", build.ARRAY, build.array(build.UINT32, [build.u32(7)])),
         build.entry("s", build.ARRAY, build.array(build.STRING, [build.string("word")])),
         build.entry("name", build.STRING, build.string("x"))],
        [build.tensor("f", [8], build.F32, 0), build.tensor("q", [32], build.Q8_0, 32)], values.tobytes() + bytes(34))
    model = open_gguf(save(blob))
    f, q, n, s = model["f"], model["q"], model.metadata["n"], model.metadata["s"]
    model.close()
    model.close()
    with pytest.raises(ValueError, match="closed"):
        model["f"]
    with pytest.raises(ValueError, match="closed"):
        model["nope"]
    with pytest.raises(ValueError, match="'n' .* closed"):
        model.metadata["n"]
    with pytest.raises(ValueError, match="closed"):
        model.metadata["s"]
    assert model.metadata["name"] == "x" and list(model) == ["f", "q"] and model.tensors["q"].type_name == "q8_0"
    del model
    gc.collect()
    np.testing.assert_array_equal(f, values)
    assert q.data.sum() == 0 and n.tolist() == [7] and s.tolist() == ["word"]


def test_close_unmaps_when_nobody_looks(save):
    blob = build.gguf([build.entry("s", build.ARRAY, build.array(build.STRING, [build.string("word")]))],
                      [build.tensor("f", [8], build.F32, 0)], bytes(32))
    model = open_gguf(save(blob))
    (part,) = model._parts
    assert model["f"].sum() == 0 and model.metadata["s"][0] == "word"
    model.close()
    assert part.map.closed


def test_strings_are_decoded_when_asked_for(save):
    """What is written into the file after it was opened is what the array gives."""
    words = [build.string(f"w{i:09d}") for i in range(20_000)]
    path = save(build.gguf([build.entry("w", build.ARRAY, build.array(build.STRING, words))]))
    tracemalloc.start()
    try:
        model = open_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000 * 20  # offsets only; 20,000 str objects take three times that
    first = build.HEADER + len(build.entry("w", build.ARRAY, build.array(build.STRING, []))) + 8
    with open(path, "r+b") as file:
        file.seek(first)
        file.write(b"X")
    assert model.metadata["w"][0] == "X000000000" == model.metadata["w"].tolist()[0]
    model.close()


# --- split models -----------------------------------------------------------------------------------------------


def parts_of(save, *, count=3, change=None):
    """Write a split model; ``change(number, entries, tensors)`` may alter a part. Path of the first."""
    paths = []
    for number in range(count):
        entries = build.split_entries(number, count, count)
        if number == 0:
            entries.append(build.entry("general.name", build.STRING, build.string("whole")))
        tensors = [build.tensor(f"t{number}", [8], build.F32, 0)]
        if change:
            change(number, entries, tensors)
        blob = build.gguf(entries, tensors, np.full(8, number, np.float32).tobytes())
        paths.append(save(blob, build.split_name("model", number + 1, count)))
    return paths


def test_split_model(save):
    paths = parts_of(save)
    with open_gguf(paths[0]) as model:
        assert list(model) == ["t0", "t1", "t2"] and model.metadata["general.name"] == "whole"
        for number in range(3):
            assert model.tensors[f"t{number}"].part == number
            np.testing.assert_array_equal(model[f"t{number}"], np.full(8, number))
        last = model["t2"]
        parts = model._parts
    assert [part.map.closed for part in parts] == [True, True, False]
    assert last[0] == 2


def test_split_model_by_the_reference_writer(tmp_path):
    _, _, tensors, blocks = write_reference(tmp_path / "model.gguf", split_max_tensors=6, small_first_shard=True)
    first, *rest = sorted(tmp_path.glob("*.gguf"))
    assert len(rest) >= 2 and first.name.endswith(f"-00001-of-{len(rest) + 1:05d}.gguf")
    with open_gguf(first) as model:
        assert list(model) == [*tensors, *blocks] and model.metadata["s.float32"] == 0.5
        for name, value in tensors.items():
            assert model[name].tobytes() == value.tobytes()
        for name, value in blocks.items():
            np.testing.assert_array_equal(model[name].data, value)


def test_one_part_and_merged_models_are_ordinary(save):
    for name, count in [("merged.gguf", 0), ("one.gguf", 1), (build.split_name("one", 1, 1), 1)]:
        tensors = [build.tensor("t", [8], build.F32, 0)]
        with open_gguf(save(build.gguf(build.split_entries(0, count, 1), tensors, bytes(32)), name)) as model:
            assert list(model) == ["t"]


def place(entries: list[bytes], i: int) -> int:
    """Offset of the value of entry ``i``, a 2- or 4-byte number with the key it has in ``split_entries``."""
    return build.HEADER + sum(map(len, entries[:i])) + len(entries[i]) - (4 if i == 2 else 2)


def test_split_needs_the_first_part_and_all_others(save):
    paths = parts_of(save)
    refused(paths[1], f"part 2 of a split model; open the first one, {paths[0]}",
            place(build.split_entries(1, 3, 3), 0))
    os.unlink(paths[2])
    with pytest.raises(FileNotFoundError) as caught:
        open_gguf(paths[0])
    assert caught.value.filename == paths[2]


def test_split_names(save):
    first = parts_of(save)[0]
    at = place(build.split_entries(0, 3, 3), 1)
    renamed = save(pathlib.Path(first).read_bytes(), "renamed.gguf")
    refused(renamed, "one of 3 parts, but not named like NAME-00001-of-00003.gguf", at)
    other = save(pathlib.Path(first).read_bytes(), build.split_name("model", 1, 4))
    refused(other, "the file name says 4 parts, split.count says 3", at)
    plain = save(build.gguf(), build.split_name("plain", 1, 2))
    refused(plain, "the file name says 2 parts, split.count says 0", build.HEADER)


@pytest.mark.parametrize(("i", "wrong", "message"), [
    (0, build.split_entries(2, 3, 3)[0], "split.no is 2, expected 1"),
    (1, build.split_entries(1, 2, 3)[1], "split.count is 2, expected 3"),
    (2, build.split_entries(1, 3, 4)[2], "split.tensors.count is 4, expected 3"),
    (2, build.split_entries(1, 3, -1)[2], "split.tensors.count must be a non-negative integer, got int32 -1"),
])
def test_split_parts_that_disagree(save, i, wrong, message):
    def change(number, entries, tensors):
        if number == 1:
            entries[i] = wrong

    refused_part = parts_of(save, change=change)
    with pytest.raises(ValueError) as caught:
        open_gguf(refused_part[0])
    assert refused_part[1] in str(caught.value) and message in str(caught.value)
    assert str(caught.value).endswith(f"(byte {place(build.split_entries(1, 3, 3), i)})")


def test_split_parts_without_or_with_odd_metadata(save):
    def without(number, entries, tensors):
        if number == 2:
            del entries[0]

    with pytest.raises(ValueError, match="part of a split model without split.no") as caught:
        open_gguf(parts_of(save, change=without)[0])
    assert build.split_name("model", 3, 3) in str(caught.value) and "(byte " in str(caught.value)
    odd = build.entry("split.count", build.STRING, build.string("3"))
    refused(save(build.gguf([odd])), "split.count must be a non-negative integer, got string '3'", len(odd) - 9 + 24)


def test_split_parts_with_the_same_tensor(save):
    def change(number, entries, tensors):
        tensors[0] = build.tensor("same", [8], build.F32, 0)

    paths = parts_of(save, change=change)
    with pytest.raises(ValueError, match=r"tensor 'same' is also in .*-00001-of-00003.*\(byte \d+\)"):
        open_gguf(paths[0])


def test_corrupt_part_is_named(save):
    paths = parts_of(save)
    os.truncate(paths[2], 30)
    with pytest.raises(ValueError) as caught:
        open_gguf(paths[0])
    assert paths[2] in str(caught.value)


# --- bad files --------------------------------------------------------------------------------------------------


def test_missing_unreadable_and_odd_files(tmp_path, save):
    with pytest.raises(FileNotFoundError):
        open_gguf(tmp_path / "nope.gguf")
    with pytest.raises(OSError):
        open_gguf(tmp_path)
    secret = save(build.gguf())
    os.chmod(secret, 0)
    if not os.access(secret, os.R_OK):
        with pytest.raises(PermissionError):
            open_gguf(secret)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        open_gguf(tmp_path / "pipe")


def test_not_gguf(save):
    refused(save(b""), "not a GGUF file: starts with b''", 0)
    refused(save(b"PK\x03\x04" + bytes(100)), "not a GGUF file", 0)
    refused(save(b"GGU"), "not a GGUF file", 0)
    refused(save(build.gguf(magic=b"lmgg")), "not a GGUF file", 0)
    refused(save(b"GGUF" + build.u32(3)), "truncated file: the header needs 24 bytes, 8 are left", 0)


@pytest.mark.parametrize("version", [0, 1, 4, 2**32 - 1])
def test_versions(save, version):
    refused(save(build.gguf(version=version)), f"GGUF version {version}; versions 2 and 3 are read", 4)


def test_big_endian(save, tmp_path):
    refused(save(b"GGUF" + (3).to_bytes(4, "big") + bytes(16)), "big-endian GGUF file", 4)
    out = reference.GGUFWriter(tmp_path / "big.gguf", "test", endianess=reference.GGUFEndian.BIG)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.close()
    refused(str(tmp_path / "big.gguf"), "big-endian GGUF file", 4)


START = build.HEADER
HUGE = 2**64 - 1
WORD = build.entry("k", build.STRING, build.string("v"))


def value_of(kind: int, value: bytes, message: str, at: int):
    """A file with one entry "k"; ``at`` counts from the start of its value."""
    return build.gguf([build.entry("k", kind, value)]), message, START + 8 + 1 + 4 + at


def tensor_of(blob: bytes, message: str, at: int, data=bytes(64), before=()):
    """A file with the tensors ``before`` and one more; ``at`` counts from the start of its entry."""
    return build.gguf([], [*before, blob], data), message, START + sum(map(len, before)) + at


BAD = {
    # counts
    "metadata count": (build.gguf(n_entries=HUGE), f"metadata count {HUGE} does not fit", 16),
    "metadata count, plausible": (build.gguf([WORD], n_entries=4), "metadata count 4 does not fit", 16),
    "metadata count, one too many": (build.gguf([WORD], n_entries=2), "metadata key 1 is 0 bytes long",
                                     START + len(WORD)),
    "tensor count": (build.gguf([WORD], n_tensors=HUGE), f"tensor count {HUGE} does not fit", 8),
    # keys
    "key length": (build.gguf([build.u64(HUGE) + bytes(30)]), f"metadata key 0 is {HUGE} bytes long", START),
    "key too long": (build.gguf([build.entry("k" * 65536, build.UINT8, b"\0")]), "65536 bytes long, 1 to 65535", START),
    "key empty": (build.gguf([build.entry("", build.UINT8, b"\0")]), "0 bytes long, 1 to 65535", START),
    "key not UTF-8": (build.gguf([build.entry(b"\xff", build.UINT8, b"\0")]), "metadata key 0 is not UTF-8", START),
    "key twice": (build.gguf([WORD, WORD]), "metadata key 1 is a duplicate: 'k'", START + len(WORD)),
    "value type": value_of(13, bytes(20), "metadata 'k' has the unknown value type 13", -4),
    # values
    "bool": value_of(build.BOOL, b"\2", "metadata 'k' is a bool of value 2", 0),
    "bool array": value_of(build.ARRAY, build.array(build.BOOL, [b"\1", b"\0", b"\xff"]), "neither 0 nor 1", 14),
    "string length": value_of(build.STRING, build.u64(1000), "metadata 'k' is 1000 bytes long", 0),
    "string length huge": value_of(build.STRING, build.u64(HUGE), f"metadata 'k' is {HUGE} bytes long", 0),
    "array count": value_of(build.ARRAY, build.u32(build.UINT32) + build.u64(HUGE), f"{HUGE} elements of 4 bytes", 4),
    "array count overflow": value_of(build.ARRAY, build.u32(build.UINT64) + build.u64(2**61), "elements of 8 bytes", 4),
    "array of arrays": value_of(build.ARRAY, build.array(build.ARRAY, [build.array(build.UINT8, [])]),
                                "metadata 'k' is an array of arrays", 0),
    "element type": value_of(build.ARRAY, build.u32(99) + build.u64(0), "the unknown element type 99", 0),
    "string count": value_of(build.ARRAY, build.u32(build.STRING) + build.u64(HUGE), f"{HUGE} strings", 4),
    "string in array": value_of(build.ARRAY, build.array(build.STRING, [build.string("ab"), build.u64(50), bytes(8)]),
                                "string 1 of the 3 of metadata 'k' does not end inside the file", 22),
    "string in array huge": value_of(build.ARRAY, build.array(build.STRING, [build.u64(HUGE), bytes(8)]),
                                     "string 0 of the 2 of metadata 'k' does not end inside the file", 12),
    "string in array last": value_of(build.ARRAY, build.array(build.STRING, [build.string(""), build.u64(2**63)]),
                                     "string 1 of the 2 of metadata 'k' does not end inside the file", 20),
    # alignment
    **{f"alignment {n}": (build.gguf([build.entry("general.alignment", build.UINT32, build.u32(n))]),
                          f"general.alignment must be a power of two from 8 to 1048576, got {n}", START + 29)
       for n in (0, 1, 4, 24, 33, 2**21, 2**31, 2**32 - 1)},
    "alignment type": (build.gguf([build.entry("general.alignment", build.UINT64, build.u64(32))]),
                       "general.alignment must be a uint32, got uint64", START + 29),
    "alignment text": (build.gguf([build.entry("general.alignment", build.STRING, build.string("32"))]),
                       "general.alignment must be a uint32, got string", START + 29),
    "alignment array": (build.gguf([build.entry("general.alignment", build.ARRAY, build.array(build.UINT32, []))]),
                        "general.alignment must be a uint32, got array[uint32]", START + 29),
    "alignment past the end": (
        build.gguf([build.entry("general.alignment", build.UINT32, build.u32(2**20))],
                   [build.tensor("w", [8], build.F32, 0)], bytes(64)),
        "tensor 'w' needs bytes 1048576 to 1048608", START + 33 + 9 + 4 + 8 + 4),
    # tensors
    "tensor name length": tensor_of(build.u64(500) + bytes(30), "the name of tensor 0 is 500 bytes long", 0),
    "tensor name empty": tensor_of(build.tensor("", [8], build.F32, 0), "the name of tensor 0 is 0 bytes long", 0),
    "tensor twice": tensor_of(build.tensor("w", [8], build.F32, 32), "the name of tensor 1 is a duplicate: 'w'", 0,
                              before=[build.tensor("w", [8], build.F32, 0)]),
    "dims count": tensor_of(build.tensor("w", [1] * 5, build.F32, 0), "tensor 'w' has 5 dims, at most 4", 9),
    "dims count huge": tensor_of(build.string("w") + build.u32(2**32 - 1) + bytes(40), "4294967295 dims", 9),
    "dims overflow": tensor_of(build.tensor("w", [2**32, 2**32], build.F32, 0), "tensor 'w' has dims", 13),
    "dims overflow to nothing": tensor_of(build.tensor("w", [2**32, 2**32, 1, 1], build.F32, 0), "more than", 13),
    "dims overflow behind a zero": tensor_of(build.tensor("w", [HUGE, 0], build.F32, 0), "tensor 'w' has dims", 13),
    "dims overflow of an unknown type": tensor_of(build.tensor("w", [HUGE], 77, 0), "tensor 'w' has dims", 13),
    "part of a block": tensor_of(build.tensor("w", [33], build.Q8_0, 0), "q8_0 rows hold a multiple of 32", 21),
    "scalar in blocks": tensor_of(build.tensor("w", [], build.Q8_0, 0), "q8_0 rows hold a multiple of 32", 13),
    "offset unaligned": tensor_of(build.tensor("w", [8], build.F32, 4), "offset 4, not a multiple of 32", 25),
    "offset past the end": tensor_of(build.tensor("w", [8], build.F32, 64), "tensor 'w' needs bytes 128 to 160", 25),
    "offset huge": tensor_of(build.tensor("w", [8], build.F32, 2**64 - 32), "tensor 'w' needs bytes", 25),
    "offset of an unknown type": tensor_of(build.tensor("w", [8], 77, 64), "tensor 'w' needs bytes 128 to 129", 25),
    "size past the end": tensor_of(build.tensor("w", [17], build.F32, 0), "tensor 'w' needs bytes 64 to 132", 25),
    "overlap": tensor_of(build.tensor("b", [8], build.F32, 32), "the data of tensor 'b' overlaps that of 'a'", 25,
                         before=[build.tensor("a", [9], build.F32, 0)]),
    "overlap, equal": tensor_of(build.tensor("b", [8], build.F32, 0), "the data of tensor 'b' overlaps that of 'a'",
                                25, before=[build.tensor("a", [8], build.F32, 0)]),
    "overlap with an unknown type": tensor_of(build.tensor("b", [8], 77, 32), "tensor 'b' overlaps that of 'a'", 25,
                                              before=[build.tensor("a", [9], build.F32, 0)]),
}


@pytest.mark.parametrize(("blob", "message", "at"), BAD.values(), ids=BAD.keys())
def test_corrupt_files(save, blob, message, at):
    path = save(blob)
    tracemalloc.start()
    try:
        refused(path, message, at)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize(("entries", "message"), [
    ([build.string("k") + build.u32(build.STRING) + build.u64(2**29)], "brings the text in the header to over"),
    ([build.string("k") + build.u32(build.ARRAY) + build.u32(build.STRING) + build.u64(2**26)],
     "brings the strings in arrays to over"),
    ([build.string("k") + build.u32(build.ARRAY) + build.u32(build.BOOL) + build.u64(2**29)], "536870912 bools, at most"),
])
def test_sparse_files_do_not_cost_memory(save, entries, message):
    """A claim that the size of the file bears out is still bounded."""
    path = save(build.gguf(entries))
    os.truncate(path, 2**30)
    tracemalloc.start()
    try:
        refused(path, message, START + 8 + 1 + 4 + (0 if "text" in message else 4))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_strings_in_arrays_count_as_text(save):
    path = save(build.gguf([build.string("k") + build.u32(build.ARRAY) + build.u32(build.STRING) + build.u64(1)
                            + build.u64(2**28 + 1)]))
    os.truncate(path, 2**30)
    with pytest.raises(ValueError, match="metadata 'k' brings the text in the header to over 268435456 bytes"):
        open_gguf(path)


# --- fuzz -------------------------------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path):
    """A copy of a tiny model that may be damaged, and the size of its header."""
    path = str(tmp_path / "victim.gguf")
    shutil.copy(TINY / "qwen3-f16.gguf", path)
    os.chmod(path, 0o644)
    with open_gguf(path) as model:
        return path, min(info.offset for info in model.tensors.values())


def test_truncated_anywhere(victim):
    path, header = victim
    size = os.path.getsize(path)
    cuts = random.Random(1).sample(range(header, size), 100) + list(range(header))
    for cut in sorted(cuts, reverse=True):
        os.truncate(path, cut)
        with pytest.raises(ValueError) as caught:
            open_gguf(path)
        assert path in str(caught.value) and "(byte " in str(caught.value)


def test_flipped_bits(victim):
    path, header = victim
    good = pathlib.Path(path).read_bytes()[:header]
    rng = random.Random(2)
    with open(path, "r+b", buffering=0) as file:
        for _ in range(2000):
            bad = bytearray(good)
            for _ in range(rng.choice([1, 1, 1, 2, 8])):
                bad[rng.randrange(header)] ^= 1 << rng.randrange(8)
            file.seek(0)
            file.write(bad)
            use_everything(path)


def test_extreme_numbers_everywhere(save):
    """Every 4- and 8-byte window of a small header, overwritten with the numbers that break arithmetic."""
    entries = [
        build.entry("general.alignment", build.UINT32, build.u32(32)),
        build.entry("a", build.ARRAY, build.array(build.UINT16, [b"\1\0", b"\2\0"])),
        build.entry("w", build.ARRAY, build.array(build.STRING, [build.string("ab"), build.string("c")])),
        build.entry("b", build.BOOL, b"\1"),
    ]
    tensors = [build.tensor("x", [8, 2], build.F16, 0), build.tensor("q", [32, 2], build.Q4_0, 32)]
    good = build.gguf(entries, tensors, bytes(96))
    header = len(good) - 96
    path = save(good)
    use_everything(path)
    with open(path, "r+b", buffering=0) as file:
        for at in range(4, header - 8):
            for number in [*map(build.u32, (0, 1, 2**31, 2**32 - 1)),
                           *map(build.u64, (0, 2**31, 2**32, 2**60, 2**61 + 1, 2**63 - 1, 2**63, HUGE - 7, HUGE))]:
                file.seek(0)
                file.write(good[:at] + number + good[at + len(number) :])
                use_everything(path)
