"""The cases of ``fucina verify``: every family of kernels on small, awkward shapes.

Inputs are the same numbers on every machine: they come from the raw stream of a PCG64 generator by exact steps.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from fucina import ops
from fucina.formats import FORMATS, QTensor
from fucina.ops import elementwise

__all__ = ["cases", "digest"]

# Rows and columns: one, less than a vector or a tile, one more than that. Panels of 8 rows enough for every route.
_ROWS = (1, 2, 5, 17)
_WIDTH = 139
_DEPTH = 512
_SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 20.0, -20.0, 88.5, -88.5, 3e4, -3e4)


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Roughly normal float32 numbers with an outlier now and then."""
    count = int(np.prod(shape))
    pieces = np.random.PCG64(seed).random_raw(count).view(np.uint16).reshape(count, 4)
    x = (pieces.sum(axis=1, dtype=np.int64) - 131070).astype(np.float32) * np.float32(2.0**-15)
    x[::97] *= 16
    return x.reshape(shape)


def integers(seed: int, below: int, *shape: int) -> np.ndarray:
    """Integers from 0 to ``below`` - 1."""
    return (np.random.PCG64(seed).random_raw(int(np.prod(shape))) % np.uint64(below)).astype(np.int64).reshape(shape)


def weights(name: str, n: int) -> QTensor:
    """A matrix in a block format, of a few rows that repeat."""
    few = _few_rows(name)
    return QTensor(few.data[np.arange(n) % 5], name, (n, _DEPTH), scale=few.scale)


@cache
def _few_rows(name: str) -> QTensor:
    """Encoding is the slowest part in plain Python, and every product of a format needs it."""
    return ops.quantize(numbers(7, 5, _DEPTH) * np.float32(0.03125), name, imatrix=np.abs(numbers(8, _DEPTH)))


def digest(results) -> str:
    """Of types, shapes and bits."""
    h = hashlib.blake2b(digest_size=8)
    for y in results:
        h.update(f"{y.dtype.str}{y.shape}".encode())
        h.update(np.ascontiguousarray(y).tobytes())
    return h.hexdigest()


def cases() -> Iterator[tuple[str, Callable[[], Iterator[np.ndarray]]]]:
    """(family and what of it, a function that computes the results) for everything that is verified."""
    for name, spec in FORMATS.items():
        if spec.encoder:
            yield f"quantize {name}", lambda name=name: _encoded(name)
            yield f"dequantize {name}", lambda name=name: iter([ops.dequantize(weights(name, 7))])
            if spec.code >= 0:
                yield f"linear {name}", lambda name=name: _linear(weights(name, _WIDTH))
    for layout in ("q8_0", "q8_1", "q8_k", "q8_k306"):
        yield f"activations {layout}", lambda layout=layout: iter([ops.quantize_activations(numbers(1, 9, 768), layout).data])
    for layout, name in (("q8_0", "q4_0"), ("q8_1", "q5_1"), ("q8_k", "q6_k"), ("q8_k306", "q4_k")):
        yield f"block_dot {name}", lambda layout=layout, name=name: iter(
            [ops.block_dot(ops.quantize_activations(numbers(1, 3, _DEPTH), layout), weights(name, 11))]
        )
    for name in ("tq1_0", "tq2_0", "i2_s"):
        yield f"ternary_linear {name}", lambda name=name: iter([ops.ternary_linear(numbers(1, 3, _DEPTH), weights(name, 11))])
    for dtype in ("float32", "float16", "float64"):
        yield f"matmul {dtype}", lambda dtype=dtype: _matmul(dtype)
        if dtype != "float64":
            yield f"linear {dtype}", lambda dtype=dtype: _dense(dtype)
    for name in (*elementwise.UNARY, *elementwise.BINARY, "scale", "swiglu", "geglu"):
        yield f"elementwise {name}", lambda name=name: _elementwise(name)
    for name in ("sum", "prod", "max", "min", "mean", "var", "argmax"):
        yield f"reduce {name}", lambda name=name: _reduce(getattr(ops, name))
    yield "reduce dot", lambda: iter([ops.dot(numbers(1, 3, 257), numbers(2, 3, 257))])
    yield "rms_norm", lambda: (ops.rms_norm(numbers(1, 5, n), numbers(2, n)) for n in (1, 15, 64, 257))
    yield "softmax", lambda: (ops.softmax(numbers(1, 5, n), scale=0.125) for n in (1, 17, 64, 257))
    yield "rope", _rope
    for kind in ("float32", "float16", "q8_0"):
        yield f"attention {kind}", lambda kind=kind: _attention(kind)
    yield "kv_store", _kv_store
    yield "moe", _moe


