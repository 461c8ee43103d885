"""Quantizing files: llama.cpp's choice of formats, whole files equal to those of llama-quantize, and nothing half done.

The golden data (``golden/quantize.json``) was made with llama-quantize of llama.cpp (as of ggml 0.25.3): which format each
tensor of the models below gets, one letter per tensor, and the SHA-256 of quantized tiny models.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from references import normal

from fucina import open_gguf, quantizer
from fucina.formats import FORMATS
from fucina.quantizer.imatrix import Imatrix, read_imatrix
from fucina.quantizer.mixes import ALIASES, MIXES, Chooser, Facts, lookup_mix
from fucina.quantizer.writer import Writer

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = json.loads((GOLDEN / "quantize.json").read_text())
TINY = {path.stem: path for path in (GOLDEN / "tiny").glob("*.gguf")}


# ---- the rules ---------------------------------------------------------------------------------------------------

# Architecture, layers, width, width of the feed-forward layer, key heads (of 8), experts, tied embeddings, fused qkv.
MODELS = {
    "gqa": ("llama", 20, 256, 256, 2, 0, False, False), "mha": ("llama", 17, 256, 256, 8, 0, True, False),
    "moe": ("llama", 12, 256, 256, 2, 8, False, False), "moe4": ("llama", 12, 256, 256, 8, 4, False, False),
    "odd": ("llama", 9, 288, 96, 8, 0, False, False), "odd2": ("llama", 9, 304, 512, 2, 0, False, False),
    "falcon": ("falcon", 20, 256, 256, 1, 0, False, True), "70": ("llama", 80, 256, 256, 2, 0, True, False),
}


def tensors_of(arch, layers, k, ff, kv, experts, tied, fused) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model."""
    shapes = {"output_norm.weight": (k,), "token_embd.weight": (64, k)}
    if not tied:
        shapes["output.weight"] = (64, k)
    for i in range(layers):
        parts = {"attn_norm": (k,), "ffn_norm": (k,), "attn_output": (16, k)}
        parts |= {"attn_qkv": (k // 4 * 3, k)} if fused else {"attn_q": (k // 4, k), "attn_k": (16, k), "attn_v": (16, k)}
        if experts:
            parts |= {"ffn_gate_inp": (experts, k), "ffn_gate_exps": (experts, 8, k), "ffn_up_exps": (experts, 8, k),
                      "ffn_down_exps": (experts, 8, ff)}
        else:
            parts |= {"ffn_gate": (8, k), "ffn_up": (8, k), "ffn_down": (8, ff)}
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in parts.items()}
    return shapes


def metadata_of(arch, layers, k, ff, kv, experts, tied, fused) -> dict:
    return {"general.architecture": arch, f"{arch}.block_count": layers, f"{arch}.attention.head_count": 8,
            f"{arch}.attention.head_count_kv": kv} | ({f"{arch}.expert_count": experts} if experts else {})


@pytest.mark.parametrize("case", EXPECTED["types"])
def test_formats_are_chosen_as_llama_cpp_does(case):
    model = MODELS[case.removesuffix("_im")]
    shapes = tensors_of(*model)
    names = sorted(shapes, key=lambda name: (quantizer._layer(name), name))
    for mix, letters in EXPECTED["types"][case].items():
        chooser = Chooser(mix, Facts.of(metadata_of(*model)), names, has_imatrix=case.endswith("_im"))

        def format_of(name, chooser=chooser):
            before = "f32" if "_norm" in name else "f16"
            return chooser.choose(name, shapes[name]) if chooser.allows(name, shapes[name]) else before

        if not letters:
            with pytest.raises(ValueError, match="cannot store, and there is no format to fall back to"):
                [format_of(name) for name in names]
            continue
        expected = [EXPECTED["legend"][letter] for letter in letters]
        chosen = [format_of(name) for name in names]
        assert dict(zip(names, chosen)) == dict(zip(names, expected)), f"{case} {mix}"


def test_mixes_have_their_own_numbers_and_known_formats():
    assert len({number for number, _ in MIXES.values()}) == len(MIXES)
    assert {format for _, format in MIXES.values()} <= set(FORMATS)
    assert set(ALIASES.values()) <= set(MIXES) and not set(ALIASES) & set(MIXES)
    assert lookup_mix("Q4_K") == "q4_k_m" and lookup_mix("q8_0") == "q8_0"
    with pytest.raises(ValueError, match="unknown type 'q9'; known: f32, .*q4_k_m"):
        lookup_mix("q9")


def test_what_stays_as_it_is():
    chooser = Chooser("q8_0", Facts("llama", 2, 1, 0, False), [])
    for name, shape in {
        "blk.0.attn_norm.weight": (64, 64), "blk.0.attn_q.bias": (64, 64), "blk.0.ffn_gate_inp.weight": (8, 64),
        "blk.0.attn_q.weight": (1, 64), "blk.1.ssm_conv1d.weight": (4, 64), "position_embd.weight": (8, 64),
        "rope_freqs.weight": (64,),
    }.items():
        assert not chooser.allows(name, shape), name
    for name in ("blk.0.attn_q.weight", "output.weight", "token_embd.weight", "blk.3.ffn_down_exps.weight"):
        assert chooser.allows(name, (4, 8, 64)), name
    keeping = Chooser("q8_0", Facts("llama", 2, 1, 0, False), [], leave_output=True)
    assert not keeping.allows("output.weight", (8, 64)) and keeping.allows("blk.0.attn_q.weight", (8, 64))


# ---- whole files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "mix"), [(model, mix) for model, mixes in EXPECTED["sha256"].items() for mix in mixes]
)
def test_files_are_those_of_llama_quantize(tmp_path, model, mix):
    out = tmp_path / "out.gguf"
    quantizer.quantize_file(TINY[model], out, mix)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == EXPECTED["sha256"][model][mix]


