"""The key-value cache: what attention remembers of the tokens so far."""

from __future__ import annotations

import operator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fucina import ops
from fucina.formats import QTensor, lookup

CACHE_TYPES = ("f16", "f32", "q8_0")

# Rows are added in steps of this, and at least doubled, so that growing costs little overall.
_STEP = 256


def _cells(n: int, heads: int, width: int, dtype) -> np.ndarray:
    """Room for n positions [n, heads, width]. In memory a head has its positions side by side, so that attention reads
    one stream instead of pieces that lie a power of two apart."""
    return np.empty((heads, n, width), dtype).transpose(1, 0, 2)


class _Plain:
    """Keys and values of one layer in floating point."""

    def __init__(self, heads: int, dim: int, dtype: str):
        self.k = _cells(0, heads, dim, dtype)
        self.v = _cells(0, heads, dim, dtype)

    def write(self, start: int, k: np.ndarray, v: np.ndarray) -> None:
        end = start + len(k)
        ops.kv_store(k, self.k[start:end])
        ops.kv_store(v, self.v[start:end])

    def read(self, end: int):
        return self.k[:end], self.v[:end]


class _Quantized:
    """Keys and values of one layer in q8_0 blocks."""

    def __init__(self, heads: int, dim: int, format: str):
        self._format, self._heads, self._dim = format, heads, dim
        row = lookup(format).row_bytes(dim)
        self.k = _cells(0, heads, row, np.uint8)
        self.v = _cells(0, heads, row, np.uint8)

    def write(self, start: int, k: np.ndarray, v: np.ndarray) -> None:
        end = start + len(k)
        ops.kv_store(k, self.k[start:end])
        ops.kv_store(v, self.v[start:end])

    def read(self, end: int):
        shape = (end, self._heads, self._dim)
        return QTensor(self.k[:end], self._format, shape), QTensor(self.v[:end], self._format, shape)


@dataclass(frozen=True)
class Span:
    """Rows of a batch that continue one sequence: ``rows`` from ``first`` on, at the positions from ``start`` on."""

    first: int
    rows: int
    cache: Cache
    start: int

    @property
    def end(self) -> int:
        """The length of the sequence with these rows."""
        return self.start + self.rows

    @property
    def slice(self) -> slice:
        """The rows."""
        return slice(self.first, self.first + self.rows)


class Cache:
    """Keys and values of all layers for one sequence. Made by ``Model.new_cache``.

    Parameters
    ----------
    n_layer, n_head_kv, head_dim : int
        Shape of what is stored per token.
    n_ctx : int
        The most tokens it can hold. Memory grows with the tokens that are there.
    type : {"f16", "f32", "q8_0"}
        How values are stored.

    Raises
    ------
    ValueError
        If the type is unknown, or ``"q8_0"`` and ``head_dim`` is not a multiple of 32.
    """

    def __init__(self, n_layer: int, n_head_kv: int, head_dim: int, n_ctx: int, type: str = "f16"):
        if type not in CACHE_TYPES:
            raise ValueError(f"unknown cache type {type!r}; known: {', '.join(CACHE_TYPES)}")
        self.type = type
        self.n_ctx = n_ctx
        self.dims = (n_layer, n_head_kv, head_dim)
        self.length = 0
        self._capacity = 0
        self._addresses = None
        if type == "q8_0":
            self.layers = [_Quantized(n_head_kv, head_dim, type) for _ in range(n_layer)]
        else:
            dtype = {"f16": "float16", "f32": "float32"}[type]
            self.layers = [_Plain(n_head_kv, head_dim, dtype) for _ in range(n_layer)]

    def __len__(self) -> int:
        """Number of tokens in the cache."""
        return self.length

    def __repr__(self) -> str:
        return f"Cache({self.type}, {self.length} of {self.n_ctx} tokens, {self.nbytes} bytes)"

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return sum(layer.k.nbytes + layer.v.nbytes for layer in self.layers)

    def reserve(self, n: int) -> None:
        """Make room for ``n`` more tokens, which the context must have."""
        needed = self.length + n
        if needed <= self._capacity:
            return
        capacity = min(max(-(-needed // _STEP) * _STEP, 2 * self._capacity), self.n_ctx)
        self._addresses = None
        for layer in self.layers:
            layer.k, layer.v = (self._grown(old, capacity) for old in (layer.k, layer.v))
        self._capacity = capacity  # last: after an exception above, growing starts again

    @property
    def capacity(self) -> int:
        """Tokens that there is memory for."""
        return self._capacity

    @property
    def cell_bytes(self) -> int:
        """Bytes of a key, or a value, of one token, layer and head."""
        return self.layers[0].k.itemsize * self.layers[0].k.shape[2]

    def addresses(self) -> np.ndarray:
        """Where keys and values of every layer are, and how many bytes the heads are apart: int64 [n_layer, 3]."""
        if self._addresses is None:
            place = lambda x: x.__array_interface__["data"][0]
            self._addresses = np.array(
                [(place(layer.k), place(layer.v), layer.k.strides[1]) for layer in self.layers], np.int64
            )
        return self._addresses

    def _grown(self, old: np.ndarray, capacity: int) -> np.ndarray:
        new = _cells(capacity, *old.shape[1:], old.dtype)
        new[: self.length] = old[: self.length]
        return new

    def require(self, n: int) -> None:
        """ValueError if ``n`` more tokens exceed the context."""
        if self.length + n > self.n_ctx:
            raise ValueError(f"{self.length + n} tokens do not fit the context of {self.n_ctx}")

    @contextmanager
    def all_or_nothing(self, n: int):
        """Append ``n`` tokens, or on any exception none of them; ValueError at once if they exceed the context."""
        self.require(n)
        start = self.length
        try:
            yield
        except BaseException:
            self.length = start
            raise

    def truncate(self, n: int) -> None:
        """Forget all but the first ``n`` tokens; ValueError if there are fewer."""
        n = operator.index(n)
        if not 0 <= n <= self.length:
            raise ValueError(f"cannot keep {n} of {self.length} tokens")
        self.length = n

    def copy(self) -> Cache:
        """An independent cache with the same tokens."""
        other = Cache(*self.dims, n_ctx=self.n_ctx, type=self.type)
        other.reserve(self.length)
        for mine, its in zip(self.layers, other.layers):
            its.k[: self.length] = mine.k[: self.length]
            its.v[: self.length] = mine.v[: self.length]
        other.length = self.length
        return other
