"""Run decoder-only language models from GGUF files.

>>> from fucina import llm
>>> model = llm.load("model.gguf")                                   # doctest: +SKIP
>>> for piece in model.generate("Once upon a time", max_tokens=64):  # doctest: +SKIP
...     print(piece, end="", flush=True)
"""

from .arch import ARCHITECTURES, Architecture, Config
from .batch import Batch, Sequence
from .cache import Cache
from .chat import ChatTemplate
from .generate import Generation, GenerationStats
from .model import Model, load
from .sampling import Sampler
from .tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "ARCHITECTURES", "Architecture", "Batch", "Cache", "ChatTemplate", "Config", "Generation", "GenerationStats", "Model",
    "Sampler", "Sequence", "Tokenizer", "load", "load_tokenizer",
]  # fmt: skip