def test_what_is_told_and_what_is_true(tmp_path):
    seen = []
    changes = quantizer.quantize_file(
        TINY["qwen3-f16"], tmp_path / "a.gguf", "Q4_K", token_embedding_type="f16",
        progress=lambda change, i, n: seen.append((change.name, i, n)),
    )
    assert [name for name, _, _ in seen] == [change.name for change in changes]
    assert [i for _, i, _ in seen] == list(range(len(changes))) and {n for _, _, n in seen} == {len(changes)}
    with open_gguf(tmp_path / "a.gguf") as new, open_gguf(TINY["qwen3-f16"]) as old:
        assert new.metadata["general.file_type"] == 15 and new.metadata["general.quantization_version"] == 2
        assert set(new) == set(old)
        assert {k: v for k, v in new.metadata.types.items() if k in old.metadata} == dict(old.metadata.types)
        for change in changes:
            info = new.tensors[change.name]
            assert (info.type_name, info.shape, info.nbytes) == (change.after, change.shape, change.nbytes)
            assert old.tensors[change.name].type_name == change.before
        assert new.tensors["token_embd.weight"].type_name == "f16"


def test_pure_and_formats_by_hand(tmp_path):
    quantizer.quantize_file(TINY["llama-f16"], tmp_path / "a.gguf", "q4_k_m", pure=True, output_tensor_type="q8_0",
                            token_embedding_type="q5_1")
    with open_gguf(tmp_path / "a.gguf") as model:
        kinds = {name: info.type_name for name, info in model.tensors.items() if len(info.shape) > 1}
    assert kinds.pop("token_embd.weight") == "q5_1"
    assert kinds.pop("output.weight", "q8_0") == "q8_0"
    assert set(kinds.values()) == {"q4_k"}


