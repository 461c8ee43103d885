"""The layers of a model as programs: the op-by-op forward pass of ``model.Layer``, recorded once and replayed.

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

    def _run(self, ids: np.ndarray, spans, last: bool) -> np.ndarray | None:
        rows = len(ids)
        pieces = [np.arange(span.start, span.end) for span in spans]
        positions = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        table = [(span.first, span.rows, span.end) for span in spans]
        if last and rows == len(spans) and rows <= WHOLE:
            whole = self._get("whole", rows, spans)
            self._model._embed(ids, whole.x[:rows])
            return whole.run(table, positions, spans)
        front = self._get("front", rows, spans)
        self._model._embed(ids, front.x[:rows])
        front.run(table, positions, spans)
        if not last:
            return None
        wanted = [span.first + span.rows - 1 for span in spans]
        back = self._get("back", len(spans), spans)
        back.x[: len(spans)] = front.x[wanted]
        return back.run([(i, 1, span.end) for i, span in enumerate(spans)], positions[wanted], spans)

    def _get(self, part: str, rows: int, spans) -> _Recording:
        capacity = max(span.cache.capacity for span in spans)
        recorded = self._recorded.get(part)
        if recorded is None or not recorded.fits(rows, capacity, spans[0].cache, get_num_threads()):
            # Room for more, so that growing does not record anew every time.
            rows = 1 << (max(rows, LEAST if part == "front" else 1) - 1).bit_length()
            capacity = min(self._model.config.n_ctx, max(512, 2 * capacity))
            recorded = self._recorded[part] = _Recording(self._model, part, rows, capacity, spans[0].cache)
        return recorded


class _Recording:
    """One program with the buffers that are filled in before a run.

    The attention scratch is made for caches of ``capacity`` keys.
    """

    def __init__(self, model, part: str, rows: int, capacity: int, cache):
        self.rows, self.capacity, self.cache_type = rows, capacity, cache.type
        self._model, self._config = model, model.config
        self._batch = Batch(model.config.n_layer, rows)
        self._filled = None
        p = self._program = Program(rows)
        self.threads = p.threads
        config = self._config
        self.x = p.buffer(config.n_embd)
        self._logits = p.buffer(config.n_vocab) if part != "front" else None
        self._angles = [(p.buffer(config.rope_pairs), p.buffer(config.rope_pairs)) for _ in model._ropes]
        self._h = Activations(p.buffer(config.n_embd))
        self._q, self._k, self._v = p.buffer(config.n_q), p.buffer(config.n_kv), p.buffer(config.n_kv)
        self._heads = Activations(p.buffer(config.n_q))
        self._branch = p.buffer(config.n_embd)
        self._gate, self._up = p.buffer(config.n_ff), p.buffer(config.n_ff)
        self._hidden = Activations(self._up)
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

    def _attend(self, layer, index: int, cache, keys: bool, queries: bool) -> None:
        """The layer up to the residual sum; without ``keys`` they are in the cache already, without ``queries`` it ends
        when they are."""
        p, eps, h, q, k, v = self._program, self._config.eps, self._h, self._q, self._k, self._v
        code, interleaved = _CELLS[cache.type], layer.mode == "interleaved"
        cos, sin = self._angles[layer.rope]
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
                p.rope(heads_of(q), cos, sin, interleaved, heads_of(q))
        if keys:
            with p.chain():
                if layer.k_norm is not None:
                    p.rms_norm(heads_of(k), layer.k_norm, eps, heads_of(k))
                p.rope(heads_of(k), cos, sin, interleaved, heads_of(k))
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
        """x += branch, normalized first where the architecture says so; nothing before the first branch."""
        if self._residual is not None:
            norm, branch = self._residual
            if norm is not None:
                self._program.rms_norm(branch, norm, self._config.eps, branch)
            self._program.add(self.x, branch, self.x)

    # -- running -------------------------------------------------------------------------------------------

    def run(self, table, positions: np.ndarray, spans) -> np.ndarray | None:
        """Run on ``x`` for the sequences of ``table`` (``Batch.spans``); logits [rows, n_vocab] of all rows."""
        rows = len(positions)
        last = max(span.end for span in spans) - 1
        for (cos, sin), (all_cos, all_sin) in zip(self._angles, self._model._angles_to(last)):
            all_cos.take(positions, 0, cos[:rows], "clip")
            all_sin.take(positions, 0, sin[:rows], "clip")
        self._batch.fill(table, [span.cache.addresses() for span in spans])
        self._program.run(rows)
        return self._logits[:rows] if self._logits is not None else None
