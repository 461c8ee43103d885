"""Products with quantized weights (specification of ``_kernels/linear_quant.pyx``)."""

import numpy as np

from . import _blocks
from ._f32 import F, fma
from ._recode import mixed, recoded, restored, unmixed
from .act_quant import BLOCK, quantize_rows


def scratch_bytes(code, kind, m, k, row_bytes, nth):
    """None is needed here."""
    return 0


def share_bytes(code, m, k, row_bytes):
    """None is needed here."""
    return 0


def _words(nbytes, half_at):
    """Byte positions of a block in the order of a panel: the head, if it has one, then the 32-bit words."""
    order = list(range(nbytes))
    if half_at < 0:
        return [], np.array(order).reshape(-1, 4)
    head = order[half_at : half_at + nbytes % 4]
    return head, np.array([i for i in order if i not in head]).reshape(-1, 4)


def pack_rows_into_unchecked(code, nbytes, half_at, w, panels):
    """Interleave rows by 8: per block the heads of 8 rows, then every word of 8 rows. The last row fills up.

    Some formats change in between (``_recode``): before in the bytes of a row, after in the order of a panel's.
    """
    head, words = _words(nbytes, half_at)
    n, row_bytes = w.shape
    for i in range(panels.shape[0]):
        rows = w[[min(8 * i + r, n - 1) for r in range(8)]].reshape(8, row_bytes // nbytes, nbytes)
        rows = recoded(code, rows)
        parts = []
        for b in range(row_bytes // nbytes):
            parts.append(rows[:, b, head].reshape(-1))
            body = rows[:, b, words].transpose(1, 0, 2)
            parts.append(mixed(code, body).reshape(-1))
        panels[i] = np.concatenate(parts)


def unpack_rows(code, nbytes, half_at, panels, n):
    """The rows of a packed matrix; bytes of tq1_0 that stand for the same digits have become the same."""
    head, words = _words(nbytes, half_at)
    blocks = panels.reshape(panels.shape[0], -1, 8 * nbytes)
    rows = np.empty((panels.shape[0], 8, blocks.shape[1], nbytes), np.uint8)
    heads, body = np.split(blocks, [8 * len(head)], axis=-1)
    rows[..., head] = heads.reshape(blocks.shape[:2] + (8, len(head))).transpose(0, 2, 1, 3)
    body = unmixed(code, body.reshape(blocks.shape[:2] + (-1, 8, 4)))
    rows[..., words] = body.transpose(0, 3, 1, 2, 4)
    return restored(code, rows).reshape(-1, blocks.shape[1] * nbytes)[:n]


def _per_activation(f, n, blocks):
    """The scales of rows of weights for each of ``blocks`` blocks of activations.

    Blocks of weights may be longer (then several blocks share their scale) or, with a scale of 1, shorter.
    """
    d = f["d"]
    f = {key: value for key, value in f.items() if key not in ("d", "q")}
    if "sc" in f and f["sc"].shape[1] != blocks:
        f["sc"] = f["sc"].reshape(n, blocks, -1)
    if d.shape[1] < blocks:
        d = np.repeat(d, blocks // d.shape[1], axis=1)
    return f | {"d": d[:, :: d.shape[1] // blocks]}


def linear_quant_into_unchecked(code, kind, nbytes, half_at, packed, w, grid, scale, x, bias, out, scratch):
    """Exact integer sums per block; scales are folded in with one fused multiply-add each, blocks in order.

    Scales of sub-blocks multiply the integer sums where activations come in blocks of 256, and stay floating-point
    numbers with an own multiply-add each (nvfp4) where they come in blocks of 32. ``scale`` multiplies the sum of all.
    """
    m, n = out.shape
    rows = unpack_rows(code, nbytes, half_at, np.asarray(w), n) if packed else np.asarray(w)
    with np.errstate(all="ignore"):
        fields = _blocks.fields(code, rows.reshape(n, -1, nbytes), grid)
    a, da, sums = quantize_rows(kind, np.asarray(x))
    blocks = da.shape[1]
    q = fields["q"].reshape(n, blocks, BLOCK[kind])
    f = _per_activation(fields, n, blocks)
    y = np.zeros((m, n), F)
    with np.errstate(all="ignore"):
        for b in range(blocks):
            groups = f["sc"].shape[-1] if "sc" in f else 1
            each = np.einsum("mge,nge->mng", a[:, b].reshape(m, groups, -1), q[:, b].reshape(n, groups, -1))
            if kind < 2:
                for g in range(groups):
                    dw = f["d"][:, b] * f["sc"][:, b, g].astype(F) if "sc" in f else f["d"][:, b]
                    y = fma(dw[None] * da[:, b, None], each[..., g].astype(F), y)
            else:
                dots = (each * f["sc"][None, :, b]).sum(-1) if "sc" in f else each[..., 0]
                y = fma(f["d"][None, :, b] * da[:, b, None], dots.astype(F), y)
            if kind == 1:
                y = fma(f["m"][None, :, b], sums[:, b, None], y)
            elif "mn" in f:
                # Sixteen sums of 16 elements, then eight of 32.
                count = f["mn"].shape[-1]
                sub = sums[:, b, :16] if count == 16 else sums[:, b, 16:]
                mins = np.einsum("mj,nj->mn", sub, f["mn"][:, b])
                y = fma(f["m"][None, :, b] * -da[:, b, None], mins.astype(F), y)
        y = y * F(scale)
        out[...] = y if bias is None else y + np.asarray(bias)
