"""Is fucina faster than llama.cpp on the same file and the same machine? A gate that also says when it cannot tell.

    python tools/bench_gate.py MODEL.gguf … [--llama-bench PATH] [-p 1,2,…,256] [-n 32] [-t 2] [--min-ratio 1.0]

Each cell (model, test) is measured in processes of their own, one at a time, in both orders: fucina then llama.cpp,
llama.cpp then fucina. Medians over all samples of a side are compared. A side whose coefficient of variation exceeds
8 % makes the cell NOISY, which is not a result; so does a single sample, which cannot show how much it varies.
llama.cpp first shows which of its settings (flash attention, threads) is best for the model and kind of test, and runs
with that.

Exit status: 0 PASS, 1 FAIL (a ratio under --min-ratio), 3 NOISY, 4 MISSING (a side could not be measured), 2 wrong
usage or aborted; of several cells, FAIL counts before MISSING before NOISY. Raw output, the exact commands, SUMMARY.md,
results.json and results.tsv are in compare/bench-gate-<UTC>/; an aborted run continues with --resume DIR.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import traceback
from pathlib import Path

import archive
from sides import Fucina, Row, Settings, command_of, find_llama_cpp, named_peer
from verdicts import ABORTED, EXIT, cv, judge, overall

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 127, 128, 129, 256]  # around every tile border


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args, folder = _parse(argv), None
    try:
        if args.resume is not None:
            folder = Path(args.resume).resolve()
            argv, where = archive.read_plan(folder, ROOT)
            os.chdir(where)  # relative paths mean what they meant
            args = _parse(argv)
        ours, peers = _sides(args)
        rows = _rows(args)
        if folder is None:
            folder = archive.new_folder(Path(args.out).resolve())
            archive.write_plan(folder, argv, ROOT)
    except (ValueError, OSError) as error:
        print(f"bench_gate: error: {error}", file=sys.stderr)
        return ABORTED
    gate = Gate(args, folder, ours, peers, rows, argv)
    try:
        gate.run()
        verdict = gate.write()
    except (Exception, KeyboardInterrupt) as error:  # none of them says that anything is slower
        if not isinstance(error, KeyboardInterrupt):
            traceback.print_exc()
        with contextlib.suppress(OSError):
            gate.write(aborted=True)
        print(f"aborted; continue with --resume {folder}", file=sys.stderr)
        return ABORTED
    print(f"{verdict}: {folder / 'SUMMARY.md'}")
    return EXIT[verdict]


class Gate:
    """One run of the gate: which processes there are, what they said, and what follows from it."""

    def __init__(self, args, folder: Path, ours, peers, rows, argv):
        self.args, self.folder, self.ours, self.peers, self.rows, self.argv = args, folder, ours, peers, rows, argv
        self.names = archive.short_names(row.model for row in rows)
        self.runner = archive.Runner(folder / "raw", ROOT, args.timeout, args.cooldown, args.prewarm)
        self.samples: dict[tuple, list[float]] = {}
        self.incomplete: set[tuple] = set()
        self.settings: dict[tuple, Settings] = {}
        self.untried: set[tuple] = set()
        self.versions: dict[str, str] = {}
        self.load = archive.load_average()
        # Without flash attention, llama.cpp cannot keep quantized values.
        self.flash = [True] if args.cache_type == "q8_0" else [False, True]

    def run(self) -> None:
        """Every process of the plan, one after the other; those with an answer in the folder are not repeated."""
        if not self.peers:
            self.runner.failed["llama.cpp"] = "no llama-bench on PATH and no llama_cpp package"
            print(f"{self.runner.failed['llama.cpp']}: every cell will be MISSING", file=sys.stderr)
        trials = [(row, peer) for row in self._heaviest() for peer in self.peers]
        if len(self.args.peer_threads) * len(self.flash) == 1:  # nothing to find out
            only = Settings(self.args.peer_threads[0], self.flash[0])
            self.settings = {(peer.name, *row.group): only for row, peer in trials}
            trials = []
        runs = [
            (row, side, f"{number}{order}")
            for row in self.rows
            for number in range(1, self.args.rounds + 1)
            for order, sides in (("ab", [self.ours, *self.peers]), ("ba", [*reversed(self.peers), self.ours]))
            if order == "ab" or not self.args.single_order
            for side in sides
        ]
        self.runner.expect(len(trials) + len(runs))
        for row, peer in trials:
            self._try(row, peer)
        for row, side, number in runs:
            self._measure(row, side, number)

    def _heaviest(self) -> list[Row]:
        """Per model, kind and depth, the row with the most tokens: on it settings are tried."""
        best: dict[tuple, Row] = {}
        for row in self.rows:
            if row.group not in best or row.n_prompt + row.n_gen > best[row.group].n_prompt + best[row.group].n_gen:
                best[row.group] = row
        return list(best.values())

    def _try(self, row: Row, peer) -> None:
        """Find a peer's best settings for one kind of test."""
        command = peer.trial(row, self.args.peer_threads, self.flash, self.args.cache_type)
        text = self.runner.run(f"{self._label(row)}.{peer.name}.trial", command, lambda text: peer.best(text, row), row)
        if text is None:  # against any other settings than the best nothing is judged
            self.untried.add((peer.name, *row.group))
        else:
            self.settings[(peer.name, *row.group)] = peer.best(text, row)

    def _measure(self, row: Row, side, number: str) -> None:
        label = f"{self._label(row)}.{side.name}.{number}"
        if (side.name, *row.group) in self.untried:
            self.incomplete.add((row, side.name))
            self.runner.skip(label, "its best settings are not known")
            return
        default = Settings(self.args.threads)
        settings = self.settings.get((side.name, *row.group), default)
        command = side.call(row, settings, self.args.repetitions, self.args.cache_type)
        text = self.runner.run(label, command, lambda text: side.read(text, row), row)
        if text is None:
            self.incomplete.add((row, side.name))
        else:
            self.samples.setdefault((row, side.name), []).extend(side.read(text, row))
            self.versions[side.name] = side.version(text)

    def _speeds(self, row: Row, name: str) -> list[float]:
        """The samples of a side; none if one of its processes failed, because half a protocol is no result."""
        return [] if (row, name) in self.incomplete else self.samples.get((row, name), [])

    def _label(self, row: Row) -> str:
        return f"{self.names[row.model]}.{row.test}"

    def results(self) -> list[dict]:
        """One dict per row and peer."""
        args, out = self.args, []
        for row in self.rows:
            for name in [peer.name for peer in self.peers] or ["llama.cpp"]:
                ours, theirs = self._speeds(row, self.ours.name), self._speeds(row, name)
                needed = args.min_ratio.get(row.test, args.min_ratio[""])
                verdict, ratio = judge(ours, theirs, needed, args.max_cv / 100, args.allow_noisy)
                settings = self.settings.get((name, *row.group))
                out.append({
                    "model": self.names[row.model], "test": row.test, "kind": row.kind, "peer": name,
                    "verdict": verdict, "ratio": ratio, "min_ratio": needed, "ours": _side_result(ours),
                    "theirs": _side_result(theirs), "settings": None if settings is None else str(settings),
                })  # fmt: skip
        return out

    def write(self, aborted: bool = False) -> str:
        """SUMMARY.md, results.json and results.tsv; the verdict over all rows."""
        results = self.results()
        verdict = overall(result["verdict"] for result in results)
        args = self.args
        meta = archive.machine(ROOT) | {
            "verdict": "ABORTED" if aborted else verdict, "arguments": self.argv, "threads": args.threads,
            "repetitions": args.repetitions, "rounds": args.rounds, "orders": 1 if args.single_order else 2,
            "cache_type": args.cache_type, "max_cv": args.max_cv, "allow_noisy": args.allow_noisy,
            "peer_threads": args.peer_threads, "peer_flash_attention": self.flash, "cooldown": args.cooldown,
            "prewarm": args.prewarm, "load_before": self.load,
            "models": {self.names[path]: path.stat().st_size for path in self.names}, "versions": self.versions,
            "failed": self.runner.failed,
        }  # fmt: skip
        archive.write(self.folder, meta, results)
        return verdict


