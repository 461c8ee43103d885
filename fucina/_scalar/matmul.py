"""Dense products (specification of ``_kernels/matmul.pyx``)."""

import numpy as np

from ._f32 import F, fma
from ._f64 import fma as fma64

F32, F16, BF16, F64, PACKED = 0, 1, 2, 3, 16


def widen(kind, x):
    """Numbers of a type, bfloat16 as uint16, to the type of the sum, exactly."""
    x = np.asarray(x)
    if kind == BF16:
        return (x.astype(np.uint32) << 16).view(F)
    return x.astype(np.float64 if kind == F64 else F)


def narrow(kind, x):
    """The way back, to the nearest number, ties to even."""
    if kind == F16:
        with np.errstate(over="ignore"):
            return x.astype(np.float16)
    if kind == BF16:
        u = np.ascontiguousarray(x).view(np.uint32).astype(np.uint64)
        nan = (u & 0x7FFFFFFF) > 0x7F800000
        return np.where(nan, (u >> 16) | 0x40, (u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return x


def unpack(kind, panels, n, k):
    """The matrix [k, n] in panels."""
    panels = np.asarray(panels).view((F, np.float16, np.uint16, np.float64)[kind])
    rows = panels.reshape(len(panels), k, -1).swapaxes(1, 2)
    return rows.reshape(-1, k)[:n].T


def matmul_into_unchecked(at, a, bt, b, ct, c, bias, accumulate, route, scratch):
    """One chain of fused multiply-adds over p per output, then the bias, then one rounding."""
    a = widen(at, a)
    if bt >= PACKED:
        b = unpack(bt - PACKED, b, c.shape[-1], a.shape[-1])
    b = widen(bt % PACKED, b)
    step = fma64 if at == F64 else fma
    y = widen(ct, c) if accumulate else np.zeros(c.shape, np.float64 if at == F64 else F)
    for p in range(a.shape[-1]):
        y = step(a[..., :, p, None], b[..., None, p, :], y)
    with np.errstate(all="ignore"):
        c[...] = narrow(ct, y if bias is None else y + np.asarray(bias))
    return 0


def pack_weight_into_unchecked(kind, w, panels):
    """Rows side by side: [panel][k][16], of float64 [panel][k][8]."""
    dtype = (F, np.float16, np.uint16, np.float64)[kind]
    w = np.asarray(w).view(dtype)
    n, k = w.shape
    width = 8 if kind == F64 else 16
    full = np.zeros((panels.shape[0] * width, k), dtype)
    full[:n, :k] = w
    rows = full.reshape(panels.shape[0], width, -1).swapaxes(1, 2)
    panels[...] = np.ascontiguousarray(rows).reshape(panels.shape[0], -1).view(np.uint8)


def share_bytes(bt, m, n, k, shares):
    """None is needed here."""
    return 0
