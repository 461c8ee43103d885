"""What the tests of the encoders share: ggml's bytes, awkward rows, and the checks that hold for every family."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from references import agree, normal, same

from fucina import ops
from fucina.formats import FORMATS

GOLDEN = Path(__file__).parent / "golden" / "ggml_encode.npz"


@cache
def golden() -> dict[str, np.ndarray]:
    """``x`` [40, 512], ``imatrix`` [512] and, by format, what ggml made of them; ``_im`` with the importance matrix."""
    with np.load(GOLDEN) as file:
        return dict(file)


def keys(encoder: str) -> list[str]:
    """The golden results that a kernel family is responsible for."""
    specs = {key: FORMATS.get(key.removesuffix("_im")) for key in golden()}
    return [key for key, spec in specs.items() if spec and (spec.encoder or "encode") == encoder]


def names(encoder: str) -> list[str]:
    """The block formats that a kernel family encodes."""
    return [spec.name for spec in FORMATS.values() if spec.encoder == encoder]


def encode(key: str, x: np.ndarray, imatrix: np.ndarray) -> np.ndarray:
    """Bytes of ``x``; keys that end in ``_im`` take the importance matrix."""
    q = ops.quantize(x, key.removesuffix("_im"), imatrix=imatrix if key.endswith("_im") else None)
    return q.data if hasattr(q, "spec") else q.view(np.uint8)


def check_golden(key: str, scalar_rows=slice(None)) -> None:
    """ggml's bytes on every variant and any number of threads, and in the specification for some of the rows."""
    g = golden()
    same(agree(lambda: encode(key, g["x"], g["imatrix"]), scalar=False), g[key], key)
    part = np.ascontiguousarray(g["x"][scalar_rows])
    same(agree(lambda: encode(key, part, g["imatrix"]), threads=(1,)), g[key][scalar_rows], key)


def awkward(k: int) -> np.ndarray:
    """Rows of k elements that meet the corners of an encoder."""
    x = normal(14, k, seed=3)
    zero = np.where(x[0] > 0, np.float32(0), np.float32(-0.0))
    rows = [
        np.zeros(k), np.full(k, -0.0), zero, np.full(k, 0.75), np.full(k, -3e-3), np.abs(x[1]), -np.abs(x[2]),
        np.where(np.arange(k) % 37 == 0, x[3], zero), np.round(x[4] * 2) / 2, x[5] * 1e-20, x[6] * 1e-38, x[7] * 1e-43,
        x[8] * np.repeat(np.resize([0, 1e-3, 1, 50], k // 16), 16), np.clip(x[9], -3, 3) * 1e9,
        x[10] * 10.0 ** np.linspace(-9, 4, k), 2.0 ** np.arange(k).clip(0, 60) * np.sign(x[11]),
    ]
    return np.stack(rows).astype(np.float32)


def check_awkward(name: str, k: int, imatrix: bool) -> None:
    """Kernels and specification agree on awkward rows; what comes out decodes to something finite."""
    x = awkward(k)
    weights = np.abs(normal(k, seed=9)) + np.float32(0.1)
    if imatrix:
        weights[::5] = 0
    q = agree(lambda: encode(name + "_im" * imatrix, x, weights), threads=(1, 3))
    values = ops.dequantize(ops.quantize(x, name, imatrix=weights if imatrix else None))
    assert q.shape == (len(x), FORMATS[name].row_bytes(k))
    assert np.isfinite(values[:13]).all()
    # A row of zeros stays one, except where the only levels are two or shifted.
    if name not in ("q1_0", "iq1_s", "iq1_m"):
        assert not values[:3].any()


# The largest root mean square error over the number of elements that ggml's own test of its types accepts
# (test-quantize-fns), on the same smooth data; it skips the types of 1.6 bits, which get the bound of one bit.
BOUNDS = {
    "q1_0": 0.025, "iq1_s": 0.025, "iq1_m": 0.025, "i2_s": 0.01, "tq1_0": 0.01, "tq2_0": 0.01, "q2_0": 0.01,
    "q2_0_g128": 0.01, "q2_k": 0.0075, "iq2_s": 0.0075, "iq2_xs": 0.0075, "iq2_xxs": 0.0075, "iq3_xxs": 0.005,
    "q3_k": 0.004, "iq3_s": 0.004, "nvfp4": 0.003,
}


def check_error(name: str, blocks: int) -> None:
    """Encoding and decoding many blocks stays within ggml's bound, per 4096 elements."""
    spec = FORMATS[name]
    count = -(-blocks * spec.block // 4096)
    offset = np.arange(count, dtype=np.float32)[:, None]
    x = (0.1 + 2 * np.cos(np.arange(4096, dtype=np.float32) + offset)).astype(np.float32)
    imatrix = np.ones(4096, np.float32) if spec.imatrix == "required" else None
    error = ops.dequantize(ops.quantize(x, name, imatrix=imatrix)).astype(np.float64) - x
    rms = np.sqrt((error * error).sum(-1)) / 4096
    assert rms.max() <= BOUNDS.get(name, 0.002), f"{name}: {rms.max():.5f}"
