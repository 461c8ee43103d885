"""Importance matrices from files: how much each input column of a weight matters, measured on real text."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import numpy as np

from fucina._gguf_header import require_regular
from fucina.gguf import open_gguf

__all__ = ["Imatrix", "read_imatrix"]


@dataclass(frozen=True)
class Imatrix:
    """What a file says.

    Attributes
    ----------
    columns : dict of str to ndarray
        By tensor name, float32 of the size k, or experts times k.
    dataset : str or None
        What the measurement ran on.
    chunks : int
        Number of chunks of text, 0 when unknown.
    """

    columns: dict[str, np.ndarray]
    dataset: str | None
    chunks: int


def read_imatrix(path) -> Imatrix:
    """Read an importance matrix: a GGUF file with ``NAME.in_sum2`` and ``NAME.counts``, or the older binary file.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    Imatrix
        Mean squares of the columns; 1 for experts that were never used.

    Raises
    ------
    ValueError
        If the file is neither, is cut short, or holds NaN or infinity.
    OSError
        If it cannot be read.
    """
    path = os.fsdecode(path)
    require_regular(path)
    with open(path, "rb") as file:
        modern = file.read(4) == b"GGUF"
    result = _modern(path) if modern else _older(path)
    if not result.columns:
        raise ValueError(f"{path}: no importance matrix in this file")
    for name, values in result.columns.items():
        if not np.isfinite(values).all():
            raise ValueError(f"{path}: the importance of {name!r} holds NaN or infinity")
    return result


def _modern(path: str) -> Imatrix:
    with open_gguf(path) as file:
        kinds = {"datasets": "array[string]", "chunk_count": "uint32", "chunk_size": "uint32"}
        for key, kind in kinds.items():
            found = file.metadata.types.get(f"imatrix.{key}")
            if found is None:
                raise ValueError(f"{path}: not an importance matrix: there is no imatrix.{key}")
            if found != kind:
                raise ValueError(f"{path}: imatrix.{key} must be {kind}, got {found}")
        columns = {}
        for name in file:
            stem, _, what = name.rpartition(".")
            if what not in ("in_sum2", "counts"):
                continue
            if f"{stem}.in_sum2" not in file or f"{stem}.counts" not in file:
                raise ValueError(f"{path}: sums or counts of {stem!r} are missing")
            sums, counts = np.asarray(file[f"{stem}.in_sum2"]), np.asarray(file[f"{stem}.counts"])
            if sums.dtype != np.float32 or counts.dtype != np.float32 or counts.size == 0 or sums.size % counts.size:
                raise ValueError(f"{path}: sums and counts of {stem!r} must be float32 and fit together")
            # Halves away from zero, as lround does.
            counts = np.floor(counts.reshape(-1, 1) + np.float32(0.5))
            sums = sums.reshape(len(counts), -1)
            used = np.where(counts > 0, counts, np.float32(1))
            columns[stem] = np.where(counts > 0, sums / used, np.float32(1)).astype(np.float32).reshape(-1)
        datasets = list(file.metadata["imatrix.datasets"])
        return Imatrix(columns, datasets[0] if datasets else None, int(file.metadata["imatrix.chunk_count"]))


def _older(path: str) -> Imatrix:
    """Count, then per entry: name, calls, values; then, perhaps, the number of chunks and the data set."""
    size = os.path.getsize(path)

    def take(n: int) -> bytes:
        data = file.read(n) if 0 <= n <= size - file.tell() else b""
        if len(data) != n:
            raise ValueError(f"{path}: not an importance matrix, or cut short (byte {file.tell()})")
        return data

    def number() -> int:
        return struct.unpack("<i", take(4))[0]

    columns = {}
    with open(path, "rb") as file:
        for _ in range(max(number(), 0)):
            name = take(number()).decode("utf-8", "replace")
            calls, count = number(), number()
            values = np.frombuffer(take(4 * count), "<f4").astype(np.float32)
            columns[name] = values / np.float32(calls) if calls > 0 else values
        chunks = max(number(), 0) if file.tell() < size else 0
        dataset = take(number()).decode("utf-8", "replace") if file.tell() < size else None
    return Imatrix(columns, dataset or None, chunks)