def test_again_only_when_allowed(tmp_path):
    quantizer.quantize_file(TINY["qwen3-f16"], tmp_path / "a.gguf", "q8_0")
    with pytest.raises(ValueError, match=r"is quantized already \(q8_0\); start from the original weights"):
        quantizer.quantize_file(tmp_path / "a.gguf", tmp_path / "b.gguf", "q4_0")
    assert not (tmp_path / "b.gguf").exists()
    quantizer.quantize_file(tmp_path / "a.gguf", tmp_path / "b.gguf", "q4_0", allow_requantize=True)
    quantizer.quantize_file(tmp_path / "a.gguf", tmp_path / "c.gguf", "q8_0")
    assert (tmp_path / "c.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()


def write(path, tensors: dict[str, np.ndarray], **metadata):
    """A file of plain float32 tensors."""
    entries = [(key.replace("__", "."), "string" if isinstance(value, str) else "uint32", value)
               for key, value in metadata.items()]
    with Writer(path, entries, [(name, "f32", x.shape) for name, x in tensors.items()]) as out:
        for x in tensors.values():
            out.write(x)
    return path


def test_a_tensor_that_is_not_finite_is_named_and_nothing_is_left(tmp_path):
    bad = normal(40, 64)
    bad[17, 3] = np.nan
    source = write(tmp_path / "in.gguf", {"blk.0.attn_q.weight": normal(8, 64), "blk.1.attn_q.weight": bad},
                   general__architecture="llama", llama__block_count=2)
    target = tmp_path / "out.gguf"
    target.write_bytes(b"what was here before")
    with pytest.raises(ValueError, match=r"'blk.1.attn_q.weight', rows from 0: x holds NaN or infinity \(first in row 17"):
        quantizer.quantize_file(source, target, "q4_0")
    assert target.read_bytes() == b"what was here before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf", "out.gguf"]


