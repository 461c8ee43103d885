"""Rows of keys and values into a cache of f32, f16 or q8_0."""

from __future__ import annotations

import numpy as np
import pytest
from references import SPECIAL, THREADS, F, guarded, kernel_of, normal, same

from fucina.runtime import isa

ROW_BYTES = {0: lambda n: 4 * n, 1: lambda n: 2 * n, 2: lambda n: n // 32 * 34}
codes = pytest.mark.parametrize("code", ROW_BYTES, ids=["float32", "float16", "q8_0"])


def parts(code: int, out: np.ndarray):
    """The floating-point numbers in rows of bytes, whose NaN are all alike, and the integers."""
    if code == 2:
        blocks = out.reshape(-1, 34)
        return blocks[:, :2].copy().view(np.float16), blocks[:, 2:].copy()
    return (out.view((F, np.float16)[code]),)


def store(code: int, x: np.ndarray) -> np.ndarray:
    """What every variant, number of threads and the specification write; nothing around it changes."""
    first = None
    for name in (*isa.runnable_variants(), "scalar"):
        for nth in THREADS:
            out, check = guarded((x.shape[0], ROW_BYTES[code](x.shape[1])), np.uint8)
            kernel_of(name)("kv_store").kv_store_into_unchecked(code, x, out, nth)
            check()
            if first is None:
                first = out
            for got, want, what in zip(parts(code, out), parts(code, first), ("values", "codes")):
                same(got, want, f"{what} of {name} on {nth} threads")
    return first


@codes
@pytest.mark.parametrize("n", [1, 3, 7, 8, 9, 16, 31, 32, 64, 160])
@pytest.mark.parametrize("rows", [1, 2, 5, 17])
def test_sizes(code, rows, n):
    if code == 2:
        n = -(-n // 32) * 32
    x = normal(rows, n)
    out = store(code, x)
    if code < 2:
        same(out.view((F, np.float16)[code]), x.astype((F, np.float16)[code]))
    else:
        gguf = pytest.importorskip("gguf")
        same(out, gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0))


@codes
def test_special_values(code):
    for shift in range(9):
        x = np.zeros((3, 96), F)
        x[1, shift : shift + len(SPECIAL)] = SPECIAL
        store(code, x)


def test_halves_round_to_nearest_even():
    """Every half-precision number, every middle between two and its neighbours, in vectors and in the rest of a row."""
    half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(F)
    middle = np.append((half[:-1] + half[1:]) / 2, F(65520))
    x = np.concatenate([half, middle, np.nextafter(middle, F(0)), np.nextafter(middle, F(1e9))])
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    same(store(1, x[None]).view(np.float16)[0], expected)
    same(store(1, x[:, None]).view(np.float16)[:, 0], expected)
