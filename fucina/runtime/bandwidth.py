"""How fast this machine reads memory: the bound of everything that passes over weights once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

from .threads import get_num_threads

__all__ = ["read_bandwidth"]

_NBYTES = 256 << 20  # well beyond the caches


def read_bandwidth(threads: int | None = None, nbytes: int = _NBYTES, passes: int = 6) -> float:
    """Measured read bandwidth of the main memory in bytes per second.

    Every thread takes the maximum of its share of one buffer, which reads it front to back and writes nothing.

    Parameters
    ----------
    threads : int, optional
        Number of threads; by default what the kernels use.
    nbytes : int
        Size of the buffer. One that fits the caches measures the caches.
    passes : int
        The best of so many counts: whatever disturbs a pass makes it slower, nothing makes it faster.

    Raises
    ------
    ValueError
        If an argument is not positive.
    """
    threads = get_num_threads() if threads is None else threads
    for name, value in (("threads", threads), ("nbytes", nbytes), ("passes", passes)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    buffer = np.ones(nbytes, np.uint8)  # written once, so that all pages are there
    shares = np.array_split(buffer, min(threads, nbytes))
    seconds = []
    with ThreadPoolExecutor(len(shares)) as pool:
        for _ in range(passes):
            start = perf_counter()
            list(pool.map(np.max, shares))
            seconds.append(perf_counter() - start)
    return nbytes / min(seconds)