def test_refusals(tmp_path):
    source = write(tmp_path / "in.gguf", {"blk.0.attn_q.weight": normal(8, 256)}, general__architecture="llama",
                   llama__block_count=1)
    with pytest.raises(ValueError, match="the new file must not be the old one"):
        quantizer.quantize_file(source, source, "q8_0")
    with pytest.raises(ValueError, match="unknown type 'q3'"):
        quantizer.quantize_file(source, tmp_path / "out.gguf", "q3")
    with pytest.raises(ValueError, match="unknown format 'q3'"):
        quantizer.quantize_file(source, tmp_path / "out.gguf", "q8_0", token_embedding_type="q3")
    for mix in ("iq2_xs", "iq1_m", "q2_k_s", "iq3_xxs"):
        with pytest.raises(ValueError, match=f"{mix} stores tensor 'blk.0.attn_q.weight' as .*needs an importance"):
            quantizer.quantize_file(source, tmp_path / "out.gguf", mix)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        quantizer.quantize_file(source, tmp_path / "no" / "out.gguf", "q8_0")
    with pytest.raises(FileNotFoundError):
        quantizer.quantize_file(tmp_path / "none.gguf", tmp_path / "out.gguf", "q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def one_tensor(path, x, **metadata):
    return write(path, {"blk.0.attn_q.weight": x}, general__architecture="llama", **({"llama__block_count": 1} | metadata))


@pytest.mark.parametrize("mix", ["f16", "q4_0", "q8_0", "q4_k_m"])
def test_a_tensor_beyond_the_range_of_its_new_scales_is_refused(tmp_path, mix):
    x = normal(2, 3, 256)
    x[1, 2, 5] = 1e9
    source = one_tensor(tmp_path / "in.gguf", x)
    with pytest.raises(ValueError, match="'blk.0.attn_q.weight' cannot become .* too large"):
        quantizer.quantize_file(source, tmp_path / "out.gguf", mix)
    quantizer.quantize_file(source, tmp_path / "bf16.gguf", "bf16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bf16.gguf", "in.gguf"]


@pytest.mark.parametrize("mix", ["q4_k_m", "iq4_nl"])
def test_importances_that_overflow_are_refused(tmp_path, mix):
    source = one_tensor(tmp_path / "in.gguf", normal(8, 256))
    huge = np.random.default_rng(0).random(256, np.float32) * np.float32(1e38)
    with pytest.raises(ValueError, match="'blk.0.attn_q.weight' cannot become .* importances, are too large"):
        quantizer.quantize_file(source, tmp_path / "out.gguf", mix, imatrix=Imatrix({"blk.0.attn_q.weight": huge}, None, 0))
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_only_a_regular_file_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    for name in (tmp_path / "folder", f"{tmp_path}/new/"):
        with pytest.raises(IsADirectoryError):
            quantizer.quantize_file(TINY["llama-f16"], name, "q8_0")
    with pytest.raises(ValueError, match="the new file has an empty name"):
        quantizer.quantize_file(TINY["llama-f16"], "", "q8_0")
    assert list(tmp_path.rglob("*")) == [tmp_path / "folder"]


@pytest.mark.skipif(os.name != "posix", reason="pipes and links")
def test_pipes_are_refused_and_links_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to pipe").symlink_to("pipe")
    for name in ("pipe", "to pipe"):
        with pytest.raises(ValueError, match=f"{name}: not a regular file"):
            quantizer.quantize_file(TINY["llama-f16"], tmp_path / name, "q8_0")
    (tmp_path / "folder").mkdir()
    for name in ("old", "new"):
        (tmp_path / name).symlink_to(f"folder/{name}.gguf")
    (tmp_path / "folder" / "old.gguf").touch()
    for name in ("old", "new"):
        quantizer.quantize_file(TINY["llama-f16"], tmp_path / name, "q8_0")
        assert (tmp_path / name).is_symlink()
        with open_gguf(tmp_path / "folder" / f"{name}.gguf") as model:
            assert model.metadata["general.file_type"] == 7


def test_no_file_that_is_read_is_overwritten(tmp_path):
    parts = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for i, part in enumerate(parts):
        entries = [("split.count", "uint16", 2), ("split.no", "uint16", i), ("split.tensors.count", "int32", 2)]
        with Writer(part, entries, [(f"blk.{i}.attn_q.weight", "f32", (8, 256))]) as out:
            out.write(normal(8, 256))
    matrix = modern(tmp_path / "i.gguf", np.ones((1, 256), np.float32), np.float32([[1]]))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for target in parts:
        with pytest.raises(ValueError, match="the new file must not be the old one"):
            quantizer.quantize_file(parts[0], target, "q8_0")
    with pytest.raises(ValueError, match="the new file must not be the importance matrix"):
        quantizer.quantize_file(parts[0], matrix, "q8_0", imatrix=str(matrix))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("option", ["token_embedding_type", "output_tensor_type"])
@pytest.mark.parametrize(
    ("kind", "complaint"),
    [("i2_s", "tensors cannot be made i2_s; possible: f32, f16"), ("i8", "cannot be made i8"), ("f64", "cannot be made f64"),
     ("q2_0_g128", "cannot be made q2_0_g128; possible"),  # whose id is that of q2_0
     ("iq1_s", "cannot be made iq1_s without an importance matrix"), ("", "unknown format ''")],
)
def test_formats_by_hand_that_cannot_be_made(tmp_path, option, kind, complaint):
    with pytest.raises(ValueError, match=complaint):
        quantizer.quantize_file(TINY["llama-f16"], tmp_path / "out.gguf", "q8_0", **{option: kind})
    assert list(tmp_path.iterdir()) == []


def test_a_format_by_hand_that_does_not_fit_names_the_tensor(tmp_path):
    source = write(tmp_path / "in.gguf", {"token_embd.weight": normal(8, 96)}, general__architecture="llama")
    with pytest.raises(ValueError, match="'token_embd.weight' cannot become q4_k, whose rows hold a multiple of 256"):
        quantizer.quantize_file(source, tmp_path / "out.gguf", "q8_0", token_embedding_type="q4_k")


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [("llama.block_count", "string", "2"), ("llama.block_count", "float32", float("nan")), ("llama.block_count", "int32", -1),
     ("llama.expert_count", "bool", True), ("llama.attention.head_count_kv", "array[int32]", np.zeros(0, np.int32)),
     ("llama.attention.head_count", "array[string]", ["8"]), ("general.architecture", "uint32", 5)],
)
def test_metadata_of_the_wrong_type_is_named(tmp_path, key, kind, value):
    entries = {"general.architecture": ("string", "llama"), key: (kind, value)}
    with Writer(tmp_path / "in.gguf", [(k, *v) for k, v in entries.items()], []):
        pass
    with pytest.raises(ValueError, match=rf"in\.gguf: {key} must be a"):
        quantizer.quantize_file(tmp_path / "in.gguf", tmp_path / "out.gguf", "q4_k_m")


