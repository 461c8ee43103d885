"""Quantized by us, run by us, and the logits are llama.cpp's: a tiny model in every type that golden data exists for.

``golden/tiny_logits.npz`` has what llama.cpp computes from the same model, quantized by llama-quantize with ``--pure
--token-embedding-type f16``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fucina import llm, quantizer
from fucina.quantizer.mixes import ALIASES, MIXES, lookup_mix

GOLDEN = Path(__file__).parent / "golden"
LOGITS = dict(np.load(GOLDEN / "tiny_logits.npz"))
ROWS = [0, 1, 31, 32, 40, 63, 95]
TYPES = sorted(key.removeprefix("qwen3-") for key in LOGITS if key.startswith("qwen3-") and key != "qwen3-f16")


def relative(got, want) -> float:
    """Root mean square of the difference, relative to the standard deviation of ``want``."""
    return float(np.sqrt(np.mean((np.asarray(got, np.float64) - want) ** 2)) / np.std(want))


@pytest.mark.parametrize("kind", TYPES)
def test_logits_of_a_model_that_was_quantized_here(kind, tmp_path):
    path = tmp_path / f"{kind}.gguf"
    quantizer.quantize_file(GOLDEN / "tiny" / "qwen3-f16.gguf", path, kind, pure=True, token_embedding_type="f16")
    with llm.load(path) as model:
        got = model.logits(LOGITS["tokens"])[ROWS]
        kinds = {info.type_name for info in model._file.tensors.values()}
    assert kinds == {"f16", "f32", MIXES[lookup_mix(kind)][1]}
    want = LOGITS[f"qwen3-{kind}"]
    assert relative(got, want) <= 0.03
    # Attention has no choice at the first token. Later, what llama.cpp rounds to half precision tips 8-bit activations.
    assert relative(got[0], want[0]) <= (0.005 if kind == "BF16" else 0.001)


def test_all_types_are_known():
    assert len(TYPES) == 18 and all(kind.lower() in {*MIXES, *ALIASES} for kind in TYPES)
