"""Decoding of blocks (specification of ``_kernels/dequantize.pyx``)."""

import numpy as np

from . import _blocks
from ._f32 import F


def widen(code, rows):
    """Bytes of f32 (-1), f16 (-2) or bf16 (-3) values to float32, exactly."""
    if code == -1:
        return rows.view(F)
    if code == -2:
        return rows.view(np.float16).astype(F)
    return (rows.view(np.uint16).astype(np.uint32) << 16).view(F)


def dequantize_rows_into_unchecked(code, nbytes, table, ids, out):
    """Scale times code, then the offset; every step is rounded."""
    rows = np.asarray(table) if ids is None else np.asarray(table)[np.asarray(ids)]
    if code < 0:
        out[...] = widen(code, np.ascontiguousarray(rows))
        return
    f = _blocks.fields(code, rows.reshape(rows.shape[0], -1, nbytes))
    q = f["q"].astype(F)
    with np.errstate(all="ignore"):
        if "sc" in f:
            each = q.shape[-1] // f["sc"].shape[-1]
            y = np.repeat(f["d"][..., None] * f["sc"].astype(F), each, -1) * q
            if "mn" in f:
                y = y - np.repeat(f["m"][..., None] * f["mn"].astype(F), each, -1)
        else:
            y = q * f["d"][..., None]
            if "m" in f:
                y = y + f["m"][..., None]
    out[...] = y.reshape(out.shape)
