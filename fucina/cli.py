"""The command line: arguments in, text or JSON out. What is computed and how is decided below this file."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from itertools import chain

from . import __version__, get_num_threads, set_num_threads

__all__ = ["main"]

_OK, _DIFFERENT, _BAD_INPUT, _INTERRUPTED, _READER_GONE = 0, 1, 2, 130, 141  # the last two: 128 + the number of the signal

_SAMPLING = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
_STORY, _QUESTION = "Once upon a time", "Explain in two sentences what a matrix is."  # when there is no prompt


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status.

    0 when it worked, 1 when ``verify`` found a difference, 2 for wrong usage or input (one line on stderr), 130 after
    Ctrl-C, 141 when the reader of the output went away.
    """
    _make_printable()
    args = _parser().parse_args(argv)
    try:
        status = args.verb(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return _READER_GONE
    except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        with contextlib.suppress(OSError):
            print(f"fucina: error: {_one_line(error)}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:  # a full disk, for one
            _drop_output()
        return _BAD_INPUT


def run(args: argparse.Namespace) -> int:
    """``fucina run``: generate text from a model."""
    if args.threads is not None:
        set_num_threads(args.threads)
    from . import llm, models
    from .runtime import isa

    path = str(models.fetch()) if args.model is None else args.model
    model = llm.load(path)
    chat = args.chat or args.system is not None
    text = args.prompt if args.prompt is not None else _QUESTION if chat else _STORY
    options = {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}
    if chat:
        messages = [] if args.system is None else [{"role": "system", "content": args.system}]
        generation = model.chat([*messages, {"role": "user", "content": text}], **options)
    else:
        generation = model.generate(text, **options)

    pieces: list[str] = []
    interrupted = False
    try:
        with _PromptBar(generation):
            first = next(generation, "")
        for piece in chain([first], generation):
            pieces.append(piece)
            if not args.json:
                print(piece, end="", flush=True)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if not args.json:
            print(flush=True)
    stats = generation.stats
    setting = {"backend": isa.backend(), "variant": isa.variant(), "threads": get_num_threads()}
    if args.json:
        document = {"model": path, "prompt": text, "text": "".join(pieces), "tokens": generation.tokens}
        document["finish_reason"] = "interrupted" if interrupted else generation.finish_reason
        speed = {name: getattr(stats, name) for name in ("prompt_tokens_per_second", "tokens_per_second")}
        print(json.dumps(document | {"load_seconds": model.load_seconds} | asdict(stats) | speed | setting))
    first_token = stats.first_token_seconds
    print(
        f"loading: {model.load_seconds:.2f} s; "
        f"prompt: {stats.prompt_tokens} tokens, {stats.prompt_tokens_per_second:.1f} tokens/s; "
        + ("" if first_token is None else f"first token: {first_token:.2f} s; ")
        + f"generation: {stats.generated_tokens} tokens, {stats.tokens_per_second:.1f} tokens/s "
        f"({', '.join(f'{name} {value}' for name, value in setting.items())})",
        file=sys.stderr,
    )
    return _INTERRUPTED if interrupted else _OK


def bench(args: argparse.Namespace) -> int:
    """``fucina bench``: how fast a model is here."""
    if args.threads is not None:
        set_num_threads(args.threads)
    from . import llm
    from .llm.bench import report

    model = llm.load(args.model, cache_type=args.cache_type, pack=args.pack)
    show = None if args.json else lambda line: print(line, flush=True)
    document = report(model, args.prompts, args.generations, args.depths, args.repetitions, show)
    if args.json:
        print(json.dumps(document))
    return _OK


def quantize(args: argparse.Namespace) -> int:
    """``fucina quantize``: a file with the same model in fewer bits."""
    if args.threads is not None:
        set_num_threads(args.threads)
    from . import quantizer
    from .inspection import size

    started = time.perf_counter()
    with _ended_by_sigterm(), _TensorBar() as bar:
        changes = quantizer.quantize_file(
            args.source, args.target, args.type, pure=args.pure, imatrix=args.imatrix,
            token_embedding_type=args.token_embedding_type, output_tensor_type=args.output_tensor_type,
            leave_output_tensor=args.leave_output_tensor, allow_requantize=args.allow_requantize, progress=bar.show,
        )
    seconds = time.perf_counter() - started
    changed = sum(change.before != change.after for change in changes)
    nbytes = sum(change.nbytes for change in changes)
    if args.json:
        tensors = [asdict(change) | {"nbytes": change.nbytes} for change in changes]
        document = {"source": args.source, "target": args.target, "type": args.type, "seconds": round(seconds, 3)}
        print(json.dumps(document | {"changed": changed, "tensor_bytes": nbytes, "tensors": tensors}))
    else:
        print(f"{args.target}: {changed} of {len(changes)} tensors changed, {size(nbytes)} in {seconds:.1f} s")
    return _OK


def verify(args: argparse.Namespace) -> int:
    """``fucina verify``: whether the kernels give the bits of their specification here."""
    from . import verification

    report = verification.verify(args.threads, lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(report) if args.json else verification.format_verification(report))
    return _DIFFERENT if report["differences"] else _OK


def inspect(args: argparse.Namespace) -> int:
    """``fucina inspect``: what is in a GGUF file."""
    from .inspection import describe, format_description

    description = describe(args.model)
    print(json.dumps(description) if args.json else format_description(description))
    return _OK


def info(args: argparse.Namespace) -> int:
    """``fucina info``: what is running here, and why."""
    from .runtime.info import format_runtime, runtime_info

    data = runtime_info()
    print(json.dumps(data) if args.json else format_runtime(data))
    return _OK


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
    add("-p", "--prompt", metavar="TEXT", help="text to continue or, with --chat, to answer (default: an example)")
    add("-n", "--max-tokens", metavar="N", type=int, default=128, help="generate at most N tokens (default: 128)")
    add("-t", "--threads", metavar="N", type=int, help="number of threads (default: see fucina info)")
    add("--chat", action="store_true", help="put the prompt into the model's chat template")
    add("--system", metavar="TEXT", help="system message; implies --chat")
    add("--temp", metavar="T", type=float, dest="temperature", help="temperature; 0, the default, is greedy")
    add("--top-k", metavar="K", type=int, help="sample among the K likeliest tokens")
    add("--top-p", metavar="P", type=float, help="sample among the likeliest tokens that add up to probability P")
    add("--min-p", metavar="P", type=float, help="drop tokens less likely than P times the likeliest")
    add("--repeat-penalty", metavar="X", type=float, dest="repetition_penalty",
        help="make recent tokens less likely; 1 is off")
    add("--seed", metavar="S", type=int, help="the same seed gives the same text")
    add("--json", action="store_true", help="print one JSON object at the end instead of streaming")

    text = "Measure prompt evaluation (pp) and generation (tg) in tokens per second, as llama-bench defines them."
    p = verbs.add_parser("bench", help="measure the speed of a model", description=text)
    p.set_defaults(verb=bench)
    add = p.add_argument
    add("model", metavar="MODEL", help="a .gguf file")
    add("-p", "--prompts", metavar="P,…", type=_counts, default=[512],
        help="pp tests: evaluate a prompt of P tokens; 0 for none (default: 512)")
    add("-n", "--generations", metavar="N,…", type=_counts, default=[128],
        help="tg tests: evaluate N tokens one by one; 0 for none (default: 128)")
    add("-d", "--depths", metavar="D,…", type=lambda text: _counts(text, zero=True), default=[0],
        help="run every test behind D tokens (default: 0)")
    add("-t", "--threads", metavar="N", type=int, help="number of threads (default: see fucina info)")
    add("-r", "--repetitions", metavar="R", type=int, default=5, help="timed repetitions per test (default: 5)")
    add("--cache-type", metavar="TYPE", default="f16", help="f16, f32 or q8_0 keys and values (default: f16)")
    add("--no-pack", action="store_false", dest="pack", help="use the weights where the file is mapped, copy nothing")
    add("--json", action="store_true", help="print one JSON object at the end instead of a table")

    text = "Re-encode the weights of a GGUF file, with llama-quantize's choice of formats and ggml's bytes."
    p = verbs.add_parser("quantize", help="make a GGUF file smaller", description=text)
    p.set_defaults(verb=quantize)
    add = p.add_argument
    add("source", metavar="IN", help="a .gguf file; of a split model the first part")
    add("target", metavar="OUT", help="the file to write; it appears when it is whole, or not at all")
    add("type", metavar="TYPE", help="what to make: q4_k_m, q8_0, f16 and so on; an unknown one lists them all")
    add("--pure", action="store_true", help="one format for all tensors instead of the mix that llama-quantize makes")
    add("--imatrix", metavar="FILE", help="importance matrix, as llama-imatrix writes it")
    add("--token-embedding-type", metavar="T", help="format of the token embeddings")
    add("--output-tensor-type", metavar="T", help="format of output.weight")
    add("--leave-output-tensor", action="store_true", help="keep output.weight as it is")
    add("--allow-requantize", action="store_true", help="accept tensors that are quantized already; they lose twice")
    add("-t", "--threads", metavar="N", type=int, help="number of threads (default: see fucina info)")
    add("--json", action="store_true", help="print one JSON object at the end")

    text = "Run all kernels and their specification here, and compare the bits: status 0 if they are the same, else 1."
    p = verbs.add_parser("verify", help="prove the kernels correct on this machine", description=text)
    p.set_defaults(verb=verify)
    p.add_argument("-t", "--threads", metavar="N,…", type=lambda text: _counts(text, zero=True), default=[1, 2, 3],
                   help="numbers of threads that the kernels run with (default: 1,2,3)")
    p.add_argument("--json", action="store_true", help="print JSON")

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


def _counts(text: str, zero: bool = False) -> list[int]:
    """"256,512" -> [256, 512]; zeros mean nothing unless they are a count like any other."""
    try:
        counts = [int(item) for item in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers such as 256,512, got {text!r}") from None
    return counts if zero else [count for count in counts if count]


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _make_printable() -> None:
    """Text that the terminal's encoding lacks is replaced, not an error; where a stream is closed, it goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Python flushes stdout once more at exit; let that go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _ended_by_sigterm():
    """SIGTERM ends the block as an exception does, so that what is half done is cleaned up; status 143."""

    def stop(number, frame):
        signal.signal(number, signal.SIG_IGN)  # once is enough: cleaning up is not to be interrupted
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # only the main thread may
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


class _PromptBar:
    """While a prompt is evaluated for over a second, a progress bar on stderr if that is a terminal."""

    def __init__(self, generation):
        self.generation = generation
        self.done = threading.Event()
        self.watcher = None

    def __enter__(self):
        if sys.stderr is not None and sys.stderr.isatty():
            self.watcher = threading.Thread(target=self._watch, daemon=True)
            self.watcher.start()

    def __exit__(self, *error) -> None:
        self.done.set()
        if self.watcher is not None:
            self.watcher.join()

    def _watch(self) -> None:
        if self.done.wait(1.0):
            return
        try:
            from tqdm import tqdm
        except ImportError:
            return
        total, cache = self.generation.stats.prompt_tokens, self.generation.cache
        with tqdm(total=total, desc="prompt", unit=" tokens", leave=False, file=sys.stderr) as bar:
            while not self.done.wait(0.1):
                bar.update(cache.length - bar.n)


class _TensorBar:
    """How many tensors are done, on stderr if that is a terminal; nothing where tqdm is not installed."""

    def __init__(self):
        self.bar = None

    def __enter__(self) -> _TensorBar:
        return self

    def __exit__(self, *error) -> None:
        if self.bar is not None:
            self.bar.close()

    def show(self, change, number: int, count: int) -> None:
        """Called before each tensor."""
        if number == 0 and sys.stderr is not None and sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                from tqdm import tqdm

                self.bar = tqdm(total=count, unit=" tensors", leave=False, file=sys.stderr)
        if self.bar is not None:
            self.bar.set_description(f"{change.name} {change.before} to {change.after}", refresh=False)
            self.bar.update(number - self.bar.n)
