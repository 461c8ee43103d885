"""Operations on NumPy arrays and quantized tensors.

Each function checks its arguments once, allocates its result (or writes into ``out``) and calls one kernel. Results are
the same bits for any number of threads and any instruction set; ``docs/numerics.md`` has the details.
"""

from .attention import attention
from .elementwise import *  # noqa: F403 - the table in that module names its functions
from .elementwise import __all__ as _elementwise
from .linear import linear, pack
from .norm import rms_norm
from .quantize import dequantize, embedding, quantize
from .rope import rope, rope_tables
from .softmax import softmax

__all__ = [
    *_elementwise, "attention", "dequantize", "embedding", "linear", "pack", "quantize", "rms_norm", "rope",
    "rope_tables", "softmax",
]
