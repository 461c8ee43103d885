"""Decoding of level tables and of blocks of few bits (specification of ``_kernels/dequantize_tiny.pyx``)."""

from ._decode import decode_rows


def dequantize_rows_into_unchecked(number, nbytes, table, ids, out):
    """Rows ``ids`` of ``table`` (all when None)."""
    decode_rows(number, nbytes, table, ids, out)
