"""Model architectures as data, and the hyperparameters and weights of a file, checked against them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fucina.formats import BY_ID


@dataclass(frozen=True)
class Architecture:
    """What sets one decoder-only transformer apart from the others.

    All of them are: embedding; per layer ``x += o(attention(rope(q), rope(k), v))`` of the RMS-normalized x, then
    ``x += down(up * act(gate))`` of the RMS-normalized x; RMS norm; output matrix.

    Attributes
    ----------
    name : str
        ``general.architecture``.
    rope_mode : str
        ``"half"`` or ``"interleaved"``: which features of a head are rotated together.
    qk_norm : bool
        RMS norm of every head of q and k before the rotation.
    qkv_bias : bool
        q, k and v have biases (elsewhere they are optional).
    post_norms : bool
        RMS norm of what attention and feed-forward return, before it is added to x.
    activation : str
        ``"silu"``, or ``"gelu_quant"``: GELU through ggml's table of halves.
    scale_embedding : bool
        Embeddings are multiplied by sqrt(n_embd).
    window_pattern : int
        With a sliding window, every so many-th layer sees everything and the others the window; 0: no window.
    rope_factors : bool
        The file may hold divisors of the rope frequencies.
    depth_of_old_scale : int
        Depth of the model whose attention scale is 1/sqrt(n_embd/n_head) instead of 1/sqrt(head_dim).
    """

    name: str
    rope_mode: str
    qk_norm: bool = False
    qkv_bias: bool = False
    post_norms: bool = False
    activation: str = "silu"
    scale_embedding: bool = False
    window_pattern: int = 0
    rope_factors: bool = False
    depth_of_old_scale: int = 0


ARCHITECTURES: dict[str, Architecture] = {
    row.name: row
    for row in (
        Architecture("llama", "interleaved", rope_factors=True),
        Architecture("qwen2", "half", qkv_bias=True),
        Architecture("qwen3", "half", qk_norm=True),
        Architecture(
            "gemma3", "half", qk_norm=True, post_norms=True, activation="gelu_quant", scale_embedding=True,
            window_pattern=6, depth_of_old_scale=62,
        ),
    )
}  # fmt: skip

# Tensors: name in the file, attribute, shape in terms of Config, and whether the file must and may have it: always
# (True), never (False), or where the architecture says so. One axis makes a vector, kept as float32; two a matrix.
MODEL_TENSORS = (
    ("token_embd.weight", "embedding", ("n_vocab", "n_embd"), True, True),
    ("output_norm.weight", "output_norm", ("n_embd",), True, True),
    ("output.weight", "output", ("n_vocab", "n_embd"), False, True),
    ("rope_freqs.weight", "rope_factors", ("rope_pairs",), False, "rope_factors"),
)
LAYER_TENSORS = (
    ("attn_norm.weight", "attn_norm", ("n_embd",), True, True),
    ("attn_q.weight", "q", ("n_q", "n_embd"), True, True),
    ("attn_k.weight", "k", ("n_kv", "n_embd"), True, True),
    ("attn_v.weight", "v", ("n_kv", "n_embd"), True, True),
    ("attn_output.weight", "o", ("n_embd", "n_q"), True, True),
    ("attn_q.bias", "q_bias", ("n_q",), "qkv_bias", True),
    ("attn_k.bias", "k_bias", ("n_kv",), "qkv_bias", True),
    ("attn_v.bias", "v_bias", ("n_kv",), "qkv_bias", True),
    ("attn_output.bias", "o_bias", ("n_embd",), False, True),
    ("attn_q_norm.weight", "q_norm", ("head_dim",), "qk_norm", "qk_norm"),
    ("attn_k_norm.weight", "k_norm", ("head_dim",), "qk_norm", "qk_norm"),
    ("post_attention_norm.weight", "post_attn_norm", ("n_embd",), "post_norms", "post_norms"),
    ("ffn_norm.weight", "ffn_norm", ("n_embd",), True, True),
    ("ffn_gate.weight", "gate", ("n_ff", "n_embd"), True, True),
    ("ffn_up.weight", "up", ("n_ff", "n_embd"), True, True),
    ("ffn_down.weight", "down", ("n_embd", "n_ff"), True, True),
    ("ffn_gate.bias", "gate_bias", ("n_ff",), False, True),
    ("ffn_up.bias", "up_bias", ("n_ff",), False, True),
    ("ffn_down.bias", "down_bias", ("n_embd",), False, True),
    ("post_ffw_norm.weight", "post_ffn_norm", ("n_embd",), "post_norms", "post_norms"),
)


@dataclass(frozen=True)
class Config:
    """Hyperparameters of one model, checked. The lists have one entry per layer."""

    arch: Architecture
    n_vocab: int
    n_ctx: int
    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    rope_dims: int
    eps: float
    embedding_scale: float
    attention_scale: float
    windows: tuple[int, ...]
    rope_bases: tuple[float, ...]
    rope_scales: tuple[float, ...]

    @property
    def n_q(self) -> int:
        """Features of all query heads."""
        return self.n_head * self.head_dim

    @property
    def n_kv(self) -> int:
        """Features of all key (or value) heads."""
        return self.n_head_kv * self.head_dim

    @property
    def rope_pairs(self) -> int:
        """Pairs of features that are rotated."""
        return self.rope_dims // 2


class _Reader:
    """Typed access to the ``<architecture>.*`` keys."""

    def __init__(self, metadata, prefix: str):
        self._metadata, self._prefix = metadata, prefix

    def get(self, key: str, default=None):
        return self._metadata.get(f"{self._prefix}.{key}", default)

    def error(self, key: str, wanted: str) -> ValueError:
        value = self.get(key)
        found = "nothing" if value is None else f"{value!r:.60}"
        return ValueError(f"{self._prefix}.{key} must be {wanted}, the file has {found}")

    def given(self, key: str, default=None) -> bool:
        """True when the entry, or the default, is something other than false, zero and nothing."""
        value = self.get(key, default)
        if value is not None and not isinstance(value, (bool, int, float, str)):
            raise self.error(key, "one value")
        return bool(value)

    def count(self, key: str, default: int | None = None, low: int = 1, high: int = 2**31 - 1) -> int:
        value = self.get(key, default)
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
            raise self.error(key, "one integer")
        if not low <= value <= high:
            raise self.error(key, f"between {low} and {high}")
        return int(value)

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise self.error(key, "one number")
        if not 0 < value < math.inf:
            raise self.error(key, "positive and finite")
        return float(value)


def architecture_of(metadata) -> Architecture:
    """The row of ``ARCHITECTURES`` for a file's metadata; ValueError that names it if there is none."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ValueError(f"unsupported architecture {name!r}; supported: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def read_config(file) -> Config:
    """Hyperparameters of an open GGUF file.

    Parameters
    ----------
    file : GGUFFile
        From ``fucina.open_gguf``.

    Raises
    ------
    ValueError
        If the architecture or one of its options is not supported, or a value is missing or impossible.
    """
    arch = architecture_of(file.metadata)
    read = _Reader(file.metadata, arch.name)
    if read.count("expert_count", 0, low=0):
        raise ValueError(f"mixture-of-experts models are not supported ({arch.name}.expert_count = "
                         f"{read.get('expert_count')})")  # fmt: skip
    if not read.given("attention.causal", True):
        raise ValueError(f"only causal attention is supported ({arch.name}.attention.causal is false)")
    if read.given("final_logit_softcapping"):
        raise ValueError(f"soft-capped logits are not supported ({arch.name}.final_logit_softcapping)")

    n_layer = read.count("block_count")
    if n_layer > len(file.tensors):
        raise ValueError(f"{arch.name}.block_count is {n_layer}, but the file has only {len(file.tensors)} tensors")
    n_embd = read.count("embedding_length")
    n_head = read.count("attention.head_count")
    n_head_kv = read.count("attention.head_count_kv", n_head)
    if n_head % n_head_kv:
        raise read.error("attention.head_count_kv", f"a divisor of the {n_head} heads")
    head_dim = read.count("attention.key_length", max(1, n_embd // n_head))
    if read.count("attention.value_length", head_dim) != head_dim:
        raise read.error("attention.value_length", f"the key length, {head_dim}")
    rope_dims = read.count("rope.dimension_count", head_dim, low=2, high=head_dim)
    if rope_dims % 2:
        raise read.error("rope.dimension_count", "even")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ValueError("the file has no tensor token_embd.weight")

    local = _local_layers(arch, read, n_layer)
    window = read.count("attention.sliding_window") if any(local) else 0
    base, scale = read.real("rope.freq_base", 1e4), _rope_scale(read)
    local_base = read.real("rope.freq_base_swa", 1e4)
    old_scale = arch.depth_of_old_scale == n_layer
    return Config(
        arch=arch,
        n_vocab=embedding.shape[0],
        n_ctx=read.count("context_length"),
        n_embd=n_embd,
        n_layer=n_layer,
        n_ff=read.count("feed_forward_length"),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        rope_dims=rope_dims,
        eps=read.real("attention.layer_norm_rms_epsilon"),
        embedding_scale=math.sqrt(n_embd) if arch.scale_embedding else 1.0,
        attention_scale=1.0 / math.sqrt(n_embd // n_head if old_scale else head_dim),
        windows=tuple(window if is_local else 0 for is_local in local),
        rope_bases=tuple(local_base if is_local else base for is_local in local),
        rope_scales=tuple(1.0 if is_local else scale for is_local in local),
    )


def _local_layers(arch: Architecture, read: _Reader, n_layer: int) -> list[bool]:
    """Which layers see a sliding window only."""
    if not arch.window_pattern or not read.given("attention.sliding_window"):
        return [False] * n_layer
    key = "attention.sliding_window_pattern"
    pattern = read.get(key, arch.window_pattern)
    if isinstance(pattern, np.ndarray):
        if pattern.shape != (n_layer,):
            raise read.error(key, f"one number, or one per layer ({n_layer})")
        return [bool(is_local) for is_local in pattern]
    every = read.count(key, arch.window_pattern)
    return [(i + 1) % every != 0 for i in range(n_layer)]


def _rope_scale(read: _Reader) -> float:
    """Factor of the rope frequencies: 1/factor for linear scaling."""
    kind = read.get("rope.scaling.type", "linear")
    if not isinstance(kind, str):
        raise read.error("rope.scaling.type", "a string")
    if kind not in ("none", "linear"):
        raise ValueError(f"unsupported rope scaling {kind!r}; supported: none, linear")
    key = "rope.scaling.factor" if read.get("rope.scaling.factor") is not None else "rope.scale_linear"
    if kind == "none" or not read.given(key):
        return 1.0
    return 1.0 / read.real(key)


def read_tensors(file, config: Config) -> tuple[dict, list[dict]]:
    """The weights of an open GGUF file by attribute: of the model, and of each layer.

    Matrices stay as they are stored, views into the file; vectors become float32; absent optional ones are None.

    Raises
    ------
    ValueError
        If a tensor is missing, has another shape than the hyperparameters say or an unsupported type, or if the
        file holds a tensor that this architecture does not use (its logits would be wrong without it).
    """
    left = set(file.tensors)
    model = _read_rows(file, config, MODEL_TENSORS, "", left)
    layers = [_read_rows(file, config, LAYER_TENSORS, f"blk.{i}.", left) for i in range(config.n_layer)]
    if left:
        raise ValueError(f"tensor {min(left)} is not part of the {config.arch.name} architecture with "
                         f"{config.n_layer} layers")  # fmt: skip
    return model, layers


def _read_rows(file, config: Config, rows, prefix: str, left: set[str]) -> dict:
    out = {}
    for suffix, attribute, axes, must, may in rows:
        name = prefix + suffix
        info = file.tensors.get(name)
        if info is None or not _holds(config.arch, may):
            if _holds(config.arch, must):
                raise ValueError(f"the file has no tensor {name}")
            out[attribute] = None
            continue
        left.discard(name)
        shape = tuple(getattr(config, axis) for axis in axes)
        if tuple(info.shape) != shape:
            raise ValueError(f"tensor {name} must have shape {shape}, the file has {tuple(info.shape)}")
        spec = BY_ID.get(info.ggml_id)
        usable = spec is not None and (spec.numpy in ("float32", "float16", "bfloat16") or spec.code >= 0)
        if not usable or len(axes) == 1 and spec.is_block:
            raise ValueError(f"tensor {name} has the unsupported type {info.type_name}")
        tensor = file[name]
        out[attribute] = tensor if len(axes) == 2 else np.ascontiguousarray(tensor, np.float32)
    return out


def _holds(arch: Architecture, condition: bool | str) -> bool:
    return getattr(arch, condition) if isinstance(condition, str) else condition
