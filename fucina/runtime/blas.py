"""The BLAS tier: float32 and float64 products by SciPy's BLAS, when ``FUCINA_BLAS`` asks for it.

BLAS adds in an order of its own, which changes with the library, the processor and the number of threads; so it is off by
default. ``auto`` uses it where it measured faster than the library's own kernel, ``1`` wherever it can. It gets as many
threads as the kernel would have, and declines what it could not do without copies.
"""

from __future__ import annotations

import threading
from functools import cache

import numpy as np

from . import isa, tuning

__all__ = ["offer", "wanted"]

# Smaller products are over before the call has found its way (the same bound as in other libraries: 16).
LEAST = 16

# From how many multiply-adds BLAS is faster than the kernels of a variant; variants that are not listed beat it, or were
# not measured. `generic` has no vectors, BLAS finds out by itself what the machine can do: 96^3 (AMD Zen 3, 2026-11).
FASTER_FROM = {"generic": 16**3}

# One call at a time: the number of threads belongs to the library as a whole.
_busy = threading.Lock()


def wanted() -> bool:
    """Whether ``FUCINA_BLAS`` lets BLAS into the chain of providers."""
    return tuning.value("FUCINA_BLAS") != "0"


def offer(a: np.ndarray, b: np.ndarray, out: np.ndarray, accumulate: bool, threads: int) -> bool:
    """Compute ``out = a @ b`` (or add it) with BLAS, or answer False; see :mod:`fucina.runtime.providers`."""
    if out.ndim != 2 or not (a.dtype == b.dtype == out.dtype) or out.dtype.char not in "fd":
        return False
    m, k = a.shape
    n = out.shape[1]
    if min(m, n, k) < LEAST or max(m, n, k) > 2**31 - 1 or m * n * k < _least_work():
        return False
    # BLAS works on columns: with all three matrices transposed, out^T = b^T a^T, they are what it expects. A transposed
    # view on the other hand is stored by columns already and only needs the flag.
    first, second = _by_columns(b), _by_columns(a)
    if first is None or second is None or not out.flags.c_contiguous or not _busy.acquire(False):
        return False
    try:
        from scipy.linalg import blas

        gemm = blas.sgemm if out.dtype.char == "f" else blas.dgemm
        with _Threads(threads):
            result = gemm(
                1.0, first[0], second[0], beta=float(accumulate), c=out.T, trans_a=first[1], trans_b=second[1],
                overwrite_c=1,
            )
    finally:
        _busy.release()
    if not np.may_share_memory(result, out):
        out[...] = result.T
    return True


def _by_columns(x: np.ndarray) -> tuple[np.ndarray, int] | None:
    """What stands for x^T: a matrix stored by columns, and whether BLAS has to transpose it."""
    if x.flags.c_contiguous:
        return x.T, 0
    return (x, 1) if x.flags.f_contiguous else None


@cache
def _least_work() -> float:
    if tuning.value("FUCINA_BLAS") == "1":
        return 0
    return FASTER_FROM.get(isa.variant(), float("inf")) if isa.backend() == "native" else 0


@cache
def _libraries() -> tuple:
    import threadpoolctl
    from scipy.linalg import blas  # noqa: F401 - loaded before the search

    return tuple(lib for lib in threadpoolctl.ThreadpoolController().lib_controllers if lib.user_api == "blas")


class _Threads:
    """``with _Threads(n)``: BLAS libraries use at most n threads."""

    def __init__(self, n: int):
        self.n = n

    def __enter__(self):
        self.before = [(lib, lib.get_num_threads()) for lib in _libraries()]
        for lib, number in self.before:
            if number > self.n:
                lib.set_num_threads(self.n)

    def __exit__(self, *error):
        for lib, number in self.before:
            if number > self.n:
                lib.set_num_threads(number)
