"""fucina: neural-network kernels for the CPU on NumPy arrays and GGUF weights.

>>> import fucina
>>> from fucina import ops
>>> weights = fucina.open_gguf("model.gguf")                  # doctest: +SKIP
>>> y = ops.linear(x, weights["blk.0.ffn_up.weight"])         # doctest: +SKIP
"""

from __future__ import annotations

import importlib

from ._version import __version__
from .formats import QTensor
from .gguf import open_gguf

try:
    from . import ops
    from .runtime.threads import get_num_threads, set_num_threads
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("fucina._kernels"):
        raise
    raise ImportError(
        f"the compiled kernels of fucina are missing ({error.name}); build them with `make build`, or install with "
        "`pip install -e .`"
    ) from error

__all__ = [
    "QTensor",
    "__version__",
    "get_num_threads",
    "llm",
    "open_gguf",
    "ops",
    "set_num_threads",
    "show_runtime",
]

# Loaded when first asked for, so that `import fucina` costs little more than NumPy.
_SUBPACKAGES = ("llm",)


def show_runtime() -> None:
    """Print versions, the kernel variant, threads, BLAS and OpenMP runtimes, and what decided them."""
    from .runtime.info import show_runtime

    show_runtime()


def __getattr__(name: str):
    if name in _SUBPACKAGES:
        return importlib.import_module(f"fucina.{name}")
    raise AttributeError(f"module 'fucina' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBPACKAGES})
