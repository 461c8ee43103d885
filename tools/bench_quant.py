"""Quantized products against the limits of this machine: ``python tools/bench_quant.py [--only q4_k] [--json FILE]``.

Batch: GMAC/s of one core at m = 256, n = 3072, k = 1024, over the rate of f32 multiply-adds that the same core
reaches in the same run. Single row: GB/s of a matrix beyond the last-level cache, over the read bandwidth. Encoding:
MB/s of float32 input, beside the ``gguf`` package's. Dots: GMAC/s of ``ops.block_dot``. Rounds go over all formats again
and again, so that a busy neighbour does not hit one format only; the best of the rounds counts. One core's work is timed
by the clock of the thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from operator import truediv
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fucina import QTensor, ops, set_num_threads  # noqa: E402
from fucina.formats import FORMATS  # noqa: E402
from fucina.runtime.bandwidth import read_bandwidth  # noqa: E402
from fucina.runtime.isa import kernel, variant  # noqa: E402

M, N, K = 256, 3072, 1024
SINGLE_BYTES = 96 << 20
# The ratios that the project holds itself to on AVX2.
TARGETS = (
    {name: 1.3 for name in ("q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k")}
    | {name: 1.1 for name in ("q2_k", "q3_k", "q6_k", "mxfp4")}
    | {name: 1.4 for name in ("tq1_0", "tq2_0", "q2_0", "q2_0_g128", "q1_0", "i2_s")}
    | {name: 0.85 for name in ("q8_0", "iq4_nl", "iq4_xs")}
    | {name: 0.7 for name in ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m", "nvfp4")}
)


def fma_rate(count: int = 1_000_000) -> float:
    """f32 multiply-adds per second of this core, in 10^9."""
    start = thread_time()
    return kernel("peak").fma(count, 1) / (thread_time() - start) / 1e9


def weights(name: str, n: int, k: int) -> QTensor:
    """Random bytes; which numbers they stand for does not matter to the time, but infinities and subnormals might."""
    spec = FORMATS[name]
    data = np.random.default_rng(0).integers(32, 60, (n, spec.row_bytes(k)), np.uint8)
    return QTensor(data, name, (n, k))


def best(call, clock=perf_counter, seconds: float = 0.03) -> float:
    """Shortest time of a call, of as many as fit in ``seconds`` (two at least)."""
    times, end = [], perf_counter() + seconds
    while len(times) < 2 or perf_counter() < end:
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


def batches(names, rounds: int) -> dict[str, dict]:
    """GMAC/s packed and raw, and their ratios to the multiply-add rate, on one thread."""
    set_num_threads(1)
    x, out = np.random.default_rng(1).standard_normal((M, K), np.float32), np.empty((M, N), np.float32)
    operands = {name: weights(name, N, K) for name in names}
    packed = {name: w.pack() for name, w in operands.items()}
    rates = {name: {"packed": [], "raw": [], "peak": []} for name in names}
    for _ in range(rounds):
        for name, rate in rates.items():
            before = fma_rate()
            for how, w in (("packed", packed[name]), ("raw", operands[name])):
                rate[how].append(M * N * K / best(partial(ops.linear, x, w, out=out), thread_time) / 1e9)
            rate["peak"].append(max(before, fma_rate()))
    peak = max(max(rate["peak"]) for rate in rates.values())
    return {
        name: {
            "gmac_per_s": max(rate["packed"]), "raw_gmac_per_s": max(rate["raw"]), "fma_gmac_per_s": peak,
            "ratio": max(rate["packed"]) / peak, "target": TARGETS[name],
            # Within a round, neighbours slow both sides; the median tells how quiet the machine was.
            "median_ratio": median(map(truediv, rate["packed"], rate["peak"])),
            "raw_over_packed": median(map(truediv, rate["raw"], rate["packed"])),
        }
        for name, rate in rates.items()
    }


def single_rows(names, threads: int, rounds: int) -> dict[str, dict]:
    """GB/s of one row of activations times a matrix beyond the caches, and its part of the read bandwidth."""
    set_num_threads(threads)
    bandwidth = read_bandwidth(threads) / 1e9
    result = {}
    for name in names:
        k = 4096
        n = SINGLE_BYTES // FORMATS[name].row_bytes(k) // 8 * 8
        x, out = np.random.default_rng(1).standard_normal((1, k), np.float32), np.empty((1, n), np.float32)
        w, rates = weights(name, n, k), {"packed": 0.0, "raw": 0.0}
        forms = {"packed": w.pack(), "raw": w}
        for _ in range(rounds):
            for how, form in forms.items():
                rates[how] = max(rates[how], w.nbytes / best(partial(ops.linear, x, form, out=out)) / 1e9)
        bandwidth = max(bandwidth, read_bandwidth(threads, passes=2) / 1e9)
        result[name] = {"gb_per_s": rates["packed"], "raw_gb_per_s": rates["raw"], "threads": threads}
    for row in result.values():
        row |= {"read_gb_per_s": bandwidth, "fraction": row["gb_per_s"] / bandwidth}
    return result


def encoders(names) -> dict[str, dict]:
    """MB/s of float32 input that is encoded on one thread, and the ``gguf`` package's where it has an encoder."""
    from gguf import GGMLQuantizationType, quantize

    set_num_threads(1)
    x = np.random.default_rng(2).standard_normal((64, 4096), np.float32)
    result = {}
    for name in names:
        options = {"imatrix": np.ones(4096, np.float32)} if FORMATS[name].imatrix == "required" else {}
        result[name] = {"encode_mb_per_s": x.nbytes / best(partial(ops.quantize, x, name, **options)) / 1e6}
        try:
            kind = GGMLQuantizationType[name.upper()]
            quantize(x[:1], kind)
        except (KeyError, NotImplementedError):
            continue
        result[name]["gguf_mb_per_s"] = x.nbytes / best(partial(quantize, x, kind)) / 1e6
    return result


