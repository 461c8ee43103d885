"""Normalization of rows (specification of ``_kernels/norm.pyx``)."""

import numpy as np

from ._f32 import F, fma, lanes16, tree


def rms_norm_into_unchecked(x, weight, eps, out):
    """x * (1 / sqrt(mean(x^2) + eps)) [* weight], the sum of squares in 16 lanes of fused multiply-adds."""
    x = np.asarray(x)
    acc = np.zeros((x.shape[0], 16), F)
    groups = lanes16(x)
    for g in range(groups.shape[1]):
        acc = fma(groups[:, g], groups[:, g], acc)
    with np.errstate(all="ignore"):
        scale = F(1) / np.sqrt(tree(acc) / F(x.shape[1]) + F(eps))
        y = x * scale[:, None]
        out[...] = y if weight is None else y * np.asarray(weight)
