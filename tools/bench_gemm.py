"""Dense products against SciPy's BLAS and NumPy: ``python tools/bench_gemm.py [PART ...] [--threads 1,2] [--json FILE]``.

Parts: ``squares`` in three orientations, ``linear`` layers with packed weights, ``decode`` of one row against the read
bandwidth, ``batch`` of 256 rows with packed weights, ``types`` other than float32, ``stairs`` from the plain loop to
packed weights, ``small`` calls. Both sides get the same number of threads; they take turns, and the median of the
ratios within a turn counts. A turn is a burst of calls of which the second half counts: 2 ms, or with several threads
400 ms, because idle threads of OpenBLAS spin for 100 ms and keep a core that ours would need. Rates are those of the
best turn, also given as fractions of the peaks measured between turns. A row is NOISY when the ratios of its turns
scatter by more than 8 %.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench_peak import Peak  # noqa: E402

import fucina  # noqa: E402
from fucina import ops  # noqa: E402
from fucina.runtime import blas  # noqa: E402
from fucina.runtime.isa import kernel, variant  # noqa: E402
from fucina.runtime.workspace import scratch  # noqa: E402

SQUARES = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
KINDS = {"NN": (False, False), "TN": (True, False), "NT": (False, True)}
LINEAR_ROWS = (1, 2, 4, 8, 16, 32)
LINEAR = ((576, 576), (1536, 576), (3072, 1024), (1024, 3072), (4096, 4096), (32768, 1024))
DECODE = ((4096, 4096), (32768, 1024))
BATCH = (256, 3072, 1024)      # rows, outputs, inputs; as in bench_quant
NOISY = 0.08
LEAST = 3       # turns
BURST = {False: 0.002, True: 0.4}      # seconds of a turn on one thread, on several


def bfloat16():
    import ml_dtypes

    return ml_dtypes.bfloat16


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype)


def scipy_product(a, b):
    """A call of SciPy's gemm for row-major operands and a new result, without copies; ``b`` may be a transposed view."""
    from scipy.linalg import blas as scipy_blas

    gemm = scipy_blas.dgemm if a.dtype == np.float64 else scipy_blas.sgemm
    first = (b.T, 0) if b.flags.c_contiguous else (b, 1)
    second = (a.T, 0) if a.flags.c_contiguous else (a, 1)
    return lambda: gemm(1.0, first[0], second[0], trans_a=first[1], trans_b=second[1])


