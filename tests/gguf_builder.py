"""GGUF files built byte by byte, right or wrong, for tests.

The pieces are plain ``bytes``, so the offset of any field is the length of what comes before it::

    entries = [entry("general.name", STRING, string("x")), entry("n", UINT32, u32(7))]
    tensors = [tensor("w", [4, 2], F32, 0)]
    blob = gguf(entries, tensors, data=bytes(32))
"""

from __future__ import annotations

import struct

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8

HEADER = 24  # bytes before the first metadata entry


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    """A metadata entry of value type ``kind``."""
    return string(key) + u32(kind) + value


def array(kind: int, elements: list[bytes]) -> bytes:
    """The value of an entry of type ARRAY."""
    return u32(kind) + u64(len(elements)) + b"".join(elements)


def tensor(name: str | bytes, dims: list[int], ggml_id: int, offset: int) -> bytes:
    """A tensor entry; ``dims`` in file order, fastest axis first."""
    return string(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(ggml_id) + u64(offset)


def gguf(entries=(), tensors=(), data=b"", *, magic=b"GGUF", version=3, n_tensors=None, n_entries=None,
         alignment=32) -> bytes:
    """A whole file. The counts are what they should be unless given; ``alignment`` only pads before the data."""
    counts = [len(tensors) if n_tensors is None else n_tensors, len(entries) if n_entries is None else n_entries]
    head = magic + u32(version) + b"".join(map(u64, counts)) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def split_name(stem: str, number: int, count: int) -> str:
    """File name of part ``number`` (from 1) of ``count``."""
    return f"{stem}-{number:05d}-of-{count:05d}.gguf"


def split_entries(number: int, count: int, tensors: int) -> list[bytes]:
    """The metadata of part ``number`` (from 0) of a split model with ``tensors`` tensors in all parts."""
    return [
        entry("split.no", UINT16, struct.pack("<H", number)),
        entry("split.count", UINT16, struct.pack("<H", count)),
        entry("split.tensors.count", INT32, struct.pack("<i", tensors)),
    ]
