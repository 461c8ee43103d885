"""Several sequences at once, and programs against the op-by-op path, on tiny models."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from references import same

from fucina import llm
from fucina.quantizer import mixes, quantize_file

TINY = Path(__file__).resolve().parent / "golden" / "tiny"


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "gemma3"])
def path(request, tmp_path_factory):
    """A tiny model whose matrices are all q4_0 or q8_0."""
    out = tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"
    quantize_file(TINY / f"{request.param}-f16.gguf", out, "q4_0")
    return out


@pytest.fixture
def model(path):
    with llm.load(path) as model:
        assert model._programs is not None
        yield model


def op_by_op(model):
    model._programs = None
    return model


def prompt_of(model, n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.config.n_vocab, n).tolist()


def greedy(model, prompt, n: int):
    """Logits of ``n`` steps, each token being the best of the last step."""
    cache, rows = model.new_cache(), []
    for _ in range(n):
        rows.append(model.next_logits(prompt, cache))
        prompt = [int(rows[-1].argmax())]
    return np.array(rows)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("cache_type", ["f16", "f32", "q8_0"])
def test_programs_have_the_bits_of_the_operations(path, cache_type, count, threads):
    """Prompts of 1 to 40 tokens and what follows, for any number of threads."""
    threads(count)
    with llm.load(path, cache_type=cache_type) as one, llm.load(path, cache_type=cache_type, pack=False) as other:
        op_by_op(other)
        for n in (1, 2, 3, 7, 8, 16, 17, 31, 33, 40):
            prompt = prompt_of(one, n, seed=n)
            steps = 30 if n in (1, 17, 40) else 3
            same(greedy(one, prompt, steps), greedy(other, prompt, steps))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("mix", ["f16", "bf16", "f32", "mixed"])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3"])
def test_programs_with_dense_matrices(arch, mix, count, threads, tmp_path, monkeypatch):
    """The same, where matrices are numbers: all of them, or some beside quantized ones."""
    if mix in ("bf16", "mixed"):
        pytest.importorskip("ml_dtypes")
    if mix == "mixed":
        formats = ("f16", "q8_0", "q4_0", "bf16", "f32")
        monkeypatch.setattr(mixes.Chooser, "choose", lambda self, name, shape: formats[crc32(name.encode()) % len(formats)])
    path = tmp_path / "tiny.gguf"
    quantize_file(TINY / f"{arch}-f16.gguf", path, "f16" if mix == "mixed" else mix)
    threads(count)
    with llm.load(path) as one, llm.load(path, pack=False) as other:
        assert one._programs is not None
        op_by_op(other)
        for n in (1, 2, 3, 7, 17, 33, 40):
            prompt = prompt_of(one, n, seed=n)
            same(greedy(one, prompt, 20 if n == 7 else 3), greedy(other, prompt, 20 if n == 7 else 3), f"{n} tokens")
        prompts = [prompt_of(one, n, seed=n) for n in (5, 1, 33, 2, 17)]
        together = one.batch_logits([(prompt, one.new_cache()) for prompt in prompts])
        for prompt, row in zip(prompts, together):
            same(row, other.next_logits(prompt, other.new_cache()))


@pytest.mark.parametrize("program", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_sequences_of_a_batch_have_the_bits_that_they_have_alone(model, program, count, threads):
    threads(count)
    if not program:
        op_by_op(model)
    prompts = [prompt_of(model, n, seed=n) for n in (5, 1, 33, 2, 17)]
    alone = [greedy(model, prompt, 30) for prompt in prompts]
    caches = [model.new_cache() for _ in prompts]
    for step in range(30):
        rows = model.batch_logits(zip(prompts, caches))
        for i, row in enumerate(rows):
            same(row, alone[i][step])
        prompts = [[int(row.argmax())] for row in rows]


@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_batches_larger_than_a_chunk(model, chunk, monkeypatch):
    prompts = [prompt_of(model, n, seed=n) for n in (9, 1, 4, 8)]
    expected = np.array([model.next_logits(prompt, model.new_cache()) for prompt in prompts])
    monkeypatch.setattr("fucina.llm.model.CHUNK", chunk)
    same(model.batch_logits([(prompt, model.new_cache()) for prompt in prompts]), expected)


def test_more_sequences_than_one_program_takes(model):
    prompts = [prompt_of(model, 1, seed=n) for n in range(40)]
    expected = np.array([model.next_logits(prompt, model.new_cache()) for prompt in prompts])
    same(model.batch_logits([(prompt, model.new_cache()) for prompt in prompts]), expected)


def test_sequences_come_and_go(model):
    """Whoever else is in the batch, the tokens are those of a generation alone."""
    wanted = {}
    for n in (3, 1, 20, 6):
        prompt = prompt_of(model, n, seed=n)
        wanted[n] = (prompt, list(model.generate_tokens(prompt, max_tokens=4 + n, temperature=0.8, seed=n)))
    batch = llm.Batch(model)
    add = lambda n: batch.add(wanted[n][0], max_tokens=4 + n, temperature=0.8, seed=n)
    sequences = {3: add(3), 1: add(1)}
    batch.step()
    sequences[20] = add(20)
    left_early = batch.add(prompt_of(model, 2), max_tokens=100)
    batch.step()
    assert len(batch) >= 1
    if left_early.finish_reason is None:
        batch.remove(left_early)
        assert left_early.finish_reason == "removed" and len(left_early.tokens) == 1
        with pytest.raises(ValueError, match="not in the batch"):
            batch.remove(left_early)
    sequences[6] = add(6)
    while batch:
        for sequence, token in batch.step():
            assert sequence.tokens[-1] == token
    for n, sequence in sequences.items():
        assert sequence.tokens == wanted[n][1]
        assert sequence.finish_reason in ("length", "stop")
    assert batch.step() == []


def test_wrong_arguments(model):
    cache = model.new_cache()
    with pytest.raises(ValueError, match="share a cache"):
        model.batch_logits([([1], cache), ([2], cache)])
    with pytest.raises(ValueError, match="at least one token"):
        model.batch_logits([([1], cache), ([], model.new_cache())])
    assert model.batch_logits([]).shape == (0, model.config.n_vocab)
    batch = llm.Batch(model)
    first = batch.add([1], max_tokens=2)
    with pytest.raises(ValueError, match="share a cache"):
        batch.add([2], cache=first.cache)
    with pytest.raises(ValueError, match="prompt is empty"):
        batch.add([])
    assert batch.add([1], max_tokens=0).finish_reason == "length" and len(batch) == 1
    full = model.new_cache(n_ctx=3)
    ended = batch.add([1, 2], max_tokens=10, cache=full)
    while batch:
        batch.step()
    assert ended.finish_reason in ("context", "stop")


def test_an_error_leaves_all_caches_as_they_were(model):
    cache, full = model.new_cache(), model.new_cache(n_ctx=2)
    model.next_logits([1, 2], cache)
    with pytest.raises(ValueError, match="do not fit the context of 2"):
        model.batch_logits([([1], cache), ([1, 2, 3], full)])
    assert (cache.length, full.length) == (2, 0)


@pytest.mark.parametrize("when", range(1, 18))
def test_an_interrupt_at_any_choice_changes_no_token(model, when, monkeypatch):
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    alone = [list(model.generate_tokens(prompt, max_tokens=6)) for prompt in prompts]
    batch, choose, calls = llm.Batch(model), llm.Sampler.sample, []
    sequences = [batch.add(prompt, max_tokens=6) for prompt in prompts]

    def interrupted(self, *args):
        calls.append(1)
        if len(calls) == when:
            raise KeyboardInterrupt
        return choose(self, *args)

    monkeypatch.setattr(llm.Sampler, "sample", interrupted)
    while batch:
        try:
            batch.step()
        except KeyboardInterrupt:
            pass
    assert [sequence.tokens for sequence in sequences] == alone
    for sequence, prompt in zip(sequences, prompts):
        if sequence.finish_reason == "length":
            assert sequence.cache.length == len(prompt) + 5


def test_a_cache_that_others_touch(model):
    expected = list(model.generate_tokens([1, 2], max_tokens=5))
    batch = llm.Batch(model)
    one, two = batch.add([1, 2], max_tokens=5, cache=model.new_cache(8)), batch.add([3], max_tokens=3)
    batch.step()
    model.next_logits([1] * 6, one.cache)
    batch.step()
    assert one.tokens == expected[:2]
    one.cache.truncate(0)
    if one.finish_reason is None:
        with pytest.raises(ValueError, match="lost its cache"):
            batch.step()
        assert one.finish_reason == "removed"
    while batch:
        batch.step()
    assert two.finish_reason in ("length", "stop")


def test_a_sequence_whose_logits_are_no_numbers_leaves(model):
    expected = {first: list(model.generate_tokens([first], max_tokens=5)) for first in (1, 3)}
    batch = llm.Batch(model)
    one, two, three = (batch.add([first], max_tokens=5, cache=model.new_cache()) for first in (1, 2, 3))
    batch.step()
    row = model.batch_logits
    try:
        def spoiled(parts):
            logits = row(parts)
            logits[1] = np.nan
            return logits

        model.batch_logits = spoiled
        with pytest.raises(ValueError, match="logits"):
            batch.step()
    finally:
        del model.batch_logits
    assert two.finish_reason == "removed" and len(two.tokens) == 1
    while batch:
        batch.step()
    assert [one.tokens, three.tokens] == [expected[1], expected[3]]


def test_an_interrupt_while_a_program_gets_another_number_of_rows(model, monkeypatch):
    parts = lambda n, first=1: [([first + i], model.new_cache()) for i in range(n)]
    expected = model.batch_logits(parts(7))
    model.batch_logits(parts(7, 20))  # other numbers in the buffers
    where = np.where

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "where", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.batch_logits(parts(5))
    monkeypatch.setattr(np, "where", where)
    assert (model.batch_logits(parts(7)) == expected).all()


def test_numbers_of_tokens(model):
    batch = llm.Batch(model)
    for wrong, error in ((-5, ValueError), (2.5, TypeError), ("a", TypeError), (float("nan"), TypeError)):
        with pytest.raises(error, match="max_tokens"):
            batch.add([1], max_tokens=wrong)
    config = model.config
    longer = llm.Cache(config.n_layer, config.n_head_kv, config.head_dim, config.n_ctx + 1)
    with pytest.raises(ValueError, match="context of the model"):
        model.next_logits([1], longer)


def test_caches_of_different_types_meet(path):
    with llm.load(path) as model, llm.load(path, cache_type="f32") as other:
        prompt = prompt_of(model, 5)
        expected = np.array([model.next_logits(prompt, m.new_cache()) for m in (model, other)])
        same(model.batch_logits([(prompt, m.new_cache()) for m in (model, other)]), expected)
