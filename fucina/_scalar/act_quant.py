"""Activations to int8 blocks (specification of ``_kernels/act.pxd``)."""

import numpy as np

from ._f32 import F, f16

BLOCK = (32, 32, 256)
AUX = (4, 4, 48)


def quantize_rows(kind, x):
    """Blocks of the rows of x [m, k]: integers [m, nb, B], scales [m, nb], and the sums that the products need.

    Sums: q8_0 int32 of q; q8_1 float32 f16(d * sum q); q8_k int16, 16 sums of 16 and 8 sums of 32.
    """
    m, k = x.shape
    b = x.reshape(m, k // BLOCK[kind], BLOCK[kind])
    with np.errstate(all="ignore"):
        finite = np.isfinite(b).all(-1)
        amax = np.abs(np.where(finite[..., None], b, 0)).max(-1)
        if kind == 2:
            first = np.argmax(np.abs(np.where(finite[..., None], b, 0)), axis=-1)
            c = F(-127) / np.take_along_axis(b, first[..., None], -1)[..., 0]
            c = np.where(finite & (amax > 0) & np.isfinite(c), c, F(0))
            d = np.where(c != 0, F(1) / c, F(0))
            q = np.minimum(np.rint(np.where(finite[..., None], b * c[..., None], 0)), 127).astype(np.int32)
        else:
            d = amax / F(127)
            inv = np.where(d > 0, F(1) / d, F(0))
            d, inv = np.where(np.isinf(inv), F(0), d), np.where(np.isinf(inv), F(0), inv)
            t = np.where(finite[..., None], b * inv[..., None], F(0))
            whole = np.trunc(t)
            q = (whole + (t - whole >= F(0.5)) - (t - whole <= F(-0.5))).astype(np.int32)
        d = np.where(finite, d, F(np.nan)).astype(F)
        total = q.sum(-1)
        if kind == 0:
            return q, f16(d), total
        if kind == 1:
            return q, f16(d), f16(d * total.astype(F))
        by16 = q.reshape(m, -1, 16, 16).sum(-1)
        return q, d, np.concatenate([by16, by16.reshape(m, -1, 8, 2).sum(-1)], axis=-1)


def quantize_act_into_unchecked(kind, x, tile, qs, d, aux):
    """Quantize into the tiled layout: block b of row r is entry t * nb + b * nc + (r - t), see ``_kernels/act.pxd``."""
    q, scale, sums = quantize_rows(kind, np.asarray(x))
    m, nb = scale.shape
    sums = sums.astype((np.int32, F, np.int16)[kind]).reshape(m, nb, -1)
    for r in range(m):
        t = r // tile * tile
        nc = min(tile, m - t)
        for b in range(nb):
            at = t * nb + b * nc + (r - t)
            qs[at * BLOCK[kind] : (at + 1) * BLOCK[kind]] = q[r, b]
            d[at] = scale[r, b]
            aux[at * AUX[kind] : (at + 1) * AUX[kind]] = sums[r, b].view(np.uint8)