def test_a_stack_is_quantized_matrix_by_matrix(tmp_path):
    x = normal(3, 8, 256)
    weights = np.abs(normal(3, 256, seed=1))
    source = write(tmp_path / "in.gguf", {"blk.0.ffn_up_exps.weight": x}, general__architecture="llama",
                   llama__block_count=1, llama__expert_count=3)
    matrix = Imatrix({"blk.0.ffn_up_exps.weight": weights.reshape(-1)}, None, 0)
    quantizer.quantize_file(source, tmp_path / "out.gguf", "q4_k_m", imatrix=matrix)
    from fucina import ops

    with open_gguf(tmp_path / "out.gguf") as model:
        found = model["blk.0.ffn_up_exps.weight"]
        assert found.format == "q4_k" and found.shape == (3, 8, 256)
        np.testing.assert_array_equal(found.data, ops.quantize(x, "q4_k", imatrix=weights).data)


# ---- importance matrices -----------------------------------------------------------------------------------------


def modern(path, sums, counts, name="blk.0.attn_q.weight", **more):
    entries = [("general.type", "string", "imatrix"), ("imatrix.datasets", "array[string]", ["wiki.txt", "other"]),
               ("imatrix.chunk_count", "uint32", 7), ("imatrix.chunk_size", "uint32", 512)]
    tensors = {f"{name}.in_sum2": sums, f"{name}.counts": counts}
    with Writer(path, entries, [(key, "f32", x.shape) for key, x in tensors.items()]) as out:
        for x in tensors.values():
            out.write(x)
    return path


def older(path, entries: dict[str, tuple[int, np.ndarray]], tail: bytes = b""):
    parts = [struct.pack("<i", len(entries))]
    for name, (calls, values) in entries.items():
        raw = name.encode()
        parts.append(struct.pack("<i", len(raw)) + raw + struct.pack("<ii", calls, len(values)) + values.tobytes())
    path.write_bytes(b"".join(parts) + tail)
    return path


def test_reading_the_modern_file(tmp_path):
    sums = np.abs(normal(2, 256))
    matrix = read_imatrix(modern(tmp_path / "i.gguf", sums, np.float32([[4], [0]])))
    assert matrix.dataset == "wiki.txt" and matrix.chunks == 7
    expected = np.concatenate([sums[0] / np.float32(4), np.ones(256, np.float32)])
    np.testing.assert_array_equal(matrix.columns["blk.0.attn_q.weight"], expected)


def test_reading_the_older_file(tmp_path):
    values = np.abs(normal(64))
    tail = struct.pack("<ii", 12, 4) + b"wiki"
    matrix = read_imatrix(older(tmp_path / "i.dat", {"a": (3, values), "b": (0, values)}, tail))
    assert (matrix.dataset, matrix.chunks) == ("wiki", 12)
    np.testing.assert_array_equal(matrix.columns["a"], values / np.float32(3))
    np.testing.assert_array_equal(matrix.columns["b"], values)
    assert read_imatrix(older(tmp_path / "j.dat", {"a": (3, values)})).dataset is None


def test_files_that_are_no_importance_matrix(tmp_path):
    whole = older(tmp_path / "i.dat", {"a": (3, normal(64))}).read_bytes()
    for n in (0, 3, 9, len(whole) - 1):
        (tmp_path / "cut.dat").write_bytes(whole[:n])
        with pytest.raises(ValueError, match="not an importance matrix, or cut short|no importance matrix"):
            read_imatrix(tmp_path / "cut.dat")
    with pytest.raises(ValueError, match="there is no imatrix.datasets"):
        read_imatrix(TINY["qwen3-f16"])
    with Writer(tmp_path / "i.gguf", [("imatrix.datasets", "uint32", 5)], []):
        pass
    with pytest.raises(ValueError, match=r"i\.gguf: imatrix.datasets must be array\[string\], got uint32"):
        read_imatrix(tmp_path / "i.gguf")
    assert read_imatrix(older(tmp_path / "i.dat", {"a": (1, np.ones(4, np.float32))}, struct.pack("<i", -3))).chunks == 0
    bad = normal(64)
    bad[3] = np.inf
    with pytest.raises(ValueError, match="the importance of 'a' holds NaN or infinity"):
        read_imatrix(older(tmp_path / "i.dat", {"a": (1, bad)}))
    with pytest.raises(ValueError, match="fit together"):
        read_imatrix(modern(tmp_path / "i.gguf", np.abs(normal(3, 5)), np.ones((2, 1), np.float32)))


