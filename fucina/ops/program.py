"""Programs: a fixed sequence of operations on fixed buffers, replayed in one parallel region.

Calling operations one by one costs microseconds of Python and one parallel region each; a token of a small model is
hundreds of operations. A ``Program`` records them once, validated, and replays them without Python, for any number of
rows up to the one that it was made for. The steps are the cores of the same kernels, so results are bit for bit those of
``fucina.ops``.

Steps that follow each other are independent until a ``barrier()``: whatever was written before it may be read after it.
Inside ``chain()`` every row goes through all steps on one thread: right for work that is smaller than a barrier.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fucina.formats import PackedQTensor, QTensor
from fucina.runtime.isa import backend, kernel
from fucina.runtime.threads import enter, get_num_threads, leave
from fucina.runtime.workspace import aligned_empty

from .attention import queries_of_a_task
from .elementwise import _GATED, BINARY, UNARY
from .linear import ACTIVATIONS, weight_args
from .matmul import F64, PACKED, PackedWeight
from .quantize import decoder_of

_BARRIER, _CHAINED, _ALONE = 1, 2, 4
_SUMS = (np.int32, np.float32, np.int16)

# Shares of a parallel step per thread: enough that a thread which lost its core for a while does not hold up the rest.
SHARES = 4
# Columns of an activation tile, as the kernels have it.
TILE = 16


class Activations:
    """A buffer of rows and its quantized forms, one per kind that the weights ask for."""

    def __init__(self, x: np.ndarray):
        self.x = x
        self.kinds: dict[int, tuple] = {}

    def form(self, kind: int) -> tuple:
        if kind not in self.kinds:
            m, k = self.x.shape
            block, sums = (256, 24) if kind == 2 else (32, 1)
            if k % block:
                raise ValueError(f"activations of {k} columns are not a whole number of blocks of {block}")
            blocks = m * k // block
            sums_bytes = blocks * sums * np.dtype(_SUMS[kind]).itemsize
            self.kinds[kind] = (
                aligned_empty(m * k, np.int8), aligned_empty(blocks, np.float32), aligned_empty(sums_bytes, np.uint8)
            )
        return self.kinds[kind]


class Batch:
    """Which rows belong to which sequence, and where the keys and values of all layers are, as of the next run.

    Attributes
    ----------
    spans : ndarray of int64 [sequences, 3]
        First row, number of rows, length of the cache with these rows.
    places : ndarray of int64 [layers, sequences, 3]
        Addresses of the keys and the values, bytes from one head to the next.
    count : ndarray of int64 [1]
        How many sequences there are.
    """

    def __init__(self, layers: int, sequences: int):
        self.spans = np.zeros((sequences, 3), np.int64)
        self.places = np.zeros((layers, sequences, 3), np.int64)
        self.count = np.zeros(1, np.int64)
        # Between two tokens little of Python is in the caches: views take a fraction of the time of NumPy's ways.
        self._views = memoryview(self.count), memoryview(self.spans)
        self._filled: list = [None] * sequences

    def tables(self, layer: int) -> tuple:
        """What the steps of a layer read."""
        return self.spans, self.places[layer], self.count

    def fill(self, spans, places) -> None:
        """``spans`` as above, and the ``places`` [layers, 3] of each of them, which must not change once they are here."""
        count, table = self._views
        count[0] = len(spans)
        for i, (table[i, 0], table[i, 1], table[i, 2]) in enumerate(spans):
            if places[i] is not self._filled[i]:
                self.places[:, i] = self._filled[i] = places[i]


class Program:
    """A recording of operations; see the module. Only the native backend has programs.

    Parameters
    ----------
    rows : int
        The most rows that buffers hold and runs can have.
    """

    def __init__(self, rows: int = 1):
        if backend() != "native":
            raise ValueError("programs need compiled kernels; FUCINA_BACKEND is scalar")
        self.rows = rows
        self.threads = get_num_threads()
        self._steps: list[_Step] = []
        self._keep: list = []
        self._spaces: list[np.ndarray] = []
        self._free: list[np.ndarray] = []
        self._in_chain = self._continues = False
        self._ready = None

    # -- structure -----------------------------------------------------------------------------------------

    def buffer(self, *shape: int) -> np.ndarray:
        """An aligned float32 array [rows, *shape] for intermediate results."""
        return aligned_empty((self.rows, *shape), np.float32)

    def indices(self) -> np.ndarray:
        """An int64 array [rows] of zeros, for what differs from run to run."""
        return np.zeros(self.rows, np.int64)

    def barrier(self) -> None:
        """What comes after may read what was written before."""
        if self._steps:
            self._steps[-1].flags |= _BARRIER
        self._free = list(self._spaces)

    def _scratch(self, nbytes: int) -> np.ndarray:
        """Memory for a step; behind the next barrier others may have it."""
        for i, space in enumerate(self._free):
            if space.nbytes >= nbytes:
                return self._free.pop(i)[:nbytes]
        self._spaces.append(aligned_empty(nbytes, np.uint8))
        return self._spaces[-1]

    @contextmanager
    def chain(self):
        """The steps inside, which work on rows, pass over a share of the rows one after the other on one thread.

        A chain inside of another is a part of it.
        """
        if self._in_chain:
            yield
            return
        self._in_chain, self._continues = True, False
        try:
            yield
        finally:
            self._in_chain = self._continues = False

    def _add(self, made: tuple, shares: int, per_row: int, by_rows: bool, *keep) -> None:
        """``per_row``: how much one row adds to the number that the step calls its rows."""
        step = _Step(*made, per_row, shares, by_rows)
        if self._in_chain:
            if not by_rows:
                raise ValueError("only steps that work on rows can be chained")
            step.flags = _CHAINED if self._continues else 0
            self._continues = True
        self._steps.append(step)
        self._keep.extend(keep)
        self._ready = None

    @property
    def _shares(self) -> int:
        return 1 if self.threads == 1 else SHARES * self.threads

    # -- operations ----------------------------------------------------------------------------------------

    def embedding(self, ids, table, out) -> None:
        """``ops.embedding``: at every run the rows ``ids`` (``indices``) of a contiguous table; they must be in it."""
        stem, given, scale = decoder_of(table)
        data = table.data if isinstance(table, QTensor) else table
        if not (data.flags.c_contiguous and data.flags.aligned) or out.shape != (len(ids), table.shape[1]):
            raise ValueError(f"shapes do not fit or the table is not contiguous: ids {ids.shape}, {table!r}, out {out.shape}")
        made = kernel(stem).dequantize_rows_step(*given, data.view(np.uint8), ids, out)
        with self.chain():  # the factor follows its rows, never another thread's
            self._add(made, self._shares, 1, True, ids, data, out)
            if scale is not None:
                self.scale(out, scale, out)

    def scale(self, x, s: float, out) -> None:
        """``ops.scale``."""
        if x.shape != out.shape:
            raise ValueError(f"shapes do not fit: x {x.shape}, out {out.shape}")
        self._add(kernel("elementwise").scale_step(x, s, out), self._shares, x.shape[1], True, x, out)

    def rms_norm(self, x, weight, eps, out) -> None:
        """``ops.rms_norm`` of the rows of ``x`` [rows, n], or of the heads of [rows, heads, n]."""
        if x.shape != out.shape or (weight is not None and weight.shape != x.shape[-1:]):
            shape = getattr(weight, "shape", None)
            raise ValueError(f"shapes do not fit: x {x.shape}, out {out.shape}, weight {shape}")
        unit = x.shape[1] if x.ndim == 3 else 1
        flat = lambda a: a.reshape(-1, a.shape[-1])
        made = kernel("norm").rms_norm_step(flat(x), weight, eps, flat(out), unit)
        self._add(made, self._shares, unit, True, x, weight, out)

    def quantize(self, a: Activations, weights) -> None:
        """The forms of ``a`` that products with ``weights`` need: none for dense ones, which read ``a.x`` itself."""
        for kind in sorted({ACTIVATIONS[w.spec.activation] for w in weights if type(w) is not PackedWeight}):
            form = a.form(kind)
            made = kernel("act_quant").quantize_act_step(kind, a.x, TILE, *form)
            self._add(made, self._shares, 1, True, a.x, form)

    def linear(self, a: Activations, w, bias, out) -> None:
        """``ops.linear`` of activations that ``quantize`` has prepared.

        Dense weights have to be packed: others may be a provider's, and programs ask none.
        """
        dense = type(w) is PackedWeight and w.code != F64 and w.nbytes > 0
        if not dense and not (isinstance(w, (QTensor, PackedQTensor)) and w.spec.code >= 0 and w.data.flags.c_contiguous):
            raise ValueError(f"a program multiplies with contiguous quantized weights or packed dense ones, got {w!r}")
        n, k = w.shape
        if a.x.shape[1] != k or out.shape != (a.x.shape[0], n) or (bias is not None and bias.shape != (n,)):
            raise ValueError(f"shapes do not fit: x {a.x.shape}, w {w.shape}, out {out.shape}")
        if dense:
            self._dense(a.x, w, bias, out)
            return
        packed = isinstance(w, PackedQTensor)
        shares = min(self._shares, -(-n // 8))
        kernels = kernel("linear_quant")
        scratch = self._scratch(shares * kernels.share_bytes(w.spec.code, len(out), k, w.spec.row_bytes(k)))
        form = a.form(ACTIVATIONS[w.spec.activation])
        made = kernels.linear_quant_step(w.spec.code, packed, *weight_args(w), *form, bias, out, k, scratch)
        self._add(made, shares, 1, False, w, bias, out)

    def _dense(self, x, w: PackedWeight, bias, out) -> None:
        shares = min(self._shares, len(w.data))
        kernels, code = kernel("matmul"), PACKED + w.code
        scratch = self._scratch(shares * kernels.share_bytes(code, *out.shape, x.shape[1], shares))
        made = kernels.matmul_step(code, w.data, x, bias, out, scratch)
        self._add(made, shares, 1, False, x, w, bias, out)

    def rope(self, x, cos, sin, interleaved: bool, out, batch: Batch) -> None:
        """``ops.rope`` with tables [positions, pairs], which the positions of a run must not exceed."""
        if x.shape != out.shape or cos.shape != sin.shape or 2 * cos.shape[1] > x.shape[2]:
            raise ValueError(f"shapes do not fit: x {x.shape}, tables {cos.shape}, {sin.shape}, out {out.shape}")
        made = kernel("rope").rope_step(x, cos, sin, interleaved, out, batch.spans)
        self._add(made, self._shares, 1, True, x, cos, sin, out, batch)

    def argmax(self, x, out) -> None:
        """``ops.argmax`` of the rows of ``x``, to ``out`` (``indices``); -1 for a row with infinities or NaN."""
        if out.shape != x.shape[:1] or not x.size:
            raise ValueError(f"shapes do not fit: x {x.shape}, out {out.shape}")
        self._add(kernel("reduce").argmax_step(x, True, out), self._shares, 1, True, x, out)

    def store(self, code: int, x, cell_bytes: int, values: bool, batch: Batch, layer: int) -> None:
        """Append the rows of ``x`` [rows, heads, n] to the keys, or the ``values``, of their sequences."""
        made = kernel("kv_store").kv_store_step(code, x, cell_bytes, values, *batch.tables(layer))
        self._add(made, self._shares, 1, True, x, batch)

    def attention(self, code: int, q, kv_heads: int, cell_bytes: int, scale, window, out, batch: Batch, layer: int,
                  capacity: int) -> None:  # fmt: skip
        """Causal ``ops.attention`` of every sequence over its cache of at most ``capacity`` keys.

        A key or value of one head has ``cell_bytes``.
        """
        rows, heads, d = q.shape
        group = heads // kv_heads
        tile, single = queries_of_a_task(rows, group, capacity), group
        while self.threads > 1 and single > 1 and kv_heads * -(-group // single) < 2 * self.threads:
            single = -(-single // 2)
        kernels = kernel("attention")
        tasks = -(-rows // tile) * kv_heads * -(-group // single)
        shares = min(self._shares, tasks)
        floats = -(-kernels.scratch_floats(tile * group, d, capacity + tile) // 16) * 16
        scratch = self._scratch(4 * shares * floats).view(np.float32).reshape(shares, floats)
        made = kernels.attention_step(
            code, q, kv_heads, cell_bytes, scale, window, out, tile, group, single, scratch, *batch.tables(layer)
        )
        self._add(made, shares, 1, False, q, out, batch)

    def add(self, x, y, out) -> None:
        """``ops.add``."""
        self._binary(BINARY["add"][0], x, y, out)

    def gated(self, act: str, x, gate, out) -> None:
        """``x * act(gate)``."""
        self._binary(_GATED + UNARY[act][0], x, gate, out)

    def _binary(self, code, x, y, out) -> None:
        if not x.shape == y.shape == out.shape:
            raise ValueError(f"shapes do not fit: {x.shape}, {y.shape}, out {out.shape}")
        made = kernel("elementwise").binary_step(code, x, y, out)
        self._add(made, self._shares, x.shape[1], True, x, y, out)

    # -- replay --------------------------------------------------------------------------------------------

    def run(self, rows: int = 1) -> None:
        """Replay all steps for the first ``rows`` rows of the buffers."""
        if not 1 <= rows <= self.rows:
            raise ValueError(f"the program is for 1 to {self.rows} rows, got {rows}")
        if self._ready is None:
            self._ready = _Linked(self._steps, self.threads)
        nth = enter(1, 1)
        try:
            self._ready.replay(rows, min(nth, self.threads))
        finally:
            leave(nth)


@dataclass
class _Step:
    """A recorded step: its core's address, its arguments, and where among them is the number of rows."""

    core: int
    args: bytes
    rows_at: int
    per_row: int
    shares: int
    by_rows: bool
    flags: int = 0


