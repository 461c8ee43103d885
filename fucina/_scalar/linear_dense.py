"""Products with f32, f16 or bf16 weights (specification of ``_kernels/linear_dense.pyx``)."""

import numpy as np

from ._f32 import F, fma
from .dequantize import widen


def scratch_bytes(m, nth):
    """None is needed here."""
    return 0


def linear_dense_into_unchecked(code, w, x, bias, out, scratch):
    """One chain of fused multiply-adds over k per output."""
    w = widen(-1 - code, np.asarray(w))
    x = np.asarray(x)
    y = np.zeros(out.shape, F)
    for p in range(x.shape[1]):
        y = fma(x[:, p, None], w[None, :, p], y)
    with np.errstate(all="ignore"):
        out[...] = y if bias is None else y + np.asarray(bias)