def _encoded(name: str) -> Iterator[np.ndarray]:
    x = numbers(3, 3, _DEPTH)
    yield ops.quantize(x, name, imatrix=np.abs(numbers(4, _DEPTH))).data
    if FORMATS[name].imatrix == "optional":
        yield ops.quantize(x, name).data


def _linear(w: QTensor) -> Iterator[np.ndarray]:
    """Raw and packed weights, one row and several."""
    x, bias = numbers(1, max(_ROWS), _DEPTH), numbers(2, len(w))
    for form, rows in itertools.product((w, w.pack()), _ROWS):
        yield ops.linear(x[:rows], form, bias)


def _dense(dtype: str) -> Iterator[np.ndarray]:
    w, x = numbers(2, 67, 130).astype(dtype), numbers(1, 9, 130)
    for form, rows in itertools.product((w, ops.pack_weight(w)), (1, 3, 9)):
        yield ops.linear(x[:rows], form)


def _matmul(dtype: str) -> Iterator[np.ndarray]:
    for m, n, k in ((1, 7, 5), (3, 64, 17), (33, 31, 65), (70, 17, 129)):
        a, b = numbers(1, m, k).astype(dtype), numbers(2, k, n).astype(dtype)
        yield ops.matmul(a, b)
        yield ops.matmul(np.ascontiguousarray(a.T), np.ascontiguousarray(b.T), trans_a=True, trans_b=True)
        yield ops.matmul(a, ops.pack_weight(b.T), trans_b=True)
        yield ops.matmul(a, b, out=np.ones((m, n), dtype), accumulate=True)


def _elementwise(name: str) -> Iterator[np.ndarray]:
    x, y = numbers(1, 1031), numbers(2, 1031)
    x[: len(_SPECIAL)] = _SPECIAL
    op = getattr(ops, name)
    if name in elementwise.UNARY:
        yield op(np.abs(x) if name == "sqrt" else x)
    elif name == "scale":
        yield op(x, 0.3)
    else:
        yield op(x, y)


def _reduce(op) -> Iterator[np.ndarray]:
    x = numbers(1, 5, 7, 257)
    for axis in (-1, 0, None):
        yield np.asarray(op(x, axis))


def _rope() -> Iterator[np.ndarray]:
    tables = ops.rope_tables([0, 1, -7, 4095, 2**31], 32)
    yield from tables
    for mode in ("half", "interleaved"):
        yield ops.rope(numbers(1, 5, 3, 64), None, mode=mode, tables=tables)


def _attention(kind: str) -> Iterator[np.ndarray]:
    q = numbers(1, 5, 6, 64)
    k, v = numbers(2, 83, 2, 64), numbers(3, 83, 2, 64)
    k, v = (ops.quantize(k, kind), ops.quantize(v, kind)) if kind == "q8_0" else (k.astype(kind), v.astype(kind))
    yield ops.attention(q, k, v)
    yield ops.attention(q[:1], k, v)
    yield ops.attention(q, k, v, window=11)
    yield ops.attention(q, k, v, causal=False, scale=0.25, bias=numbers(4, 5, 83))


def _kv_store() -> Iterator[np.ndarray]:
    x = numbers(1, 3, 64)
    for cells in (np.zeros((3, 64), np.float32), np.zeros((3, 64), np.float16), np.zeros((3, 68), np.uint8)):
        ops.kv_store(x, cells)
        yield cells


def _moe() -> Iterator[np.ndarray]:
    ids, parts = ops.moe_route(numbers(1, 9, 6), 2)
    few = weights("q4_k", 11)
    experts = [QTensor(np.roll(few.data, i, axis=0), "q4_k", few.shape) for i in range(6)]
    yield ids
    yield parts
    yield ops.moe_linear(numbers(2, 9, _DEPTH), experts, ids, parts)
    yield ops.top_k(numbers(3, 4, 50), 5)[1]
