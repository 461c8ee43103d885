"""Compiled kernels, one subpackage per variant (``fucina.runtime.isa`` chooses). Unchecked: call ``fucina.ops``."""

import os

# How often a waiting thread looks again before it goes to sleep. GNU OpenMP looks 300,000 times (milliseconds) unless
# told otherwise; when another process wants the CPU, that is time taken from the very thread it waits for.
SPIN_COUNT = 3000


def _load_openmp():
    """Load the OpenMP runtime, which reads its environment once, with a short spin; the user's wish comes first."""
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    try:
        from . import _openmp  # noqa: F401
    finally:
        del os.environ["GOMP_SPINCOUNT"]


_load_openmp()
