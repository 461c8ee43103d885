"""How many threads a kernel call gets, and why.

The first of these that speaks decides:

1. ``set_num_threads(n)``;
2. ``FUCINA_MAX_THREADS``;
3. ``OMP_NUM_THREADS`` (of a list, the first number);
4. physical cores within the CPU affinity of the process, at most the CPU quota of its control group.

A limit on the OpenMP runtime, as ``threadpoolctl`` sets it, is read at every call and holds against all four.
A call runs on one thread when its work is below its gate, when another Python thread already has the team, inside
a parallel region, and in a forked child (an OpenMP pool does not survive ``fork``).

Kernels are called between :func:`enter` and :func:`leave`::

    nth = enter(work, gate)
    try:
        kernel(..., nth)
    finally:
        leave(nth)
"""

from __future__ import annotations

import importlib
import math
import operator
import os
import threading
from functools import cache
from pathlib import Path

from . import tuning


def _load_openmp() -> None:
    """Load the OpenMP runtime, which reads its environment once, with ``FUCINA_SPIN_BUDGET``.

    The variables of the runtime itself come first. The environment is put back, because child processes inherit it.
    """
    budget = str(tuning.value("FUCINA_SPIN_BUDGET"))
    chosen = "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ
    if not chosen:
        os.environ["GOMP_SPINCOUNT"] = budget
    try:
        importlib.import_module("fucina._kernels._openmp")
    finally:
        if not chosen:
            del os.environ["GOMP_SPINCOUNT"]


_load_openmp()

from fucina._kernels._openmp import in_parallel, max_threads, num_procs, runtime_version  # noqa: E402

__all__ = ["enter", "explain_threads", "get_num_threads", "leave", "set_num_threads", "team"]

# More is a mistake, and OpenMP runtimes end the process when they cannot start a thread.
MOST = 512

# One team at a time. Reentrant, so that an interrupt that arrives between `enter` and its `try` costs a count
# and not the parallelism of the rest of the session.
_team = threading.RLock()
_asked: int | None = None
_forked = False


def _omp_num_threads() -> int | None:
    """``OMP_NUM_THREADS``; of a list the number for the outermost region, None when it is not set or not valid."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


_omp_count = _omp_num_threads()
# What the OpenMP runtime offers while nobody limits it: a lower answer of `max_threads` is a limit.
_offered = _omp_count or num_procs()


def set_num_threads(n: int | None) -> int:
    """Set the number of threads for the whole process.

    Parameters
    ----------
    n : int or None
        From 1 to 512; None returns to the automatic choice and looks at the machine again.

    Returns
    -------
    int
        The number that held before, to be restored later.

    Raises
    ------
    TypeError
        If ``n`` is not an integer.
    ValueError
        If ``n`` is out of range.
    """
    global _asked
    previous = _asked or _default()[0]
    if n is None:
        _default.cache_clear()
        _asked = None
        return previous
    if isinstance(n, bool):
        raise TypeError("set_num_threads takes an integer, got bool")
    try:
        number = operator.index(n)
    except TypeError:
        raise TypeError(f"set_num_threads takes an integer, got {type(n).__name__}") from None
    if not 1 <= number <= MOST:
        raise ValueError(f"set_num_threads takes a number from 1 to {MOST}, got {number}")
    _asked = number if runtime_version() else 1
    return previous


def get_num_threads() -> int:
    """The number of threads that a large enough kernel call would get now."""
    if _forked:
        return 1
    wanted = _asked or _default()[0]
    allowed = max_threads()
    return allowed if allowed < _offered and allowed < wanted else wanted


def explain_threads() -> str:
    """Say how many threads are used and what decided it."""
    number = get_num_threads()
    if _forked:
        return "1: forked child (an OpenMP pool does not survive fork)"
    if not runtime_version():
        return "1: built without OpenMP"
    wanted, reason = (_asked, "set_num_threads") if _asked else _default()
    if number < wanted:
        return f"{number}: limit of the OpenMP runtime, as threadpoolctl sets it (without it {wanted}: {reason})"
    return f"{number}: {reason}"


def enter(work: int, gate: int) -> int:
    """Number of threads for a kernel call of this much work; takes the team when it is more than one.

    Never blocks. Every call is paired with :func:`leave` in a ``finally``.

    Parameters
    ----------
    work, gate : int
        Amount of work, and the amount from which threads pay off, in the same unit.
    """
    if work < gate:
        return 1
    nth = get_num_threads()
    if nth == 1 or in_parallel() or not _team.acquire(False):
        return 1
    return nth


def leave(nth: int) -> None:
    """Give back what :func:`enter` returned."""
    if nth > 1:
        _team.release()


class team:
    """``with team(work, gate) as nth:`` is :func:`enter` and :func:`leave` as a context manager."""

    __slots__ = ("nth",)

    def __init__(self, work: int, gate: int):
        self.nth = enter(work, gate)

    def __enter__(self) -> int:
        return self.nth

    def __exit__(self, *error) -> None:
        leave(self.nth)


@cache
def _default() -> tuple[int, str]:
    """Threads when ``set_num_threads`` has not spoken and nothing limits the OpenMP runtime, and the reason."""
    if not runtime_version():
        return 1, "built without OpenMP"
    listed = tuning.value("FUCINA_MAX_THREADS")
    if listed is not None:
        if listed > MOST:
            raise ValueError(f"FUCINA_MAX_THREADS must be at most {MOST}, got {listed}")
        return listed, "FUCINA_MAX_THREADS"
    if _omp_count:
        return min(_omp_count, MOST), "OMP_NUM_THREADS"
    cpus = _allowed_cpus()
    cores = physical_cores(cpus)
    quota = cpu_quota()
    reason = f"physical cores: {cores} among the {len(cpus)} CPUs that this process may use"
    if quota is not None and quota < cores:
        return min(quota, MOST), f"CPU quota of the control group ({reason})"
    return min(cores, MOST), reason


def _allowed_cpus() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return set(range(os.cpu_count() or 1))


def physical_cores(cpus: set[int], root: str | Path = "/") -> int:
    """Number of distinct cores behind these logical CPUs; their number where the system does not tell.

    Reads ``/sys/devices/system/cpu/cpu*/topology/thread_siblings_list``, under another ``root`` in tests.
    """
    cores = set()
    for cpu in cpus:
        path = Path(root, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(path.read_text().strip())
        except OSError:
            return max(1, len(cpus))
    return max(1, len(cores))


def cpu_quota(root: str | Path = "/") -> int | None:
    """CPUs that the control groups of this process allow, rounded up; None without a quota.

    Every ancestor counts. Version 2 (``cpu.max``) and version 1 (``cpu.cfs_quota_us``) are understood.
    """
    root = Path(root)
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounts = [controllers, "cpu", "cpu,cpuacct"] if controllers else ["", "unified"]
        parts = [part for part in group.split("/") if part not in ("", "..")]
        for mount in dict.fromkeys(mounts):
            for depth in range(len(parts) + 1):
                found.append(_quota_of(root.joinpath("sys/fs/cgroup", mount, *parts[:depth])))
    limits = [share for share in found if share]
    return max(1, math.ceil(min(limits))) if limits else None


def _quota_of(folder: Path) -> float | None:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if int(quota) > 0 and int(period) > 0:
                return int(quota) / int(period)
        except (OSError, ValueError):
            continue
    return None


def _in_child() -> None:
    global _forked, _team
    _forked = True
    _team = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
