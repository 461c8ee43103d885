"""Imports go down only, and there is no cycle: read from the sources, Python and Cython, without running them."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From the top down. A part may import itself and what stands below it; parts in one row may import each other as
# long as no cycle arises. The kernels' specification stands alone, and only runtime hands it out.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("inspection", "models", "quantizer", "verification"),
    ("__init__",),
    ("llm", "layers"),
    ("ops",),
    ("gguf", "_gguf_header", "formats", "runtime"),
    ("_kernels", "_version"),
)
ALONE = "_scalar"
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}


def sources(package: Path) -> Iterator[tuple[str, Path]]:
    """(dotted module name, file) for every Python and Cython source below a package folder."""
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".pyx", ".pxd", ".pxi"):
            parts = (package.name, *path.relative_to(package).with_suffix("").parts)
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def statements(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """(leading dots, module, names) of every import in a file, also inside functions; cimports count."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from ((0, alias.name, []) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.level, node.module or "", [alias.name for alias in node.names]
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
                # Of f"fucina._kernels.{variant}" the part before the first hole says enough.
                first = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield 0, first.value.rstrip("."), []
        return
    for dots, module, several, one in re.findall(
        r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+c?import[ \t]+(?:\(([^)]*)\)|([^(\n#]*))", text, re.M
    ):
        yield len(dots), module, re.findall(r"(\w+)(?:\s+as\s+\w+)?\s*(?:,|$)", (several or one).strip())
    for modules in re.findall(r"^[ \t]*c?import[ \t]+([\w., \t]+)", text, re.M):
        yield from ((0, module, []) for module in re.findall(r"([\w.]+)(?:\s+as\s+\w+)?\s*(?:,|$)", modules.strip()))


def check(package: Path) -> list[str]:
    """Everything wrong with the imports of a package, as readable lines."""
    files = list(sources(package))
    modules = {name for name, _ in files}
    problems: list[str] = []
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for module, path in files:
        if part_of(module) not in RANK and part_of(module) != ALONE:
            problems.append(f"{module} is in no layer; place {part_of(module)!r} in LAYERS")
            continue
        holder = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        for dots, source, names in statements(path):
            base = ".".join([*(holder[: len(holder) - dots + 1] if dots else []), *filter(None, [source])])
            if base.split(".")[0] != package.name:
                continue
            submodules = {f"{base}.{name}" for name in names} & modules
            # `from package import module` reaches the module; any other name is an attribute of `base` itself.
            targets = submodules if submodules and len(submodules) == len(set(names)) else submodules | {base}
            for target in sorted(targets):
                if target not in modules:
                    problems.append(f"{module} imports {target}, which does not exist")
                elif wrong := verdict(part_of(module), part_of(target)):
                    problems.append(f"{module} imports {target}: {wrong}")
                elif target != module:
                    graph[module].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        problems.append("cycle: " + " imports ".join(reversed(error.args[1])))
    return problems


def verdict(here: str, there: str) -> str:
    """What is wrong with part ``here`` importing part ``there``; empty when nothing is."""
    if ALONE in (here, there):
        if here == there or here == "runtime":
            return ""
        return f"{ALONE} may import nothing" if here == ALONE else f"only runtime may import {ALONE}"
    return "it is above" if there not in RANK or RANK[there] < RANK[here] else ""


def part_of(module: str) -> str:
    """The name in LAYERS that a dotted module belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


def test_imports_go_down_only():
    assert check(ROOT / "fucina") == []


def test_the_sources_are_seen():
    found = {(name, path.suffix) for name, path in sources(ROOT / "fucina")}
    assert {("fucina", ".py"), ("fucina.cli", ".py"), ("fucina._kernels._openmp", ".pyx"),
            ("fucina._kernels._openmp", ".pxd")} <= found
    assert (0, "", ["tuning"]) not in statements(ROOT / "fucina/runtime/isa.py")
    assert (1, "", ["tuning"]) in statements(ROOT / "fucina/runtime/isa.py")


@pytest.mark.parametrize(
    ("file", "lines", "complaint"),
    [
        ("runtime/tuning.py", "import fucina.ops", "it is above"),
        ("runtime/tuning.py", "from fucina import llm", "it is above"),
        ("runtime/tuning.py", "from fucina import QTensor", "it is above"),
        ("runtime/tuning.py", "from .. import cli", "it is above"),
        ("runtime/tuning.py", "def f():\n    from ..models import fetch", "it is above"),
        ("formats/table.py", "def f():\n    if True:\n        from fucina.ops import linear", "it is above"),
        ("formats/table.py", "import importlib\nx = importlib.import_module('fucina.llm')", "it is above"),
        ("gguf.py", "from .models import fetch", "it is above"),
        ("_kernels/planted.pyx", "from fucina.runtime cimport threads", "it is above"),
        ("_kernels/planted.pyx", "from fucina.runtime cimport (\n    tuning, threads as t\n)", "it is above"),
        ("_kernels/planted.pyx", "cdef f():\n    import fucina.runtime.isa as isa", "it is above"),
        ("_kernels/planted.pxd", "from ..formats cimport table", "it is above"),
        ("_scalar/planted.py", "from fucina.formats import FORMATS", "_scalar may import nothing"),
        ("_scalar/planted.py", "import fucina", "_scalar may import nothing"),
        ("formats/table.py", "from .._scalar import planted", "only runtime"),
        ("runtime/tuning.py", "from .isa import variant", "cycle: "),
        ("formats/table.py", "from ..gguf import open_gguf", "cycle: "),
        ("runtime/tuning.py", "from .nowhere import x", "does not exist"),
        ("stray.py", "x = 1", "is in no layer"),
    ],
)
def test_a_planted_import_is_found(tmp_path, file, lines, complaint):
    """The check is checked: wrong lines, added to a copy of the package, must be complained about."""
    package = tmp_path / "fucina"
    shutil.copytree(ROOT / "fucina", package, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
    (package / "llm").mkdir(exist_ok=True)
    for part in ("_scalar/planted.py", "_kernels/planted.pyx", "llm/__init__.py", "ops.py", "cli.py"):
        if part != "ops.py" or not (package / "ops" / "__init__.py").exists():
            (package / part).parent.mkdir(exist_ok=True)
            (package / part).touch()
    before = check(package)
    with open(package / file, "a", encoding="utf-8") as source:
        source.write(f"\n{lines}\n")
    added = [problem for problem in check(package) if problem not in before]
    assert any(complaint in problem for problem in added), added