def test_the_importance_reaches_the_encoder(tmp_path):
    x, sums = normal(8, 256), np.abs(normal(1, 256, seed=2))
    source = write(tmp_path / "in.gguf", {"blk.0.attn_q.weight": x}, general__architecture="llama", llama__block_count=1)
    path = modern(tmp_path / "i.gguf", sums, np.float32([[5]]))
    quantizer.quantize_file(source, tmp_path / "out.gguf", "iq2_xs", imatrix=path)
    from fucina import ops

    with open_gguf(tmp_path / "out.gguf") as model:
        expected = ops.quantize(x, "iq2_xs", imatrix=sums[0] / np.float32(5))
        np.testing.assert_array_equal(model["blk.0.attn_q.weight"].data, expected.data)
        told = {key: model.metadata[key] for key in model.metadata if key.startswith("quantize.")}
    assert told == {"quantize.imatrix.file": "i.gguf", "quantize.imatrix.dataset": "wiki.txt",
                    "quantize.imatrix.entries_count": 1, "quantize.imatrix.chunks_count": 7}
    # Once more, with what another matrix says instead.
    other = modern(tmp_path / "j.gguf", sums, np.float32([[5]]))
    quantizer.quantize_file(tmp_path / "out.gguf", tmp_path / "again.gguf", "iq2_s", imatrix=other, allow_requantize=True)
    with open_gguf(tmp_path / "again.gguf") as model:
        assert {key: model.metadata[key] for key in told} == told | {"quantize.imatrix.file": "j.gguf"}
    with pytest.raises(ValueError, match="has 100 numbers for tensor 'blk.0.attn_q.weight'.*expected 256"):
        quantizer.quantize_file(source, tmp_path / "b.gguf", "q4_0",
                                imatrix=Imatrix({"blk.0.attn_q.weight": np.ones(100, np.float32)}, None, 0))
    with pytest.raises(ValueError, match="lacks tensor 'blk.0.attn_q.weight', which iq2_xs needs"):
        quantizer.quantize_file(source, tmp_path / "b.gguf", "iq2_xs", imatrix=Imatrix({}, None, 0))


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices")
def test_an_importance_matrix_is_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ValueError, match="not a regular file"):
            read_imatrix(path)
    with pytest.raises(IsADirectoryError):
        read_imatrix(tmp_path)


def test_copied_tensors_of_every_kind(tmp_path):
    bf16 = pytest.importorskip("ml_dtypes").bfloat16
    x = normal(2, 256)
    tensors = {"output.weight": x.astype(bf16), "output_norm.weight": x[0].astype(bf16), "rope_freqs.weight": x[0],
               "token_embd.weight": x.astype(np.float16)}
    kinds = {name: "bf16" if t.dtype == bf16 else t.dtype.name.replace("float", "f") for name, t in tensors.items()}
    with Writer(tmp_path / "in.gguf", [("general.architecture", "string", "llama")],
                [(name, kinds[name], t.shape) for name, t in tensors.items()]) as out:
        for t in tensors.values():
            out.write(t)
    quantizer.quantize_file(tmp_path / "in.gguf", tmp_path / "out.gguf", "q4_0", leave_output_tensor=True,
                            token_embedding_type="f16")
    with open_gguf(tmp_path / "out.gguf") as model:
        for name, t in tensors.items():
            assert model.tensors[name].type_name == kinds[name]
            np.testing.assert_array_equal(model[name].view(np.uint8), t.view(np.uint8))