class _Linked:
    """Steps laid out for the kernel, their arguments in one piece of memory."""

    def __init__(self, steps: list[_Step], threads: int):
        sizes = [-(-len(step.args) // 64) * 64 for step in steps]
        starts = np.cumsum([0, *sizes])
        self._memory = aligned_empty(int(starts[-1]), np.uint8)
        for at, step in zip(starts, steps):
            self._memory[at : at + len(step.args)] = np.frombuffer(step.args, np.uint8)
        column = lambda name: np.array([getattr(step, name) for step in steps], np.int64)
        self._most, self._by_rows, self._per_row = column("shares"), column("by_rows") > 0, column("per_row")
        self._at = (starts[:-1] + column("rows_at")) // 8
        self._table = aligned_empty((len(steps), 4), np.int64)
        self._drawn = aligned_empty((threads, len(steps)), np.int64)
        self._table[:, 0] = column("core")
        self._table[:, 1] = starts[:-1] + self._memory.__array_interface__["data"][0]
        self._flags = column("flags")
        # With one row, what works on rows is one share. Right behind a barrier it is done there, by one thread.
        self._alone = np.zeros(len(steps), np.int64)
        for i in range(1, len(steps)):
            if self._by_rows[i] and (self._flags[i - 1] & _BARRIER or self._alone[i - 1]):
                self._alone[i] = _ALONE
        self._rows = 0
        self._run = kernel("program").replay_unchecked

    def replay(self, rows: int, nth: int) -> None:
        """Run the steps for that number of rows."""
        if rows != self._rows:
            self._rows = 0  # an interrupt between these lines leaves steps of two minds
            self._memory.view(np.int64)[self._at] = rows * self._per_row
            self._table[:, 2] = np.where(self._by_rows, np.minimum(self._most, rows), self._most)
            self._table[:, 3] = self._flags | (self._alone if rows == 1 else 0)
            self._rows = rows
        self._run(self._table, self._drawn, nth)
