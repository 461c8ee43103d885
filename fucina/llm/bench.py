"""Speed of a model on this machine: prompt evaluation (pp) and generation (tg), defined as llama-bench defines them."""

from __future__ import annotations

import operator
import statistics
from time import perf_counter

import numpy as np

from fucina._version import __version__
from fucina.runtime import isa
from fucina.runtime.bandwidth import read_bandwidth
from fucina.runtime.threads import get_num_threads

__all__ = ["measure", "report", "weight_bytes"]


def measure(model, prompts=(512,), generations=(128,), depths=(0,), repetitions=5, bandwidth=None, seed=0):
    """Time a model, one test after the other.

    Parameters
    ----------
    model : Model
    prompts : sequence of int
        pp tests. ``ppP``: evaluate P random tokens from an empty cache; only the logits after the last are computed.
    generations : sequence of int
        tg tests. ``tgN``: evaluate N tokens one by one from an empty cache, each with its logits. Nothing is sampled;
        the next token is random.
    depths : sequence of int
        Every test runs once for each: a cache with so many tokens instead of an empty one. Filling it is not timed.
    repetitions : int
        Timed repetitions per test, after an untimed one (of one token for tg).
    bandwidth : float, optional
        Read bandwidth in bytes per second, to give the share that a tg test reaches.
    seed : int
        Of the random tokens.

    Returns
    -------
    iterator of dict
        ``test`` (such as ``"pp256"``, ``"tg32"``, ``"tg32@d4096"``), ``n_prompt``, ``n_gen``, ``n_depth``;
        ``tokens_per_second``, the median over the repetitions, with ``mean``, ``median``, ``stddev`` (of a sample),
        ``cv`` = stddev / mean and the ``samples``; ``seconds`` of each repetition. For tg also
        ``gigabytes_per_second``, the weights read per second (10^9 bytes), and ``bandwidth_share`` of ``bandwidth``.

    Raises
    ------
    TypeError, ValueError
        Before the first test, if a number is not a positive integer (depths may be zero), there is nothing to
        measure, or a test does not fit the context of the model.
    """
    prompts, generations = _counts("prompts", prompts, 1), _counts("generations", generations, 1)
    depths = _counts("depths", depths, 0)
    (repetitions,) = _counts("repetitions", [repetitions], 1)
    tests = [(*test, d) for d in depths for test in [(p, 0) for p in prompts] + [(0, n) for n in generations]]
    if not tests:
        raise ValueError("nothing to measure: neither prompts nor generations were given")
    longest = max(map(sum, tests))
    if longest > model.config.n_ctx:
        raise ValueError(f"{longest} tokens do not fit the context of {model.config.n_ctx}")
    return _run(model, tests, repetitions, bandwidth, np.random.default_rng(seed))


def _run(model, tests, repetitions, bandwidth, rng):
    cache, nbytes = None, weight_bytes(model)
    for n_prompt, n_gen, depth in tests:
        if cache is None or cache.length != depth:
            cache = model.new_cache()
            if depth:
                model.next_logits(_random_tokens(model, rng, depth), cache)
        cache.reserve(n_prompt + n_gen)
        seconds = []
        for repetition in range(repetitions + 1):
            warm_up = not repetition
            tokens = _random_tokens(model, rng, n_prompt or (1 if warm_up else n_gen))
            start = perf_counter()
            if n_prompt:
                model.next_logits(tokens, cache)
            else:
                for token in tokens:
                    model.choose(token, cache, _look)  # as a loop that looks at the logits, but takes no time for it
            if not warm_up:
                seconds.append(perf_counter() - start)
            cache.truncate(depth)
        yield _result(n_prompt, n_gen, depth, seconds, nbytes, bandwidth)


def _look(logits, greatest: int) -> int:
    return greatest


def _result(n_prompt, n_gen, depth, seconds, nbytes, bandwidth) -> dict:
    samples = [(n_prompt or n_gen) / s for s in seconds]
    mean, median = statistics.fmean(samples), statistics.median(samples)
    stddev = statistics.stdev(samples) if len(samples) > 1 else 0.0
    result = {
        "test": _name(n_prompt, n_gen, depth), "n_prompt": n_prompt, "n_gen": n_gen, "n_depth": depth,
        "tokens_per_second": median, "mean": mean, "median": median, "stddev": stddev, "cv": stddev / mean,
        "samples": samples, "seconds": seconds,
    }  # fmt: skip
    if n_gen:
        result["gigabytes_per_second"] = nbytes * median / 1e9
        result["bandwidth_share"] = nbytes * median / bandwidth if bandwidth else None
    return result