def test_empty_tensors_take_nothing(tmp_path):
    shapes = {"a.weight": ("f32", (2, 3, 0)), "b.weight": ("f32", (3, 0, 256)), "c.weight": ("i2_s", (0, 128)),
              "d.weight": ("f32", (2**40, 2, 0)), "e.weight": ("f32", (8, 256)), "f.weight": ("f32", (0, 256))}
    with Writer(tmp_path / "in.gguf", [("general.architecture", "string", "llama")],
                [(name, *kind) for name, kind in shapes.items()]) as out:
        out.write(x := normal(8, 256))
        with pytest.raises(ValueError, match="takes no more tensors, got 4 bytes"):
            out.write(np.float32([1]))
    quantizer.quantize_file(tmp_path / "in.gguf", tmp_path / "out.gguf", "q8_0", allow_requantize=True)
    from fucina import ops

    with open_gguf(tmp_path / "out.gguf") as model:
        assert {name: info.shape for name, info in model.tensors.items()} == {name: s for name, (_, s) in shapes.items()}
        np.testing.assert_array_equal(model["e.weight"].data, ops.quantize(x, "q8_0").data)


# ---- the writer --------------------------------------------------------------------------------------------------


def test_every_kind_of_metadata_comes_back(tmp_path):
    entries = [
        ("a", "uint8", 200), ("b", "int8", -5), ("c", "uint16", 60000), ("d", "int16", -300), ("e", "uint32", 4 * 10**9),
        ("f", "int32", -7), ("g", "float32", 0.5), ("h", "bool", True), ("i", "uint64", 2**63), ("j", "int64", -(2**62)),
        ("k", "float64", 1e300), ("l", "string", "snow \u2603 \udcff"), ("m", "array[string]", ["", "x", "\udc80"]),
        ("n", "array[float32]", np.float32([1, 2.5])), ("o", "array[bool]", np.array([True, False])),
    ]
    with Writer(tmp_path / "a.gguf", entries, []):
        pass
    with open_gguf(tmp_path / "a.gguf") as model:
        assert dict(model.metadata.types) == {key: kind for key, kind, _ in entries}
        for key, kind, value in entries:
            found = model.metadata[key]
            assert (list(found) == list(value)) if kind.startswith("array") else found == value
        again = [(key, model.metadata.types[key], model.metadata[key]) for key in model.metadata]
        with Writer(tmp_path / "b.gguf", again, []):
            pass
    assert (tmp_path / "b.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()


def test_too_much_or_too_little_is_no_file(tmp_path):
    path = tmp_path / "a.gguf"
    with pytest.raises(ValueError, match="1 tensors were not written"), Writer(path, [], [("x", "f32", (4,))]):
        pass
    with pytest.raises(ValueError, match="takes 16 more bytes, got 20"), Writer(path, [], [("x", "f32", (4,))]) as out:
        out.write(np.zeros(5, np.float32))
    with pytest.raises(KeyboardInterrupt), Writer(path, [], [("x", "f32", (4,))]) as out:
        out.write(np.zeros(2, np.float32))
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_while_the_file_is_made_leaves_nothing(tmp_path, monkeypatch):
    import builtins

    def interrupted(*arguments):
        open_file(*arguments).close()
        raise KeyboardInterrupt

    open_file = builtins.open
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(builtins, "open", interrupted)
        Writer(tmp_path / "a.gguf", [], []).__enter__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="limits of file sizes")
@pytest.mark.parametrize("text", [10_000, 10])
def test_no_room_names_the_file_and_leaves_nothing(run_isolated, tmp_path, text):
    """In the header, and at the last moment: what is buffered still has to be written when the file is closed."""
    code = f"""
import resource, sys
import numpy as np
from fucina.quantizer.writer import Writer
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with Writer({str(tmp_path / "a.gguf")!r}, [("key", "string", "x" * {text})], [("x", "f32", (250,))]) as out:
        for i in range(250):
            out.write(np.zeros(1, np.float32))
except OSError as error:
    sys.exit(f"{{error.filename}}: {{error.strerror}}")
"""
    assert run_isolated(code).stderr == f"{tmp_path / 'a.gguf'}: File too large\n"
    assert list(tmp_path.iterdir()) == []
