"""Write a GGUF model with random weights: any architecture that fucina runs, any shape, any format it can encode.

    python tools/make_model.py out.gguf --like qwen3-0.6b --layers 14 --type q4_k --embedding-type q6_k

The speed of a model does not depend on what its weights say, so such a file stands in for a real one in benchmarks;
llama.cpp reads it too. It has no vocabulary (tokenizer.ggml.model is "none"): feed it token ids.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fucina import ops  # noqa: E402
from fucina.formats import BY_ID, FORMATS, QTensor, lookup  # noqa: E402
from fucina.llm.arch import ARCHITECTURES, LAYER_TENSORS, MODEL_TENSORS  # noqa: E402

ABORTED = 2


@dataclass(frozen=True)
class Shape:
    """Hyperparameters, named as in the ``Config`` of fucina.llm."""

    arch: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_ctx: int
    rope_base: float
    tied: bool
    window: int = 0

    @property
    def n_q(self) -> int:
        return self.n_head * self.head_dim

    @property
    def n_kv(self) -> int:
        return self.n_head_kv * self.head_dim

    @property
    def rope_pairs(self) -> int:
        return self.head_dim // 2


SHAPES = {
    "tiny": Shape("qwen3", 2, 256, 256, 4, 2, 64, 256, 2048, 1e6, True),
    "smollm2-135m": Shape("llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, 1e5, True),
    "gemma3-270m": Shape("gemma3", 18, 640, 2048, 4, 1, 256, 262144, 32768, 1e6, True, 512),
    "qwen2-0.5b": Shape("qwen2", 24, 896, 4864, 14, 2, 64, 151936, 32768, 1e6, True),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6, True),
    "llama3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5, True),
}


def write_model(path, shape: Shape, format: str, embedding=None, output=None, seed: int = 0) -> None:
    """Write a model file.

    Parameters
    ----------
    path : str or os.PathLike
    shape : Shape
    format : str
        Of all matrices but the two below.
    embedding, output : str, optional
        Formats of the embedding and the output matrix, ``format`` by default. A tied model has no output matrix of
        its own.
    seed : int
        The same seed gives the same file.

    Raises
    ------
    ValueError
        If a format is unknown or cannot be encoded here, a row is not a whole number of its blocks, or the shape is
        impossible. Nothing is left behind.
    """
    if output is not None and shape.tied:
        raise ValueError("a tied model has no output matrix: its format is that of the embedding")
    special = {"embedding": embedding or format, "output": output or format}
    tensors = [
        (name, role, dims, special.get(role, format) if len(dims) == 2 else "f32")
        for name, role, dims in _tensors(shape)
    ]
    for name, _, dims, kind in tensors:
        _check(name, dims, kind)

    import gguf

    target = Path(path)
    part = target.with_name(target.name + ".part")
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(part, shape.arch)
    try:
        _write_metadata(writer, shape)
        for name, _, dims, kind in tensors:
            spec = FORMATS[kind]
            # The number of the type, not the package's name for it, which may be younger than the package.
            writer.add_tensor_info(name, dims, np.dtype(np.float32), spec.tensor_bytes(dims), spec.ggml_id)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, role, dims, kind in tensors:
            writer.write_tensor_data(_encode(name, _values(rng, role, dims), kind))
        writer.close()
        part.replace(target)
    finally:
        writer.close()
        part.unlink(missing_ok=True)


def _tensors(shape: Shape):
    """(name, attribute, dims) of every tensor, in the order of the file."""
    arch = ARCHITECTURES[shape.arch]
    wanted = lambda needed: needed is True or bool(needed and getattr(arch, needed))
    groups = [("", MODEL_TENSORS)] + [(f"blk.{i}.", LAYER_TENSORS) for i in range(shape.n_layer)]
    for prefix, rows in groups:
        for suffix, attribute, axes, needed, *_ in rows:
            if wanted(needed) or attribute == "output" and not shape.tied:
                yield prefix + suffix, attribute, tuple(getattr(shape, axis) for axis in axes)


def _values(rng, role: str, dims: tuple[int, ...]) -> np.ndarray:
    """Weights that keep activations near 1: matrices scaled by their width, norms around 1, small biases."""
    x = rng.standard_normal(dims, np.float32)
    if role.endswith("_bias"):
        return 0.1 * x
    return x / np.float32(dims[-1]) ** 0.5 if len(dims) == 2 else 1 + 0.1 * x


def _check(name: str, dims, kind: str) -> None:
    spec = lookup(kind)
    plain = kind in ("f32", "f16", "bf16")
    if not (spec.is_block or plain) or spec.tensor_scale or BY_ID[spec.ggml_id] is not spec:
        raise ValueError(f"{name} cannot be of type {kind}")
    if dims[-1] % spec.block:
        raise ValueError(f"{name} has rows of {dims[-1]}, which {kind} cannot hold: its blocks are of {spec.block}")


def _encode(name: str, x: np.ndarray, kind: str) -> np.ndarray:
    """The bytes of a tensor, a row per row. Formats that need importances get equal ones."""
    needed = np.ones(x.shape[-1], np.float32) if lookup(kind).imatrix == "required" else None
    try:
        q = ops.quantize(x, kind, imatrix=needed)
    except ValueError as error:
        raise ValueError(f"{name} cannot be written as {kind}: {error}") from None
    return q.data if isinstance(q, QTensor) else q.view(np.uint8)


def _write_metadata(writer, shape: Shape) -> None:
    arch = shape.arch
    writer.add_name(f"random {arch}, {shape.n_layer} layers of width {shape.n_embd}")
    for key, value in (
        ("block_count", shape.n_layer), ("context_length", shape.n_ctx), ("embedding_length", shape.n_embd),
        ("feed_forward_length", shape.n_ff), ("attention.head_count", shape.n_head),
        ("attention.head_count_kv", shape.n_head_kv), ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim), ("rope.dimension_count", shape.head_dim),
        ("vocab_size", shape.n_vocab),
    ):  # fmt: skip
        writer.add_uint32(f"{arch}.{key}", value)
    if ARCHITECTURES[arch].window_pattern:
        writer.add_uint32(f"{arch}.attention.sliding_window", shape.window or shape.n_ctx)
    writer.add_float32(f"{arch}.rope.freq_base", shape.rope_base)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_string("tokenizer.ggml.model", "none")


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    given = {name: getattr(args, name) for name in _NUMBERS if getattr(args, name) is not None}
    given |= {"arch": args.arch} if args.arch else {}
    given |= {"tied": args.tied} if args.tied is not None else {}
    shape = replace(SHAPES[args.like], **given)
    try:
        if bad := [option for name, option in _NUMBERS.items() if getattr(shape, name) < (name != "window")]:
            raise ValueError(f"{', '.join(bad)} must be at least 1")
        if shape.n_head % shape.n_head_kv or shape.head_dim % 2:
            raise ValueError("n_head must be a multiple of n_head_kv, and head_dim even")
        write_model(args.path, shape, args.type, args.embedding_type, args.output_type, args.seed)
    except (ValueError, OSError, ImportError) as error:
        print(f"make_model: error: {error}", file=sys.stderr)
        return ABORTED
    print(f"{args.path}: {Path(args.path).stat().st_size / 1e6:.1f} MB")
    return 0


_NUMBERS = {
    "n_layer": "--layers", "n_embd": "--embd", "n_ff": "--ff", "n_head": "--heads", "n_head_kv": "--kv-heads",
    "head_dim": "--head-dim", "n_vocab": "--vocab", "n_ctx": "--ctx", "window": "--window",
}  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("path", help="the file to write")
    add("--like", choices=SHAPES, default="tiny", help="the shape to start from (default: tiny)")
    add("--arch", choices=ARCHITECTURES, help="another architecture with that shape")
    for name, option in _NUMBERS.items():
        add(option, dest=name, type=int, metavar="N")
    add("--tied", action=argparse.BooleanOptionalAction, default=None, help="the embedding is also the output")
    add("--type", type=str.lower, default="f16", help="format of the matrices (default: f16)")
    add("--embedding-type", type=str.lower, help="format of the embedding (default: --type)")
    add("--output-type", type=str.lower, help="format of the output matrix (default: --type)")
    add("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