def _name(n_prompt: int, n_gen: int, depth: int = 0) -> str:
    """``"pp256"``, ``"tg32"`` or, behind ``depth`` tokens, ``"tg32@d4096"``."""
    return (f"pp{n_prompt}" if n_prompt else f"tg{n_gen}") + (f"@d{depth}" if depth else "")


def weight_bytes(model) -> int:
    """Bytes of weights that one generated token reads: everything but the rows of an embedding that is not also the
    output matrix."""
    tensors = model._file.tensors
    total = sum(info.nbytes for info in tensors.values())
    return total - tensors["token_embd.weight"].nbytes if "output.weight" in tensors else total


def report(model, prompts, generations, depths=(0,), repetitions: int = 5, show=None) -> dict:
    """Everything that ``fucina bench`` says, as plain JSON-able data: what ran where, and the ``results``.

    ``first_token_seconds`` is the time to the first token of a first prompt, as long as that of the first pp test
    (``first_token_prompt`` tokens) and evaluated before the tests; None without pp tests.

    Parameters
    ----------
    model, prompts, generations, depths, repetitions
        See ``measure``.
    show : callable, optional
        Called with each line of the table for people, as soon as its numbers are there.
    """
    show = show or (lambda line: None)
    bandwidth = read_bandwidth() if generations else None
    tests = measure(model, prompts, generations, depths, repetitions, bandwidth)
    length = prompts[0] if prompts else None
    head = {
        "model": model._file.path, "architecture": model.config.arch.name, "n_params": model.n_params,
        "weight_bytes": weight_bytes(model), "cache_type": model.cache_type, "fucina": __version__,
        "backend": isa.backend(), "variant": isa.variant(), "threads": get_num_threads(), "repetitions": repetitions,
        "read_bandwidth": bandwidth, "load_seconds": model.load_seconds, "first_token_prompt": length,
        "first_token_seconds": _first_token_seconds(model, length) if length else None, "results": [],
    }  # fmt: skip
    show(_format_head(head))
    for result in tests:
        head["results"].append(result)
        show(_format_result(result))
    return head


def _first_token_seconds(model, n_prompt: int) -> float:
    generation = model.generate_tokens(_random_tokens(model, np.random.default_rng(0), n_prompt), 1)
    list(generation)
    return generation.stats.first_token_seconds


def _format_head(head: dict) -> str:
    bandwidth = head["read_bandwidth"]
    known = f", read bandwidth {bandwidth / 1e9:.1f} GB/s" if bandwidth else ""
    length, seconds = head["first_token_prompt"], head["first_token_seconds"]
    first = f", first token of the first prompt ({length} tokens) {seconds:.3f} s" if length else ""
    return (
        f"{head['model']}: {head['architecture']}, {head['n_params'] / 1e6:.0f} M parameters, "
        f"{head['weight_bytes'] / 1e6:.1f} MB of weights read per token\n"
        f"{head['backend']} {head['variant']}, {head['threads']} threads, {head['cache_type']} cache, "
        f"median of {head['repetitions']}{known}\n"
        f"loading {head['load_seconds']:.2f} s{first}\n"
        f"{'test':<14}{'tokens/s':>10}{'stddev':>9}{'GB/s':>8}{'share':>8}"
    )


def _format_result(result: dict) -> str:
    line = f"{result['test']:<14}{result['median']:>10.2f}{result['stddev']:>9.2f}"
    if result["n_gen"]:
        line += f"{result['gigabytes_per_second']:>8.2f}"
        share = result["bandwidth_share"]
        line += f"{share:>8.0%}" if share else ""
    return line


def _random_tokens(model, rng, n: int) -> np.ndarray:
    return rng.integers(0, model.config.n_vocab, n)


def _counts(name: str, values, low: int) -> list[int]:
    """The different values, in order."""
    out = []
    for value in values:
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(f"{name} must be integers, got {value!r}") from None
        if value < low:
            raise ValueError(f"{name} must be at least {low}, got {value}")
        out.append(value)
    return list(dict.fromkeys(out))
