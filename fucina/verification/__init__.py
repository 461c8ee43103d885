"""The kernels of this installation against their specification, on this machine; behind ``fucina verify``.

Every variant that was built and can run here, with several numbers of threads, and the specification in plain Python
compute the same cases, each engine in a process of its own. All have to give the same bits, and they have to be those
that were recorded when the version was made (``recorded.json``), on whatever processor that was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fucina.runtime import isa, tuning

__all__ = ["SPECIFICATION", "format_verification", "recorded", "verify"]

SPECIFICATION = "specification"
THREADS = (1, 2, 3)
# An engine that says nothing for so long hangs.
PATIENCE = 1800.0


def verify(threads=THREADS, show=None) -> dict:
    """Compute all cases on all engines and compare the bits.

    Parameters
    ----------
    threads : sequence of int
        Numbers of threads that every variant runs with; the specification has one.
    show : callable, optional
        Gets a line of text whenever an engine is through.

    Returns
    -------
    dict
        ``engines``, ``threads``, ``families`` (name -> number of cases), ``results`` (how many were compared),
        ``seconds`` and ``differences``: a list of sentences, empty if everything has the same bits.

    Raises
    ------
    ValueError
        If ``threads`` holds anything but numbers of at least 1, or nothing.
    ImportError
        If no variant was built that can run here.
    """
    started = time.perf_counter()
    if not threads or min(threads) < 1:
        raise ValueError(f"threads must be one or more numbers of at least 1, got {', '.join(map(str, threads)) or 'none'}")
    engines = (SPECIFICATION, *isa.runnable_variants())
    if len(engines) == 1:
        isa.variant()       # which says what is missing
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda engine: _run(engine, threads, show), engines))
    known = recorded()
    expected, differences = dict(known), [problem for _, problem in runs if problem]
    expected.update((case, digest) for (case, _), digest in runs[0][0].items())
    for engine, (digests, _) in zip(engines, runs):
        for (case, count), digest in digests.items():
            if digest != expected.get(case):
                differences.append(f"{case}: {engine} on {count} threads has not the bits of the specification")
    for case, digest in expected.items():
        if digest != known.get(case):
            differences.append(f"{case}: the specification has not the bits that were recorded")
    return {
        "engines": list(engines),
        "threads": list(threads),
        "families": dict(Counter(case.split()[0] for case in expected)),
        "results": sum(len(digests) for digests, _ in runs),
        "seconds": round(time.perf_counter() - started, 1),
        "differences": differences,
    }


def format_verification(report: dict) -> str:
    """The text of ``fucina verify`` for the report of ``verify``."""
    families, differences = report["families"], report["differences"]
    lines = [f"engines: {', '.join(report['engines'])}; threads: {', '.join(map(str, report['threads']))}"]
    bad = Counter(line.split(":")[0].split()[0] for line in differences)
    for family, count in families.items():
        state = "DIFFERENT" if bad[family] else "same bits"
        lines.append(f"  {family:16} {count:3} case{'s' if count > 1 else ' '}  {state}")
    counts = f"{sum(families.values())} cases, {report['results']} results, {report['seconds']} s"
    if differences:
        return "\n".join([*lines, *differences, f"NOT verified: {len(differences)} differences; {counts}"])
    return "\n".join([*lines, f"verified: the same bits everywhere, and those that were recorded; {counts}"])


def recorded() -> dict[str, str]:
    """Case -> digest of its bits, as they were recorded."""
    return json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))


def _run(engine: str, threads, show) -> tuple[dict[tuple[str, int], str], str]:
    """``(case, threads) -> digest`` of one engine, and what went wrong, if anything did."""
    started = time.perf_counter()
    counts = (1,) if engine == SPECIFICATION else threads
    command = [sys.executable, "-P", "-m", __name__, *map(str, counts)]
    digests, problem = {}, ""
    with subprocess.Popen(
        command, env=_environment(engine), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        try:
            output, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
    for line in output.splitlines():
        if line.endswith("]"):      # the last one of a process that was ended may not be whole
            case, count, digest = json.loads(line)
            digests[case, count] = digest
    if process.returncode:
        last = next(reversed(digests), ("nothing",))[0]
        reason = errors.strip().splitlines()[-1:] or [f"status {process.returncode}"]
        problem = f"{engine}: it ended after {last}: {reason[0]}"
    if show:
        show(f"{engine}: {len(digests)} results, {time.perf_counter() - started:.1f} s")
    return digests, problem


def _environment(engine: str) -> dict[str, str]:
    """For a process with that engine, in which every operation takes all threads and nothing else steers."""
    env = {name: text for name, text in os.environ.items() if name not in tuning.KNOBS}
    env |= {name: "0" for name in tuning.KNOBS if name.startswith("FUCINA_GATE_")}
    env |= {"FUCINA_BACKEND": "scalar"} if engine == SPECIFICATION else {"FUCINA_ISA": engine}
    home = str(Path(__file__).resolve().parents[2])
    return env | {"PYTHONPATH": os.pathsep.join(filter(None, [home, env.get("PYTHONPATH")])), "PYTHONIOENCODING": "utf-8"}
