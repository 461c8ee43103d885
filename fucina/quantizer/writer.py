"""Writing GGUF files: the header first, then the tensors one after the other; the file appears only when it is whole."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import struct
from pathlib import Path

import numpy as np

from fucina.formats import FORMATS
from fucina.gguf import StringArray

__all__ = ["Writer", "destination"]

_TYPES = {
    "uint8": (0, "B"), "int8": (1, "b"), "uint16": (2, "H"), "int16": (3, "h"), "uint32": (4, "I"), "int32": (5, "i"),
    "float32": (6, "f"), "bool": (7, "?"), "uint64": (10, "Q"), "int64": (11, "q"), "float64": (12, "d"),
}
_STRING, _ARRAY = 8, 9


def destination(path) -> str:
    """Where a new file of this name goes: symbolic links are followed, what is there may only be a regular file.

    Raises
    ------
    ValueError
        If the name is empty, or there is a device, a pipe or the like.
    IsADirectoryError
        If it is a folder.
    """
    path = os.fsdecode(path)
    if not path:
        raise ValueError("the new file has an empty name")
    try:
        # Of the name itself: that of a link may lead to something that has no other name, such as a pipe.
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG if os.path.basename(path) else stat.S_IFDIR
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path}: not a regular file; the new file cannot take its place")
    return os.path.realpath(path)


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
        self._file = None

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
        # Named before it is made, so that an interruption at any point leaves nothing behind.
        self._temporary = folder / f".{self.path.name}.{secrets.token_hex(8)}.part"
        try:
            with self._named():
                self._file = open(self._temporary, "xb")
                self._file.write(self._header)
        except BaseException:
            self._discard()
            raise
        return self

    def write(self, data: np.ndarray) -> None:
        """The next bytes of the current tensor; at its end the padding is added and the next one begins.

        Empty tensors take nothing.
        """
        if not data.nbytes:
            return
        if self._left == 0:
            while self._next < len(self._sizes) and not self._sizes[self._next]:
                self._next += 1
            if self._next == len(self._sizes):
                raise ValueError(f"{self.path} takes no more tensors, got {data.nbytes} bytes")
            self._left = self._sizes[self._next]
        if data.nbytes > self._left:
            raise ValueError(f"tensor {self._next} of {self.path} takes {self._left} more bytes, got {data.nbytes}")
        with self._named():
            self._file.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
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
                with self._named():
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    self._file.close()
                    os.replace(self._temporary, self.path)
        finally:
            self._discard()

    def _discard(self) -> None:
        """Close and remove the temporary file, in whatever state it is."""
        try:
            if self._file is not None:
                # Closing writes what is still buffered, which fails again on a full disk.
                with contextlib.suppress(OSError):
                    self._file.close()
        finally:
            self._temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _named(self):
        """Errors of the system name the file that is asked for: writes name none, the others the temporary one."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
