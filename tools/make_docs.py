"""Write the generated pages of docs/, or check that they are current (``--check``, exit status 1 when not)."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fucina.runtime.tuning import KNOBS, Knob  # noqa: E402
from fucina.runtime.variants import VARIANTS  # noqa: E402

_HEAD = """# Environment variables

<!-- Made by tools/make_docs.py from fucina/runtime/tuning.py and variants.py; run `make docs` after a change there. -->

An empty variable counts as unset. A value that a variable does not accept is an error that names the variable, at
the moment the variable is read. `fucina info` prints this table with the values in force.

| variable | default | read at | meaning |
|---|---|---|---|
"""

_VARIANTS = """
## Kernel variants

For `FUCINA_ISA` and `FUCINA_VARIANTS`, from most basic to best.

| variant | machines | CPU features it needs |
|---|---|---|
"""


def environment_page() -> str:
    """Text of docs/environment.md."""
    knobs = "".join(_knob_row(knob) for knob in KNOBS.values())
    variants = "".join(
        f"| `{v.name}` | {', '.join(v.machines) or 'any'} | {', '.join(v.features) or 'none'} |\n" for v in VARIANTS
    )
    return _HEAD + knobs + _VARIANTS + variants


def _knob_row(knob: Knob) -> str:
    default = "" if knob.default is None else f"`{knob.default}`"
    return f"| `{knob.name}` | {default} | {knob.when} | {' '.join(filter(None, [knob.meaning, knob.provenance]))} |\n"


PAGES = {"environment.md": environment_page}


def stale() -> list[str]:
    """Names of the generated pages that differ from what the tables say now."""
    return [
        name
        for name, make in PAGES.items()
        if not (path := ROOT / "docs" / name).is_file() or path.read_text(encoding="utf-8") != make()
    ]


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: make_docs.py [--check]", file=sys.stderr)
        return 2
    names = stale()
    if arguments:
        for name in names:
            print(f"docs/{name} is out of date; run `make docs`", file=sys.stderr)
        return 1 if names else 0
    for name in names:
        (ROOT / "docs" / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
