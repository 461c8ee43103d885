"""The variant table: which instruction sets the kernels are compiled for.

Pure data, read by two parties: the build (``setup.py`` loads this file by path, before anything is compiled)
and :mod:`fucina.runtime.isa` (which picks one of the variants that were built). It therefore imports nothing
of fucina. Rows go from most basic to best; adding an instruction set is adding a row.

Feature names are those of ``/proc/cpuinfo`` without underscores (``avx512vnni``, ``avxvnni``, ``asimddp``, …).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["VARIANTS", "Variant", "best", "by_name", "for_machine"]


@dataclass(frozen=True)
class Variant:
    """One way of compiling the kernels.

    Parameters
    ----------
    name : str
        Name of the variant and of its subpackage ``fucina._kernels.<name>``.
    machines : tuple of str
        Lower-case ``platform.machine()`` values it can be compiled for; empty means any.
    features : tuple of str
        CPU features that the machine must have to run it.
    cflags : tuple of str
        Compiler flags that enable exactly those features.
    """

    name: str
    machines: tuple[str, ...]
    features: tuple[str, ...]
    cflags: tuple[str, ...]


_X86 = ("x86_64", "amd64")
_ARM = ("aarch64", "arm64")

_V3 = ("avx2", "fma", "f16c", "bmi2")
_V3_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")
_V4_FLAGS = (*_V3_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd")

# -march=armv8.2-a also lets the compiler use the atomics of Armv8.1, so they are asked for too.
_DOT = ("asimd", "atomics", "asimddp")

VARIANTS: tuple[Variant, ...] = (
    Variant("generic", (), (), ()),
    Variant("x86_64_v3", _X86, _V3, _V3_FLAGS),
    Variant("x86_64_v3_vnni", _X86, (*_V3, "avxvnni"), (*_V3_FLAGS, "-mavxvnni")),
    Variant("x86_64_v4", _X86, _V4, _V4_FLAGS),
    Variant(
        "x86_64_v4_vnni",
        _X86,
        (*_V4, "avx512vnni", "avx512bf16"),
        (*_V4_FLAGS, "-mavx512vnni", "-mavx512bf16"),
    ),
    Variant("aarch64", _ARM, ("asimd",), ()),
    Variant("aarch64_dotprod", _ARM, _DOT, ("-march=armv8.2-a+dotprod",)),
    Variant("aarch64_i8mm", _ARM, (*_DOT, "i8mm"), ("-march=armv8.2-a+dotprod+i8mm",)),
)


def for_machine(machine: str) -> list[Variant]:
    """Variants that can be compiled for a machine, most basic first.

    Parameters
    ----------
    machine : str
        What ``platform.machine()`` answers, in any case.
    """
    machine = machine.lower()
    return [v for v in VARIANTS if not v.machines or machine in v.machines]


def best(machine: str, features: Iterable[str]) -> Variant:
    """The best variant that a machine with these CPU features can run; at least ``generic``.

    Parameters
    ----------
    machine : str
        What ``platform.machine()`` answers.
    features : iterable of str
        What the probe found, see :func:`fucina._kernels._probe.cpu_features`.
    """
    have = frozenset(features)
    return [v for v in for_machine(machine) if have.issuperset(v.features)][-1]


def by_name(name: str) -> Variant | None:
    """The variant of that name, or None."""
    return next((v for v in VARIANTS if v.name == name), None)