def _side_result(samples) -> dict:
    return {"median": archive.median(samples), "cv": cv(samples), "samples": samples}


def _sides(args):
    command = command_of(args.ours) if args.ours else [sys.executable, "-m", "fucina", "bench"]
    ours = Fucina("fucina", command, args.ours_args.split())
    extra = args.peer_args.split()
    llama = find_llama_cpp(args.llama_bench, extra)
    peers = ([llama] if llama else []) + [named_peer(text, extra) for text in args.peer]
    names = [side.name for side in (ours, *peers)]
    if len(set(names)) < len(names):
        raise ValueError(f"sides must have different names, got {', '.join(names)}")
    return ours, peers


def _rows(args) -> list[Row]:
    for path in args.models:
        if not Path(path).is_file():
            raise ValueError(f"there is no model file {path}")
    tests = [(p, 0) for p in args.prompts if p] + [(0, n) for n in args.generations if n]
    if not tests:
        raise ValueError("nothing to measure: neither prompts nor generations were given")
    models = dict.fromkeys(Path(path).resolve() for path in args.models)
    rows = [Row(model, *test, depth) for model in models for depth in args.depths for test in tests]
    names = dict.fromkeys(row.test for row in rows)
    if unknown := [test for test in args.min_ratio if test and test not in names]:
        raise ValueError(f"--min-ratio of {', '.join(unknown)}: the tests are {', '.join(names)}")
    return rows


