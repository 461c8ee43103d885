"""The layers of a model as programs: the op-by-op forward pass of ``layer.Layer``, recorded once and replayed.

Three programs share one way of recording. ``whole`` takes tokens to logits, for tokens whose logits are all wanted: one
step of generation, of one sequence or of several. A prompt wants them only at its end: ``front`` goes up to the keys and
values of the last layer, ``back`` continues from there with the few rows that are wanted.
"""

from __future__ import annotations

import numpy as np

from fucina.formats import PackedQTensor, QTensor
from fucina.ops.matmul import PackedWeight
from fucina.ops.program import Activations, Batch, Program
from fucina.runtime import tuning
from fucina.runtime.isa import backend
from fucina.runtime.threads import get_num_threads

_CELLS = {"f32": 0, "f16": 1, "q8_0": 2}
# More rows than these go through `front` and `back`: the logits of so many would be large.
WHOLE = 32
# A prompt program has room for so many rows at least.
LEAST = 32


def can_record(layers, output) -> bool:
    """True when every matrix is quantized or packed and programs are in use."""
    if backend() != "native" or not tuning.value("FUCINA_PROGRAM"):
        return False
    matrices = [output]
    for layer in layers:
        matrices += [layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down]
    return all(
        isinstance(w, PackedWeight) or isinstance(w, (QTensor, PackedQTensor)) and w.spec.code >= 0 for w in matrices
    )


class Programs:
    """The programs of a model, recorded when they are first needed and again when they are outgrown."""

    def __init__(self, model):
        self._model = model
        self._recorded: dict[str, _Recording] = {}

    def __call__(self, ids: np.ndarray, spans, last: bool) -> np.ndarray | None:
        """Evaluate the tokens ``ids`` of the sequences in ``spans`` and append them to the caches.

        Logits [sequences, n_vocab] after the last token of each span; without ``last`` None.
        The array is a buffer that the next call overwrites.
        """
        for span in spans:
            span.cache.reserve(span.rows)
        logits = self._run(ids, spans, last)
        for span in spans:
            span.cache.length = span.end
        return logits

    def one(self, token: int, cache) -> tuple[np.ndarray, int]:
        """Logits [n_vocab] after one more token of one sequence, in a buffer that the next call overwrites, and where the
        greatest stands, or -1 if some are not finite."""
        cache.reserve(1)
        caches, end = (cache,), cache.length + 1
        whole = self._get("whole", 1, caches)
        logits = whole.run((token,), ((0, 1, end),), caches)
        cache.length = end
        return logits[0], whole.greatest[0]

    def _run(self, ids: np.ndarray, spans, last: bool) -> np.ndarray | None:
        rows = len(ids)
        caches = [span.cache for span in spans]
        table = [(span.first, span.rows, span.end) for span in spans]
        if last and rows == len(spans) and rows <= WHOLE:
            return self._get("whole", rows, caches).run(ids, table, caches)
        front = self._get("front", rows, caches)
        front.run(ids, table, caches)
        if not last:
            return None
        back = self._get("back", len(spans), caches)
        back.x[: len(spans)] = front.x[[first + count - 1 for first, count, _ in table]]
        return back.run(None, [(i, 1, end) for i, (_, _, end) in enumerate(table)], caches)

    def _get(self, part: str, rows: int, caches) -> _Recording:
        capacity = max(cache.capacity for cache in caches)
        recorded = self._recorded.get(part)
        if recorded is None or not recorded.fits(rows, capacity, caches[0], get_num_threads()):
            # Room for more, so that growing does not record anew every time.
            rows = 1 << (max(rows, LEAST if part == "front" else 1) - 1).bit_length()
            capacity = min(self._model.config.n_ctx, max(512, 2 * capacity))
            recorded = self._recorded[part] = _Recording(self._model, part, rows, capacity, caches[0])
        return recorded


