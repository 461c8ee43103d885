"""Which format each tensor of a model gets: the mixes of llama.cpp as rules.

A mix has a name (``q4_k_m``), the number that a file records as ``general.file_type``, and a format that holds unless a
rule says otherwise: sensitive tensors (output, values, the last projection of a feed-forward layer, the first and last
layers) get more bits. Source of the rules: llama-quant.cpp of llama.cpp (as of ggml 0.25; MIT).
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

from fucina.formats import FORMATS

__all__ = ["ALIASES", "MIXES", "Chooser", "Facts", "lookup_mix"]

# name -> (general.file_type, format)
MIXES: dict[str, tuple[int, str]] = {
    "f32": (0, "f32"), "f16": (1, "f16"), "bf16": (32, "bf16"),
    "q4_0": (2, "q4_0"), "q4_1": (3, "q4_1"), "q5_0": (8, "q5_0"), "q5_1": (9, "q5_1"), "q8_0": (7, "q8_0"),
    "q2_k": (10, "q2_k"), "q2_k_s": (21, "q2_k"), "q3_k_s": (11, "q3_k"), "q3_k_m": (12, "q3_k"),
    "q3_k_l": (13, "q3_k"), "q4_k_s": (14, "q4_k"), "q4_k_m": (15, "q4_k"), "q5_k_s": (16, "q5_k"),
    "q5_k_m": (17, "q5_k"), "q6_k": (18, "q6_k"),
    "iq1_s": (24, "iq1_s"), "iq1_m": (31, "iq1_m"), "iq2_xxs": (19, "iq2_xxs"), "iq2_xs": (20, "iq2_xs"),
    "iq2_s": (28, "iq2_xs"), "iq2_m": (29, "iq2_s"), "iq3_xxs": (23, "iq3_xxs"), "iq3_xs": (22, "iq3_s"),
    "iq3_s": (26, "iq3_s"), "iq3_m": (27, "iq3_s"), "iq4_nl": (25, "iq4_nl"), "iq4_xs": (30, "iq4_xs"),
    "tq1_0": (36, "tq1_0"), "tq2_0": (37, "tq2_0"), "mxfp4_moe": (38, "mxfp4"), "q1_0": (40, "q1_0"),
    "q2_0": (41, "q2_0"),
}
ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}

# Where the rows of a tensor are not a whole number of blocks.
_FALLBACK = {
    **dict.fromkeys(["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"], "iq4_nl"),
    **dict.fromkeys(["q2_0", "q2_k", "q3_k", "tq1_0", "tq2_0"], "q4_0"),
    "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
}

_NEVER_WHOLE = {"output.weight": False, "position_embd.weight": True, "token_types.weight": True}
# Tensors that stay as they are: norms, gates, position tables, convolutions and other small or delicate ones.
_NEVER = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel|per_layer_model_proj|ssm_conv1d"
    r"|shortconv\.conv\.weight|indexer\.[kq]_proj\.weight|time_mix_(first|w[012]|v[012]|a[012]|g[12]|decay_w[12]|lerp_fused)"
    r"\.weight|attn_rel_b\.weight|\.position_embd|sam\.pos_embd|sam\.neck\.|sam\.net_|\.rel_pos|\.patch_embd"
    r"|\.patch_merger|a\.rvq\.codebook|mm\.a\.code_embd"
)
_NEVER_GLM5 = re.compile(
    r"hc_|indexer\.(attn_q_b|attn_k|proj)|indexer_compressor_(gate|ape)|ssm_(f_a|f_b|g_a|g_b|beta)\.weight"
    r"|attn_(kv_a_mqa|k_b|v_b)\.weight"
)
_LEAST_Q8_GLM5 = re.compile(r"attn_q_[ab]|nextn\.eh_proj")

_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
_ROLES = [
    ("attn_qkv.weight", "value"), ("attn_kv_b.weight", "value"), ("attn_v.weight", "value"), ("attn_k.weight", "key"),
    ("attn_q.weight", "query"), ("attn_output.weight", "attention output"), ("ffn_up", "up"), ("ffn_gate", "gate"),
    ("ffn_down", "down"),
]


def lookup_mix(name: str) -> str:
    """The name of a mix, aliases resolved; ValueError that lists the known ones."""
    key = str(name).lower()
    key = ALIASES.get(key, key)
    if key not in MIXES:
        raise ValueError(f"unknown type {name!r}; known: {', '.join([*MIXES, *ALIASES])}")
    return key


def role(name: str) -> str:
    """What a tensor does, as far as the rules care."""
    if name == "output.weight":
        return "output"
    if name in _EMBEDDINGS:
        return "embedding"
    return next((kind for part, kind in _ROLES if part in name), "other")


@dataclass(frozen=True)
class Facts:
    """What the rules need to know about a model.

    Attributes
    ----------
    arch : str
        ``general.architecture``.
    layers : int
        Number of layers.
    sharing : int
        How many query heads share a key head (of the first layer); 0 without attention.
    experts : int
        Number of experts, 0 for dense models.
    seventy : bool
        True for the 70-billion-parameter models of llama's kind, whose values are shared by eight heads.
    """

    arch: str
    layers: int
    sharing: int
    experts: int
    seventy: bool

    @classmethod
    def of(cls, metadata) -> Facts:
        """Read from the metadata of a GGUF file; ValueError that names the entry which makes no sense."""
        arch = metadata.get("general.architecture", "")
        if not isinstance(arch, str):
            raise ValueError(f"general.architecture must be a string, the file has {arch!r:.60}")

        def number(key: str, default: int = 0) -> int:
            value = metadata.get(f"{arch}.{key}", default)
            try:
                # Where layers differ there is one number for each; the first speaks for all.
                count = operator.index(value[0] if hasattr(value, "__len__") else value)
            except (TypeError, IndexError):
                count = -1
            if count < 0 or isinstance(value, bool):
                raise ValueError(f"{arch}.{key} must be a whole number or an array of them, the file has {value!r:.60}")
            return count

        layers, heads = number("block_count"), number("attention.head_count")
        kv_heads = number("attention.head_count_kv", heads)
        seventy = {"llama": layers == 80 and heads != kv_heads, "jais2": layers == 68}.get(
            arch, arch in ("deci", "olmo", "qwen2") and layers == 80
        )
        return cls(arch, layers, heads // kv_heads if kv_heads else 0, number("expert_count"), seventy)


class Chooser:
    """Chooses formats for the tensors of one model, in order: some rules count the tensors they have seen.

    Parameters
    ----------
    mix : str
        A name in ``MIXES``.
    facts : Facts
    names : list of str
        Names of all tensors.
    pure : bool
        The format of the mix for every tensor.
    has_imatrix : bool
    embedding, output : str or None
        Formats asked for by hand.
    leave_output : bool
        Keep ``output.weight`` as it is.
    """

    def __init__(self, mix, facts, names, *, pure=False, has_imatrix=False, embedding=None, output=None,
                 leave_output=False):
        self.mix, self.facts, self.pure, self.has_imatrix = mix, facts, pure, has_imatrix
        self.embedding, self.output, self.leave_output = embedding, output, leave_output
        self.format = MIXES[mix][1]
        self.tied = "output.weight" not in names
        self.values = sum(role(name) == "value" for name in names)
        self.seen = {"value": 0, "down": 0, "gate": 0, "up": 0}

    def allows(self, name: str, shape: tuple[int, ...]) -> bool:
        """True for tensors that may change their format: matrices of weights, and stacks of them."""
        axes = next((len(shape) - i for i, n in enumerate(shape) if n > 1), 1)
        if axes < 2 or not name.endswith("weight") or _NEVER.search(name):
            return False
        if name == "output.weight" and self.leave_output or _NEVER_WHOLE.get(name):
            return False
        return not (self.facts.arch == "glm5-next" and _NEVER_GLM5.search(name))

    def choose(self, name: str, shape: tuple[int, ...]) -> str:
        """The format of a tensor that ``allows`` said yes to."""
        kind = role(name)
        if kind == "embedding" and self.embedding:
            return self.embedding
        if kind == "output" and self.output:
            return self.output
        if not FORMATS[self.format].is_block:
            return self.format
        return self._fit(self.format if self.pure else self._rule(name, shape, kind), name, shape[-1])

    def needs_imatrix(self, name: str, format: str) -> bool:
        """True where the result without an importance matrix would be garbage."""
        if name == "output.weight" or name in _EMBEDDINGS:
            return False
        low = ("iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_m", "iq1_s")
        return format in low or format == "q2_k" and self.mix == "q2_k_s"

    @staticmethod
    def _fit(format: str, name: str, k: int) -> str:
        """A format whose blocks fit rows of ``k``; f16 as the last resort."""
        block = FORMATS[format].block
        if k % block == 0:
            return format
        if format not in _FALLBACK and block > 32:
            raise ValueError(f"tensor {name!r} has rows of {k} elements, which {format} cannot store, and there is no "
                             "format to fall back to")
        format = _FALLBACK.get(format, format)
        return format if k % FORMATS[format].block == 0 else "f16"

    # ---- the rules ----------------------------------------------------------------------------------------------

    def _rule(self, name: str, shape: tuple[int, ...], kind: str) -> str:
        mix = self.mix
        if self.facts.arch == "glm5-next" and _LEAST_Q8_GLM5.search(name):
            return "q8_0"
        if kind == "output" or kind == "embedding" and self.tied:
            return self._of_output(shape)
        if mix == "mxfp4_moe":
            stack = len(shape) > 2 and shape[-3] > 1
            expert = self.facts.arch != "bailingmoe3" or kind in ("up", "gate", "down")
            return "mxfp4" if stack and expert else "q8_0"
        if kind == "embedding":
            special = {
                **dict.fromkeys(["iq2_xxs", "iq2_xs", "iq1_s", "iq1_m"], "q2_k"),
                **dict.fromkeys(["iq2_s", "iq2_m", "iq3_xxs"], "iq3_s"),
                **dict.fromkeys(["tq1_0", "tq2_0", "q2_0"], "q4_k"),
            }
            return special.get(mix, self.format)
        if mix in ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m"):
            return self._of_low_bits(kind)
        rule = {
            "value": self._of_value, "key": self._of_key, "query": self._of_query, "down": self._of_down,
            "attention output": self._of_attention_output, "gate": self._of_gate_or_up, "up": self._of_gate_or_up,
        }.get(kind)
        return rule(name, kind) if rule else self.format

    def _of_output(self, shape) -> str:
        if self.output:
            return self.output
        if self.mix == "mxfp4_moe" or self.facts.arch == "falcon" or shape[-1] % FORMATS[self.format].block:
            return "q8_0"
        if self.mix in ("iq2_xxs", "iq2_xs", "iq3_xxs", "iq1_s", "iq2_s", "iq2_m", "iq1_m"):
            return "q5_k"
        return "q8_0" if self.format == "q8_0" else "q6_k"

    def _of_low_bits(self, kind: str) -> str:
        richer = "iq3_s" if self.mix in ("iq2_s", "iq2_m") else "q2_k"
        if kind == "value":
            self.seen["value"] += 1
            return "q4_k" if self.facts.sharing >= 4 or self.facts.experts >= 4 else richer
        if kind == "key" and self.facts.experts == 8:
            return "q4_k"
        if kind == "down":
            self.seen["down"] += 1
            return richer if self.seen["down"] - 1 < self.facts.layers // 8 else self.format
        if kind == "attention output":
            if self.facts.experts == 8:
                return "q5_k"
            return {"iq1_s": "iq2_xxs", "iq1_m": "iq2_xxs", "iq2_s": "iq3_s", "iq2_m": "iq3_s"}.get(self.mix, self.format)
        return self.format

    def _of_value(self, name: str, kind: str) -> str:
        mix, shared, i = self.mix, self.facts.sharing >= 4, self.seen["value"]
        self.seen["value"] += 1
        format = self.format
        if mix == "q2_k":
            format = "q4_k" if shared else "q3_k"
        elif mix == "q2_k_s" and shared:
            format = "q4_k"
        elif mix == "iq3_xxs":
            format = "q4_k" if shared else "iq3_xxs" if self.has_imatrix else "iq3_s"
        elif mix in ("iq3_xs", "iq3_s") and shared or mix == "iq3_m":
            format = "q4_k"
        elif mix == "q3_k_m":
            format = "q5_k" if i < 2 else "q4_k"
        elif mix == "q3_k_l" or mix in ("iq4_nl", "iq4_xs") and shared:
            format = "q5_k"
        elif mix in ("q4_k_m", "q5_k_m") and _more_bits(i, self.values):
            format = "q6_k"
        elif mix == "q4_k_s" and i < 4:
            format = "q5_k"
        if self.facts.seventy and format in ("q3_k", "q4_k"):
            format = "q5_k"
        return "q8_0" if self.facts.experts == 8 else format

    def _of_key(self, name: str, kind: str) -> str:
        return "q8_0" if self.facts.experts == 8 else self._of_query(name, kind)

    def _of_query(self, name: str, kind: str) -> str:
        return {"iq3_xs": "iq3_xxs", "iq3_xxs": "iq2_s"}.get(self.mix, self.format)

    def _layer(self, name: str, kind: str) -> int:
        """Which layer a tensor belongs to: by counting, or by its name where experts come in any order."""
        i = self.seen[kind]
        self.seen[kind] += 1
        if self.facts.experts > 1:
            found = re.match(r"blk\.(\d+)\.", name)
            if not found or int(found[1]) >= self.facts.layers:
                raise ValueError(f"tensor {name!r} does not say which of the {self.facts.layers} layers it belongs to")
            return int(found[1])
        return i

    def _of_down(self, name: str, kind: str) -> str:
        mix, n, falcon = self.mix, self.facts.layers, self.facts.arch == "falcon"
        i = self._layer(name, kind)
        early = i < n // 8
        if mix == "q2_k":
            return "q3_k"
        if mix == "q2_k_s":
            return "q4_k" if early else self.format
        if mix == "iq3_xxs" and not self.has_imatrix:
            return "q4_k" if early else "q3_k"
        if mix == "q3_k_m":
            return "q5_k" if i < n // 16 else "q4_k" if not falcon or _more_bits(i, n) else "q3_k"
        if mix == "iq3_m" and (early or self.facts.experts == 8 and _more_bits(i, n)):
            return "q4_k"
        if mix == "q3_k_l":
            return "q4_k" if falcon else "q5_k"
        if mix == "q4_k_m":
            if falcon:
                return "q6_k" if i < n // 16 else "q5_k" if _more_bits(i, n) else "q4_k"
            return "q6_k" if _more_bits(i, n) else self.format
        if mix in ("iq4_nl", "iq4_xs") and early and not self.has_imatrix:
            return "q5_k"
        if mix == "q5_k_m" and _more_bits(i, n):
            return "q6_k"
        if mix == "q4_k_s" and not falcon and early:
            return "q5_k"
        if mix in ("q4_0", "q5_0") and self.has_imatrix and early:
            return {"q4_0": "q4_1", "q5_0": "q5_1"}[mix]
        return self.format

    def _of_attention_output(self, name: str, kind: str) -> str:
        mix = self.mix
        if self.facts.arch == "falcon":
            return "q4_k" if mix == "q3_k_l" else self.format
        if self.facts.experts == 8:
            more = ("q2_k", "iq3_xs", "iq3_xxs", "q3_k_s", "q3_k_m", "iq4_nl", "q4_k_s", "q4_k_m", "iq3_s", "iq3_m", "iq4_xs")
            return "q5_k" if mix in more else self.format
        return {"q2_k": "q3_k", "iq3_xxs": "iq3_s", "q3_k_m": "q4_k", "q3_k_l": "q5_k", "iq3_m": "q4_k"}.get(mix, self.format)

    def _of_gate_or_up(self, name: str, kind: str) -> str:
        i, n = self._layer(name, kind), self.facts.layers
        return "iq3_xxs" if self.mix == "iq3_xs" and n // 8 <= i < 7 * n // 8 else self.format


def _more_bits(i: int, n: int) -> bool:
    """The first and the last eighth of the layers, and every third in between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2
