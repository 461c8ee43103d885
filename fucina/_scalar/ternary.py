"""Ternary weights times float activations (specification of ``_kernels/ternary.pyx``)."""

import numpy as np

from . import _blocks
from ._f32 import F, fma, sum16


def ternary_linear_into_unchecked(number, nbytes, w, scale, x, bias, out):
    """Per block of a row of ``w``: elements of x added or subtracted in 16 lanes, then times the block's scale."""
    w, x = np.asarray(w), np.asarray(x)
    m, n = out.shape
    with np.errstate(all="ignore"):
        f = _blocks.fields(number, w.reshape(n, -1, nbytes))
        q, d = f["q"], f["d"]
        x = x.reshape(m, q.shape[1], q.shape[2])
        y = np.zeros((m, n), F)
        for b in range(q.shape[1]):
            code, v = q[None, :, b], x[:, None, b]
            signed = np.where(code < 0, -v, np.where(code == 2, v + v, v))
            y = fma(d[None, :, b], sum16(np.where(code == 0, F(0), signed)), y)
        y = y * F(scale)
        out[...] = y if bias is None else y + np.asarray(bias)
