"""Writing GGUF files: the header first, then the tensors one after the other; the file appears only when it is whole."""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

import numpy as np

from fucina.formats import FORMATS
from fucina.gguf import StringArray

__all__ = ["Writer"]

_TYPES = {
    "uint8": (0, "B"), "int8": (1, "b"), "uint16": (2, "H"), "int16": (3, "h"), "uint32": (4, "I"), "int32": (5, "i"),
    "float32": (6, "f"), "bool": (7, "?"), "uint64": (10, "Q"), "int64": (11, "q"), "float64": (12, "d"),
}
_STRING, _ARRAY = 8, 9


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def encode_value(kind: str, value) -> bytes:
    """Type and value of a metadata entry; ``kind`` is a name as ``Metadata.types`` has it."""
    if kind == "string":
        return struct.pack("<I", _STRING) + _text(value)
    if not kind.startswith("array["):
        number, code = _TYPES[kind]
        return struct.pack("<I" + code, number, value)
    kind = kind[6:-1]
    head = struct.pack("<IIQ", _ARRAY, _STRING if kind == "string" else _TYPES[kind][0], len(value))
    if kind == "string":
        return head + b"".join(map(_text, value.tolist() if isinstance(value, StringArray) else value))
    return head + np.asarray(value).tobytes()


class Writer:
    """A GGUF file in the making.

    Everything goes to a temporary file in the same folder, which takes the name ``path`` at the end of the ``with`` block;
    when the block raises, it is removed and nothing else has changed.

    Parameters
    ----------
    path : str or os.PathLike
    metadata : list of (key, kind, value)
        In the order of the file; kinds as ``Metadata.types`` names them.
    tensors : list of (name, format, shape)
        In the order of the file.
    alignment : int
        To which every tensor is padded.
    """

    def __init__(self, path, metadata, tensors, alignment: int = 32):
        self.path = Path(os.fsdecode(path))
        self.alignment = alignment
        self._sizes = [FORMATS[format].tensor_bytes(shape) for _, format, shape in tensors]
        self._header = self._build(metadata, tensors)
        self._next = 0
        self._left = 0

    def _build(self, metadata, tensors) -> bytes:
        parts = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))]
        parts += [_text(key) + encode_value(kind, value) for key, kind, value in metadata]
        offset = 0
        for (name, format, shape), size in zip(tensors, self._sizes):
            dims = tuple(reversed(shape))
            parts.append(_text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, FORMATS[format].ggml_id, offset))
            offset += size + -size % self.alignment
        header = b"".join(parts)
        return header + bytes(-len(header) % self.alignment)

    def __enter__(self) -> Writer:
        folder = self.path.parent
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: there is no such folder to write {self.path.name} into")
        handle, self._temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", suffix=".part", dir=folder)
        self._file = os.fdopen(handle, "wb")
        self._file.write(self._header)
        return self

    def write(self, data: np.ndarray) -> None:
        """The next bytes of the current tensor; at its end the padding is added and the next one begins."""
        if self._left == 0:
            self._left = self._sizes[self._next]
        if data.nbytes > self._left:
            raise ValueError(f"tensor {self._next} of {self.path} takes {self._left} more bytes, got {data.nbytes}")
        self._file.write(memoryview(np.ascontiguousarray(data)).cast("B") if data.nbytes else b"")
        self._left -= data.nbytes
        if self._left == 0:
            self._file.write(bytes(-self._sizes[self._next] % self.alignment))
            self._next += 1

    def __exit__(self, kind, error, trace) -> None:
        try:
            if kind is None:
                missing = [size for size in self._sizes[self._next :] if size]
                if missing or self._left:
                    raise ValueError(f"{self.path}: {len(missing)} tensors were not written")
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                mask = os.umask(0)
                os.umask(mask)
                os.chmod(self._temporary, 0o666 & ~mask)
                os.replace(self._temporary, self.path)
        finally:
            self._file.close()
            if os.path.exists(self._temporary):
                os.unlink(self._temporary)
