"""Attention (specification of ``_kernels/attention.pyx``)."""

import numpy as np

from ._f32 import F, fma
from .dequantize import dequantize_rows_into_unchecked, widen
from .softmax import soften


def scratch_floats(rows, d, keys):
    """None is needed here."""
    return 0


def _cells(code, x, d):
    """Keys or values [kv_seq, kv_heads, bytes] to float32 [kv_seq, kv_heads, d]."""
    x = np.ascontiguousarray(x)
    if code < 2:
        return widen(-1 - code, x)
    y = np.empty(x.shape[:2] + (d,), F)
    dequantize_rows_into_unchecked(4, 34, x.reshape(-1, x.shape[2]), None, y.reshape(-1, d))
    return y


def attention_into_unchecked(code, q, k, v, bias, scale, causal, window, out, tile, part, scratch):
    """Each (query, head): scores as chains over features, softmax over its own keys, values as a chain over keys."""
    q = np.asarray(q)
    seq, heads, d = q.shape
    k, v = _cells(code, k, d), _cells(code, v, d)
    kv_seq, kv_heads = k.shape[:2]
    of_head = np.arange(heads) // (heads // kv_heads)
    for i in range(seq):
        at = kv_seq - seq + i
        lo = max(0, at - window + 1) if window else 0
        hi = at + 1 if causal else kv_seq
        keys, values = k[lo:hi, of_head], v[lo:hi, of_head]        # [keys, heads, d]
        t = np.zeros((heads, hi - lo), F)
        for e in range(d):
            t = fma(q[i, :, e, None], keys[:, :, e].T, t)
        with np.errstate(all="ignore"):
            t = t * F(scale)
            if bias is not None:
                t = t + np.asarray(bias)[i, lo:hi]
            p, total = soften(t)
            y = np.zeros((heads, d), F)
            for j in range(hi - lo):
                y = fma(p[:, j, None], values[j], y)
            out[i] = y / total[:, None]
