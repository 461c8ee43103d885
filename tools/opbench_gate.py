"""Did an operation get slower on this machine? ``opbench_gate.py record`` once, ``opbench_gate.py check`` later.

Each of three processes runs the suite of tools/opbench.py; medians are compared with the baseline of this host. An
operation whose processes differ by more than 12 % (coefficient of variation) is NOISY. One that is more than 10 %
slower is measured again after a pause, and only if that confirms it does it FAIL.

Exit status: 0 PASS, 1 FAIL, 3 NOISY, 4 MISSING (not in the baseline), 2 wrong usage or a baseline of another machine;
of several operations, FAIL counts before MISSING before NOISY.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import archive
from verdicts import ABORTED, EXIT, cv, noisy, overall

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tools" / "opbench.py"


def host(threads: int | None) -> dict:
    """What has to be equal for times to be comparable."""
    sys.path.insert(0, str(ROOT))
    from fucina import get_num_threads
    from fucina.runtime import isa

    facts = archive.machine(ROOT)
    return {
        "host": platform.node(), "processor": facts["processor"], "cpus": facts["cpus"], "python": facts["python"],
        "variant": isa.variant(), "threads": threads or get_num_threads(),
    }  # fmt: skip


def sample(args, only: str | None) -> dict[str, list[float]]:
    """Seconds per call of each operation, one number per process."""
    out: dict[str, list[float]] = {}
    for number in range(1, args.processes + 1):
        command = [sys.executable, str(PROGRAM), "--json", "--block", str(args.block)]
        command += ["--only", only] if only else []
        command += ["-t", str(args.threads)] if args.threads else []
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise ValueError((done.stderr.strip().splitlines() or ["the benchmark failed"])[-1])
        try:
            measured = json.loads(done.stdout)["seconds"]
        except KeyError as error:
            raise ValueError(f"the benchmark's answer has no {error}") from None
        for name, seconds in measured.items():
            out.setdefault(name, []).append(seconds)
        print(f"process {number} of {args.processes}", file=sys.stderr, flush=True)
    return out


def judge(seconds: list[float], baseline: float | None, tolerance: float, max_cv: float) -> str:
    """PASS, FAIL, NOISY or MISSING for one operation."""
    if baseline is None:
        return "MISSING"
    if noisy(seconds, max_cv):
        return "NOISY"
    return "FAIL" if statistics.median(seconds) > baseline * (1 + tolerance) else "PASS"


def record(args) -> int:
    """Write the baseline, or the part of it that was measured. What is NOISY is no baseline: that of before stays."""
    here = host(args.threads)
    old = _read(args.baseline) if args.baseline.exists() else {"host": here, "seconds": {}}
    kept = old["seconds"] if old["host"] == here else {}
    samples = sample(args, args.only)
    medians = {name: statistics.median(seconds) for name, seconds in samples.items()}
    unsure = [name for name, seconds in samples.items() if noisy(seconds, args.max_cv / 100)]
    sure = {name: seconds for name, seconds in medians.items() if name not in unsure}
    document = {"host": here, "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "seconds": kept | sure}
    args.baseline.parent.mkdir(parents=True, exist_ok=True)
    archive.write_whole(args.baseline, json.dumps(document, indent=1))
    print(f"{args.baseline}: {len(sure)} operations" + (f"; NOISY, not recorded: {', '.join(unsure)}" if unsure else ""))
    return EXIT["NOISY"] if unsure else 0


def check(args) -> int:
    """Compare with the baseline."""
    baseline, here = _read(args.baseline), host(args.threads)
    if differences := [f"{key} {baseline['host'].get(key)} -> {here[key]}" for key in here
                       if baseline["host"].get(key) != here[key]]:  # fmt: skip
        raise ValueError(f"{args.baseline} is of another machine or setting: {', '.join(differences)}")
    known = baseline["seconds"]
    verdict = lambda name: judge(samples[name], known.get(name), args.tolerance / 100, args.max_cv / 100)
    samples = sample(args, args.only)
    if slow := [name for name in samples if verdict(name) == "FAIL"]:
        print(f"slower: {', '.join(slow)}; again in {args.cooldown:g} s", file=sys.stderr, flush=True)
        time.sleep(args.cooldown)
        again = sample(args, ",".join(slow))
        samples |= {name: again[name] for name in slow}
    verdicts = {name: verdict(name) for name in samples}
    for name, seconds in samples.items():
        median, before = statistics.median(seconds), known.get(name)
        change = "" if before is None else f"{median / before - 1:+8.1%}"
        print(f"{name:<24}{median * 1e6:>12.1f} µs {change:>8}  ±{cv(seconds):.1%}  {verdicts[name]}")
    result = overall(verdicts.values())
    print(result)
    return EXIT[result]


def _read(path: Path) -> dict:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {"host": dict(document["host"]), "seconds": dict(document["seconds"])}
    except FileNotFoundError:
        raise ValueError(f"there is no baseline {path}; make one with: opbench_gate.py record") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a baseline: {error}") from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("verb", choices=["record", "check"])
    add("--baseline", type=Path, default=ROOT / "compare" / "opbench" / f"{platform.node() or 'host'}.json")
    add("--only", metavar="WORD,…", help="only operations whose name contains one of the words")
    add("-t", "--threads", type=int, help="number of threads (default: see fucina info)")
    add("--processes", type=int, default=3, help="how many processes give a median (default: 3)")
    add("--block", type=float, default=0.05, help="seconds per timed block (default: 0.05)")
    add("--tolerance", type=float, default=10.0, help="percent that an operation may be slower (default: 10)")
    add("--max-cv", type=float, default=12.0, help="percent of variation from which it is NOISY (default: 12)")
    add("--cooldown", type=float, default=30.0, help="seconds before slow ones are measured again (default: 30)")
    args = parser.parse_args(argv)
    if args.processes < 2:
        parser.error("--processes must be at least 2: one does not show how much it varies")
    try:
        return record(args) if args.verb == "record" else check(args)
    except KeyboardInterrupt:
        return ABORTED
    except (ValueError, OSError) as error:
        print(f"opbench_gate: error: {error}", file=sys.stderr)
        return ABORTED


if __name__ == "__main__":
    sys.exit(main())
