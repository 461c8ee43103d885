"""What this machine can do at best: ``python tools/bench_peak.py [--threads 1,2] [--json FILE]``.

Multiply-adds of float32 and of bytes, reading from memory, a parallel region, a barrier. Other benchmarks give their
rates as fractions of these. Each number is the best of several rounds in which the measurements take turns.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fucina import get_num_threads  # noqa: E402
from fucina.runtime.isa import kernel, variant  # noqa: E402

UNITS = {"fma": "GFLOP/s, f32", "dot8": "GMAC/s, u8 x i8", "read": "GB/s", "region": "us", "barrier": "us"}
# Work of one measurement: about a millisecond, but for reading, which must exceed the caches.
COUNT, REPEAT, MEMORY = 50_000, 200, 256 << 20


class Peak:
    """The measurements of one number of threads: ``sample()`` takes another round, ``best`` holds the best so far."""

    def __init__(self, threads: int):
        self.threads = threads
        self.best: dict[str, float] = {}
        self._peak = kernel("peak")
        self._memory = np.ones(MEMORY, np.uint8)
        self._slots = np.zeros(16 * threads, np.int32)

    def sample(self, *names: str) -> None:
        """Measure the named ones, or all, once."""
        for name in names or UNITS:
            start = perf_counter()
            amount = getattr(self, f"_{name}")()
            seconds = perf_counter() - start
            if name in ("region", "barrier"):
                self.best[name] = min(self.best.get(name, np.inf), 1e6 * seconds / amount)
            else:
                self.best[name] = max(self.best.get(name, 0), 1e-9 * amount / seconds)

    def _fma(self):
        return 2 * self._peak.fma(COUNT, self.threads)

    def _dot8(self):
        return self._peak.dot8(COUNT, self.threads)

    def _read(self):
        return self._peak.read(self._memory, self.threads)

    def _region(self):
        self._peak.regions(REPEAT, self._slots, self.threads)
        return REPEAT

    def _barrier(self):
        self._peak.barriers(REPEAT, self.threads)
        return REPEAT


def measure(threads: int, rounds: int = 9) -> dict[str, float]:
    """The best of ``rounds`` rounds for one number of threads."""
    peak = Peak(threads)
    for _ in range(rounds):
        peak.sample()
    return peak.best


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ",".join(str(n) for n in sorted({1, get_num_threads()}))
    parser.add_argument("--threads", default=default, help=f"comma list (default {default})")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of which the best counts (default 9)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE, - for standard output")
    options = parser.parse_args(arguments)
    counts = [int(n) for n in options.threads.split(",")]
    results = {n: measure(n, options.rounds) for n in counts}
    if options.json != "-":
        print(f"{variant()}\n{'':10}" + "".join(f"{f'{n} threads':>14}" for n in counts))
        for name, unit in UNITS.items():
            print(f"{name:10}" + "".join(f"{results[n][name]:14.2f}" for n in counts) + f"   {unit}")
    if options.json:
        text = json.dumps({"variant": variant(), "units": UNITS, "threads": results}, indent=1)
        sys.stdout.write(text + "\n") if options.json == "-" else Path(options.json).write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
