"""Activations to blocks of bytes (specification of ``_kernels/act_blocks.pyx``)."""

import numpy as np

from ._f32 import F
from .act_quant import quantize_rows

# By the number of the layout: elements and bytes per block.
BLOCK = (32, 32, 256, 256)
NBYTES = (34, 36, 292, 306)


def even(b):
    """Integers and scales of blocks b [..., B], half to even: d = max|x| / 127, q = round(x * (1 / d)).

    A block with NaN or infinity gets d = NaN and q = 0; one whose scale has no finite inverse counts as zero.
    """
    with np.errstate(all="ignore"):
        finite = np.isfinite(b).all(-1)
        b = np.where(finite[..., None], b, F(0))
        d = np.abs(b).max(-1) / F(127)
        inverse = np.where(d > 0, F(1) / d, F(0))
        d, inverse = np.where(np.isinf(inverse), F(0), d), np.where(np.isinf(inverse), F(0), inverse)
        q = np.minimum(np.rint(b * inverse[..., None]), 127).astype(np.int32)
        return q, np.where(finite, d, F(np.nan)).astype(F)


def quantize_blocks_into_unchecked(layout, to_even, x, out):
    """Rows of ``x`` [m, k] to rows of blocks; 0 q8_0, 1 q8_1, 2 q8_k (ggml's), 3 q8_k306."""
    x = np.asarray(x)
    m, k = x.shape
    size = BLOCK[layout]
    y = out.reshape(m, k // size, NBYTES[layout])
    if layout == 2:
        q, d, sums = quantize_rows(2, x)
        y[..., 0:4] = d.astype(F)[..., None].view(np.uint8)
        y[..., 4:260] = q.astype(np.int8).view(np.uint8)
        y[..., 260:292] = np.ascontiguousarray(sums[..., :16].astype(np.int16)).view(np.uint8)
        return
    if to_even:
        q, d = even(x.reshape(m, k // size, size))
    else:
        q, d, _ = quantize_rows(0, x)
    with np.errstate(all="ignore"):
        # d is unrounded where codes are rounded to even, and half precision already where they are not.
        half = d.astype(np.float16)
        y[..., 0:2] = half[..., None].view(np.uint8)
        if layout == 1:
            s = quantize_rows(1, x)[2] if not to_even else d * q.sum(-1).astype(F)
            y[..., 2:4] = np.asarray(s, F).astype(np.float16)[..., None].view(np.uint8)
    at = 4 if layout == 1 else 2
    y[..., at : at + size] = q.astype(np.int8).view(np.uint8)
    if layout == 3:
        y[..., 258:274] = 0
        y[..., 274:306] = np.ascontiguousarray(q.reshape(m, -1, 16, 16).sum(-1).astype(np.int16)).view(np.uint8)
