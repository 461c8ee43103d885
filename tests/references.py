"""What kernels are compared with, and the awkward arrays they are fed.

Engines: ``engine(name, nth)`` sends operations to one variant or to the specification, ``agree(call)`` runs a call on
all of them and insists on equal bits. Oracles: the operations in float64, written without a thought for speed and
without the specification. Arrays: layouts, guarded memory, random and extreme blocks.
"""

from __future__ import annotations

import importlib
import math
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from fucina import QTensor, ops
from fucina._scalar import _blocks
from fucina.formats import FORMATS, lattices
from fucina.runtime import isa

F = np.float32
BLOCKS = [f.name for f in FORMATS.values() if f.is_block]
# Formats that products take, and how long the blocks of the activations are that they meet.
ACTIVATION_BLOCKS = {"q8_0": 32, "q8_1": 32, "q8_k": 256}
PRODUCTS = [f.name for f in FORMATS.values() if f.code >= 0]
THREADS = (1, 2, 3)
SIZES = (1, 3, 7, 8, 15, 16, 17, 31, 64, 128, 257, 1024)
LARGE = (300000, 99991)
# The modules that call kernels.
_MODULES = (importlib.import_module(f"fucina.ops.{path.stem}") for path in Path(ops.__file__).parent.glob("[a-z]*.py"))
_OPS = [module for module in _MODULES if hasattr(module, "kernel") and hasattr(module, "enter")]


# ---- engines -----------------------------------------------------------------------------------------------------


@cache
def kernel_of(name: str):
    """``stem -> module`` of a variant, or of the specification for ``"scalar"``."""
    if name == "scalar":
        return cache(lambda stem: isa._scalar_view(importlib.import_module(f"fucina._scalar.{stem}")))
    return cache(lambda stem: importlib.import_module(f"fucina._kernels.{name}.{stem}"))


@contextmanager
def engine(name: str, nth: int = 1):
    """Operations inside run the kernels of ``name`` on ``nth`` threads, however little work there is."""
    patch = {"kernel": kernel_of(name), "enter": lambda work, gate: nth, "leave": lambda n: None}
    before = [(module, {key: getattr(module, key) for key in patch}) for module in _OPS]
    try:
        for module in _OPS:
            vars(module).update(patch)
        yield
    finally:
        for module, old in before:
            vars(module).update(old)


def agree(call, scalar: bool = True, threads=THREADS) -> np.ndarray:
    """The result of ``call()``, which must have the same bits on all variants, thread counts and, unless it would
    take too long, in the specification."""
    first = None
    for name in isa.runnable_variants():
        for nth in threads:
            with engine(name, nth):
                y = call()
            if first is None:
                first, label = y, f"{name} on {nth}"
            else:
                same(y, first, f"{name} on {nth} threads against {label}")
    if scalar:
        with engine("scalar"):
            same(first, call(), f"{label} threads against the specification")
    return first


# ---- comparisons -------------------------------------------------------------------------------------------------


def same(actual: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    """Equal type, shape and bits. All NaN are alike: their sign and payload are not arithmetic."""
    assert isinstance(actual, np.ndarray), f"{what}: {type(actual)}"
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), f"{what}: {actual.shape} {actual.dtype}"
    word = f"u{actual.dtype.itemsize}"
    a, e = np.ascontiguousarray(actual), np.ascontiguousarray(expected)
    wrong = a.view(word) != e.view(word)
    if wrong.any() and a.dtype.kind == "f":
        wrong &= ~(np.isnan(a) & np.isnan(e))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(f"{what}: {wrong.sum()} of {wrong.size} differ, first at {at}: {a[at]!r}, not {e[at]!r}")


def close(actual: np.ndarray, expected: np.ndarray, bound, what: str = "") -> None:
    """``|actual - expected| <= bound`` everywhere; what is not finite must be the same."""
    assert actual.shape == expected.shape, f"{what}: {actual.shape}, not {expected.shape}"
    actual, finite = np.asarray(actual, np.float64), np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite], err_msg=what)
    bound = np.broadcast_to(bound, actual.shape)[finite]
    error = np.abs(actual[finite] - expected[finite])
    if not (error <= bound).all():
        i = int(np.argmax(np.where(np.isnan(error), np.inf, error - bound)))
        raise AssertionError(
            f"{what}: error {error[i]:.3g} over {bound[i]:.3g}: {actual[finite][i]!r} for {expected[finite][i]!r}"
        )


