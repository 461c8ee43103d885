"""Every ``FUCINA_*`` variable in one table.

Nothing else in the package reads such a variable by itself: a test looks through the sources and fails on a name
that is not listed here. ``fucina info`` prints the table, ``docs/environment.md`` is generated from it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KNOBS", "Knob", "changed", "value"]


@dataclass(frozen=True)
class Knob:
    """One environment variable.

    Parameters
    ----------
    name : str
    default : str, int or None
        What holds when the variable is unset or empty; None where the library decides by itself.
    kind : type
        ``str``, ``int`` (a whole number, at least ``least``) or ``Path``.
    when : str
        The moment it is read: ``first use``, ``each use``, ``import of fucina``, ``build`` or ``tests``.
    meaning : str
    provenance : str
        For a number: the measurement, machine and date behind the default.
    choices : tuple of str
        Accepted words; empty means any text.
    least : int
        Smallest accepted number.
    """

    name: str
    default: str | int | None
    kind: type
    when: str
    meaning: str
    provenance: str = ""
    choices: tuple[str, ...] = ()
    least: int = 0


_TABLE = (
    Knob(
        "FUCINA_ISA", None, str, "first use",
        "Name of the kernel variant to run. Unset: the best one that is built and that this machine can run.",
    ),
    Knob(
        "FUCINA_BACKEND", "native", str, "first use",
        "`native` runs the compiled kernels; `scalar` sends every operation to the plain-Python specification "
        "(serial and very slow, for checking).",
        choices=("native", "scalar"),
    ),
    Knob(
        "FUCINA_MAX_THREADS", None, int, "first use",
        "Number of threads, from 1 to 512, unless `set_num_threads` says otherwise. Unset: see docs/threads.md.",
        least=1,
    ),
    Knob(
        "FUCINA_CACHE_DIR", None, Path, "each use",
        "Folder for downloaded models. Unset: `fucina` in `XDG_CACHE_HOME`, or else in `~/.cache`.",
    ),
    Knob(
        "FUCINA_GATE_ELEMENTWISE", 32768, int, "import of fucina",
        "Elementwise kernels with fewer elements than this run on one thread.",
        "First estimate, not measured yet.",
    ),
    Knob(
        "FUCINA_GATE_ROWS", 16384, int, "import of fucina",
        "Row kernels (norms, softmax, rope) with fewer elements than this run on one thread.",
        "First estimate, not measured yet.",
    ),
    Knob(
        "FUCINA_GATE_MATMUL", 1 << 20, int, "import of fucina",
        "Products and attention with fewer multiply-adds than this run on one thread.",
        "20 us on one core. Two cores computed 64^3 at 0.8 to 1.2 of the speed of one, 96^3 at 0.8 to 1.4, 128^3 at 1.1 to "
        "1.8; beside other work a parallel region may cost 300 us (dense float32, AMD Zen 3, 2 cores, 2026-11-30).",
    ),
    Knob(
        "FUCINA_BLAS", "0", str, "import of fucina",
        "`1` lets SciPy's BLAS compute float32 and float64 products where it can, `auto` where it measured faster than "
        "the kernels. BLAS adds in an order of its own: results depend on the library and its threads.",
        "Off, because results would not be the same bits; `auto` uses it with the `generic` kernels only: the others "
        "measured as fast or faster (AMD Zen 3, OpenBLAS 0.3.30, 2026-11).",
        choices=("0", "1", "auto"),
    ),
    Knob(
        "FUCINA_SPIN_BUDGET", 3000, int, "import of fucina",
        "Turns that an idle thread of the team waits actively before it sleeps: becomes `GOMP_SPINCOUNT` of GNU OpenMP "
        "when fucina loads it, unless that or `OMP_WAIT_POLICY` is set; see docs/threads.md.",
        "50 to 300 us, longer than the gap between two operations. GNU OpenMP's own 300,000 was a few per cent faster on a "
        "quiet machine and three times slower beside other work (AMD Zen 3, 2 cores, 2026-11-30).",
    ),
    Knob(
        "FUCINA_PROGRAM", 1, int, "loading of a model",
        "0 evaluates models operation by operation instead of replaying recorded programs. Same bits.",
    ),
    Knob(
        "FUCINA_VARIANTS", None, str, "build",
        "Comma list of kernel variants to build, or `all`. Unset: `generic` and the best one for this machine.",
    ),
    Knob(
        "FUCINA_DEBUG", 0, int, "build",
        "1 builds the kernels with bounds checks and little optimization.",
    ),
    Knob(
        "FUCINA_TEST_MODELS", None, Path, "tests",
        "Folder with the real models that some tests and tools use. Unset: the models in the cache; tests that need "
        "one that is not there are skipped.",
    ),
)

KNOBS: dict[str, Knob] = {knob.name: knob for knob in _TABLE}


def value(name: str) -> str | int | Path | None:
    """The value of a knob: the environment's, or else the default.

    Parameters
    ----------
    name : str
        A name listed in ``KNOBS``.

    Raises
    ------
    KeyError
        If the name is not listed.
    ValueError
        If the environment holds something that the knob does not accept; the message names the variable.
    """
    knob = KNOBS[name]
    text = os.environ.get(name, "").strip()
    if not text:
        return knob.default
    if knob.kind is int:
        try:
            number = int(text)
        except ValueError:
            number = knob.least - 1
        if number < knob.least:
            raise ValueError(f"{name} must be a whole number of at least {knob.least}, got {text!r}")
        return number
    if knob.choices and text not in knob.choices:
        raise ValueError(f"{name} must be one of {', '.join(knob.choices)}, got {text!r}")
    return Path(text).expanduser() if knob.kind is Path else text


def changed() -> dict[str, str]:
    """The listed variables that the environment sets, with their raw text."""
    return {name: os.environ[name] for name in KNOBS if os.environ.get(name, "").strip()}
