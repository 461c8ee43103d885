"""Draw products over the limits of the machine: ``plot_roofline.py quant.json gemm.json peak.json -o roofline.svg``

The files are those that ``bench_quant.py``, ``bench_gemm.py`` (parts ``decode`` and ``batch``) and ``bench_peak.py`` write
with ``--json``; the first is enough. Across: multiply-adds per byte of weights, the number of rows over the bytes of a
weight. Up: multiply-adds per second. The roof of a number of threads is the read bandwidth times that intensity, up to the
rate of f32 multiply-adds; the best of all files counts. Products with quantized weights multiply bytes and may be above
that rate.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench_quant import M  # noqa: E402

from fucina.formats import FORMATS  # noqa: E402

DENSE = {"float32": ("f32", 4), "float16": ("f16", 2), "bfloat16": ("bf16", 2)}
STEP = 0.036  # decades between two labels


@dataclass(frozen=True)
class Point:
    """A measured product; ``intensity`` in multiply-adds per byte of weights, ``rate`` in 10^9 multiply-adds per second."""

    name: str
    rows: int
    threads: int
    intensity: float
    rate: float


@dataclass(frozen=True)
class Limit:
    """``rate`` of ``"read"`` in GB/s, of ``"f32"`` in 10^9 multiply-adds per second."""

    name: str
    threads: int
    rate: float


def read(paths) -> tuple[list[Point], dict[int, dict[str, float]]]:
    """Points, and the best limits by number of threads and name; ValueError if a file does not hold any."""
    points, limits = [], {}
    for path in paths:
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            found = [item for key, parse in PARSERS.items() if key in document for item in parse(document)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} does not hold results of a benchmark: {error!r}") from None
        if not found:
            raise ValueError(f"{path} does not hold results that can be drawn")
        for item in found:
            if isinstance(item, Point):
                points.append(item)
            else:
                best = limits.setdefault(item.threads, {})
                best[item.name] = max(best.get(item.name, 0.0), item.rate)
    if not points:
        raise ValueError("there are limits but no products; bench_quant.py measures some")
    return points, limits


def _quantized(document):
    for name, row in document["results"].items():
        weights = FORMATS[name].block / FORMATS[name].nbytes  # per byte
        if "gmac_per_s" in row:
            yield Point(name, M, 1, M * weights, row["gmac_per_s"])
            yield Limit("f32", 1, row["fma_gmac_per_s"])
        if "gb_per_s" in row:
            yield Point(name, 1, row["threads"], weights, row["gb_per_s"] * weights)
            yield Limit("read", row["threads"], row["read_gb_per_s"])


def _dense(document):
    """Packed weights; of several shapes the largest, which is farthest beyond the caches."""
    largest = {}
    for row in document["rows"]:
        found = re.fullmatch(r"(\w+) (?:(\d+) x )?(\d+) -> (\d+)( packed)?", row["name"])
        if found and (row["part"] == "batch" or (row["part"] == "decode" and found[5])):
            (name, nbytes), rows, size = DENSE[found[1]], int(found[2] or 1), int(found[3]) * int(found[4])
            point = Point(name, rows, row["threads"], rows / nbytes, row["ours GFLOP/s"] / 2)
            key = name, rows, point.threads
            largest[key] = max(largest.get(key, (0, point)), (size, point), key=lambda item: item[0])
            if row["part"] == "batch":
                yield Limit("f32", point.threads, row["ours GFLOP/s"] / row["of peak"] / 2)
            else:
                yield Limit("read", point.threads, row["GB/s"] / row["of read"])
    yield from (point for _, point in largest.values())


def _peaks(document):
    for threads, rates in document["threads"].items():
        yield Limit("read", int(threads), rates["read"])
        yield Limit("f32", int(threads), rates["fma"] / 2)


PARSERS = {"results": _quantized, "rows": _dense, "units": _peaks}


def draw(points, limits, path) -> None:
    """Write the plot, as what the suffix of ``path`` says."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "roofline"}):  # text as text, the same file again
        figure, axis = pyplot.subplots(figsize=(10, 7), layout="constrained")
        groups = sorted({(p.rows, p.threads) for p in points})
        low, high = min(p.intensity for p in points) / 1.6, max(p.intensity for p in points) * 4
        for threads in sorted({p.threads for p in points}):
            _draw_roof(axis, threads, limits.get(threads, {}), low, high)
        for (rows, threads), marker in zip(groups, "o^svDPX" * len(groups)):
            found = sorted((p for p in points if (p.rows, p.threads) == (rows, threads)), key=lambda p: p.rate)
            label = f"{_count(rows, 'row')}, {_count(threads, 'thread')}"
            axis.plot([p.intensity for p in found], [p.rate for p in found], marker, markersize=5, label=label)
            column = 1.5 * max(p.intensity for p in found)
            heights = [10**height for height in spread([math.log10(p.rate) for p in found], STEP)]
            for p, height in zip(found, heights):
                axis.annotate(p.name, (p.intensity, p.rate), (column, height), fontsize=7, va="center",
                              arrowprops={"arrowstyle": "-", "linewidth": 0.3, "color": "gray"})  # fmt: skip
            axis.update_datalim([(column, heights[0]), (column, heights[-1])])
        axis.set(xscale="log", yscale="log", xlim=(low, high),
                 xlabel="multiply-adds per byte of weights", ylabel="GMAC/s")  # fmt: skip
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="lower right")
        figure.savefig(path, metadata={"Date": None} if Path(path).suffix == ".svg" else None)
        pyplot.close(figure)


def _draw_roof(axis, threads: int, limits: dict[str, float], low: float, high: float) -> None:
    bandwidth, peak = limits.get("read", math.inf), limits.get("f32", math.inf)
    units = {"read": "GB/s", "f32": "GMAC/s"}
    known = ", ".join(f"{name} {limits[name]:.1f} {unit}" for name, unit in units.items() if name in limits)
    if known:
        across = sorted({low, min(high, max(low, peak / bandwidth)), high}) if len(limits) > 1 else [low, high]
        axis.plot(across, [min(x * bandwidth, peak) for x in across], label=f"{_count(threads, 'thread')}: {known}")


def spread(values, step: float) -> list[float]:
    """Places near ``values``, which ascend, at least ``step`` apart and with the same mean."""
    places: list[float] = []
    for value in values:
        places.append(max(value, places[-1] + step) if places else value)
    return [place - fmean(places) + fmean(values) for place in places]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="JSON files of the benchmarks")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the file to write: .svg, .png or .pdf")
    args = parser.parse_args(argv)
    try:
        draw(*read(args.results), args.out)
    except (ValueError, OSError, ImportError) as error:
        print(f"plot_roofline: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