# ---- arrays ------------------------------------------------------------------------------------------------------


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Float32 numbers around 1 in magnitude, the same in every run."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.17e-38, -1.17e-38, 3.4e38, -3.4e38, 65504, 65520,
     0.125, -0.125, 10, -10, 9.9999, 88.0, 88.73, 89.0, -87.4, -103.9, -104.0, -200.0, 1e10, -1e10, 0.5, 2.5, -3.5],
    np.float32,
)


def layouts(x: np.ndarray, tmp_path=None):
    """(name, array) with the values of ``x`` in memory as users have it, but for the last, which repeats row 0."""
    yield "C", x.copy(order="C")
    yield "F", x.copy(order="F")
    yield "reversed", np.flip(np.flip(x).copy())
    wide = np.zeros(tuple(2 * n for n in x.shape), x.dtype)
    every = wide[(slice(None, None, 2),) * x.ndim]
    every[...] = x
    yield "stepped", every
    raw = np.zeros(x.nbytes + 1, np.uint8)
    odd = raw[1:].view(x.dtype).reshape(x.shape)
    odd[...] = x
    yield "offset by a byte", odd
    fixed = x.copy()
    fixed.flags.writeable = False
    yield "read-only", fixed
    if tmp_path is not None:
        x.tofile(tmp_path / "array.bin")
        yield "mapped", np.memmap(tmp_path / "array.bin", x.dtype, "r", shape=x.shape)
    if x.ndim > 1:
        yield "broadcast", np.broadcast_to(x[:1], x.shape)


def swapped(x: np.ndarray) -> np.ndarray:
    """The same values in the other byte order."""
    return x.astype(x.dtype.newbyteorder())


def guarded(shape: tuple[int, ...], dtype=np.float32):
    """``(array, check)``: memory full of NaN, 256 bytes of it on both sides; ``check()`` fails when a side changed."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.full(size + 512, 0xFF, np.uint8)
    inside = raw[256 : 256 + size].view(dtype).reshape(shape)

    def check():
        assert (raw[:256] == 0xFF).all() and (raw[256 + size :] == 0xFF).all(), "written beyond the array"

    return inside, check


# Where a block keeps its half-precision numbers.
HALVES = {
    "q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0],
    "q2_k": [80, 82], "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208],
    "iq4_nl": [0], "iq4_xs": [0], "tq1_0": [52], "tq2_0": [64], "q1_0": [0], "q2_0": [0], "q2_0_g128": [0],
    "iq2_xxs": [0], "iq2_xs": [0], "iq2_s": [0], "iq3_xxs": [0], "iq3_s": [0], "iq1_s": [0],
}


def random_blocks(name: str, *shape: int, seed: int = 0, finite: bool = True) -> QTensor:
    """A tensor of random bytes; scales are moderate unless ``finite`` is off, then every bit pattern occurs."""
    spec = FORMATS[name]
    rng = np.random.default_rng([seed, *shape])
    blocks = rng.integers(0, 256, (math.prod(shape) // spec.block, spec.nbytes), np.uint8)
    if finite:
        for at in HALVES.get(name, ()):
            set_half(blocks, at, rng.uniform(-0.02, 0.02, len(blocks)))
        if name == "mxfp4":         # a power of two
            blocks[:, 0] = rng.integers(118, 126, len(blocks))
        elif name == "nvfp4":       # four unsigned numbers of 4 exponent and 3 mantissa bits
            blocks[:, :4] = rng.integers(0x10, 0x40, (len(blocks), 4))
        elif name == "iq1_m":
            set_nibbles(blocks, rng.uniform(-0.02, 0.02, len(blocks)))
    return QTensor(blocks.reshape(-1), name, shape)


def set_scales(name: str, blocks: np.ndarray, value: float) -> None:
    """Write ``value`` into all floating-point scales and offsets of blocks [count, nbytes]; nvfp4, i2_s have none."""
    for at in HALVES.get(name, ()):
        set_half(blocks, at, value)
    if name == "mxfp4":
        blocks[:, 0] = 128 + np.frexp(abs(value))[1] - 1
    elif name == "iq1_m":
        set_nibbles(blocks, value)


def set_half(blocks: np.ndarray, at: int, values) -> None:
    """Write half-precision ``values`` at byte ``at`` of blocks [count, nbytes]."""
    blocks[:, at : at + 2] = np.broadcast_to(np.asarray(values, np.float16), len(blocks)).reshape(-1, 1).view(np.uint8)


def set_nibbles(blocks: np.ndarray, values) -> None:
    """Write half-precision ``values`` into the top nibbles of the four words at the end of iq1_m blocks."""
    half = np.broadcast_to(np.asarray(values, np.float16), len(blocks)).reshape(-1, 1).view(np.uint16)
    blocks[:, 49:56:2] = blocks[:, 49:56:2] & 0x0F | (half >> (0, 4, 8, 12) & 0x0F) << 4


def unit(name: str) -> int:
    """The shortest row of a product: whole blocks of weights and of activations."""
    spec = FORMATS[name]
    return max(spec.block, ACTIVATION_BLOCKS[spec.activation])


def fields(w: QTensor) -> dict[str, np.ndarray]:
    """Integer codes and scales of the blocks of a matrix, [n, blocks, ...]."""
    grid = [lattices.grid(w.spec.lattice)] if w.spec.lattice else []
    return _blocks.fields(w.spec.number, w.data.reshape(len(w), -1, w.spec.nbytes), *grid)


# ---- oracles -----------------------------------------------------------------------------------------------------


def linear64(x, w, bias=None):
    """Product in float64 and the sum of magnitudes of its terms."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    y, size = x @ w.T, np.abs(x) @ np.abs(w).T
    if bias is not None:
        y, size = y + bias, size + np.abs(bias)
    return y, size


