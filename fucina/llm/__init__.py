"""Run decoder-only language models from GGUF files.

>>> from fucina import llm
>>> model = llm.load("model.gguf")                                   # doctest: +SKIP
>>> for piece in model.generate("Once upon a time", max_tokens=64):  # doctest: +SKIP
...     print(piece, end="", flush=True)
"""
