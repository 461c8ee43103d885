"""What is running here, and why: the first thing to look at, and to attach to a report."""

from __future__ import annotations

import importlib
import platform
import textwrap
from importlib.metadata import PackageNotFoundError, version

from fucina._version import __version__

from . import isa, tuning
from .threads import explain_threads, get_num_threads

__all__ = ["format_runtime", "runtime_info", "show_runtime"]

_PACKAGES = ("numpy", "scipy", "threadpoolctl", "ml_dtypes", "tokenizers", "jinja2")


def runtime_info() -> dict:
    """Versions, kernel variant, threads, loaded libraries and knobs, as plain JSON-able data."""
    libraries = _native_libraries()
    variant = isa.variant()
    return {
        "fucina": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "machine": platform.machine(),
        "packages": {name: _version_of(name) for name in _PACKAGES},
        "variant": variant,
        "variant_reason": isa.why(),
        "built_variants": list(isa.built_variants()),
        "runnable_variants": list(isa.runnable_variants()),
        "kernels": isa.stems(variant),
        "cpu_features": sorted(isa.cpu_features()),
        "backend": isa.backend(),
        "threads": get_num_threads(),
        "threads_reason": explain_threads(),
        "blas": [lib for lib in libraries if lib["user_api"] == "blas"],
        "openmp": [lib for lib in libraries if lib["user_api"] == "openmp"],
        "knobs": {
            knob.name: {
                "value": _plain(tuning.value(knob.name)),
                "default": knob.default,
                "set": knob.name in tuning.changed(),
                "read": knob.when,
                "meaning": knob.meaning,
                "provenance": knob.provenance,
            }
            for knob in tuning.KNOBS.values()
        },
    }


def format_runtime(info: dict) -> str:
    """The text that ``show_runtime`` prints for the data of ``runtime_info``."""
    packages = ", ".join(f"{name} {number or 'not installed'}" for name, number in info["packages"].items())
    lines = [
        ("fucina", f"{info['fucina']} on {info['python']}, {info['platform']}"),
        ("packages", packages),
        ("variant", f"{info['variant']} ({info['variant_reason']}; built: {', '.join(info['built_variants'])})"),
        ("kernels", ", ".join(info["kernels"]) or "none"),
        ("CPU features", ", ".join(info["cpu_features"]) or "none known"),
        ("backend", info["backend"]),
        ("threads", info["threads_reason"]),
    ]
    for title, key in (("BLAS", "blas"), ("OpenMP", "openmp")):
        lines += [(title, _library_line(lib)) for lib in info[key]] or [(title, "none loaded")]
    text = "\n".join(f"{title:<14}{value}" for title, value in lines)
    return text + "\n\nknobs (environment variables)\n" + "\n".join(map(_knob_lines, info["knobs"].items()))


def show_runtime() -> None:
    """Print what is running and why: versions, kernel variant, threads, BLAS and OpenMP runtimes, knobs."""
    print(format_runtime(runtime_info()))


def _native_libraries() -> list[dict]:
    """BLAS and OpenMP runtimes of this process. The BLAS of SciPy is loaded first, because products may use it."""
    import threadpoolctl

    importlib.import_module("scipy.linalg.blas")
    keys = ("user_api", "internal_api", "version", "num_threads", "threading_layer", "architecture", "filepath")
    return [{key: lib[key] for key in keys if key in lib} for lib in threadpoolctl.threadpool_info()]


def _library_line(lib: dict) -> str:
    extra = [str(lib[key]) for key in ("threading_layer", "architecture") if lib.get(key)]
    return " ".join(
        [lib["internal_api"], lib.get("version") or "", f"{lib['num_threads']} threads", *extra, lib["filepath"]]
    ).replace("  ", " ")


def _knob_lines(item: tuple[str, dict]) -> str:
    name, knob = item
    value = "unset" if knob["value"] is None else knob["value"]
    note = "set" if knob["set"] else "default"
    text = f"{knob['meaning']} Read at {knob['read']}. {knob['provenance']}".strip()
    indent = " " * 6
    return f"  {name} = {value}  ({note})\n" + textwrap.fill(text, 96, initial_indent=indent, subsequent_indent=indent)


def _plain(value):
    return value if value is None or isinstance(value, (int, str)) else str(value)


def _version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
