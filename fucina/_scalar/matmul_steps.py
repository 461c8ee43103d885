"""The first steps of the staircase (specification of ``_kernels/matmul_steps.pyx``)."""

import numpy as np

from ._f32 import F, fma


def plain_into_unchecked(a, b, c):
    """One chain of fused multiply-adds over k per output."""
    a, b = np.asarray(a), np.asarray(b)
    y = np.zeros(c.shape, F)
    for p in range(a.shape[1]):
        y = fma(a[:, p, None], b[None, p], y)
    c[...] = y


def reordered_into_unchecked(a, b, c):
    """The order of the loops changes no chain."""
    plain_into_unchecked(a, b, c)
