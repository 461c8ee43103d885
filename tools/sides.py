"""The programs that the model gate compares: how each is called, and how its answer is read."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Row:
    """One cell of the table: a model file and a test."""

    model: Path
    n_prompt: int
    n_gen: int
    n_depth: int = 0

    @property
    def kind(self) -> str:
        return "pp" if self.n_prompt else "tg"

    @property
    def test(self) -> str:
        """``"pp256"``, ``"tg32"``, ``"tg32@d4096"``: as ``fucina bench`` names it."""
        return f"{self.kind}{self.n_prompt or self.n_gen}" + (f"@d{self.n_depth}" if self.n_depth else "")

    @property
    def group(self) -> tuple:
        """What shares a peer's settings."""
        return self.model, self.kind, self.n_depth


@dataclass(frozen=True)
class Settings:
    """How a side is run."""

    threads: int
    flash_attention: bool | None = None  # None: the program has no choice, or is left to it

    def __str__(self) -> str:
        choice = {None: "", True: ", flash attention on", False: ", flash attention off"}[self.flash_attention]
        return f"{self.threads} threads{choice}"


class Side:
    """A program in a process of its own.

    Parameters
    ----------
    name : str
    command : list of str
        The program and its first arguments.
    extra : list of str
        Arguments for every call.
    """

    ours = False

    def __init__(self, name: str, command: list[str], extra: list[str] | None = None):
        self.name, self.command, self.extra = name, command, extra or []


class Fucina(Side):
    """``fucina bench MODEL … --json``."""

    ours = True

    def call(self, row: Row, settings: Settings, repetitions: int, cache_type: str) -> list[str]:
        """The command line that measures ``row``."""
        return [
            *self.command, str(row.model), "-p", str(row.n_prompt), "-n", str(row.n_gen), "-d", str(row.n_depth),
            "-t", str(settings.threads), "-r", str(repetitions), "--cache-type", cache_type, "--json", *self.extra,
        ]  # fmt: skip

    def read(self, text: str, row: Row) -> list[float]:
        """Tokens per second of each repetition; ValueError if ``text`` does not say."""
        document = _json(text, "{")
        for result in document.get("results", ()):
            if result.get("test") == row.test:
                return _speeds(result.get("samples"))
        raise ValueError(f"no result for {row.test}")

    def version(self, text: str) -> str:
        """What the program says it is."""
        document = _json(text, "{")
        return " ".join(str(document.get(key, "?")) for key in ("fucina", "backend", "variant"))


class LlamaBench(Side):
    """``llama-bench``, and whatever takes the same arguments and prints the same JSON."""

    def call(self, row: Row, settings: Settings, repetitions: int, cache_type: str) -> list[str]:
        """The command line that measures ``row``."""
        choice = [] if settings.flash_attention is None else [int(settings.flash_attention)]
        return self._call(row, [settings.threads], choice, repetitions, cache_type)

    def trial(self, row: Row, threads: list[int], flash_attention: list[bool], cache_type: str) -> list[str]:
        """The command line that measures ``row`` with every combination of settings."""
        return self._call(row, threads, [int(choice) for choice in flash_attention], 2, cache_type)

    def _call(self, row, threads, flash_attention, repetitions, cache_type) -> list[str]:
        join = lambda values: ",".join(map(str, values))
        return [
            *self.command, "-m", str(row.model), "-p", str(row.n_prompt), "-n", str(row.n_gen),
            *(["-d", str(row.n_depth)] if row.n_depth else []), "-t", join(threads),
            *(["-fa", join(flash_attention)] if flash_attention else []), "-r", str(repetitions), "-ngl", "0",
            *(["-ctk", cache_type, "-ctv", cache_type] if cache_type != "f16" else []), "-o", "json", *self.extra,
        ]  # fmt: skip

    def read(self, text: str, row: Row) -> list[float]:
        """Tokens per second of each repetition; ValueError if ``text`` does not say."""
        for entry in self._entries(text, row):
            return _speeds(entry.get("samples_ts"))
        raise ValueError(f"no result for {row.test}")

    def best(self, text: str, row: Row) -> Settings:
        """The fastest settings of a trial."""
        entries = self._entries(text, row)
        if not entries:
            raise ValueError(f"no result for {row.test}")
        entry = max(entries, key=lambda entry: max(_speeds(entry.get("samples_ts"))))
        choice = entry.get("flash_attn")
        return Settings(int(entry["n_threads"]), None if choice in (None, -1) else bool(choice))

    def version(self, text: str) -> str:
        """What the program says it is."""
        entry = (_json(text, "[") or [{}])[0]
        return " ".join(str(entry[key]) for key in ("build_commit", "build_number", "backends") if key in entry)

    @staticmethod
    def _entries(text: str, row: Row) -> list[dict]:
        wanted = (row.n_prompt, row.n_gen, row.n_depth)
        keys = ("n_prompt", "n_gen", "n_depth")
        return [entry for entry in _json(text, "[") if tuple(entry.get(key, 0) for key in keys) == wanted]


def find_llama_cpp(path: str | None, extra: list[str] | None = None) -> LlamaBench | None:
    """llama.cpp's side: the binary named, else ``llama-bench`` on PATH, else the ``llama_cpp`` package, else None.

    Raises
    ------
    ValueError
        If a binary is named that is not there.
    """
    if path is not None:
        return LlamaBench("llama.cpp", command_of(path), extra)
    if found := shutil.which("llama-bench"):
        return LlamaBench("llama.cpp", [found], extra)
    if importlib.util.find_spec("llama_cpp") is not None:
        return LlamaBench("llama.cpp", [sys.executable, str(HERE / "llama_cpp_bench.py")], extra)
    return None


def named_peer(text: str, extra: list[str] | None = None) -> LlamaBench:
    """``NAME=PATH`` as a side; the path may have arguments behind it."""
    name, equals, command = text.partition("=")
    if not (name and equals and command) or Path(name).name != name:
        raise ValueError(f"a peer is NAME=PATH, and its name is part of file names; got {text!r}")
    return LlamaBench(name, command_of(command), extra)


def command_of(text: str) -> list[str]:
    """A program, with arguments or not, as a list; ValueError if the program cannot be found."""
    words = [text] if Path(text).is_file() else shlex.split(text)
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise ValueError(f"{text!r} is not a program that can be run")
    return [str(Path(program).absolute()), *words[1:]]


def _json(text: str, opening: str):
    """The JSON document in a program's output, which may have other lines before it."""
    start = text.find(opening)
    if start < 0:
        raise ValueError("the output holds no JSON")
    return json.JSONDecoder().raw_decode(text, start)[0]


def _speeds(values) -> list[float]:
    if not values or not all(isinstance(value, (int, float)) and value > 0 for value in values):
        raise ValueError(f"the samples are not speeds: {values!r:.80}")
    return [float(value) for value in values]
