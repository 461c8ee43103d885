"""One transformer layer, op by op: the readable form of what programs replay (``program.py``)."""

from __future__ import annotations

import numpy as np

from fucina import ops

from .arch import Config
from .cache import Span


class Layer:
    """One transformer layer with its weights at hand."""

    def __init__(self, config: Config, index: int, rope: int, weights: dict):
        arch = config.arch
        self.index = index
        self.eps = config.eps
        self.heads, self.kv_heads, self.dim = config.n_head, config.n_head_kv, config.head_dim
        self.mode, self.rope_dims, self.rope = arch.rope_mode, config.rope_dims, rope
        self.scale, self.window = config.attention_scale, config.windows[index]
        self.gelu = arch.activation == "gelu_quant"
        for name, tensor in weights.items():
            setattr(self, name, tensor)

    def __call__(self, x: np.ndarray, tables, spans: list[Span], wanted) -> np.ndarray:
        """Residual stream after this layer, of the rows ``wanted`` (None: all) of ``x`` [rows, n_embd].

        ``tables`` holds cosines and sines for the rows; keys and values of all rows go to the caches of ``spans``.
        ``x`` is overwritten.
        """
        rows, eps, dim = len(x), self.eps, self.dim
        h = ops.rms_norm(x, self.attn_norm, eps)
        k = ops.linear(h, self.k, self.k_bias).reshape(rows, self.kv_heads, dim)
        v = ops.linear(h, self.v, self.v_bias).reshape(rows, self.kv_heads, dim)
        if self.k_norm is not None:
            ops.rms_norm(k, self.k_norm, eps, out=k)
        ops.rope(k, None, mode=self.mode, dims=self.rope_dims, tables=tables, out=k)
        for span in spans:
            span.cache.layers[self.index].write(span.start, k[span.slice], v[span.slice])
        if wanted is not None:
            rows, h, x = len(wanted), h[wanted], x[wanted]
            if not rows:
                return x
            tables = tuple(table[wanted] for table in tables)
            spans = [Span(i, 1, span.cache, span.end - 1) for i, span in enumerate(spans[:rows])]

        q = ops.linear(h, self.q, self.q_bias).reshape(rows, self.heads, dim)
        if self.q_norm is not None:
            ops.rms_norm(q, self.q_norm, eps, out=q)
        ops.rope(q, None, mode=self.mode, dims=self.rope_dims, tables=tables, out=q)
        y = np.empty_like(q)
        for span in spans:
            keys, values = span.cache.layers[self.index].read(span.end)
            ops.attention(q[span.slice], keys, values, scale=self.scale, window=self.window, out=y[span.slice])
        h = ops.linear(y.reshape(rows, self.heads * dim), self.o, self.o_bias)
        if self.post_attn_norm is not None:
            ops.rms_norm(h, self.post_attn_norm, eps, out=h)
        x = ops.add(x, h, out=x)

        h = ops.rms_norm(x, self.ffn_norm, eps)
        gate = ops.linear(h, self.gate, self.gate_bias)
        up = ops.linear(h, self.up, self.up_bias)
        h = ops.geglu(up, gate, approximate="quant", out=up) if self.gelu else ops.swiglu(up, gate, out=up)
        h = ops.linear(h, self.down, self.down_bias)
        if self.post_ffn_norm is not None:
            ops.rms_norm(h, self.post_ffn_norm, eps, out=h)
        return ops.add(x, h, out=x)