def dots(names) -> dict[str, dict]:
    """GMAC/s of ``block_dot`` on one thread, 16 rows times 64; nothing for formats that it does not take."""
    set_num_threads(1)
    x, result = np.random.default_rng(3).standard_normal((16, 4096), np.float32), {}
    for name in names:
        w = weights(name, 64, 4096)
        try:
            a = ops.quantize_activations(x, FORMATS[name].activation)
            ops.block_dot(a, w)
        except ValueError:
            continue
        result[name] = {"dot_gmac_per_s": 16 * 64 * 4096 / best(partial(ops.block_dot, a, w)) / 1e9}
    return result


def plot(results: dict[str, dict], path: str) -> None:
    """Ratios to the multiply-add rate as bars, targets as marks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(results)
    figure, axis = pyplot.subplots(figsize=(10, 4))
    axis.bar(names, [results[name]["ratio"] for name in names], label="packed")
    axis.plot(names, [results[name]["target"] for name in names], "k_", markersize=14, label="target")
    axis.axhline(1, color="gray", linewidth=0.8)
    axis.set_ylabel(f"multiply-adds over the f32 rate (m={M}, n={N}, k={K})")
    axis.tick_params(axis="x", rotation=70)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path)


def main(argv=None) -> int:
    known = [f.name for f in FORMATS.values() if f.is_block]
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--only", default="", help="comma list of formats (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="for the single row (default: 2)")
    parser.add_argument("--parts", default="batch,single", help="of batch, single, encode, dot")
    parser.add_argument("--json", metavar="FILE", help="write the results there, or to standard output with -")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args(argv)
    names = args.only.split(",") if args.only else known
    parts = args.parts.split(",")
    for given, accepted in ((names, known), (parts, ["batch", "single", "encode", "dot"])):
        unknown = [name for name in given if name not in accepted]
        if unknown:
            parser.error(f"unknown {', '.join(unknown)}; accepted: {', '.join(accepted)}")
    results: dict[str, dict] = {name: {} for name in names}
    for part, measured in (
        ("batch", lambda: batches(names, args.rounds)),
        ("single", lambda: single_rows(names, args.threads, args.rounds)),
        ("encode", lambda: encoders(names)),
        ("dot", lambda: dots(names)),
    ):
        if part in parts:
            for name, row in measured().items():
                results[name] |= row
    if args.json != "-":
        columns = ("gmac_per_s", "ratio", "median_ratio", "target", "raw_over_packed", "gb_per_s", "raw_gb_per_s",
                   "fraction", "encode_mb_per_s", "gguf_mb_per_s", "dot_gmac_per_s")
        columns = [c for c in columns if any(c in row for row in results.values())]
        print(f"{'format':10s}", *(f"{c:>16s}" for c in columns))
        for name, row in results.items():
            print(f"{name:10s}", *(f"{row[c]:16.2f}" if c in row else f"{'':16s}" for c in columns))
        row = next(iter(results.values()))
        print(*(f"{key} {row[key]:.1f}" for key in ("fma_gmac_per_s", "read_gb_per_s") if key in row))
    if args.json:
        text = json.dumps({"variant": variant(), "results": results}, indent=1)
        print(text) if args.json == "-" else Path(args.json).write_text(text)
    if args.plot:
        plot(results, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
