"""The command line: arguments in, text or JSON out. What is computed and how is decided below this file."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys

from . import __version__, set_num_threads

__all__ = ["main"]

_OK, _BAD_INPUT, _INTERRUPTED, _READER_GONE = 0, 2, 130, 141  # the last two: 128 + the number of the signal

_PROMPT = "Explain in two sentences what a matrix is."


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status.

    0 when it worked, 2 for wrong usage or input (one line on stderr), 130 after Ctrl-C, 141 when the reader of
    the output went away.
    """
    _make_printable()
    args = _parser().parse_args(argv)
    try:
        args.verb(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit; let that go nowhere.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE
    except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        print(f"fucina: error: {_one_line(error)}", file=sys.stderr)
        return _BAD_INPUT
    return _OK


def run(args: argparse.Namespace) -> None:
    """``fucina run``: generate text from a model."""
    from . import llm, models
    from .runtime import isa

    if args.threads is not None:
        set_num_threads(args.threads)
    path = args.model or str(models.fetch())
    model = llm.load(path)
    prompt = _PROMPT if args.prompt is None else args.prompt
    if args.chat or args.system is not None:
        system = [] if args.system is None else [{"role": "system", "content": args.system}]
        prompt = [*system, {"role": "user", "content": prompt}]
    given = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed")
    options = {name: value for name in given if (value := getattr(args, name)) is not None}
    with _Progress("prompt") as progress:
        generation = model.generate(prompt, progress=progress, **options)
    pieces: list[str] = []
    try:
        for piece in generation:
            pieces.append(piece)
            if not args.json:
                print(piece, end="", flush=True)
    finally:
        # Also after Ctrl-C: end the line, say how fast it went.
        stats = generation.stats
        if args.json:
            document = {"model": path, "text": "".join(pieces), "backend": isa.backend(), "variant": isa.variant()}
            print(json.dumps(document | stats.as_dict()))
        else:
            print(flush=True)
        print(stats, file=sys.stderr)


def inspect(args: argparse.Namespace) -> None:
    """``fucina inspect``: what is in a GGUF file."""
    from .inspection import describe, format_description

    description = describe(args.model)
    print(json.dumps(description) if args.json else format_description(description))


def info(args: argparse.Namespace) -> None:
    """``fucina info``: what is running here, and why."""
    from .runtime.info import format_runtime, runtime_info

    data = runtime_info()
    print(json.dumps(data) if args.json else format_runtime(data))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fucina", description="Neural-network kernels for the CPU, on NumPy arrays and GGUF weights."
    )
    parser.add_argument("--version", action="version", version=f"fucina {__version__}")
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    p = verbs.add_parser("run", help="generate text", description="Generate text from a GGUF model.")
    p.set_defaults(verb=run)
    add = p.add_argument
    add("model", metavar="MODEL", nargs="?", help="a .gguf file; without it, a small model is downloaded once")
    add("-p", "--prompt", metavar="TEXT", help=f"text to continue or to answer (default: {_PROMPT!r})")
    add("-n", "--max-tokens", metavar="N", type=int, default=128, help="generate at most N tokens (default: 128)")
    add("-t", "--threads", metavar="N", type=int, help="number of threads (default: see fucina info)")
    add("--chat", action="store_true", help="put the prompt into the model's chat template")
    add("--system", metavar="TEXT", help="system message; implies --chat")
    add("--temp", metavar="T", type=float, dest="temperature", help="temperature; 0, the default, is greedy")
    add("--top-k", metavar="K", type=int, help="sample among the K likeliest tokens")
    add("--top-p", metavar="P", type=float, help="sample among the likeliest tokens that add up to probability P")
    add("--min-p", metavar="P", type=float, help="drop tokens less likely than P times the likeliest")
    add("--repeat-penalty", metavar="X", type=float, help="make recent tokens less likely; 1 is off")
    add("--seed", metavar="S", type=int, help="the same seed gives the same text")
    add("--json", action="store_true", help="print one JSON object at the end instead of streaming")

    text = "Show metadata and tensors of a GGUF file."
    p = verbs.add_parser("inspect", help="show what is in a GGUF file", description=text)
    p.set_defaults(verb=inspect)
    p.add_argument("model", metavar="MODEL", help="a .gguf file")
    p.add_argument("--json", action="store_true", help="print JSON")

    text = "Show versions, the kernel variant, threads, BLAS and OpenMP runtimes, and every knob."
    p = verbs.add_parser("info", help="show what is running here, and why", description=text)
    p.set_defaults(verb=info)
    p.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _make_printable() -> None:
    """Text that the terminal's encoding lacks is replaced, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


class _Progress:
    """A progress bar on stderr, for work over a second on a terminal; ``progress(done, total)`` moves it."""

    def __init__(self, title: str):
        self.title = title
        self.bar = None

    def __enter__(self):
        return self

    def __call__(self, done: int, total: int) -> None:
        if self.bar is None:
            if sys.stderr is None or not sys.stderr.isatty():
                return
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self.bar = tqdm(total=total, desc=self.title, unit="tok", delay=1, leave=False, file=sys.stderr)
        self.bar.update(done - self.bar.n)

    def __exit__(self, *error) -> None:
        if self.bar is not None:
            self.bar.close()
