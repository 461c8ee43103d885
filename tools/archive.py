"""The folder that a run of the model gate leaves behind: processes with their exact commands and raw output, a plan to
resume from, and the tables."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from verdicts import geometric_mean

FAIRNESS = (
    "Both sides read the same file, one process at a time, with the same tests: pp evaluates P random tokens from an "
    "empty cache and computes the logits after the last; tg evaluates N tokens one by one, each with its logits, and "
    "samples nothing. One untimed warm-up each; before pp tests, fucina also times a first prompt up to its token. "
    "fucina's time holds its Python."
)


class Runner:
    """Runs commands one at a time and keeps what they said.

    Parameters
    ----------
    folder : Path
        Where ``<label>.cmd``, ``.stdout`` and ``.stderr`` go.
    cwd : Path
        Working directory of the processes.
    timeout, cooldown : float
        Seconds that a process may take; seconds before each process but the first.
    prewarm : bool
        Read the model file before each process.
    """

    def __init__(self, folder: Path, cwd: Path, timeout: float, cooldown: float, prewarm: bool):
        self.folder, self.cwd, self.timeout, self.cooldown, self.prewarm = folder, cwd, timeout, cooldown, prewarm
        self.failed: dict[str, str] = {}
        self._total = self._at = self._timed = 0
        self._seconds = 0.0

    def expect(self, total: int) -> None:
        """How many runs there will be, for the estimate of the time left."""
        self._total = total
        self.folder.mkdir(parents=True, exist_ok=True)

    def run(self, label: str, command: list[str], check, row) -> str | None:
        """What a command prints; None if it fails or ``check`` refuses that with ValueError.

        An answer that is already in the folder, to the same command, is taken from there.
        """
        self._at += 1
        path = self.folder / label
        text = self._kept(path, command, check)
        if text is not None:
            self._say(label, "kept")
            return text
        if self._timed:
            time.sleep(self.cooldown)
        if self.prewarm:
            _read_through(row.model)
        start = time.perf_counter()
        # An older answer must not be taken for this command's when that fails.
        Path(f"{path}.stdout").unlink(missing_ok=True)
        write_whole(f"{path}.cmd", shlex.join(command) + "\n")
        problem, out, err = self._process(command)
        self._seconds += time.perf_counter() - start + self.cooldown
        self._timed += 1
        write_whole(f"{path}.stderr", err)
        if not problem:
            problem = _problem(check, out)
        if problem:
            self.failed[label] = problem
            write_whole(f"{path}.failed", out)
            self._say(label, problem)
            return None
        write_whole(f"{path}.stdout", out)
        answer = check(out)
        self._say(label, f"{statistics.median(answer):.2f} tokens/s" if isinstance(answer, list) else str(answer))
        return out

    def skip(self, label: str, problem: str) -> None:
        """Count a run that cannot be made."""
        self._at += 1
        self.failed[label] = problem
        self._say(label, problem)

    def _process(self, command) -> tuple[str, str, str]:
        """(what went wrong, stdout, stderr)."""
        options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
        try:
            done = subprocess.run(command, cwd=self.cwd, timeout=self.timeout, **options)
        except subprocess.TimeoutExpired:
            return f"no answer within {self.timeout:.0f} s", "", ""
        except OSError as error:
            return f"cannot be started: {error.strerror}", "", ""
        lines = done.stderr.strip().splitlines() or ["nothing on stderr"]
        return f"exit status {done.returncode}: {lines[-1]}" if done.returncode else "", done.stdout, done.stderr

    @staticmethod
    def _kept(path: Path, command, check) -> str | None:
        try:
            if Path(f"{path}.cmd").read_text(encoding="utf-8") != shlex.join(command) + "\n":
                return None
            text = Path(f"{path}.stdout").read_text(encoding="utf-8")
        except OSError:
            return None
        return None if _problem(check, text) else text

    def _say(self, label: str, what: str) -> None:
        left = self._seconds / self._timed * (self._total - self._at) if self._timed else None
        known = "" if left is None else f"  [{_duration(left)} left]"
        print(f"{self._at:>3}/{self._total}  {label:<40} {what}{known}", file=sys.stderr, flush=True)


def _problem(check, text: str) -> str:
    try:
        check(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its output cannot be used: {error}"
    return ""


def write_whole(path: Path | str, text: str) -> None:
    """Write a file so that it is there as a whole or not at all."""
    part = Path(f"{path}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _read_through(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


# -- the plan --------------------------------------------------------------------------------------------------


def new_folder(parent: Path) -> Path:
    """A new folder named after the time, UTC."""
    name = f"bench-gate-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    for attempt in range(100):
        folder = parent / (name if not attempt else f"{name}-{attempt}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
    raise OSError(f"cannot make a new folder {parent / name}")


def write_plan(folder: Path, argv: list[str], root: Path) -> None:
    """Remember the arguments, where relative paths in them start, and the commit of the checkout ``root``."""
    plan = {"arguments": argv, "directory": os.getcwd(), "commit": commit(root)}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")


def read_plan(folder: Path, root: Path) -> tuple[list[str], str]:
    """The arguments and the working directory of a run; ValueError if the folder is not one, or is another commit's."""
    try:
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        arguments, directory, begun = list(plan["arguments"]), str(plan["directory"]), str(plan["commit"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} is not the folder of a run that can be resumed: {error}") from None
    if begun != (now := commit(root)):
        raise ValueError(f"{folder} was begun with commit {begun or 'unknown'}, this is {now or 'unknown'}: samples of both "
                         "would be one cell's")
    return arguments, directory


def short_names(paths) -> dict[Path, str]:
    """A different short name for every model file."""
    names: dict[Path, str] = {}
    for path in dict.fromkeys(paths):
        name, number = path.stem, 1
        while name in names.values():
            number += 1
            name = f"{path.stem}-{number}"
        names[path] = name
    return names


# -- the tables ------------------------------------------------------------------------------------------------


def _git(root: Path, *words: str) -> str:
    try:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def commit(root: Path) -> str:
    """The commit of a checkout; empty where there is none."""
    return _git(root, "rev-parse", "HEAD")


def machine(root: Path) -> dict:
    """Where and when: date, processor, system, the commit of the checkout, variables that steer either side."""
    steering = ("FUCINA_", "OMP_", "GOMP_", "GGML_", "LLAMA_")
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "processor": _processor(), "cpus": os.cpu_count(),
        "system": platform.platform(), "python": platform.python_version(), "commit": commit(root),
        "changed": bool(_git(root, "status", "--porcelain")),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(steering)},
        "fairness": FAIRNESS,
    }  # fmt: skip


