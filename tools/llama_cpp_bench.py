"""llama-bench by way of the ``llama_cpp`` package: the same tests, arguments and JSON, for machines without the binary.

Only the low-level API is used, so that what is timed is llama.cpp. pp: P random tokens in batches of at most 2048
(micro-batches of 512), the logits after the last; tg: N tokens one by one, the next one random; the memory is cleared
before each repetition; one untimed warm-up. ``-ngl`` is accepted and must be 0.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from itertools import product
from time import perf_counter_ns

BATCH, MICRO_BATCH = 2048, 512
TYPES = {"f32": 0, "f16": 1, "q8_0": 8}  # ggml's numbers


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    import llama_cpp
    from llama_cpp import llama_cpp as api

    api.llama_backend_init()
    params = api.llama_model_default_params()
    params.n_gpu_layers = 0
    model = api.llama_model_load_from_file(args.model.encode(), params)
    if not model:
        print(f"cannot load {args.model}", file=sys.stderr)
        return 1
    tests = [(p, 0) for p in args.p if p] + [(0, n) for n in args.n if n]
    entries = []
    for (n_prompt, n_gen), depth, threads, flash in product(tests, args.d, args.t, args.fa):
        context = _context(api, model, args, n_prompt + n_gen + depth, threads, flash)
        if not context:
            print(f"cannot make a context of {n_prompt + n_gen + depth} tokens", file=sys.stderr)
            return 1
        samples_ns = _time(_Runner(api, model, context), n_prompt, n_gen, depth, args.r)
        api.llama_free(context)
        samples = [(n_prompt or n_gen) * 1e9 / ns for ns in samples_ns]
        entries.append({
            "build_commit": f"llama_cpp {llama_cpp.__version__}", "backends": _system(api),
            "model_filename": args.model,
            "n_batch": BATCH, "n_ubatch": MICRO_BATCH, "n_threads": threads, "type_k": args.ctk, "type_v": args.ctv,
            "n_gpu_layers": 0, "flash_attn": flash, "n_prompt": n_prompt, "n_gen": n_gen, "n_depth": depth,
            "avg_ns": statistics.fmean(samples_ns), "avg_ts": statistics.fmean(samples),
            "stddev_ts": statistics.stdev(samples) if len(samples) > 1 else 0.0,
            "samples_ns": samples_ns, "samples_ts": samples,
        })  # fmt: skip
    api.llama_model_free(model)
    print(json.dumps(entries, indent=2))
    return 0


class _Runner:
    """One context of one model."""

    def __init__(self, api, model, context):
        self.api, self.context = api, context
        vocabulary = api.llama_model_get_vocab(model)
        self.n_vocab = api.llama_vocab_n_tokens(vocabulary)
        self.bos = api.llama_vocab_bos(vocabulary) if api.llama_vocab_get_add_bos(vocabulary) else None

    def clear(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), False)

    def prompt(self, n: int) -> None:
        tokens = self._tokens(n)
        for at in range(0, n, BATCH):
            self._decode(tokens[at : at + BATCH])
        self.api.llama_synchronize(self.context)

    def generate(self, n: int) -> None:
        for token in self._tokens(n):
            self._decode([token])
            self.api.llama_synchronize(self.context)

    def _tokens(self, n: int) -> list[int]:
        tokens = [random.randrange(self.n_vocab) for _ in range(n)]
        return tokens if self.bos is None else [self.bos, *tokens[1:]]

    def _decode(self, tokens: list[int]) -> None:
        array = (self.api.llama_token * len(tokens))(*tokens)
        status = self.api.llama_decode(self.context, self.api.llama_batch_get_one(array, len(tokens)))
        if status:
            raise SystemExit(f"llama_decode failed with status {status}")


def _time(runner, n_prompt: int, n_gen: int, depth: int, repetitions: int) -> list[int]:
    """Nanoseconds of each repetition."""
    runner.clear()
    runner.prompt(n_prompt) if n_prompt else runner.generate(1)
    out = []
    for _ in range(repetitions):
        runner.clear()
        if depth:
            runner.prompt(depth)
        start = perf_counter_ns()
        runner.prompt(n_prompt) if n_prompt else runner.generate(n_gen)
        out.append(perf_counter_ns() - start)
    return out


def _context(api, model, args, n_ctx: int, threads: int, flash: int):
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, BATCH, MICRO_BATCH
    params.n_threads = params.n_threads_batch = threads
    # Older packages can switch it on or off, and have no third way.
    if "flash_attn_type" in {name for name, *_ in params._fields_}:
        params.flash_attn_type = flash
    else:
        params.flash_attn = flash > 0
    params.type_k, params.type_v = TYPES[args.ctk], TYPES[args.ctv]
    params.swa_full = False
    return api.llama_init_from_model(model, params)


def _system(api) -> str:
    text = api.llama_print_system_info()
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def _parser() -> argparse.ArgumentParser:
    numbers = lambda text: [int(item) for item in text.split(",")]
    parser = argparse.ArgumentParser(description="llama-bench's tests through the llama_cpp package.")
    parser.add_argument("-m", dest="model", required=True)
    parser.add_argument("-p", type=numbers, default=[512])
    parser.add_argument("-n", type=numbers, default=[128])
    parser.add_argument("-d", type=numbers, default=[0])
    parser.add_argument("-t", type=numbers, default=[1])
    parser.add_argument("-fa", type=numbers, default=[-1])
    parser.add_argument("-r", type=int, default=5)
    parser.add_argument("-ctk", choices=TYPES, default="f16")
    parser.add_argument("-ctv", choices=TYPES, default="f16")
    parser.add_argument("-ngl", type=int, choices=[0], default=0)
    parser.add_argument("-o", choices=["json"], default="json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
