"""Print what pip has to install to build and use the checkout: ``python tools/requirements.py [extra …]``.

The single list is pyproject.toml. Installing the requirements without the project lets ``setup.py build_ext``
rebuild only the kernels that changed.
"""

import sys
import tomllib
from pathlib import Path


def requirements(extras: list[str]) -> list[str]:
    """Build requirements, dependencies and the named extras, without repetition."""
    text = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    optional = table["project"]["optional-dependencies"]
    unknown = [extra for extra in extras if extra not in optional]
    if unknown:
        raise SystemExit(f"no such extra: {', '.join(unknown)}; there are {', '.join(optional)}")
    wanted = [*table["build-system"]["requires"], *table["project"]["dependencies"]]
    for extra in extras:
        wanted += optional[extra]
    return [item.replace(" ", "") for item in dict.fromkeys(wanted)]


if __name__ == "__main__":
    print(" ".join(requirements(sys.argv[1:])))
