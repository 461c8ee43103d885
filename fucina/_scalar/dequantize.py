"""Decoding of blocks and of 16-bit floats (specification of ``_kernels/dequantize.pyx``)."""

import numpy as np

from ._decode import decode_rows
from ._f32 import F


def widen(code, rows):
    """Bytes of f32 (-1), f16 (-2) or bf16 (-3) values to float32, exactly."""
    if code == -1:
        return rows.view(F)
    if code == -2:
        return rows.view(np.float16).astype(F)
    return (rows.view(np.uint16).astype(np.uint32) << 16).view(F)


def dequantize_rows_into_unchecked(code, nbytes, table, ids, out):
    """Rows ``ids`` of ``table`` (all when None); non-negative codes are numbers of the format table."""
    if code >= 0:
        decode_rows(code, nbytes, table, ids, out)
    else:
        rows = np.asarray(table) if ids is None else np.asarray(table)[np.asarray(ids)]
        out[...] = widen(code, np.ascontiguousarray(rows))
