"""The header of a GGUF file: mapped, walked once, believed in nothing.

A little-endian GGUF file, version 2 or 3 (the two have one layout), is::

    "GGUF"  u32 version  u64 tensor count  u64 metadata count
    metadata entry:  string key   u32 type    value
    tensor entry:    string name  u32 n_dims  u64 dims[n_dims]  u32 ggml type  u64 offset
    padding to general.alignment (32 unless the metadata says otherwise), then the tensor data

where a string is a u64 length and its bytes, an array value is a u32 element type, a u64 count and the
elements, dims start with the fastest axis, and offsets count from the start of the tensor data.
Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

Every count, length, type and offset is checked against the size of the file before anything is read or
allocated by it. How many bytes a tensor has is a question for the format table, ``fucina.formats``.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index

import numpy as np

from .formats import BY_ID, KNOWN_IDS, resolve

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_HEADER = struct.Struct("<4sIQQ")

# Metadata value types: number -> (NumPy name, struct); 8 is a string and 9 an array.
_SCALARS = {
    number: (name, struct.Struct("<" + code))
    for number, name, code in [
        (0, "uint8", "B"), (1, "int8", "b"), (2, "uint16", "H"), (3, "int16", "h"), (4, "uint32", "I"),
        (5, "int32", "i"), (6, "float32", "f"), (7, "bool", "B"), (10, "uint64", "Q"), (11, "int64", "q"),
        (12, "float64", "d"),
    ]
}
_STRING, _ARRAY = 8, 9

# Smallest possible entries: a one-byte key with a one-byte value; a one-byte name without dims.
_MIN_ENTRY, _MIN_TENSOR = 8 + 1 + 4 + 1, 8 + 1 + 4 + 4 + 8

# Limits that no real file comes near; they bound memory and time when a sparse file claims to be huge.
_MAX_NAME = 65535             # bytes of a key (the specification's limit) or of a tensor name
_MAX_TEXT = 1 << 28           # bytes of all keys, names and strings together
_MAX_STRINGS = 1 << 24        # elements of all string arrays together
_MAX_BOOLS = 1 << 28          # elements of one array of bools: each is looked at
_MAX_ALIGNMENT = 1 << 20      # padding of tensors
_MAX_DIMS = 4                 # ggml's limit
_MAX_ELEMENTS = 1 << 59       # of one tensor; 8 bytes each still fit a signed 64-bit size


@dataclass(frozen=True)
class TensorInfo:
    """What the header says about one tensor.

    Attributes
    ----------
    name : str
        Name of the tensor.
    type_name : str
        Lower-case name of its format; ``"type_<id>"`` where even the name is unknown.
    ggml_id : int
        ``ggml_type`` number.
    shape : tuple of int
        Shape in NumPy order (the file's dims reversed): a weight is ``(n_out, k_in)``.
    offset : int
        Byte offset of the data from the start of the file that holds it.
    nbytes : int or None
        Bytes of data; None where the format table does not know the type.
    part : int
        Which file of a split model holds it, counted from 0.
    """

    name: str
    type_name: str
    ggml_id: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int | None
    part: int = 0


class StringArray(Sequence):
    """An array of strings inside a mapped file, decoded on access.

    ``a[i]`` decodes one string, ``a[i:j]`` a list of them, ``a.tolist()`` and iteration all of them in one
    pass. Bytes that are not UTF-8 become lone surrogates (``errors="surrogateescape"``): distinct byte
    strings stay distinct, and ``s.encode("utf-8", "surrogateescape")`` gives the bytes back.
    """

    __slots__ = ("_view", "_offsets")

    def __init__(self, view: memoryview, offsets: array):
        self._view = view        # keeps the map alive
        self._offsets = offsets  # of every length field, and the end of the last string

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        j = index(i)
        if not -len(self) <= j < len(self):
            raise IndexError(f"index {j} is out of range for {len(self)} strings")
        j %= len(self)
        return _decode(self._view[self._offsets[j] + 8 : self._offsets[j + 1]])

    def __iter__(self):
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """All strings, as a new list."""
        first = self._offsets[0]
        blob = bytes(self._view[first : self._offsets[-1]])
        ends = (np.asarray(self._offsets) - first).tolist()
        return [blob[a + 8 : b].decode("utf-8", "surrogateescape") for a, b in zip(ends, ends[1:])]

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings)"


def _decode(raw) -> str:
    return str(raw, "utf-8", "surrogateescape")


class Metadata(Mapping):
    """The metadata of a file: key -> bool, int, float, str, ndarray (numeric arrays) or ``StringArray``.

    Numeric arrays are read-only views into the file, at whatever address they have there (NumPy handles
    unaligned arrays; compiled code needs a copy). After the file is closed, scalars and strings stay readable
    and arrays raise ValueError. ``types`` names the type each entry has in the file, e.g. ``"uint32"`` or
    ``"array[string]"``.
    """

    __slots__ = ("types", "_values")

    def __init__(self, values: dict, types: dict[str, str]):
        self._values = values
        self.types = types

    def __getitem__(self, key):
        value = self._values[key]
        if value is None:
            raise ValueError(f"metadata array {key!r} was not read before the GGUF file was closed")
        return value

    def __iter__(self):
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return f"Metadata({len(self)} entries)"

    def release(self) -> None:
        """Forget every value that lives in the map."""
        for key, value in self._values.items():
            if isinstance(value, (np.ndarray, StringArray)):
                self._values[key] = None


class Cursor:
    """A position in a header; every read is checked against the end of the file first."""

    def __init__(self, path: str, view: memoryview):
        self.path = path
        self.view = view
        self.size = len(view)
        self.pos = 0
        self.text_left = _MAX_TEXT
        self.strings_left = _MAX_STRINGS

    def error(self, what: str, at: int) -> ValueError:
        return ValueError(f"{self.path}: {what} (byte {at})")

    def skip(self, nbytes: int, what: str) -> int:
        """Move on by ``nbytes``; the position before."""
        start = self.pos
        if nbytes > self.size - start:
            left = self.size - start
            raise self.error(f"truncated file: {what} needs {nbytes} bytes, {left} are left", start)
        self.pos = start + nbytes
        return start

    def number(self, code: struct.Struct, what: str):
        return code.unpack_from(self.view, self.skip(code.size, what))[0]

    def text(self, what: str) -> memoryview:
        start = self.pos
        n = self.number(_U64, f"the length of {what}")
        if n > self.size - self.pos:
            raise self.error(f"{what} is {n} bytes long, {self.size - self.pos} are left in the file", start)
        self.count_text(n, what, start)
        self.pos += n
        return self.view[self.pos - n : self.pos]

    def count_text(self, n: int, what: str, at: int) -> None:
        """So many bytes more are text."""
        self.text_left -= n
        if self.text_left < 0:
            raise self.error(f"{what} brings the text in the header to over {_MAX_TEXT} bytes", at)

    def name(self, what: str, taken: Mapping) -> str:
        """A key or tensor name: UTF-8, of sane length, and new."""
        start = self.pos
        raw = self.text(what)
        if not 1 <= len(raw) <= _MAX_NAME:
            raise self.error(f"{what} is {len(raw)} bytes long, 1 to {_MAX_NAME} are allowed", start)
        try:
            name = str(raw, "utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{what} is not UTF-8: {bytes(raw[:64])!r}", start) from None
        if name in taken:
            raise self.error(f"{what} is a duplicate: {name!r}", start)
        return name

    def strings(self, n: int, what: str) -> StringArray:
        """Step over ``n`` strings. This loop is most of the time it takes to open a file."""
        pos, size, view, unpack = self.pos, self.size, self.view, _U64.unpack_from
        offsets = array("q", [pos])
        append = offsets.append
        try:
            for _ in range(n):
                pos += 8 + unpack(view, pos)[0]
                append(pos)
        except (struct.error, IndexError, OverflowError):  # a length field that is not inside the file
            pos = size + 1
        if pos > size:
            while offsets[-1] > size:
                offsets.pop()
            i = len(offsets) - 1
            raise self.error(f"string {i} of the {n} of {what} does not end inside the file", offsets[-1])
        self.count_text(pos - self.pos - 8 * n, what, self.pos)
        self.pos = pos
        self.strings_left -= n
        return StringArray(view, offsets)


class Part:
    """One mapped file and what its header says. ``number`` is its place in a split model."""

    def __init__(self, path: str, number: int = 0):
        self.path = path
        self.metadata = Metadata({}, {})
        self.places: dict[str, int] = {}  # where the value of each key is, for later complaints
        self.map = _map(path)
        try:
            self.bytes = np.frombuffer(self.map, np.uint8)
            cursor = Cursor(path, memoryview(self.map))
            self.version, n_tensors, n_entries = _read_counts(cursor)
            self.metadata = _read_metadata(cursor, self.bytes, n_entries, self.places)
            self.metadata_end = cursor.pos
            self.alignment = self._alignment()
            self.tensors = _read_tensors(cursor, n_tensors, self.alignment, number)
        except BaseException:
            self.close()
            raise

    def error(self, what: str, key: str) -> ValueError:
        """An error about a metadata entry, or about the lack of one."""
        return ValueError(f"{self.path}: {what} (byte {self.places.get(key, self.metadata_end)})")

    def count(self, key: str, default: int | None = None) -> int:
        """A metadata entry that must be a non-negative integer."""
        value = self.metadata.get(key, default)
        if value is None:
            raise self.error(f"part of a split model without {key}", key)
        if type(value) is not int or value < 0:
            found = self.metadata.types[key]
            raise self.error(f"{key} must be a non-negative integer, got {found} {value!r:.80}", key)
        return value

    def _alignment(self) -> int:
        key = "general.alignment"
        value = self.metadata.get(key, 32)
        if (found := self.metadata.types.get(key, "uint32")) != "uint32":
            raise self.error(f"{key} must be a uint32, got {found}", key)
        if not 8 <= value <= _MAX_ALIGNMENT or value & (value - 1):
            raise self.error(f"{key} must be a power of two from 8 to {_MAX_ALIGNMENT}, got {value}", key)
        return value

    def drop_pages(self) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self.bytes = None
        self.metadata.release()
        try:
            self.map.close()
        except BufferError:  # somebody still holds a view: the map goes when the last view goes
            pass


def require_regular(path: str) -> None:
    """OSError where there is no file, ValueError where it is a pipe or a device: opening a pipe would wait for its writer."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path}: not a regular file")


