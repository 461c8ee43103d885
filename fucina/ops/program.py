"""Programs: a fixed sequence of operations on fixed buffers, replayed in one parallel region.

Calling operations one by one costs microseconds of Python and one parallel region each; a token of a small model is
hundreds of operations. A ``Program`` records them once, validated, and replays them without Python. The steps are the
cores of the same kernels, so results are bit for bit those of ``fucina.ops``.

Steps that follow each other are independent until a ``barrier()``: whatever was written before it may be read after it.
Inside ``serial()`` steps run one after the other on one thread: right for work that is smaller than a barrier.
"""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

from fucina.formats import PackedQTensor, QTensor
from fucina.runtime.isa import backend, kernel
from fucina.runtime.threads import enter, get_num_threads, leave
from fucina.runtime.workspace import aligned_empty

from .elementwise import _GATED, BINARY, UNARY
from .linear import ACTIVATIONS, weight_args

_BARRIER, _CHAINED = 1, 2
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


class Program:
    """A recording of operations; see the module. Only the native backend has programs."""

    def __init__(self):
        if backend() != "native":
            raise ValueError("programs need compiled kernels; FUCINA_BACKEND is scalar")
        self.threads = get_num_threads()
        self._steps: list[list] = []
        self._keep: list = []
        self._serial = False
        self._ready = None

    # -- structure -----------------------------------------------------------------------------------------

    def buffer(self, *shape: int) -> np.ndarray:
        """An aligned float32 array for intermediate results."""
        return aligned_empty(shape, np.float32)

    def barrier(self) -> None:
        """What comes after may read what was written before."""
        if self._steps:
            self._steps[-1][3] |= _BARRIER

    @contextmanager
    def serial(self):
        """Steps inside run one after the other on one thread."""
        start = len(self._steps)
        self._serial = True
        try:
            yield
        finally:
            self._serial = False
        for step in self._steps[start:]:
            step[2] = 1
        for step in self._steps[start + 1 :]:
            step[3] |= _CHAINED

    def _add(self, made: tuple, shares: int, *keep) -> None:
        self._steps.append([*made, shares, 0])
        self._keep.extend(keep)
        self._ready = None

    @property
    def _shares(self) -> int:
        return 1 if self.threads == 1 else SHARES * self.threads

    # -- operations ----------------------------------------------------------------------------------------

    def rms_norm(self, x, weight, eps, out) -> None:
        """``ops.rms_norm`` of the rows of ``x`` [rows, n]."""
        if x.shape != out.shape or (weight is not None and weight.shape != x.shape[1:]):
            shape = getattr(weight, "shape", None)
            raise ValueError(f"shapes do not fit: x {x.shape}, out {out.shape}, weight {shape}")
        self._add(kernel("norm").rms_norm_step(x, weight, eps, out), 1, x, weight, out)

    def quantize(self, a: Activations, weights) -> None:
        """The forms of ``a`` that products with ``weights`` need."""
        for kind in sorted({ACTIVATIONS[w.spec.activation] for w in weights}):
            form = a.form(kind)
            self._add(kernel("act_quant").quantize_act_step(kind, a.x, TILE, *form), 1, a.x, form)

    def linear(self, a: Activations, w, bias, out) -> None:
        """``ops.linear`` of activations that ``quantize`` has prepared."""
        n, k = w.shape
        if not isinstance(w, (QTensor, PackedQTensor)) or w.spec.code < 0 or not w.data.flags.c_contiguous:
            raise ValueError(f"a program multiplies with contiguous quantized weights, got {w!r}")
        if a.x.shape[1] != k or out.shape != (a.x.shape[0], n) or (bias is not None and bias.shape != (n,)):
            raise ValueError(f"shapes do not fit: x {a.x.shape}, w {w.shape}, out {out.shape}")
        packed = isinstance(w, PackedQTensor)
        shares = min(self._shares, -(-n // 8))
        kernels = kernel("linear_quant")
        scratch = self._scratch(shares * kernels.share_bytes(w.spec.code, len(out), k, w.spec.row_bytes(k)))
        form = a.form(ACTIVATIONS[w.spec.activation])
        made = kernels.linear_quant_step(w.spec.code, packed, *weight_args(w), *form, bias, out, k, scratch)
        self._add(made, shares, w, bias, out, scratch)

    def _scratch(self, nbytes: int) -> np.ndarray:
        return aligned_empty(nbytes, np.uint8)

    def rope(self, x, cos, sin, interleaved: bool, out) -> None:
        """``ops.rope`` with tables [seq, pairs] that are read at every run."""
        if x.shape != out.shape or cos.shape != sin.shape or cos.shape[0] != x.shape[0]:
            raise ValueError(f"shapes do not fit: x {x.shape}, tables {cos.shape}, {sin.shape}, out {out.shape}")
        self._add(kernel("rope").rope_step(x, cos, sin, interleaved, out), 1, x, cos, sin, out)

    def store(self, code: int, x, row_bytes: int, cache, length) -> None:
        """Append the rows of ``x`` to a cache.

        ``cache`` int64 [1] holds its address, ``length`` int64 [1] the rows that it has with these.
        """
        self._add(kernel("kv_store").kv_store_step(code, x, row_bytes, cache, length), 1, x, cache, length)

    def attention(self, code: int, q, k, v, scale, window, out, caches, length, capacity: int) -> None:
        """Causal ``ops.attention`` over a cache of at most ``capacity`` keys.

        ``k`` and ``v`` [any, kv_heads, bytes] give the strides; ``caches`` int64 [2] holds the addresses and ``length``
        int64 [1] the number of keys at every run.
        """
        seq, heads, d = q.shape
        group = heads // k.shape[1]
        part = group
        while self.threads > 1 and part > 1 and k.shape[1] * -(-group // part) < 2 * self.threads:
            part = -(-part // 2)
        kernels = kernel("attention")
        shares = min(self._shares, k.shape[1] * -(-group // part))
        floats = -(-kernels.scratch_floats(seq * part, d, capacity + seq) // 16) * 16
        scratch = aligned_empty((shares, floats), np.float32)
        made = kernels.attention_step(code, q, k, v, scale, window, out, part, scratch, caches, length)
        self._add(made, shares, q, out, scratch, caches, length)

    def add(self, x, y, out) -> None:
        """``ops.add``."""
        self._binary(BINARY["add"][0], x, y, out)

    def gated(self, act: str, x, gate, out) -> None:
        """``x * act(gate)``."""
        self._binary(_GATED + UNARY[act][0], x, gate, out)

    def _binary(self, code, x, y, out) -> None:
        if not x.shape == y.shape == out.shape:
            raise ValueError(f"shapes do not fit: {x.shape}, {y.shape}, out {out.shape}")
        made = kernel("elementwise").binary_step(code, x.reshape(-1), y.reshape(-1), out.reshape(-1))
        self._add(made, 1 if self._serial else self._shares, x, y, out)

    # -- replay --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Replay all steps."""
        if self._ready is None:
            self._ready = self._link()
        nth = enter(1, 1)
        try:
            kernel("program").replay_unchecked(*self._ready[:5], min(nth, self.threads))
        finally:
            leave(nth)

    def _link(self) -> tuple:
        """Lay the arguments out in one piece of memory."""
        size = 0
        offsets = []
        for _, args, _, _ in self._steps:
            offsets.append(size)
            size += -(-len(args) // 64) * 64
        memory = aligned_empty(size, np.uint8)
        base = memory.__array_interface__["data"][0]
        for at, (_, args, _, _) in zip(offsets, self._steps):
            memory[at : at + len(args)] = np.frombuffer(args, np.uint8)
        column = lambda values: np.array(values, np.int64)
        cores, _, shares, flags = zip(*self._steps)
        return (
            column(cores), column(offsets) + base, column(shares), column(flags), np.zeros(len(cores), np.int64), memory
        )
