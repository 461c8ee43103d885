"""Rotary position embedding (specification of ``_kernels/rope.pyx``)."""

import numpy as np

from ._f32 import fma


def rope_into_unchecked(x, cos, sin, interleaved, out):
    x = np.array(x)
    pairs = cos.shape[1]
    c, s = np.asarray(cos)[:, None], np.asarray(sin)[:, None]
    low = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    high = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    a, b = x[..., low], x[..., high]
    out[...] = x
    with np.errstate(all="ignore"):
        out[..., low], out[..., high] = fma(a, c, -(b * s)), fma(a, s, b * c)
