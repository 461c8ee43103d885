"""Dots of blocks of weights and blocks of activations (specification of ``_kernels/block_dot.pyx``)."""

import numpy as np

from . import _blocks
from ._f32 import F
from .act_blocks import BLOCK, NBYTES

# Elements and bytes per block of the weights, by the number of the format.
_WEIGHTS = {0: (32, 18), 1: (32, 20), 2: (32, 22), 3: (32, 24), 4: (32, 34), 5: (256, 144), 6: (256, 176), 7: (256, 210)}


def activations(layout, rows):
    """Scales [m, nb], codes [m, nb, B] and, where there are any, sums of rows of bytes."""
    b = rows.reshape(len(rows), -1, NBYTES[layout])
    at = (2, 4, 4, 2)[layout]
    q = b[..., at : at + BLOCK[layout]].view(np.int8).astype(np.int64)
    if layout == 2:
        d = np.ascontiguousarray(b[..., 0:4]).view(F)[..., 0]
    else:
        d = np.ascontiguousarray(b[..., 0:2]).view(np.float16)[..., 0].astype(F)
    if layout == 0:
        return d, q, None
    if layout == 1:
        return d, q, np.ascontiguousarray(b[..., 2:4]).view(np.float16)[..., 0].astype(F)
    at = 260 if layout == 2 else 274
    return d, q, np.ascontiguousarray(b[..., at : at + 32]).view(np.int16).astype(np.int64)


def block_dot_into_unchecked(code, layout, w, a, out):
    """``out`` [m, n]: rows of ``a`` [m, bytes] times rows of ``w`` [n, bytes]; blocks in order, one rounding per step."""
    w, a = np.asarray(w), np.asarray(a)
    with np.errstate(all="ignore"):
        f = _blocks.fields(code, w.reshape(len(w), -1, _WEIGHTS[code][1]))
        da, qa, sums = activations(layout, a)
        s = np.zeros((len(a), len(w)), F)
        for b in range(da.shape[1]):
            s = _step(code, layout, {key: value[:, b] for key, value in f.items()}, da[:, b, None], qa[:, b],
                      None if sums is None else sums[:, b], s)
    out[...] = s


def _step(code, layout, f, da, q, sums, s):
    """One block more of all outputs: s [m, n]; fields of the weights [n, ...], of the activations [m, ...]."""
    d = f["d"]
    if code < 5:
        dot = (q @ f["q"].T.astype(np.int64)).astype(F)
        if code in (0, 4):
            return s + dot * d * da
        if code == 2:
            return s + dot * (d * da)
        if layout == 1:
            return s + (dot * (d * da) + f["m"] * sums[:, None])
        total = q.sum(-1).astype(F)[:, None]
        return s + da * (d * dot + f["m"] * total)
    if code == 7:
        dots = np.einsum("mge,nge->mng", q.reshape(-1, 16, 16), f["q"].reshape(-1, 16, 16)).astype(F)
        for g in range(16):
            s = s + d * da * f["sc"][:, g].astype(F) * dots[..., g]
        return s
    mins = sums.reshape(-1, 8, 2).sum(-1) @ f["mn"].T
    s = s - f["m"] * da * mins.astype(F)
    dots = np.einsum("mge,nge->mng", q.reshape(-1, 8, 32), f["q"].reshape(-1, 8, 32))
    return s + d * da * (dots * f["sc"]).sum(-1).astype(F)
