"""Other ways to compute a dense product: the seam where a GPU or a library may take one over.

``chain`` holds (name, offer) pairs that are asked in order before the library's own kernel. An offer is a function

    offer(a, b, out, accumulate, threads) -> bool

with ``a`` [..., m, k], ``b`` [..., k, n] and ``out`` [..., m, n]: arrays of equal leading axes with any strides (of zero
where an operand is shared), of the number types that ``ops.matmul`` takes. It may use ``threads`` threads. It answers
True when it has put the product into ``out``, or added it when ``accumulate`` is set. It answers False when it would
rather not; then it has not touched ``out``, and the next one is asked. Correctness never depends on it.

Only what computes the same bits as the kernel keeps the promises of docs/numerics.md, so the chain is empty unless
somebody registers, or asks for BLAS with ``FUCINA_BLAS``.
"""

from __future__ import annotations

from collections.abc import Callable

from . import blas

__all__ = ["chain", "register", "unregister"]

chain: tuple[tuple[str, Callable[..., bool]], ...] = (("blas", blas.offer),) if blas.wanted() else ()


def register(name: str, offer: Callable[..., bool]) -> None:
    """Put a provider at the front of the chain.

    Parameters
    ----------
    name : str
        Not yet in the chain.
    offer : callable
        As described in this module.

    Raises
    ------
    TypeError
        If ``offer`` cannot be called.
    ValueError
        If the name is taken.
    """
    global chain
    if not callable(offer):
        raise TypeError(f"a provider must be callable, got {type(offer).__name__}")
    if name in (taken for taken, _ in chain):
        raise ValueError(f"there is a provider {name!r} already")
    chain = ((name, offer), *chain)


def unregister(name: str) -> None:
    """Take a provider out of the chain.

    Raises
    ------
    KeyError
        If there is none of that name.
    """
    global chain
    if name not in (taken for taken, _ in chain):
        raise KeyError(f"no provider {name!r}; there are {[taken for taken, _ in chain]}")
    chain = tuple(entry for entry in chain if entry[0] != name)