def _map(path: str) -> mmap.mmap:
    """Map a file for reading; OSError where there is none, ValueError where it cannot be a GGUF file."""
    require_regular(path)
    with open(path, "rb") as file:
        magic = file.read(4)
        if magic != b"GGUF":
            raise ValueError(f"{path}: not a GGUF file: starts with {magic!r} instead of b'GGUF' (byte 0)")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _read_counts(cursor: Cursor) -> tuple[int, int, int]:
    at = cursor.skip(_HEADER.size, "the header")
    _, version, n_tensors, n_entries = _HEADER.unpack_from(cursor.view, at)
    if version and version & 0xFFFF == 0:
        raise cursor.error("big-endian GGUF file; only little-endian files are read", 4)
    if version not in (2, 3):
        raise cursor.error(f"GGUF version {version}; versions 2 and 3 are read", 4)
    left = cursor.size - cursor.pos
    if n_entries * _MIN_ENTRY > left:
        raise cursor.error(f"metadata count {n_entries} does not fit a file of {cursor.size} bytes", 16)
    if n_tensors * _MIN_TENSOR > left - n_entries * _MIN_ENTRY:
        raise cursor.error(f"tensor count {n_tensors} does not fit a file of {cursor.size} bytes", 8)
    return version, n_tensors, n_entries