def _ratio(text: str) -> tuple[str, float]:
    """``"1.0"`` as ("", 1.0), for every test; ``"pp256=4"`` as ("pp256", 4.0)."""
    test, _, number = text.rpartition("=")
    if not 0 < (ratio := float(number)) < math.inf:
        raise ValueError
    return test, ratio


def _counts(low: int):
    def parse(text: str) -> list[int]:
        values = list(dict.fromkeys(int(item) for item in text.split(",")))
        if min(values) < low:
            raise ValueError
        return values

    parse.__name__ = "list of numbers"  # how argparse calls it in its message
    return parse


def _at_least(low, kind):
    def parse(text: str):
        if not (value := kind(text)) >= low:
            raise ValueError
        return value

    parse.__name__ = f"number of at least {low}"
    return parse


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.resume is None and not args.models:
        parser.error("name at least one model")
    if args.threads is None:
        sys.path.insert(0, str(ROOT))
        from fucina import get_num_threads

        args.threads = get_num_threads()
    if args.peer_threads is None:
        args.peer_threads = sorted({args.threads, max(1, args.threads // 2)}, reverse=True)
    args.min_ratio = {"": 1.0} | dict(args.min_ratio)
    return args


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench_gate.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="*", help="GGUF files")
    add("-p", "--prompts", type=_counts(0), default=LENGTHS, help="pp lengths; 0 for none (default: 20 around tiles)")
    add("-n", "--generations", type=_counts(0), default=[32], help="tg lengths; 0 for none (default: 32)")
    add("-d", "--depths", type=_counts(0), default=[0], help="tokens before each test (default: 0)")
    add("-t", "--threads", type=_at_least(1, int), help="threads of both sides (default: what fucina chooses)")
    add("--peer-threads", type=_counts(1), help="threads the peer tries (default: --threads, and half of it)")
    add("-r", "--repetitions", type=_at_least(1, int), default=3, help="per process (default: 3)")
    add("--rounds", type=_at_least(1, int), default=1, help="times that both orders run (default: 1)")
    add("--single-order", action="store_true", help="only fucina first; for a quick look")
    add("--cache-type", choices=["f16", "f32", "q8_0"], default="f16", help="keys and values of both sides")
    add("--llama-bench", metavar="PATH", help="llama.cpp's benchmark; else llama-bench on PATH, else llama_cpp")
    add("--peer", metavar="NAME=PATH", action="append", default=[], help="one more program like llama-bench")
    add("--peer-args", metavar="ARGS", default="", help="more arguments for every peer, e.g. --peer-args='-ub 256'")
    add("--ours", metavar="COMMAND", help="in place of `python -m fucina bench`")
    add("--ours-args", metavar="ARGS", default="", help="more arguments for our side, e.g. --ours-args=--no-pack")
    add("--min-ratio", metavar="R|TEST=R", action="append", type=_ratio, default=[],
        help="least ratio that passes, of all tests or one; repeatable (default: 1.0)")
    add("--max-cv", type=_at_least(0, float), default=8.0, help="percent of variation from which a cell is NOISY")
    add("--allow-noisy", action="store_true", help="judge noisy cells all the same")
    add("--cooldown", metavar="S", type=_at_least(0, float), default=1.0, help="seconds between processes (default: 1)")
    add("--prewarm", action="store_true", help="read the model file before each process")
    add("--timeout", metavar="S", type=_at_least(1, float), default=1800.0, help="seconds a process may take")
    add("--out", metavar="DIR", default=str(ROOT / "compare"), help="where the archive goes (default: compare)")
    add("--resume", metavar="DIR", help="continue an aborted run; its own arguments are taken again")
    return parser


if __name__ == "__main__":
    sys.exit(main())
