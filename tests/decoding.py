"""What the tests of the rarer decoders share: an oracle for every format, and the checks that hold for each."""

from __future__ import annotations

import numpy as np
import pytest
from references import agree, layouts, same

from fucina import QTensor, ops
from fucina.formats import FORMATS


def names(decoder: str) -> list[str]:
    """The formats that a kernel family decodes."""
    return [spec.name for spec in FORMATS.values() if spec.decoder == decoder]


def random_bytes(name: str, rows: int, blocks: int) -> QTensor:
    """Any bytes at all."""
    spec = FORMATS[name]
    data = np.random.default_rng([rows, blocks]).integers(0, 256, (rows, blocks * spec.nbytes), np.uint8)
    return QTensor(data, name, (rows, blocks * spec.block))


def two_bits(codes: np.ndarray, size: int) -> np.ndarray:
    """Element by element: the 2-bit codes of bytes, lowest first."""
    return np.array([[int(b[i // 4]) >> 2 * (i % 4) & 3 for i in range(size)] for b in codes])


def by_definition(name: str, blocks: np.ndarray) -> np.ndarray:
    """Formats that the gguf package does not decode, element by element from ggml's definition."""
    half = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if name == "q1_0":
        bit = np.array([[int(b[2 + i // 8]) >> i % 8 & 1 for i in range(128)] for b in blocks])
        return np.where(bit == 1, half, -half)
    if name == "i2_s":
        code = np.array([[int(b[i % 32]) >> 6 - 2 * (i // 32) & 3 for i in range(128)] for b in blocks])
        return (code - 1).astype(np.float32)
    return (two_bits(blocks[:, 2:], FORMATS[name].block) - 1).astype(np.float32) * half


def reference(q: QTensor) -> np.ndarray:
    """The values by the gguf package where it knows the format, else by definition."""
    gguf = pytest.importorskip("gguf")
    data = np.ascontiguousarray(q.data).reshape(-1, q.spec.nbytes)
    with np.errstate(all="ignore"):
        if q.format in ("q1_0", "q2_0", "q2_0_g128", "i2_s"):
            return by_definition(q.format, data).reshape(q.shape)
        return gguf.quants.dequantize(data, gguf.GGMLQuantizationType(q.spec.ggml_id)).reshape(q.shape)


def check_random_bytes(name: str) -> None:
    for rows, blocks in ((1, 1), (1, 7), (3, 2), (13, 3), (64, 4)):
        q = random_bytes(name, rows, blocks)
        same(agree(lambda q=q: ops.dequantize(q)), reference(q), f"{rows} rows of {blocks} blocks")


def check_rows(name: str) -> None:
    """The look-up of rows gives what decoding all of them gives."""
    q = random_bytes(name, 9, 2)
    ids = np.array([[3, 0, 8], [8, 8, 1]])
    same(agree(lambda: ops.embedding(ids, q)), reference(q)[ids])
    same(q.rows(ids), reference(q)[ids])
    same(q[2:5].dequantize(), reference(q)[2:5])


def check_every_byte_counts(name: str) -> None:
    """Each byte of a block changes it and no other: the size in the table is the one in use."""
    spec = FORMATS[name]
    block = np.resize(np.arange(0x11, 0x60, 7, dtype=np.uint8), spec.nbytes)
    blocks = np.tile(block, (spec.nbytes, 3))
    at = np.arange(spec.nbytes)
    blocks[at, spec.nbytes + at] ^= 0x2A
    values = ops.dequantize(QTensor(blocks, name, (spec.nbytes, 3 * spec.block))).reshape(spec.nbytes, 3, spec.block)
    same(values[:, ::2], np.broadcast_to(values[:1, :1], (spec.nbytes, 2, spec.block)), "another block changed")
    silent = np.flatnonzero((values[:, 1] == values[:, 0]).all(-1))
    assert len(silent) == 0, f"bytes {silent} do not matter"


def check_layouts(name: str, tmp_path) -> None:
    q = random_bytes(name, 5, 2)
    for how, data in layouts(q.data, tmp_path):
        view = QTensor(data, name, q.shape)
        same(agree(lambda view=view: ops.dequantize(view), threads=(1,)), reference(view), how)