def load_average() -> float | None:
    """Processes that wanted a CPU during the last minute, where the system says."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def write(folder: Path, meta: dict, results: list[dict]) -> None:
    """SUMMARY.md, results.json and results.tsv."""
    (folder / "results.json").write_text(json.dumps({"meta": meta, "results": results}, indent=1), encoding="utf-8")
    lines = ["\t".join(("model", "test", "peer", "ours", "theirs", "ratio", "ours_cv", "theirs_cv", "verdict"))]
    for r in results:
        numbers = (r["ours"]["median"], r["theirs"]["median"], r["ratio"], r["ours"]["cv"], r["theirs"]["cv"])
        lines.append("\t".join([r["model"], r["test"], r["peer"], *map(_cell, numbers), r["verdict"]]))
    (folder / "results.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "SUMMARY.md").write_text(summary(meta, results), encoding="utf-8")


def summary(meta: dict, results: list[dict]) -> str:
    """The text of SUMMARY.md."""
    load = meta["load_before"]
    threads = " and ".join(map(str, meta["peer_threads"]))
    flash = "on" if meta["peer_flash_attention"] == [True] else "on and off"
    tried = [f"peers tried {threads} threads, flash attention {flash}; the best is stated with each table"]
    facts = [
        f"{meta['date']}, {meta['processor']} ({meta['cpus']} CPUs), {meta['system']}, Python {meta['python']}",
        "load average before: " + ("unknown" if load is None else f"{load:.2f}")
        + (" (the machine was not idle)" if load is not None and load > 0.5 else ""),
        f"commit {meta['commit'] or 'unknown'}{' with changes' if meta['changed'] else ''}",
        f"{meta['threads']} threads, {meta['cache_type']} keys and values, {meta['rounds']} round(s) of "
        f"{meta['orders']} order(s), {meta['repetitions']} repetitions per process; NOISY above {meta['max_cv']:g} %",
        *(tried if any(r["settings"] for r in results) else []),
        *[f"{name}: {version}" for name, version in meta["versions"].items()],
        *[f"{name}={value}" for name, value in meta["environment"].items()],
        *[f"failed: {label}: {problem}" for label, problem in meta["failed"].items()],
        "arguments: `" + shlex.join(meta["arguments"]) + "`",
    ]
    lines = [f"# Model gate: {meta['verdict']}", "", *[f"- {fact}" for fact in facts], "", meta["fairness"]]
    for model, peer in dict.fromkeys((r["model"], r["peer"]) for r in results):
        rows = [r for r in results if (r["model"], r["peer"]) == (model, peer)]
        chosen = dict.fromkeys(f"{r['kind']}: {r['settings']}" for r in rows if r["settings"])
        lines += ["", f"## {model}, against {peer}", ""]
        lines += [f"{peer}'s best settings, {'; '.join(chosen)}.", ""] if chosen else []
        lines += [f"| test | fucina | {peer} | ratio | needed | variation | verdict |", "|---|--:|--:|--:|--:|--:|---|"]
        lines += [_row(r) for r in rows]
        for kind in ("pp", "tg"):
            mean = geometric_mean(r["ratio"] for r in rows if r["kind"] == kind and r["verdict"] in ("PASS", "FAIL"))
            lines += ["", f"Geometric mean of the {kind} results: {mean:.2f}"] if mean else []
    return "\n".join(lines) + "\n"


def _row(r: dict) -> str:
    ours, theirs = r["ours"], r["theirs"]
    variation = " / ".join(map(_variation, (ours, theirs)))
    return (
        f"| {r['test']} | {_cell(ours['median'])} | {_cell(theirs['median'])} | {_cell(r['ratio'])} "
        f"| {r['min_ratio']:g} | {variation} | {r['verdict']} |"
    )


def _variation(side: dict) -> str:
    if side["cv"] is not None:
        return f"{side['cv']:.1%}"
    return "one sample" if side["samples"] else ""


def _cell(value) -> str:
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def median(samples) -> float | None:
    """The median; None of nothing."""
    return statistics.median(samples) if samples else None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
