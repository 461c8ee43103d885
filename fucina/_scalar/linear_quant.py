"""Products with quantized weights (specification of ``_kernels/linear_quant.pyx``)."""

import numpy as np

from . import _blocks
from ._f32 import F, fma
from .act_quant import quantize_rows


def scratch_bytes(kind, m, k, row_bytes, nth):
    """None is needed here."""
    return 0


def _words(nbytes, half_at):
    """Byte positions of a block in the order of a panel: the odd 16-bit field, then the 32-bit words."""
    order = list(range(nbytes))
    if half_at < 0:
        return [], np.array(order).reshape(-1, 4)
    half = order[half_at : half_at + 2]
    return half, np.array([i for i in order if i not in half]).reshape(-1, 4)


def pack_rows_into_unchecked(nbytes, half_at, w, panels):
    """Interleave rows by 8: per block the odd halves of 8 rows, then every word of 8 rows. The last row fills up."""
    half, words = _words(nbytes, half_at)
    n, row_bytes = w.shape
    for i in range(panels.shape[0]):
        rows = w[[min(8 * i + r, n - 1) for r in range(8)]].reshape(8, row_bytes // nbytes, nbytes)
        parts = []
        for b in range(row_bytes // nbytes):
            parts.append(rows[:, b, half].reshape(-1))
            parts.append(rows[:, b, words].transpose(1, 0, 2).reshape(-1))
        panels[i] = np.concatenate(parts)


def unpack_rows(nbytes, half_at, panels, n):
    """The rows of a packed matrix."""
    half, words = _words(nbytes, half_at)
    blocks = panels.reshape(panels.shape[0], -1, 8 * nbytes)
    rows = np.empty((panels.shape[0], 8, blocks.shape[1], nbytes), np.uint8)
    head = 8 * len(half)
    if half:
        rows[..., half] = blocks[..., :head].reshape(blocks.shape[:2] + (8, 2)).transpose(0, 2, 1, 3)
    body = blocks[..., head:].reshape(blocks.shape[:2] + (-1, 8, 4))
    rows[..., words] = body.transpose(0, 3, 1, 2, 4)
    return rows.reshape(-1, blocks.shape[1] * nbytes)[:n]


def linear_quant_into_unchecked(code, kind, nbytes, half_at, packed, w, x, bias, out, scratch):
    """Exact integer sums per block; scales are folded in with one fused multiply-add each, blocks in order."""
    m, n = out.shape
    rows = unpack_rows(nbytes, half_at, np.asarray(w), n) if packed else np.asarray(w)
    f = _blocks.fields(code, rows.reshape(n, -1, nbytes))
    q, da, sums = quantize_rows(kind, np.asarray(x))
    y = np.zeros((m, n), F)
    with np.errstate(all="ignore"):
        for b in range(da.shape[1]):
            scale = f["d"][None, :, b] * da[:, b, None]
            if kind < 2:
                dots = np.einsum("me,ne->mn", q[:, b], f["q"][:, b])
            else:
                groups = f["sc"].shape[-1]
                each = np.einsum("mge,nge->mng", q[:, b].reshape(m, groups, -1), f["q"][:, b].reshape(n, groups, -1))
                dots = (each * f["sc"][None, :, b]).sum(-1)
            y = fma(scale, dots.astype(F), y)
            if kind == 1:
                y = fma(f["m"][None, :, b], sums[:, b, None], y)
            elif "mn" in f:
                mins = np.einsum("mj,nj->mn", sums[:, b, 16:], f["mn"][:, b])
                y = fma(f["m"][None, :, b] * -da[:, b, None], mins.astype(F), y)
        out[...] = y if bias is None else y + np.asarray(bias)