def _read_metadata(cursor: Cursor, data: np.ndarray, n_entries: int, places: dict[str, int]) -> Metadata:
    values, types = {}, {}
    for i in range(n_entries):
        key = cursor.name(f"metadata key {i}", values)
        what = f"metadata {key!r}"
        at = cursor.pos
        number = cursor.number(_U32, f"the type of {what}")
        places[key] = cursor.pos
        if number == _STRING:
            types[key], values[key] = "string", _decode(cursor.text(what))
        elif number == _ARRAY:
            types[key], values[key] = _read_array(cursor, data, what)
        elif number in _SCALARS:
            types[key], code = _SCALARS[number]
            value = cursor.number(code, what)
            if types[key] == "bool":
                if value > 1:
                    raise cursor.error(f"{what} is a bool of value {value}, not 0 or 1", places[key])
                value = bool(value)
            values[key] = value
        else:
            raise cursor.error(f"{what} has the unknown value type {number}", at)
    return Metadata(values, types)


def _read_array(cursor: Cursor, data: np.ndarray, what: str):
    at = cursor.pos
    number = cursor.number(_U32, f"the element type of {what}")
    n = cursor.number(_U64, f"the length of {what}")
    left = cursor.size - cursor.pos
    if number == _STRING:
        if n > left // 8:
            raise cursor.error(f"{what} has {n} strings, {left} bytes are left", at + 4)
        if n > cursor.strings_left:
            raise cursor.error(f"{what} brings the strings in arrays to over {_MAX_STRINGS}", at + 4)
        return "array[string]", cursor.strings(n, what)
    if number == _ARRAY:
        raise cursor.error(f"{what} is an array of arrays; numbers and strings are read", at)
    if number not in _SCALARS:
        raise cursor.error(f"{what} has the unknown element type {number}", at)
    name, code = _SCALARS[number]
    if n * code.size > left:
        raise cursor.error(f"{what} has {n} elements of {code.size} bytes, {left} bytes are left", at + 4)
    if name == "bool" and n > _MAX_BOOLS:
        raise cursor.error(f"{what} has {n} bools, at most {_MAX_BOOLS} are read", at + 4)
    start = cursor.skip(n * code.size, what)
    values = data[start : cursor.pos].view(dtype(name))
    if name == "bool" and n and values.view(np.uint8).max() > 1:
        bad = start + int(np.argmax(values.view(np.uint8) > 1))
        raise cursor.error(f"{what} holds a bool that is neither 0 nor 1", bad)
    return f"array[{name}]", values


