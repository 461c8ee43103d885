"""Draw the ratios of the model gate as a heat map: ``plot_gate.py compare/…/results.json … -o docs/ratios.svg``

A row per model and peer, a column per test. Blue is faster than the peer, red slower, each step of colour a factor;
grey cells are NOISY or MISSING and show no ratio, because they have none.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LABEL, TOP = 56, 26, 300, 30
STRONGEST = 4.0  # the ratio, or its inverse, from which colours do not get stronger


def read(paths) -> list[dict]:
    """Results of several runs; ValueError if a file does not hold any."""
    out = []
    for path in paths:
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))["results"]
            out += [{key: row[key] for key in ("model", "peer", "test", "ratio", "verdict")} for row in found]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} does not hold results of the model gate: {error}") from None
    return out


def heat_map(results: list[dict]) -> str:
    """The SVG text. Of a cell that was measured several times, the last one counts."""
    cells = {((row["model"], row["peer"]), row["test"]): row for row in results}
    rows = list(dict.fromkeys(row for row, _ in cells))
    tests = sorted({test for _, test in cells}, key=_order)
    width, height = LABEL + WIDTH * len(tests), TOP + HEIGHT * len(rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" text-anchor="middle">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, test in enumerate(tests):
        out.append(_text(LABEL + WIDTH * (i + 0.5), TOP - 10, test))
    for j, row in enumerate(rows):
        y = TOP + HEIGHT * j
        out.append(_text(LABEL - 8, y + HEIGHT / 2 + 4, f"{row[0]} / {row[1]}", ' text-anchor="end"'))
        for i, test in enumerate(tests):
            if (cell := cells.get((row, test))) is None:
                continue
            counts = cell["verdict"] in ("PASS", "FAIL")
            x, fill = LABEL + WIDTH * i, colour(cell["ratio"]) if counts else "#dddddd"
            out.append(f'<rect x="{x}" y="{y}" width="{WIDTH - 1}" height="{HEIGHT - 1}" fill="{fill}"/>')
            label = f"{cell['ratio']:.2f}" if counts else cell["verdict"].lower()
            out.append(_text(x + WIDTH / 2, y + HEIGHT / 2 + 4, label))
    return "\n".join([*out, "</svg>"]) + "\n"


def colour(ratio: float) -> str:
    """White at 1, towards blue above and towards red below; equal factors are equal steps."""
    strength = min(1.0, abs(math.log(ratio)) / math.log(STRONGEST))
    faded, kept = round(255 - 155 * strength), round(255 - 25 * strength)
    return f"#{faded:02x}{round(255 - 85 * strength):02x}{kept:02x}" if ratio >= 1 else (
        f"#{kept:02x}{faded:02x}{faded:02x}")  # fmt: skip


def _order(test: str):
    """pp before tg, each by its numbers, deeper ones last."""
    kind, count, depth = re.fullmatch(r"(\D+)(\d+)(?:@d(\d+))?", test).groups()
    return int(depth or 0), kind, int(count)


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(text)}</text>'


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="results.json files")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the SVG file to write")
    args = parser.parse_args(argv)
    try:
        args.out.write_text(heat_map(read(args.results)), encoding="utf-8")
    except (ValueError, OSError) as error:
        print(f"plot_gate: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
