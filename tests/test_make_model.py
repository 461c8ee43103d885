"""Random models: what is in the file, that it runs, and that nothing half-written stays behind."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fucina import QTensor, llm, open_gguf, ops
from fucina.formats import BY_ID, FORMATS
from fucina.llm.arch import ARCHITECTURES

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import make_model  # noqa: E402

TINY = replace(make_model.SHAPES["tiny"], n_ff=512)


BLOCKS = [spec.name for spec in BY_ID.values() if spec.is_block and not spec.tensor_scale]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_runs(tmp_path, arch, tied):
    path = tmp_path / "m.gguf"
    make_model.write_model(path, replace(TINY, arch=arch, tied=tied, window=8 if arch == "gemma3" else 0), "f16")
    with llm.load(path) as model:
        assert model.config.arch.name == arch and model.config.n_layer == 2 and model.config.n_ff == 512
        assert (model.config.windows[0] == 8) == (arch == "gemma3")
        logits = model.logits(range(12))
    assert logits.shape == (12, 256) and np.isfinite(logits).all()
    assert 0.1 < logits.std() < 30  # neither vanished nor run away
    with open_gguf(path) as file:
        assert ("output.weight" in file) != tied


@pytest.mark.parametrize("format", ["f16", "bf16", *BLOCKS])
def test_the_weights_are_the_same_whatever_holds_them(tmp_path, format):
    exact, path = tmp_path / "exact.gguf", tmp_path / "m.gguf"
    make_model.write_model(exact, TINY, "f32", seed=3)
    make_model.write_model(path, TINY, format, embedding="f16", seed=3)
    with open_gguf(exact) as wanted, open_gguf(path) as file:
        assert list(file.tensors) == list(wanted.tensors)
        assert file["token_embd.weight"].dtype == np.float16
        for name in ("blk.0.ffn_down.weight", "blk.1.attn_k.weight"):
            x, w = wanted[name], file[name]
            assert file.tensors[name].shape == x.shape and file.tensors[name].ggml_id == FORMATS[format].ggml_id
            if isinstance(w, QTensor):
                ones = np.ones(x.shape[-1], np.float32) if FORMATS[format].imatrix == "required" else None
                assert w.format == format
                np.testing.assert_array_equal(w.data, ops.quantize(x, format, imatrix=ones).data)
            else:
                np.testing.assert_array_equal(np.asarray(w, np.float32), x.astype(w.dtype).astype(np.float32))
        np.testing.assert_array_equal(file["blk.0.attn_norm.weight"], wanted["blk.0.attn_norm.weight"])


def test_another_reader_agrees(tmp_path):
    import gguf

    path = tmp_path / "m.gguf"
    make_model.write_model(path, replace(TINY, tied=False), "q8_0", embedding="bf16", output="f16")
    reader = gguf.GGUFReader(path)
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert types["token_embd.weight"] == "BF16" and types["output.weight"] == "F16"
    assert types["blk.0.attn_q.weight"] == "Q8_0" and types["output_norm.weight"] == "F32"
    shapes = {tensor.name: list(tensor.shape) for tensor in reader.tensors}
    assert shapes["blk.0.ffn_down.weight"] == [512, 256] and shapes["blk.0.attn_k.weight"] == [256, 128]
    assert reader.fields["tokenizer.ggml.model"].contents() == "none"
    assert reader.fields["general.architecture"].contents() == "qwen3"


def test_the_seed_decides(tmp_path):
    a, b, c = (tmp_path / name for name in "abc")
    for path, seed in ((a, 1), (b, 1), (c, 2)):
        make_model.write_model(path, TINY, "f16", seed=seed)
    assert a.read_bytes() == b.read_bytes() != c.read_bytes()


def test_command(tmp_path, capsys):
    path = tmp_path / "m.gguf"
    arguments = "--like qwen3-0.6b --layers 1 --embd 64 --ff 96 --heads 2 --kv-heads 1 --head-dim 32"
    arguments += " --vocab 50 --ctx 99"
    assert make_model.main([str(path), *arguments.split(), "--no-tied", "--type", "Q8_0"]) == 0
    assert "MB" in capsys.readouterr().out
    with llm.load(path) as model:
        c = model.config
        assert (c.n_layer, c.n_embd, c.n_ff, c.n_head, c.n_head_kv, c.head_dim) == (1, 64, 96, 2, 1, 32)
        assert (c.n_vocab, c.n_ctx, c.rope_bases) == (50, 99, (1e6,)) and model.logits([49]).shape == (1, 50)


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["--type", "q9"], "unknown format 'q9'"),
    (["--type", "i8"], "cannot be of type i8"),
    (["--type", "q4_k", "--embd", "288"], "token_embd.weight has rows of 288, which q4_k cannot hold"),
    (["--type", "q8_0", "--ff", "100"], "ffn_down.weight has rows of 100"),
    (["--output-type", "f16"], "tied"),
    (["--layers", "0"], "--layers must be at least 1"),
    (["--heads", "3"], "multiple of n_head_kv"),
    (["--head-dim", "63"], "even"),
    (["--type", "i2_s"], "cannot be of type i2_s"),
    (["--type", "q2_0_g128"], "cannot be of type q2_0_g128"),
])  # fmt: skip
def test_what_cannot_be_written_leaves_nothing_behind(tmp_path, capsys, arguments, complaint):
    assert make_model.main([str(tmp_path / "m.gguf"), *arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
