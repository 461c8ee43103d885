"""Seconds per call of the operations that models are made of: ``python tools/opbench.py [--only linear] [--json]``.

The suite is a table: a name, and a function that makes the operands and returns the call. Names say what is measured:
operation, format or shape, rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fucina import get_num_threads, ops, set_num_threads  # noqa: E402

N, K, HEADS, KV_HEADS, DIM, CONTEXT = 3072, 1024, 16, 8, 128, 1024
DENSE = ("f32", "f16", "bf16")
QUANTIZED = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")


def _x(*shape) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _linear(format: str, rows: int):
    w = ops.quantize(_x(N, K), format)
    w = w if isinstance(w, np.ndarray) else w.pack()
    return partial(ops.linear, _x(rows, K), w, out=np.empty((rows, N), np.float32))


def _attention(rows: int):
    keys, values = (_x(CONTEXT, KV_HEADS, DIM).astype(np.float16) for _ in "kv")
    return partial(ops.attention, _x(rows, HEADS, DIM), keys, values)


def _out(op, x, *args, **options):
    return partial(op, x, *args, out=np.empty_like(x), **options)


SUITE = {
    **{f"linear.{f}.{m}": partial(_linear, f, m) for f in (*DENSE, *QUANTIZED) for m in (1, 8, 256)},
    **{f"attention.f16.{m}": partial(_attention, m) for m in (1, 128)},
    "rms_norm.256": lambda: _out(ops.rms_norm, _x(256, K), _x(K)),
    "softmax.256": lambda: _out(ops.softmax, _x(256, CONTEXT)),
    "rope.256": lambda: _out(ops.rope, _x(256, HEADS, DIM), np.arange(256)),
    "swiglu.256": lambda: _out(ops.swiglu, _x(256, N), _x(256, N)),
    "geglu.256": lambda: _out(ops.geglu, _x(256, N), _x(256, N), approximate="quant"),
    "add.256": lambda: _out(ops.add, _x(256, K), _x(256, K)),
    **{f"dequantize.{f}": partial(lambda f: partial(ops.dequantize, ops.quantize(_x(N, K), f)), f) for f in QUANTIZED},
    "quantize.q8_0.256": lambda: partial(ops.quantize, _x(256, K), "q8_0"),
}


def seconds_per_call(call, block: float = 0.05, blocks: int = 5) -> float:
    """Median over ``blocks`` of the time per call, each of as many calls as take about ``block`` seconds."""
    call()
    start = perf_counter()
    call()
    count = max(1, round(block / max(perf_counter() - start, 1e-9)))
    out = []
    for _ in range(blocks):
        start = perf_counter()
        for _ in range(count):
            call()
        out.append((perf_counter() - start) / count)
    return statistics.median(out)


def measure(names, block: float = 0.05) -> dict[str, float]:
    """Seconds per call of each named entry of ``SUITE``."""
    return {name: seconds_per_call(SUITE[name](), block) for name in names}


def select(only: str | None) -> list[str]:
    """Names that contain one of the words in ``"linear.q4,softmax"``; ValueError if there is none."""
    names = [name for name in SUITE if only is None or any(word in name for word in only.split(","))]
    if not names:
        raise ValueError(f"nothing in the suite is called {only}; there are {', '.join(SUITE)}")
    return names


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="WORD,…", help="only names that contain one of the words")
    parser.add_argument("-t", "--threads", type=int, help="number of threads (default: see fucina info)")
    parser.add_argument("--block", type=float, default=0.05, help="seconds per timed block (default: 0.05)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    try:
        if args.threads is not None:
            set_num_threads(args.threads)
        names = select(args.only)
    except ValueError as error:
        print(f"opbench: error: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"threads": get_num_threads(), "seconds": measure(names, args.block)}))
        return 0
    for name in names:
        print(f"{name:<24}{measure([name], args.block)[name] * 1e6:>12.1f} µs", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
