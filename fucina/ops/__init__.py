"""Operations on NumPy arrays and quantized tensors.

Each function checks its arguments once, allocates its result (or writes into ``out``) and calls one kernel. Results are
the same bits for any number of threads and any instruction set; ``docs/numerics.md`` has the details.
"""

from fucina.formats.qtensor import provide

from .attention import attention
from .blocks import block_dot, quantize_activations
from .elementwise import *  # noqa: F403 - the table in that module names its functions
from .elementwise import __all__ as _elementwise
from .kv_store import kv_store
from .linear import linear, pack
from .matmul import matmul, pack_weight
from .moe import moe_linear, moe_route, top_k
from .norm import rms_norm
from .quantize import dequantize, embedding, quantize
from .reduce import argmax, dot, max, mean, min, prod, sum, var
from .rope import rope, rope_tables
from .softmax import softmax
from .ternary import ternary_linear

__all__ = [
    *_elementwise, "argmax", "attention", "block_dot", "dequantize", "dot", "embedding", "kv_store", "linear", "matmul",
    "max", "mean", "min", "moe_linear", "moe_route", "pack", "pack_weight", "prod", "quantize", "quantize_activations",
    "rms_norm", "rope", "rope_tables", "softmax", "sum", "ternary_linear", "top_k", "var",
]

provide(dequantize=dequantize, embedding=embedding, pack=pack)