class _Recording:
    """One program with the buffers that are filled in before a run.

    The attention scratch is made for caches of ``capacity`` keys.
    """

    def __init__(self, model, part: str, rows: int, capacity: int, cache):
        self.rows, self.capacity, self.cache_type = rows, capacity, cache.type
        self._model, self._config = model, model.config
        self._batch = Batch(model.config.n_layer, rows)
        p = self._program = Program(rows)
        self.threads = p.threads
        config = self._config
        self.x = p.buffer(config.n_embd)
        self._logits = p.buffer(config.n_vocab) if part != "front" else None
        self._ids, self._greatest = p.indices(), p.indices()
        self._id, self.greatest = memoryview(self._ids), memoryview(self._greatest)
        self._angles = model._angles_to(capacity - 1)
        self._h = Activations(p.buffer(config.n_embd))
        self._q, self._k, self._v = p.buffer(config.n_q), p.buffer(config.n_kv), p.buffer(config.n_kv)
        self._heads = Activations(p.buffer(config.n_q))
        self._branch = p.buffer(config.n_embd)
        self._gate, self._up = p.buffer(config.n_ff), p.buffer(config.n_ff)
        self._hidden = Activations(self._up)
        self._embeds = part != "back"
        self._residual = None     # the norm that the branch has to pass before it is added to x
        self._record(part, cache)

    def fits(self, rows: int, capacity: int, cache, threads: int) -> bool:
        """True when this program can run on so many rows, on caches of that size and kind, with that many threads."""
        return rows <= self.rows and capacity <= self.capacity and cache.type == self.cache_type and threads == self.threads

    # -- recording -----------------------------------------------------------------------------------------

    def _record(self, part: str, cache) -> None:
        last = len(self._model._layers) - 1
        for i, layer in enumerate(self._model._layers):
            if part == "back" and i < last:
                continue
            ends = part == "front" and i == last
            keys = part != "back"
            self._attend(layer, i, cache, keys, not ends)
            if not ends:
                self._feed_forward(layer)
        if part == "front":
            return
        p = self._program
        with p.chain():
            self._join()
            p.rms_norm(self.x, self._model._output_norm, self._config.eps, self._h.x)
            p.quantize(self._h, (self._model._output,))
        p.barrier()
        p.linear(self._h, self._model._output, None, self._logits)
        if part == "whole":
            p.barrier()
            p.argmax(self._logits, self._greatest)

    def _attend(self, layer, index: int, cache, keys: bool, queries: bool) -> None:
        """The layer up to the residual sum; without ``keys`` they are in the cache already, without ``queries`` it ends
        when they are."""
        p, eps, h, q, k, v = self._program, self._config.eps, self._h, self._q, self._k, self._v
        code = _CELLS[cache.type]
        rope = lambda x: p.rope(x, *self._angles[layer.rope], layer.mode == "interleaved", x, self._batch)
        heads_of = lambda buffer: buffer.reshape(self.rows, -1, self._config.head_dim)
        with p.chain():
            self._join()
            p.rms_norm(self.x, layer.attn_norm, eps, h.x)
            p.quantize(h, (layer.q,) * queries + (layer.k, layer.v) * keys)
        p.barrier()
        if queries:
            p.linear(h, layer.q, layer.q_bias, q)
        if keys:
            p.linear(h, layer.k, layer.k_bias, k)
            p.linear(h, layer.v, layer.v_bias, v)
        p.barrier()
        if queries:
            with p.chain():
                if layer.q_norm is not None:
                    p.rms_norm(heads_of(q), layer.q_norm, eps, heads_of(q))
                rope(heads_of(q))
        if keys:
            with p.chain():
                if layer.k_norm is not None:
                    p.rms_norm(heads_of(k), layer.k_norm, eps, heads_of(k))
                rope(heads_of(k))
                p.store(code, heads_of(k), cache.cell_bytes, False, self._batch, index)
                p.store(code, heads_of(v), cache.cell_bytes, True, self._batch, index)
        p.barrier()
        if not queries:
            return
        p.attention(code, heads_of(q), layer.kv_heads, cache.cell_bytes, layer.scale, layer.window,
                    heads_of(self._heads.x), self._batch, index, self.capacity)
        p.barrier()
        with p.chain():
            p.quantize(self._heads, (layer.o,))
        p.barrier()
        p.linear(self._heads, layer.o, layer.o_bias, self._branch)
        p.barrier()
        self._residual = layer.post_attn_norm, self._branch

    def _feed_forward(self, layer) -> None:
        p, h = self._program, self._h
        with p.chain():
            self._join()
            p.rms_norm(self.x, layer.ffn_norm, self._config.eps, h.x)
            p.quantize(h, (layer.gate, layer.up))
        p.barrier()
        p.linear(h, layer.gate, layer.gate_bias, self._gate)
        p.linear(h, layer.up, layer.up_bias, self._up)
        p.barrier()
        with p.chain():
            p.gated("gelu_quant" if layer.gelu else "silu", self._up, self._gate, self._up)
            p.quantize(self._hidden, (layer.down,))
        p.barrier()
        p.linear(self._hidden, layer.down, layer.down_bias, self._branch)
        p.barrier()
        self._residual = layer.post_ffn_norm, self._branch

    def _join(self) -> None:
        """x += branch, normalized first where the architecture says so. It starts as the embedding of the tokens or, in
        ``back``, as ``front`` has left it."""
        p = self._program
        if self._residual is not None:
            norm, branch = self._residual
            if norm is not None:
                p.rms_norm(branch, norm, self._config.eps, branch)
            p.add(self.x, branch, self.x)
        elif self._embeds:
            p.embedding(self._ids, self._model._embedding, self.x)
            if self._config.arch.scale_embedding:
                p.scale(self.x, self._config.embedding_scale, self.x)

    # -- running -------------------------------------------------------------------------------------------

    def run(self, ids, table, caches) -> np.ndarray | None:
        """Logits [rows, n_vocab] of all rows: the tokens ``ids``, or None in ``back``, of the sequences of ``table``
        (``Batch.spans``) with their ``caches``."""
        rows = len(ids) if ids is not None else len(table)
        if rows == 1 and ids is not None:
            self._id[0] = ids[0]
        elif ids is not None:
            self._ids[:rows] = ids
        self._batch.fill(table, [cache.addresses() for cache in caches])
        self._program.run(rows)
        return self._logits[:rows] if self._logits is not None else None
