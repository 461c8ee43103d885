"""What is in a GGUF file, as data and as text; behind ``fucina inspect``."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from .gguf import open_gguf

__all__ = ["describe", "format_description"]

_SHOWN = 8          # elements of an array that are shown
_WIDTH = 100        # characters of a string that are shown
_WHOLE_TEXT = 4096  # characters of a string that the machine-readable form keeps


def describe(path) -> dict:
    """Metadata and tensors of a GGUF file as JSON-able data; long arrays and strings are cut and say so.

    Parameters
    ----------
    path : path-like

    Raises
    ------
    OSError, ValueError
        If the file cannot be read or is corrupt.
    """
    with open_gguf(path) as file:
        return {
            "path": file.path,
            "version": file.version,
            "alignment": file.alignment,
            "tensor_bytes": sum(info.nbytes or 0 for info in file.tensors.values()),
            "parameters": sum(math.prod(info.shape) for info in file.tensors.values()),
            "types": dict(Counter(info.type_name for info in file.tensors.values()).most_common()),
            "metadata": {key: _entry(file.metadata[key], file.metadata.types[key]) for key in file.metadata},
            "tensors": [
                {
                    "name": info.name,
                    "type": info.type_name,
                    "shape": list(info.shape),
                    "nbytes": info.nbytes,
                    "offset": info.offset,
                }
                for info in file.tensors.values()
            ],
        }


def format_description(description: dict) -> str:
    """The text of ``fucina inspect`` for the data of ``describe``."""
    d = description
    kinds = ", ".join(f"{count} {name}" for name, count in d["types"].items())
    lines = [
        f"{_safe(d['path'])}: GGUF version {d['version']}, alignment {d['alignment']}",
        f"{d['parameters']:,} parameters in {len(d['tensors'])} tensors, {size(d['tensor_bytes'])} ({kinds or 'none'})",
        "",
        f"metadata ({len(d['metadata'])})",
    ]
    width = max(map(len, d["metadata"]), default=0)
    lines += [f"  {_safe(key):<{width}}  {_entry_text(entry)}" for key, entry in d["metadata"].items()]
    lines += ["", f"tensors ({len(d['tensors'])})"]
    rows = [
        (_safe(t["name"]), t["type"], "x".join(map(str, t["shape"])), size(t["nbytes"])) for t in d["tensors"]
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    lines += [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {e:>{widths[3]}}" for a, b, c, e in rows]
    return "\n".join(lines)


def size(nbytes: int | None) -> str:
    """Bytes for people: ``98.4 MB``."""
    if nbytes is None:
        return "?"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


def _entry(value, kind: str) -> dict:
    if isinstance(value, str):
        cut = value[:_WHOLE_TEXT]
        return {"type": kind, "value": cut} | ({"length": len(value)} if len(value) > len(cut) else {})
    if isinstance(value, (bool, int, float)):
        return {"type": kind, "value": _number(value)}
    first = value[:_SHOWN]
    if isinstance(first, np.ndarray):
        return {"type": kind, "length": len(value), "first": [_number(item) for item in first.tolist()]}
    texts = list(first)
    cut = {"lengths": list(map(len, texts))} if any(len(text) > _WHOLE_TEXT for text in texts) else {}
    return {"type": kind, "length": len(value), "first": [text[:_WHOLE_TEXT] for text in texts]} | cut


def _number(value):
    """JSON has no infinity and no NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _entry_text(entry: dict) -> str:
    if "first" in entry:
        more = ", …" if entry["length"] > len(entry["first"]) else ""
        items = ", ".join(_short(item) for item in entry["first"])
        return f"[{items}{more}] ({entry['length']} items, {entry['type']})"
    return f"{_short(entry['value'])} ({entry['type']})"


def _short(value) -> str:
    if not isinstance(value, str):
        return f"{value:.7g}" if isinstance(value, float) else str(value)
    return repr(value) if len(value) <= _WIDTH else repr(value[:_WIDTH]) + "…"


def _safe(text: str) -> str:
    """Names come from the file: control characters must not reach a terminal."""
    return text if text.isprintable() else repr(text)
