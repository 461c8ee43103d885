"""Softmax of rows (specification of ``_kernels/softmax.pyx``)."""

import numpy as np

from ._f32 import F, exp, sum16


def soften(t):
    """e^(t - max) along the last axis and its sum; NaN does not take part in the maximum."""
    with np.errstate(all="ignore"):
        top = np.fmax.reduce(t, axis=-1, initial=F(-np.inf), keepdims=True)
        e = exp(t - top)
        return e, sum16(e)


def softmax_into_unchecked(x, scale, mask, out):
    with np.errstate(all="ignore"):
        t = np.asarray(x) * F(scale)
        if mask is not None:
            t = t + np.asarray(mask)[np.arange(t.shape[0]) % mask.shape[0]]
        e, total = soften(t)
        out[...] = e / total[:, None]