def burst(call, seconds: float) -> float:
    """Call for so long, at least once; the median time of the second half."""
    times, start = [], perf_counter()
    while True:
        began = perf_counter()
        call()
        now = perf_counter()
        times.append(now - began)
        if now - start >= seconds:
            return statistics.median(times[len(times) // 2 :])


class Bench:
    """Rows of measurements at one number of threads."""

    def __init__(self, threads: int, seconds: float):
        self.threads, self.seconds = threads, seconds
        self.peak = Peak(threads)
        self.rows: list[dict] = []

    def row(self, part: str, name: str, work: float, calls: dict, peaks=("fma",), nbytes: float = 0) -> dict:
        """Measure ``calls`` (name -> function, ours first) in turns; ``work`` in multiply-adds."""
        times = {key: [] for key in calls}
        for call in calls.values():
            call()
        start, long = perf_counter(), BURST[self.threads > 1]
        while perf_counter() - start < self.seconds or len(times[next(iter(calls))]) < LEAST:
            for key, call in calls.items():
                times[key].append(burst(call, long))
            burst(partial(self.peak.sample, *peaks), long / 2)
        ours, *others = calls
        row = {"part": part, "name": name, "threads": self.threads, "turns": len(times[ours])}
        for key, t in times.items():
            row[f"{key} GFLOP/s"] = 2e-9 * work / min(t)
        for key in others:
            ratios = sorted(theirs / own for own, theirs in zip(times[ours], times[key]))
            row[f"/ {key}"] = statistics.median(ratios)
            quarter = len(ratios) // 4
            row["noisy"] = row.get("noisy", False) or ratios[-1 - quarter] / ratios[quarter] > 1 + 2 * NOISY
        if "fma" in peaks:
            scale = 0.5 if name.startswith("float64") else 1
            row["of peak"] = row[f"{ours} GFLOP/s"] / (scale * self.peak.best["fma"])
        if nbytes:
            row["GB/s"] = 1e-9 * nbytes / min(times[ours])
            row["of read"] = row["GB/s"] / self.peak.best["read"]
        self.rows.append(row)
        cells = [f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
                 if k not in ("part", "name", "threads", "noisy")]
        print(f"{self.threads} {part:8} {name:28} " + "  ".join(cells) + ("  NOISY" if row.get("noisy") else ""), flush=True)
        return row

    # -- the parts ---------------------------------------------------------------------------------------------------

    def squares(self, sizes=SQUARES):
        for n in sizes:
            for kind, (ta, tb) in KINDS.items():
                a = normal(n, n).T if ta else normal(n, n)
                b = normal(n, n).T if tb else normal(n, n)
                calls = {"ours": lambda a=a, b=b: ops.matmul(a, b), "scipy": scipy_product(a, b)}
                self.row("squares", f"{n} {kind}", n**3, calls)

    def linear(self, shapes=LINEAR):
        for n, k in shapes:
            w = normal(n, k)
            packed = ops.pack_weight(w)
            for m in LINEAR_ROWS:
                x = normal(m, k)
                calls = {"ours": lambda x=x, packed=packed: ops.linear(x, packed), "scipy": scipy_product(x, w.T),
                         "unpacked": lambda x=x, w=w: ops.linear(x, w)}
                self.row("linear", f"{m} x {k} -> {n}", m * n * k, calls)

    def decode(self, shapes=DECODE):
        for n, k in shapes:
            for name, dtype in (("float32", np.float32), ("float16", np.float16), ("bfloat16", bfloat16())):
                w, x = normal(n, k, dtype=dtype), normal(1, k)
                packed = ops.pack_weight(w)
                for how, weight in (("packed", packed), ("as stored", w)):
                    calls = {"ours": lambda x=x, weight=weight: ops.linear(x, weight)}
                    self.row("decode", f"{name} {k} -> {n} {how}", n * k, calls, ("read",), w.nbytes)

    def batch(self, shape=BATCH):
        m, n, k = shape
        x = normal(m, k)
        for name, dtype in (("float32", np.float32), ("float16", np.float16), ("bfloat16", bfloat16())):
            packed = ops.pack_weight(normal(n, k, dtype=dtype))
            self.row("batch", f"{name} {m} x {k} -> {n}", m * n * k, {"ours": lambda packed=packed: ops.linear(x, packed)})

    def types(self, sizes=(512, 1024)):
        for n in sizes:
            a, b = normal(n, n), normal(n, n)
            base = lambda a=a, b=b: ops.matmul(a, b)
            for name, dtype in (("float16", np.float16), ("bfloat16", bfloat16())):
                x, y = a.astype(dtype), b.astype(dtype)
                self.row("types", f"{name} {n}", n**3, {"ours": lambda x=x, y=y: ops.matmul(x, y), "our float32": base})
                self.row("types", f"{name} {n} to float32", n**3,
                         {"ours": lambda x=x, y=y: ops.matmul(x, y, dtype=np.float32), "our float32": base})
            x, y = a.astype(np.float64), b.astype(np.float64)
            for kind, (ta, tb) in KINDS.items():
                x1, y1 = x.T if ta else x, y.T if tb else y
                calls = {"ours": lambda x1=x1, y1=y1: ops.matmul(x1, y1), "scipy": scipy_product(x1, y1)}
                self.row("types", f"float64 {n} {kind}", n**3, calls)
        n = 256
        x = normal(n, n, dtype=np.float16)
        self.row("types", f"float16 {n}", n**3, {"ours": lambda: ops.matmul(x, x), "numpy": lambda: x @ x})

    def stairs(self, sizes=(64, 128, 256, 512, 1024)):
        """Each step of the staircase on its own, on one thread; the last ones are what ``matmul`` chooses from."""
        steps, product = kernel("matmul_steps"), kernel("matmul").matmul_into_unchecked
        for m, n in [(n, n) for n in sizes] + [(8, 1024), (1, 4096)]:
            k = n
            a, b, c = normal(m, k), normal(k, n), np.empty((m, n), np.float32)
            panels, space = ops.pack_weight(np.ascontiguousarray(b.T)).data, scratch(32 << 20)
            calls = {
                "packed": partial(product, 0, a, 16, panels, 0, c, None, False, 0, space, 1),
                "blocked": partial(product, 0, a, 0, b, 0, c, None, False, 3, space, 1),
                "tiles": partial(product, 0, a, 0, b, 0, c, None, False, 1, space, 1),
            }
            if m * n * k <= 1 << 27:
                calls["reordered"] = partial(steps.reordered_into_unchecked, a, b, c, 1)
                calls["plain"] = partial(steps.plain_into_unchecked, a, b, c, 1)
            self.row("stairs", f"{m} x {k} x {n}", m * n * k, calls)

    def small(self):
        """The price of a call, in microseconds, in the last columns of the row."""
        for n in (1, 4, 8, 16, 32):
            a, b = normal(n, n), normal(n, n)
            calls = {"ours": lambda a=a, b=b: ops.matmul(a, b), "numpy": lambda a=a, b=b: a @ b, "scipy": scipy_product(a, b)}
            row = self.row("small", f"{n}", n**3, calls)
            row["us"] = 2e-3 * n**3 / row["ours GFLOP/s"]
            print(f"    {row['us']:.2f} us")


PARTS = ("squares", "linear", "decode", "batch", "types", "stairs", "small")


def summary(rows) -> None:
    """Geometric means and the worst row of each part, per number of threads and opponent."""
    groups: dict[tuple, list] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith("/ ") and row["part"] != "stairs":
                groups.setdefault((row["part"], row["threads"], key[2:]), []).append((value, row["name"]))
    for (part, threads, opponent), found in groups.items():
        mean = math.exp(statistics.fmean(math.log(v) for v, _ in found))
        print(f"{part}, {threads} threads, against {opponent}: mean {mean:.3f}, least {min(found)[0]:.3f} ({min(found)[1]})")


def plot(rows, path) -> None:
    """Fractions of the peak over the size of squares."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for threads in sorted({r["threads"] for r in rows}):
        for kind in KINDS:
            found = [r for r in rows if r["part"] == "squares" and r["threads"] == threads and r["name"].endswith(kind)]
            sizes = [int(r["name"].split()[0]) for r in found]
            line = axes.plot(sizes, [r["of peak"] for r in found], label=f"fucina {kind}, threads: {threads}")[0]
            theirs = [r["of peak"] / r["ours GFLOP/s"] * r["scipy GFLOP/s"] for r in found]
            axes.plot(sizes, theirs, ":", color=line.get_color(), label=f"scipy {kind}, threads: {threads}")
    axes.set(xscale="log", xlabel="size", ylabel="fraction of the multiply-add peak", ylim=(0, 1.05))
    axes.legend(fontsize=7, ncols=2)
    axes.set_xticks(sizes, sizes, rotation=60)
    axes.minorticks_off()
    figure.savefig(path, dpi=80)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--threads", default="1,2", help="comma list (default 1,2)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row (default 1)")
    parser.add_argument("--sizes", help="comma list of sizes for squares, types and stairs")
    parser.add_argument("--json", metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--plot", metavar="FILE", help="draw the squares (needs matplotlib)")
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "FUCINA_BLAS"):
        if os.environ.get(name):
            print(f"note: {name} is set", file=sys.stderr)
    sizes = {"sizes": tuple(int(n) for n in options.sizes.split(","))} if options.sizes else {}
    rows: list[dict] = []
    for threads in (int(n) for n in options.threads.split(",")):
        fucina.set_num_threads(threads)
        for lib in blas._libraries():
            lib.set_num_threads(threads)
        bench = Bench(threads, options.seconds)
        for part in options.parts or PARTS:
            if part == "stairs" and threads > 1:
                continue
            getattr(bench, part)(**(sizes if part in ("squares", "types", "stairs") else {}))
        rows += bench.rows
        print(f"{threads} threads: " + ", ".join(f"{k} {v:.2f}" for k, v in bench.peak.best.items()))
    summary(rows)
    if options.json:
        Path(options.json).write_text(json.dumps({"variant": variant(), "rows": rows}, indent=1) + "\n")
    if options.plot:
        plot(rows, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
