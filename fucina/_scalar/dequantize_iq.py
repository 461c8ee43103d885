"""Decoding of grid blocks (specification of ``_kernels/dequantize_iq.pyx``)."""

import numpy as np

from ._decode import decode_rows


def dequantize_rows_into_unchecked(number, nbytes, grid, table, ids, out):
    """Rows ``ids`` of ``table`` (all when None); ``grid`` holds what the points of the lattice decode to."""
    decode_rows(number, nbytes, table, ids, out, np.asarray(grid))