def rms_norm64(x, weight=None, eps=1e-6):
    x = np.asarray(x, np.float64)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def softmax64(x, axis=-1, scale=1.0, mask=None):
    t = np.asarray(x, np.float64) * scale
    if mask is not None:
        t = t + mask
    e = np.exp(t - t.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def rope64(x, positions, mode="half", theta=1e4, dims=None, freq_scale=1.0, freq_factors=None):
    """One pair at a time, as a rotation of the complex plane."""
    y = np.array(x, np.float64)
    seq, heads, d = y.shape
    dims = d if dims is None else dims
    for s in range(seq):
        for i in range(dims // 2):
            angle = int(positions[s]) * freq_scale * theta ** (-2 * i / dims)
            if freq_factors is not None:
                angle /= float(freq_factors[i])
            a, b = (i, i + dims // 2) if mode == "half" else (2 * i, 2 * i + 1)
            z = (y[s, :, a] + 1j * y[s, :, b]) * complex(math.cos(angle), math.sin(angle))
            y[s, :, a], y[s, :, b] = z.real, z.imag
    return y


def visible(seq: int, kv_seq: int, causal: bool, window: int) -> np.ndarray:
    """[seq, kv_seq]: which keys a query sees."""
    at = np.arange(kv_seq - seq, kv_seq)[:, None]
    key = np.arange(kv_seq)[None]
    sees = key <= at if causal else np.ones((seq, kv_seq), bool)
    return sees & (key > at - min(window, kv_seq)) if window else sees


def attention64(q, k, v, causal=True, scale=None, window=0, bias=None):
    """Attention in float64, and the largest sum of |q k| after scaling (for the tolerance)."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    (seq, heads, d), (kv_seq, kv_heads, _) = q.shape, k.shape
    scale = 1 / math.sqrt(d) if scale is None else scale
    sees = visible(seq, kv_seq, causal, window)
    y, largest = np.empty_like(q), 0.0
    for h in range(heads):
        g = h // (heads // kv_heads)
        t = q[:, h] @ k[:, g].T * scale
        largest = max(largest, float((np.abs(q[:, h]) @ np.abs(k[:, g]).T).max()) * abs(scale))
        t = np.where(sees, t if bias is None else t + bias, -np.inf)
        e = np.exp(t - t.max(-1, keepdims=True))
        y[:, h] = e @ v[:, g] / e.sum(-1, keepdims=True)
    return y, largest + (0.0 if bias is None else float(np.abs(bias).max()))


def _sigmoid64(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def gelu64(x):
    return x * _sigmoid64(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


UNARY64 = {
    "relu": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "sqrt": np.sqrt,
    "sigmoid": _sigmoid64,
    "silu": lambda x: x * _sigmoid64(x),
    "tanh": np.tanh,
    "gelu": gelu64,
    "quick_gelu": lambda x: x * _sigmoid64(1.702 * x),
    "negative": np.negative,
    "abs": np.abs,
}
