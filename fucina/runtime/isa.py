"""Which kernels run: the variant of the compiled ones, or the plain-Python specification.

The decision is taken at the first use and kept for the life of the process. ``FUCINA_ISA`` forces a variant,
``FUCINA_BACKEND=scalar`` sends every call to ``fucina._scalar``.
"""

from __future__ import annotations

import importlib
import platform
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType, SimpleNamespace

from fucina._kernels import _probe

from . import tuning
from .variants import VARIANTS, by_name, for_machine

__all__ = ["backend", "built_variants", "cpu_features", "kernel", "runnable_variants", "stems", "variant", "why"]

_FOLDER = Path(__file__).resolve().parent.parent / "_kernels"


@cache
def cpu_features() -> frozenset[str]:
    """CPU features that the processor has and the operating system supports."""
    return _probe.cpu_features()


@cache
def built_variants() -> tuple[str, ...]:
    """Names of the variants that were compiled into this installation, most basic first."""
    return tuple(v.name for v in VARIANTS if stems(v.name))


def stems(name: str) -> list[str]:
    """Kernel families that were compiled for a variant."""
    folder = _FOLDER / name
    if not folder.is_dir():
        return []
    return sorted(p.name.split(".")[0] for p in folder.iterdir() if p.name.endswith(tuple(EXTENSION_SUFFIXES)))


@cache
def runnable_variants() -> tuple[str, ...]:
    """Names of the built variants that this machine can run, most basic first."""
    have = cpu_features()
    names = {v.name for v in for_machine(platform.machine()) if have.issuperset(v.features)}
    return tuple(name for name in built_variants() if name in names)


@cache
def variant() -> str:
    """Name of the active variant.

    Raises
    ------
    ImportError
        If ``FUCINA_ISA`` names a variant that does not exist, is not built or cannot run here, or if nothing
        runnable is built. The message lists what is available.
    """
    return _choose()[0]


def why() -> str:
    """One phrase that says how the active variant was chosen."""
    return _choose()[1]


@cache
def backend() -> str:
    """``"native"`` or ``"scalar"``.

    Raises
    ------
    ValueError
        If ``FUCINA_BACKEND`` holds anything else.
    """
    return tuning.value("FUCINA_BACKEND")


@cache
def kernel(stem: str) -> ModuleType | SimpleNamespace:
    """The module of a kernel family in the active backend and variant.

    Parameters
    ----------
    stem : str
        Name of the family, the same in ``_kernels`` and ``_scalar``.

    Returns
    -------
    module
        The compiled module or, in the scalar backend, a view of the specification whose ``*_into`` and
        ``*_into_unchecked`` functions take the number of threads as their last argument, as the compiled ones
        do, and ignore it.
    """
    if backend() == "scalar":
        return _scalar_view(importlib.import_module(f"fucina._scalar.{stem}"))
    return importlib.import_module(f"fucina._kernels.{variant()}.{stem}")


@cache
def _choose() -> tuple[str, str]:
    runnable = runnable_variants()
    if not runnable:
        raise ImportError(
            f"no kernel variant of fucina that this machine ({platform.machine()}) can run is built "
            f"(built: {', '.join(built_variants()) or 'none'}); build with `make build` or `pip install -e .`"
        )
    wanted = tuning.value("FUCINA_ISA")
    if wanted is None:
        return runnable[-1], "best built variant for this machine"
    if wanted in runnable:
        return wanted, "FUCINA_ISA"
    row = by_name(wanted)
    if row is None:
        problem = f"no such variant; there are {', '.join(v.name for v in VARIANTS)}"
    elif row not in for_machine(platform.machine()):
        problem = f"it is for {', '.join(row.machines)} and this machine is {platform.machine()}"
    elif missing := [f for f in row.features if f not in cpu_features()]:
        problem = f"this machine lacks {', '.join(missing)}"
    else:
        problem = f"it is not built; build it with FUCINA_VARIANTS={wanted}"
    raise ImportError(f"FUCINA_ISA={wanted}: {problem}. Available here: {', '.join(runnable)}")


def _scalar_view(module: ModuleType) -> SimpleNamespace:
    """A specification module with the calling convention of its compiled twin."""
    view = SimpleNamespace(__name__=module.__name__, __doc__=module.__doc__)
    for name, thing in vars(module).items():
        if not name.startswith("_"):
            entry = name.endswith(("_into", "_into_unchecked")) and callable(thing)
            setattr(view, name, _drop_last(thing) if entry else thing)
    return view


def _drop_last(function):
    def call(*args):
        return function(*args[:-1])

    call.__name__ = function.__name__
    call.__doc__ = function.__doc__
    return call