def _read_tensors(cursor: Cursor, n_tensors: int, alignment: int, part: int) -> dict[str, TensorInfo]:
    headers: dict[str, tuple] = {}
    for i in range(n_tensors):
        name = cursor.name(f"the name of tensor {i}", headers)
        what = f"tensor {name!r}"
        at = cursor.pos
        n_dims = cursor.number(_U32, f"the number of dims of {what}")
        if n_dims > _MAX_DIMS:
            raise cursor.error(f"{what} has {n_dims} dims, at most {_MAX_DIMS} are allowed", at)
        dims = [cursor.number(_U64, f"the dims of {what}") for _ in range(n_dims)]
        elements = 1
        for n in dims:
            elements *= max(n, 1)  # a zero must not hide sizes that NumPy cannot count
        if elements > _MAX_ELEMENTS:
            raise cursor.error(f"{what} has dims {dims}, more than {_MAX_ELEMENTS} elements", at + 4)
        at_type = cursor.pos
        ggml_id = cursor.number(_U32, f"the type of {what}")
        at_offset = cursor.pos
        offset = cursor.number(_U64, f"the offset of {what}")
        if offset % alignment:
            raise cursor.error(f"{what} has offset {offset}, not a multiple of {alignment}", at_offset)
        shape = tuple(reversed(dims))
        if spec := BY_ID.get(ggml_id):
            try:
                spec.row_bytes(shape[-1] if shape else 1)
            except ValueError as problem:
                raise cursor.error(f"{what} of shape {shape}: {problem}", at_type) from None
        headers[name] = ggml_id, shape, offset, at_offset

    start = -(-cursor.pos // alignment) * alignment
    tensors, spans = {}, []
    borders = sorted({offset for _, _, offset, _ in headers.values()}) + [cursor.size - start]
    room = dict(zip(borders, [end - begin for begin, end in zip(borders, borders[1:])]))
    for name, (ggml_id, shape, offset, at) in headers.items():
        # Two formats may share an id; how far away the next tensor is tells which one this is.
        spec = resolve(ggml_id, shape, room[offset], alignment)
        nbytes = spec.tensor_bytes(shape) if spec else None
        # Of a type that is not in the table we only know that it has data, or not.
        needs = (0 if 0 in shape else 1) if nbytes is None else nbytes
        if start + offset + needs > cursor.size:
            raise cursor.error(f"tensor {name!r} needs bytes {start + offset} to {start + offset + needs}, "
                               f"the file has {cursor.size}", at)
        if needs:
            spans.append((offset, offset + needs, name, at))
        type_name = spec.name if spec else KNOWN_IDS.get(ggml_id, f"type_{ggml_id}")
        tensors[name] = TensorInfo(name, type_name, ggml_id, shape, start + offset, nbytes, part)
    spans.sort()
    for (_, end, before, _), (offset, _, name, at) in zip(spans, spans[1:]):
        if offset < end:
            raise cursor.error(f"the data of tensor {name!r} overlaps that of {before!r}", at)
    return tensors


def dtype(name: str) -> np.dtype:
    """Little-endian dtype by name; names NumPy does not have come from ml_dtypes."""
    try:
        return np.dtype(name).newbyteorder("<")
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(f"{name} tensors need the ml_dtypes package (pip install ml_dtypes)") from None
    return np.dtype(getattr(ml_dtypes, name))
