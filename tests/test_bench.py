"""``fucina bench``: what is evaluated, what is timed, what is said about it; and the measured read bandwidth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fucina import llm, open_gguf
from fucina.llm import bench, generate
from fucina.llm import model as model_module
from fucina.runtime import bandwidth

GOLDEN = Path(__file__).resolve().parent / "golden" / "tiny"
TIED, UNTIED = GOLDEN / "qwen3-f16.gguf", GOLDEN / "llama-f16.gguf"


@pytest.fixture(scope="module")
def model():
    with llm.load(TIED) as model:
        yield model


@pytest.fixture
def watched(model, monkeypatch):
    """What the model is asked: (number of tokens, tokens before them); and a clock that only evaluation moves on."""
    calls, clock = [], [0.0]
    evaluate = model.next_logits

    def next_logits(tokens, cache):
        calls.append((len(tokens), cache.length))
        clock[0] += len(tokens) * (1 + cache.length / 100)
        return evaluate(tokens, cache)

    monkeypatch.setattr(model, "next_logits", next_logits)
    monkeypatch.setattr(model, "choose", lambda token, cache, choice: choice(next_logits([token], cache), -1))
    monkeypatch.setattr(bench, "perf_counter", lambda: clock[0])
    return calls


def test_prompt_evaluation(model, watched):
    (result,) = bench.measure(model, prompts=[600], generations=[], repetitions=2)
    assert watched == [(600, 0)] * 3  # one of them untimed
    assert result["test"] == "pp600" and (result["n_prompt"], result["n_gen"], result["n_depth"]) == (600, 0, 0)
    assert result["samples"] == [1.0, 1.0] and result["seconds"] == [600.0, 600.0]
    assert "bandwidth_share" not in result


def test_generation(model, watched):
    (result,) = bench.measure(model, prompts=[], generations=[3], repetitions=2, bandwidth=1e9)
    assert watched == [(1, 0)] + [(1, 0), (1, 1), (1, 2)] * 2
    assert result["test"] == "tg3" and result["tokens_per_second"] == pytest.approx(3 / 3.03)
    nbytes = bench.weight_bytes(model)
    assert result["gigabytes_per_second"] == pytest.approx(nbytes * 3 / 3.03 / 1e9)
    assert result["bandwidth_share"] == pytest.approx(nbytes * 3 / 3.03 / 1e9)


def test_at_depth_the_filling_is_done_once_and_not_timed(model, watched):
    results = list(bench.measure(model, prompts=[4, 5], generations=[2], depths=[0, 100], repetitions=1))
    assert [r["test"] for r in results] == ["pp4", "pp5", "tg2", "pp4@d100", "pp5@d100", "tg2@d100"]
    deep = watched[watched.index((100, 0)) :]
    assert deep == [(100, 0), (4, 100), (4, 100), (5, 100), (5, 100), (1, 100), (1, 100), (1, 101)]
    assert results[3]["seconds"] == [8.0]


def test_tokens_are_of_the_vocabulary_and_the_same_every_time(model, monkeypatch):
    seen = []
    monkeypatch.setattr(model, "next_logits", lambda tokens, cache: seen.append(np.array(tokens)))
    for _ in range(2):
        list(bench.measure(model, prompts=[500], generations=[], repetitions=1))
    assert all(0 <= tokens.min() and 200 < tokens.max() < model.config.n_vocab for tokens in seen)
    assert (seen[0] == seen[2]).all() and (seen[1] == seen[3]).all() and (seen[0] != seen[1]).any()


def test_statistics():
    result = bench._result(0, 12, 0, [1.0, 2.0, 4.0], 10**9, 10e9)
    assert result["samples"] == [12.0, 6.0, 3.0]
    assert result["tokens_per_second"] == result["median"] == 6 and result["mean"] == 7
    assert result["stddev"] == pytest.approx(21**0.5) and result["cv"] == pytest.approx(21**0.5 / 7)
    assert result["gigabytes_per_second"] == 6 and result["bandwidth_share"] == pytest.approx(0.6)
    assert bench._result(0, 1, 0, [1.0], 1, None)["stddev"] == 0


@pytest.mark.parametrize("path", [TIED, UNTIED])
def test_weights_read_per_token(path):
    """All matrices once; of an embedding that is not the output matrix, next to nothing."""
    with llm.load(path) as model, open_gguf(path) as file:
        everything = sum(info.nbytes for info in file.tensors.values())
        embedding = file.tensors["token_embd.weight"].nbytes if path == UNTIED else 0
        assert bench.weight_bytes(model) == everything - embedding


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"prompts": [0]}, ValueError, "prompts must be at least 1, got 0"),
        ({"prompts": ["many"]}, TypeError, "prompts must be integers, got 'many'"),
        ({"generations": [1.5]}, TypeError, "generations must be integers"),
        ({"depths": [-1]}, ValueError, "depths must be at least 0"),
        ({"repetitions": 0}, ValueError, "repetitions must be at least 1"),
        ({"prompts": [], "generations": []}, ValueError, "nothing to measure"),
        ({"depths": []}, ValueError, "nothing to measure"),
        ({"prompts": [2000], "depths": [49]}, ValueError, "2049 tokens do not fit the context of 2048"),
    ],
)
def test_bad_arguments(model, options, error, complaint):
    with pytest.raises(error, match=complaint):
        bench.measure(model, **({"prompts": [1], "generations": [1]} | options))


def test_the_first_prompt_is_timed_up_to_its_token(model, watched, monkeypatch):
    for module in (generate, model_module):
        monkeypatch.setattr(module, "perf_counter", bench.perf_counter)
    monkeypatch.setattr(bench, "read_bandwidth", lambda: 1e9)
    monkeypatch.setattr(model, "load_seconds", 0.125)
    lines = []
    document = bench.report(model, [40, 8], [2], [0, 10], repetitions=1, show=lines.append)
    assert (document["load_seconds"], document["first_token_prompt"], document["first_token_seconds"]) == (0.125, 40, 40)
    assert watched[:4] == [(40, 0)] * 3 + [(8, 0)]  # it, the untimed one and the timed one of pp40, the next test
    assert lines[0].splitlines()[2] == "loading 0.12 s, first token of the first prompt (40 tokens) 40.000 s"
    watched.clear()
    document = bench.report(model, [], [2], repetitions=1, show=lines.append)
    assert document["first_token_prompt"] is document["first_token_seconds"] is None
    assert watched == [(1, 0), (1, 0), (1, 1)] and "loading 0.12 s\n" in lines[-2]


# ---- the command ----------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch, capsys):
    from fucina.cli import main

    monkeypatch.setattr(bench, "read_bandwidth", lambda: 5e9)

    def run(*arguments, status=0):
        assert main(["bench", *map(str, arguments)]) == status
        return capsys.readouterr()

    return run


def test_json(command, threads):
    document = json.loads(command(TIED, "-p", "4,8", "-n", "2", "-t", "1", "-r", "3", "--json").out)
    assert [r["test"] for r in document["results"]] == ["pp4", "pp8", "tg2"]
    assert all(len(r["samples"]) == 3 and r["tokens_per_second"] > 0 for r in document["results"])
    assert document["threads"] == 1 and document["repetitions"] == 3 and document["read_bandwidth"] == 5e9
    assert document["model"] == str(TIED) and document["architecture"] == "qwen3"
    assert document["n_params"] == 853_504 and document["cache_type"] == "f16"
    assert document["load_seconds"] > 0 and document["first_token_seconds"] > 0 and document["first_token_prompt"] == 4


def test_table(command):
    lines = command(UNTIED, "-p", "4", "-n", "2", "-d", "0,3", "-r", "1", "--cache-type", "q8_0").out.splitlines()
    assert "llama, 1 M parameters, 1.7 MB of weights read per token" in lines[0]
    assert "q8_0 cache, median of 1, read bandwidth 5.0 GB/s" in lines[1]
    assert lines[2].startswith("loading ") and "first token of the first prompt (4 tokens)" in lines[2]
    assert lines[3].split() == ["test", "tokens/s", "stddev", "GB/s", "share"]
    assert [line.split()[0] for line in lines[4:]] == ["pp4", "tg2", "pp4@d3", "tg2@d3"]
    assert lines[5].endswith("%") and not lines[4].endswith("%")


def test_without_generation_nothing_measures_the_bandwidth(command, monkeypatch):
    monkeypatch.setattr(bench, "read_bandwidth", None)
    document = json.loads(command(TIED, "-p", "4", "-n", "0", "-r", "1", "--no-pack", "--json").out)
    assert document["read_bandwidth"] is None and [r["test"] for r in document["results"]] == ["pp4"]


@pytest.mark.parametrize(("arguments", "complaint"), [
    ([TIED, "-p", "0", "-n", "0"], "nothing to measure"), (["no-such.gguf"], "no-such.gguf"),
    ([TIED, "-p", "9999"], "do not fit the context"), ([TIED, "-r", "0"], "repetitions"),
    ([TIED, "--cache-type", "f8"], "cache type"), ([TIED, "-p", "-4"], "at least 1, got -4"),
])  # fmt: skip
def test_bad_input_is_one_line(command, arguments, complaint):
    captured = command(*arguments, status=2)
    assert captured.out == "" and captured.err.startswith("fucina: error: ") and captured.err.count("\n") == 1
    assert complaint in captured.err


# ---- read bandwidth -------------------------------------------------------------------------------------------


def test_every_byte_is_read_in_every_pass(monkeypatch):
    seen = []
    monkeypatch.setattr(bandwidth.np, "max", lambda share: seen.append(share.nbytes))
    clock = iter(range(100))
    monkeypatch.setattr(bandwidth, "perf_counter", lambda: next(clock) ** 2)  # the first pass is the fastest
    assert bandwidth.read_bandwidth(threads=3, nbytes=1000, passes=4) == 1000
    assert sum(seen) == 4000 and len(seen) == 12 and max(seen) == 334


def test_it_is_a_speed_of_memory():
    assert 1e8 < bandwidth.read_bandwidth(nbytes=1 << 20, passes=2) < 1e13


@pytest.mark.parametrize("name", ["threads", "nbytes", "passes"])
def test_bandwidth_arguments(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        bandwidth.read_bandwidth(**{name: 0})
