"""Strict, fast reader of GGUF files: ``open_gguf`` maps a model, split or not, and hands out views.

Opening walks the headers once and checks all of them (``fucina._gguf_header``). Nothing else is read:
tensors and numeric arrays are views into the map, strings inside arrays are decoded when they are asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ._gguf_header import Metadata, Part, StringArray, TensorInfo, dtype
from .formats import FORMATS, QTensor

__all__ = ["GGUFFile", "Metadata", "StringArray", "TensorInfo", "open_gguf"]

_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII | re.DOTALL)


def _open_parts(path: str) -> list[Part]:
    """The file and, when it is the first of a split model, all its other parts."""
    parts = [Part(path)]
    try:
        names = _split_names(parts[0])
        for number, name in enumerate(names[1:], 1):
            parts.append(Part(name, number))
        if names:
            _check_split(parts)
        return parts
    except BaseException:
        for part in parts:
            part.close()
        raise


def _split_names(first: Part) -> list[str]:
    """The names of all parts of a split model; none when the file stands alone."""
    count = first.count("split.count", 0)  # 0 is what merging leaves behind
    named = _SPLIT_NAME.fullmatch(first.path)
    if named is None:
        if count > 1:
            raise first.error(f"one of {count} parts, but not named like NAME-00001-of-{count:05d}.gguf; "
                              "the others cannot be found", "split.count")
        return []
    total, number = int(named["count"]), int(named["number"])
    if max(count, 1) != total:
        raise first.error(f"the file name says {total} parts, split.count says {count}", "split.count")
    names = [f"{named['stem']}-{i:05d}-of-{total:05d}.gguf" for i in range(1, total + 1)]
    if number != 1:
        raise first.error(f"part {number} of a split model; open the first one, {names[0]}", "split.no")
    return names if total > 1 else []


def _check_split(parts: list[Part]) -> None:
    """ValueError unless the parts agree on being one model."""
    total = sum(len(part.tensors) for part in parts)
    holder: dict[str, Part] = {}
    for number, part in enumerate(parts):
        expected = {"split.count": len(parts), "split.no": number, "split.tensors.count": total}
        for key, value in expected.items():
            if (found := part.count(key)) != value:
                raise part.error(f"{key} is {found}, expected {value}", key)
        for name, info in part.tensors.items():
            if name in holder:
                raise ValueError(f"{part.path}: tensor {name!r} is also in {holder[name].path} "
                                 f"(byte {info.offset})")
            holder[name] = part


class GGUFFile(Mapping):
    """An open GGUF model: a read-only mapping of tensor name -> ndarray or ``QTensor``.

    Made by ``open_gguf``. Tensors are read-only views into the mapped file, made anew on every access: block
    formats as ``QTensor``, number types as ndarray (bf16 with the dtype of ml_dtypes).

    Attributes
    ----------
    path : str
        The file, or the first part of a split model.
    version : int
        GGUF version, 2 or 3.
    alignment : int
        Alignment of the tensor data in bytes.
    metadata : Metadata
        Mapping of key -> value. Of a split model, the metadata of the first part.
    tensors : dict of str to TensorInfo
        What the header says about each tensor, in file order, including types that cannot be read.

    Notes
    -----
    Views keep the map alive: an array taken before ``close()`` stays valid after it, and the file is unmapped
    when the last one is gone. A file that shrinks while it is mapped cannot be defended against; do not
    overwrite a model in place, replace it.
    """

    def __init__(self, path):
        self.path = os.fsdecode(path)
        self._parts = _open_parts(self.path)
        first = self._parts[0]
        self.version, self.alignment, self.metadata = first.version, first.alignment, first.metadata
        self.tensors = {name: info for part in self._parts for name, info in part.tensors.items()}

    def __getitem__(self, name: str):
        if not self._parts:
            raise ValueError(f"{self.path}: the file is closed, tensor {name!r} cannot be read")
        info = self.tensors[name]
        part = self._parts[info.part]
        spec = FORMATS.get(info.type_name)
        if spec is None:
            raise ValueError(f"{part.path}: tensor {name!r} has type {info.type_name}, ggml type "
                             f"{info.ggml_id}, which cannot be read (byte {info.offset})")
        raw = part.bytes[info.offset : info.offset + info.nbytes]
        if spec.is_block:
            return QTensor(raw, spec.name, info.shape)
        return raw.view(dtype(spec.numpy)).reshape(info.shape)

    def __iter__(self):
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __contains__(self, name) -> bool:
        return name in self.tensors

    __eq__ = object.__eq__  # a file is equal to itself; comparing the tensors is nobody's intention
    __hash__ = object.__hash__

    def drop_pages(self) -> None:
        """Give the memory of pages read so far back to the system; they come from the file again when next used."""
        for part in self._parts:
            part.drop_pages()

    def close(self) -> None:
        """Let go of the file: names and scalars stay readable, indexing raises ValueError. Twice is fine."""
        parts, self._parts = self._parts, []
        for part in parts:
            part.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUFFile({self.path!r}, {len(self.tensors)} tensors, {len(self.metadata)} metadata entries)"


def open_gguf(path) -> GGUFFile:
    """Open a GGUF file (version 2 or 3, little endian) by mapping it; no tensor is read until it is used.

    Parameters
    ----------
    path : str or os.PathLike
        The file. Of a split model (``NAME-00001-of-00003.gguf``), the first part; it opens all others.

    Returns
    -------
    GGUFFile
        Mapping of tensor name -> ndarray or ``QTensor``, with ``.metadata``, ``.tensors`` and ``.close()``; a
        context manager.

    Raises
    ------
    ValueError
        If the file is not a sound GGUF file; the message names the file, what is wrong and the byte offset.
    OSError
        If the file, or a part of a split model, is missing or cannot be read.

    Notes
    -----
    Stricter than the specification requires: names must be non-empty UTF-8, bools 0 or 1, the alignment a
    power of two of at least 8; arrays of arrays are refused. A tensor without dims is a scalar of shape
    ``()``, one with a dim of zero is empty. A tensor of a type the format table does not know is listed in
    ``.tensors`` and raises ValueError when it is asked for. String values that are not UTF-8 are decoded with
    ``errors="surrogateescape"``: they come back exactly, and printing them needs an error handler.
    """
    return GGUFFile(path)
