"""One token of a model as a program: the op-by-op forward pass of ``model.Layer``, recorded once and replayed."""

from __future__ import annotations

import numpy as np

from fucina import ops
from fucina.formats import PackedQTensor, QTensor
from fucina.ops.program import Activations, Program
from fucina.runtime import tuning
from fucina.runtime.isa import backend

_CELLS = {"f32": 0, "f16": 1, "q8_0": 2}


def can_record(layers, output) -> bool:
    """True when every matrix is quantized and programs are in use."""
    if backend() != "native" or not tuning.value("FUCINA_PROGRAM"):
        return False
    matrices = [output]
    for layer in layers:
        matrices += [layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down]
    return all(isinstance(w, (QTensor, PackedQTensor)) and w.spec.code >= 0 for w in matrices)


class TokenProgram:
    """Evaluates one token of one sequence.

    The residual stream, the rope tables and the place of the cache are buffers that are filled in before a run. The
    attention scratch is made for ``capacity`` keys; the owner makes a new program when a cache outgrows it.
    """

    def __init__(self, config, layers, ropes, rope_factors, output_norm, output, cache, threads: int):
        self.capacity = min(config.n_ctx, max(512, 2 * cache.capacity))
        self.threads = threads
        self._config, self._ropes, self._rope_factors = config, ropes, rope_factors
        self._length = np.zeros(1, np.int64)
        self._places = np.zeros((config.n_layer, 2), np.int64)
        self._cache = None
        self._tables = [(np.empty((0, 0)), np.empty((0, 0)))] * len(ropes)
        p = self._program = Program()
        self._x = p.buffer(1, config.n_embd)
        self._logits = p.buffer(1, config.n_vocab)
        self._angles = [(p.buffer(1, config.rope_pairs), p.buffer(1, config.rope_pairs)) for _ in ropes]
        self._record(layers, cache, output_norm, output)

    def _record(self, layers, cache, output_norm, output) -> None:
        p, config, x = self._program, self._config, self._x
        code, dim = _CELLS[cache.type], config.head_dim
        h = Activations(p.buffer(1, config.n_embd))
        q, k, v = p.buffer(1, config.n_q), p.buffer(1, config.n_kv), p.buffer(1, config.n_kv)
        heads = Activations(p.buffer(1, config.n_q))
        branch = p.buffer(1, config.n_embd)
        gate, up = p.buffer(1, config.n_ff), p.buffer(1, config.n_ff)
        hidden = Activations(up)
        split = lambda buffer, count: buffer.reshape(1, count, dim)
        residual = None     # the norm that the branch has to pass before it is added to x
        for i, layer in enumerate(layers):
            place, bytes_per_row = self._places[i], cache.row_bytes
            with p.serial():
                if residual is not None:
                    residual()
                p.rms_norm(x, layer.attn_norm, config.eps, h.x)
                p.quantize(h, (layer.q, layer.k, layer.v))
            p.barrier()
            p.linear(h, layer.q, layer.q_bias, q)
            p.linear(h, layer.k, layer.k_bias, k)
            p.linear(h, layer.v, layer.v_bias, v)
            p.barrier()
            cos, sin = self._angles[layer.rope]
            interleaved = layer.mode == "interleaved"
            with p.serial():
                if layer.q_norm is not None:
                    p.rms_norm(q.reshape(-1, dim), layer.q_norm, config.eps, q.reshape(-1, dim))
                p.rope(split(q, layer.heads), cos, sin, interleaved, split(q, layer.heads))
            with p.serial():
                if layer.k_norm is not None:
                    p.rms_norm(k.reshape(-1, dim), layer.k_norm, config.eps, k.reshape(-1, dim))
                p.rope(split(k, layer.kv_heads), cos, sin, interleaved, split(k, layer.kv_heads))
                p.store(code, k, bytes_per_row, place[:1], self._length)
                p.store(code, v, bytes_per_row, place[1:], self._length)
            p.barrier()
            cells = np.empty((1, layer.kv_heads, bytes_per_row // layer.kv_heads), np.uint8)
            p.attention(code, split(q, layer.heads), cells, cells, layer.scale, layer.window,
                        split(heads.x, layer.heads), place, self._length, self.capacity)
            p.barrier()
            with p.serial():
                p.quantize(heads, (layer.o,))
            p.barrier()
            p.linear(heads, layer.o, layer.o_bias, branch)
            p.barrier()
            with p.serial():
                self._join(layer.post_attn_norm, branch)
                p.rms_norm(x, layer.ffn_norm, config.eps, h.x)
                p.quantize(h, (layer.gate, layer.up))
            p.barrier()
            p.linear(h, layer.gate, layer.gate_bias, gate)
            p.linear(h, layer.up, layer.up_bias, up)
            p.barrier()
            with p.serial():
                p.gated("gelu_quant" if layer.gelu else "silu", up, gate, up)
                p.quantize(hidden, (layer.down,))
            p.barrier()
            p.linear(hidden, layer.down, layer.down_bias, branch)
            p.barrier()
            residual = lambda norm=layer.post_ffn_norm: self._join(norm, branch)
        with p.serial():
            residual()
            p.rms_norm(x, output_norm, config.eps, h.x)
            p.quantize(h, (output,))
        p.barrier()
        p.linear(h, output, None, self._logits)

    def _join(self, norm, branch) -> None:
        """x += branch, normalized first where the architecture says so."""
        if norm is not None:
            self._program.rms_norm(branch, norm, self._config.eps, branch)
        self._program.add(self._x, branch, self._x)

    def fits(self, cache, threads: int) -> bool:
        """True when this program can run on a cache of that size, with that many threads."""
        return cache.capacity <= self.capacity and threads == self.threads

    def __call__(self, ids: np.ndarray, embedding, cache) -> np.ndarray:
        """Logits [n_vocab] after the one token ``ids``, whose keys and values are appended to ``cache``; a view of a
        buffer that the next call overwrites."""
        config, at = self._config, cache.length
        ops.embedding(ids, embedding, out=self._x)
        if config.arch.scale_embedding:
            ops.scale(self._x, config.embedding_scale, out=self._x)
        for i, (cos, sin) in enumerate(self._angles):
            if at >= len(self._tables[i][0]):
                positions = np.arange(min(config.n_ctx, max(256, 2 * at)))
                base, scale = self._ropes[i]
                self._tables[i] = ops.rope_tables(positions, config.rope_pairs, base, scale, self._rope_factors)
            cos[0], sin[0] = self._tables[i][0][at], self._tables[i][1][at]
        places = cache.addresses()
        if places is not self._cache:
            self._places[...] = places
            self._cache = places
        self._length[0] = at + 1
        self._program.run()
        cache.length = at + 1
        return self._logits[0]
