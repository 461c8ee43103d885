"""Making a smaller GGUF file: every tensor re-encoded by the rules of a mix, the way llama.cpp does it.

``quantize_file`` reads one file and writes another; nothing else is kept in memory than a few rows at a time. The bytes
of the tensors are ggml's (``fucina.ops.quantize``), the choice of formats is llama.cpp's (``mixes``).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import numpy as np

from fucina import ops
from fucina.formats import BY_ID, FORMATS, QTensor, lookup
from fucina.gguf import open_gguf

from .imatrix import Imatrix, read_imatrix
from .mixes import MIXES, Chooser, Facts, lookup_mix
from .writer import Writer, destination

__all__ = ["Change", "plan", "quantize_file", "read_imatrix"]

# Elements that are decoded, encoded and written in one go: 64 MiB of float32.
_SLAB = 1 << 24
# Elements that are decoded again in one go to see whether they are finite; they stay in the cache.
_PIECE = 1 << 18
# Plain number types that tensors are made from and into.
_FLOATS = ("f32", "f16", "bf16")
_VERSION = 2  # general.quantization_version: ggml's current meaning of its quantized formats


@dataclass(frozen=True)
class Change:
    """What happens to one tensor.

    Attributes
    ----------
    name : str
    shape : tuple of int
    before, after : str
        Formats; equal when the bytes are copied.
    """

    name: str
    shape: tuple[int, ...]
    before: str
    after: str

    @property
    def nbytes(self) -> int:
        """Bytes in the new file, without padding."""
        return FORMATS[self.after].tensor_bytes(self.shape)


def quantize_file(source, target, mix: str, *, pure: bool = False, imatrix=None, token_embedding_type: str | None = None,
                  output_tensor_type: str | None = None, leave_output_tensor: bool = False,
                  allow_requantize: bool = False, progress=None) -> list[Change]:
    """Quantize a model.

    Parameters
    ----------
    source, target : str or os.PathLike
        GGUF files; of a split model the first part. ``target`` is written whole or not at all; where it is a symbolic
        link, what the link points to is written.
    mix : str
        ``"q4_k_m"``, ``"q8_0"``, ``"f16"`` …, any case; see ``fucina.quantizer.mixes.MIXES``.
    pure : bool
        The same format for all tensors that change, no mixture.
    imatrix : str, os.PathLike or Imatrix, optional
        Importance matrix.
    token_embedding_type, output_tensor_type : str, optional
        Formats for these two tensors instead of what the mix says.
    leave_output_tensor : bool
        Keep ``output.weight`` as it is.
    allow_requantize : bool
        Decode and encode tensors that are quantized already; they lose quality twice.
    progress : callable, optional
        Called as ``progress(change, number, count)`` before each tensor.

    Returns
    -------
    list of Change
        One for each tensor, in the order of the new file.

    Raises
    ------
    ValueError
        If the mix or a format is unknown or cannot be made, a tensor holds NaN or infinity before or after (named in the
        message), is quantized already, or cannot be stored, the importance matrix is missing or does not fit, or
        ``target`` is one of the files that are read or no regular file.
    OSError
        If a file cannot be read or written.
    """
    mix = lookup_mix(mix)
    target = destination(target)
    with open_gguf(source) as model:
        if os.path.exists(target):
            if any(os.path.samefile(part.path, target) for part in model._parts):
                raise ValueError(f"{target}: the new file must not be the old one")
            if not isinstance(imatrix, Imatrix | None) and os.path.samefile(imatrix, target):
                raise ValueError(f"{target}: the new file must not be the importance matrix")
        matrix = imatrix if isinstance(imatrix, Imatrix | None) else read_imatrix(imatrix)
        changes = plan(model, mix, pure=pure, has_imatrix=matrix is not None, token_embedding_type=token_embedding_type,
                       output_tensor_type=output_tensor_type, leave_output_tensor=leave_output_tensor)
        weights = _checked(model.path, changes, matrix, mix, allow_requantize)
        metadata = _metadata(model.metadata, mix, matrix, imatrix)
        tensors = [(change.name, change.after, change.shape) for change in changes]
        with Writer(target, metadata, tensors, model.alignment) as writer:
            for number, change in enumerate(changes):
                if progress:
                    progress(change, number, len(changes))
                _convert(model[change.name], change, weights.get(change.name), writer)
    return changes


def plan(model, mix: str, *, pure: bool = False, has_imatrix: bool = False, token_embedding_type: str | None = None,
         output_tensor_type: str | None = None, leave_output_tensor: bool = False) -> list[Change]:
    """Decide what happens to each tensor, without doing it.

    Parameters
    ----------
    model : GGUFFile
    mix, pure, token_embedding_type, output_tensor_type, leave_output_tensor
        As in ``quantize_file``.
    has_imatrix : bool

    Returns
    -------
    list of Change
        In the order of llama.cpp's files: what belongs to no layer, then the layers, by name inside each.
    """
    embedding, output = (_makeable(name, has_imatrix) for name in (token_embedding_type, output_tensor_type))
    names = sorted(model.tensors, key=lambda name: (_layer(name), name))
    try:
        facts = Facts.of(model.metadata)
    except ValueError as problem:
        raise ValueError(f"{model.path}: {problem}") from None
    chooser = Chooser(lookup_mix(mix), facts, names, pure=pure, has_imatrix=has_imatrix, embedding=embedding,
                      output=output, leave_output=leave_output_tensor)
    changes = []
    for name in names:
        info = model.tensors[name]
        if info.type_name not in FORMATS:
            raise ValueError(f"{model.path}: tensor {name!r} has type {info.type_name}, which cannot be read")
        after = chooser.choose(name, info.shape) if chooser.allows(name, info.shape) else info.type_name
        needs = FORMATS[after].imatrix == "required" or chooser.needs_imatrix(name, after)
        if not has_imatrix and after != info.type_name and needs:
            raise ValueError(f"{model.path}: {mix} stores tensor {name!r} as {after}, which needs an importance matrix")
        changes.append(Change(name, info.shape, info.type_name, after))
    return changes


def _makeable(name: str | None, has_imatrix: bool) -> str | None:
    """A format asked for by hand; ValueError where no tensor can be encoded in it."""
    if name is None:
        return None
    spec = lookup(name)
    # One scale for the whole tensor cannot be had a few rows at a time.
    # An id that two formats share is ggml's own to every other reader.
    makeable = lambda row: row.is_block and not row.tensor_scale and BY_ID[row.ggml_id] is row
    if not makeable(spec) and spec.name not in _FLOATS:
        known = [row.name for row in FORMATS.values() if makeable(row)]
        raise ValueError(f"tensors cannot be made {spec.name}; possible: {', '.join([*_FLOATS, *known])}")
    if spec.imatrix == "required" and not has_imatrix:
        raise ValueError(f"tensors cannot be made {spec.name} without an importance matrix")
    return spec.name


def _layer(name: str) -> int:
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else -1


def _metadata(metadata, mix: str, matrix, imatrix) -> list:
    """The entries of the old file but for its being split, and what this is now."""
    replaced = {"general.quantization_version", "general.file_type", "split.no", "split.count", "split.tensors.count"}
    if matrix is not None:
        replaced |= {f"quantize.imatrix.{key}" for key in ("file", "dataset", "entries_count", "chunks_count")}
    entries = [(key, metadata.types[key], metadata[key]) for key in metadata if key not in replaced]
    entries.append(("general.quantization_version", "uint32", _VERSION))
    entries.append(("general.file_type", "uint32", MIXES[mix][0]))
    if matrix is not None:
        told = [("file", "string", None if isinstance(imatrix, Imatrix) else os.path.basename(os.fsdecode(imatrix))),
                ("dataset", "string", matrix.dataset), ("entries_count", "uint32", len(matrix.columns)),
                ("chunks_count", "uint32", matrix.chunks or None)]
        entries += [(f"quantize.imatrix.{key}", kind, value) for key, kind, value in told if value is not None]
    return entries


def _checked(path: str, changes, matrix, mix: str, allow_requantize: bool) -> dict[str, np.ndarray]:
    """Importances by tensor; everything that can be refused before writing is refused here."""
    weights = {}
    for change in changes:
        if change.before == change.after:
            continue
        spec, before = FORMATS[change.after], FORMATS[change.before]
        if before.is_block and not allow_requantize:
            raise ValueError(f"{path}: tensor {change.name!r} is quantized already ({change.before}); start from the "
                             "original weights, or allow requantizing")
        if not before.is_block and change.before not in _FLOATS:
            raise ValueError(f"{path}: tensor {change.name!r} of {change.before} numbers cannot become {change.after}")
        if change.shape[-1] % spec.block:
            raise ValueError(f"{path}: tensor {change.name!r} cannot become {change.after}, whose rows hold a multiple of "
                             f"{spec.block} elements: it has {change.shape[-1]}")
        if matrix is None:
            continue
        columns = matrix.columns.get(change.name)
        size = change.shape[-1] * (change.shape[-3] if len(change.shape) > 2 else 1)
        embedding = change.name in ("token_embd.weight", "per_layer_token_embd.weight")
        if columns is not None and columns.size != size and not embedding:
            raise ValueError(f"the importance matrix has {columns.size} numbers for tensor {change.name!r} of shape "
                             f"{change.shape}, expected {size}")
        if columns is not None and columns.size == size:
            weights[change.name] = columns.reshape(-1, change.shape[-1])
        elif Chooser(mix, Facts("", 0, 0, 0, False), []).needs_imatrix(change.name, change.after):
            raise ValueError(f"the importance matrix lacks tensor {change.name!r}, which {change.after} needs")
        elif spec.imatrix == "required":
            raise ValueError(f"tensor {change.name!r} cannot become {change.after} without its importances")
    return weights


def _convert(tensor, change: Change, weights, writer: Writer) -> None:
    """Copy, or decode and encode a few rows at a time; a stack of matrices goes matrix by matrix."""
    if 0 in change.shape:
        return
    if change.before == change.after:
        writer.write(tensor.data if isinstance(tensor, QTensor) else tensor)
        if isinstance(tensor, QTensor) and tensor.scale is not None:
            writer.write(np.concatenate([np.float32([tensor.scale]).view(np.uint8), np.zeros(28, np.uint8)]))
        return
    k = change.shape[-1]
    stack = [tensor[i] for i in np.ndindex(change.shape[:-2])] if len(change.shape) > 2 else [tensor]
    step = max(1, _SLAB // max(k, 1))
    for i, matrix in enumerate(stack):
        importance = None if weights is None else weights[i % len(weights)]
        for start in range(0, len(matrix), step):
            if change.before == "f32":
                rows = matrix[start : start + step]
            else:
                rows = ops.embedding(np.arange(start, min(start + step, len(matrix))), matrix)
            try:
                encoded = ops.quantize(rows, change.after, imatrix=importance)
            except ValueError as problem:
                raise ValueError(f"tensor {change.name!r}, rows from {start}: {problem}") from None
            if not _finite(encoded):
                raise ValueError(f"tensor {change.name!r} cannot become {change.after}: its numbers, or their importances, "
                                 "are too large; what is encoded holds NaN or infinity")
            writer.write(encoded.data if isinstance(encoded, QTensor) else encoded)


def _finite(encoded) -> bool:
    """True if every element of an encoded matrix is finite: a scale may be beyond the range of its few bits."""
    n, k = encoded.shape
    step = max(1, _PIECE // max(k, 1))
    pieces = (ops.embedding(np.arange(i, min(i + step, n)), encoded) for i in range(0, n, step))
    return all(np.isfinite(piece).all() for piece in pieces)
