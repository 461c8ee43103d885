"""A decoder-only language model: tokens in, logits or text out, by way of recorded programs or op by op."""

from __future__ import annotations

import operator
import threading
from contextlib import ExitStack
from functools import cached_property
from math import prod
from time import perf_counter

import numpy as np

from fucina import ops
from fucina.formats import QTensor
from fucina.gguf import open_gguf
from fucina.ops._check import below
from fucina.runtime.isa import backend

from .arch import read_config, read_tensors
from .cache import CACHE_TYPES, Cache, Span
from .chat import ChatTemplate, template_of
from .generate import Generation
from .layer import Layer
from .program import Programs, can_record
from .sampling import Sampler
from .tokenizer import Tokenizer, load_tokenizer

# A prompt is evaluated in pieces of at most this many tokens, which bounds the memory for activations. The bits
# do not depend on it.
CHUNK = 512


class Model:
    """A language model from a GGUF file. Made by ``load``.

    Attributes
    ----------
    config : Config
        Hyperparameters.
    tokenizer : Tokenizer or None
        None for a file without a vocabulary; methods that take or give text then raise ValueError.
    metadata : mapping
        All metadata of the file.
    n_params : int
        Number of weights.
    eos_ids : frozenset of int
        Tokens that end generation.
    load_seconds : float
        Time that ``load`` took.
    """

    load_seconds = 0.0

    def __init__(self, file, cache_type: str = "f16", pack: bool = True):
        if cache_type not in CACHE_TYPES:
            raise ValueError(f"unknown cache type {cache_type!r}; known: {', '.join(CACHE_TYPES)}")
        self._file = file
        self.metadata = file.metadata
        self.cache_type = cache_type
        self.config = config = read_config(file)
        self.tokenizer: Tokenizer | None = load_tokenizer(file.metadata)
        if self.tokenizer is not None and self.tokenizer.vocab_size != config.n_vocab:
            raise ValueError(f"the tokenizer has {self.tokenizer.vocab_size} tokens, the embedding {config.n_vocab}")
        self.eos_ids = self.tokenizer.eos_ids if self.tokenizer is not None else frozenset()
        self.n_params = sum(prod(info.shape) for info in file.tensors.values())
        self.new_cache()  # refuses a cache type that does not fit the heads

        weights, layers = read_tensors(file, config)
        self._embedding, self._output_norm = weights["embedding"], weights["output_norm"]
        self._output = self._embedding if weights["output"] is None else weights["output"]
        self._rope_factors = weights["rope_factors"]
        if pack and backend() == "native":
            # The copy takes the place of the file's pages, which are given back layer by layer.
            self._output = _packed(self._output)
            for layer in layers:
                layer.update((name, _packed(tensor)) for name, tensor in layer.items())
                file.drop_pages()
        # Layers share the few different tables of rotations.
        kinds = list(zip(config.rope_bases, config.rope_scales))
        self._ropes = list(dict.fromkeys(kinds))
        self._layers = [Layer(config, i, self._ropes.index(kinds[i]), layer) for i, layer in enumerate(layers)]
        self._angles: list[tuple[np.ndarray, np.ndarray]] = []
        self._programs = Programs(self) if can_record(self._layers, self._output) else None
        # Reentrant: an interrupt between taking it and the `try` must not cost this thread the programs for good.
        self._replaying = threading.RLock()

    def __repr__(self) -> str:
        name = self.metadata.get("general.name", self._file.path)
        return f"Model({name!r}, {self.config.arch.name}, {self.n_params / 1e6:.0f} M parameters)"

    def close(self) -> None:
        """Give back the file. The model cannot be used afterwards."""
        self._layers, self._embedding, self._output, self._programs = [], None, None, None
        self._file.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    # -- text ----------------------------------------------------------------------------------------------

    def _text_tools(self) -> Tokenizer:
        if self.tokenizer is None:
            kind = self.metadata.get("tokenizer.ggml.model", "missing")
            raise ValueError(f"the model file has no tokenizer (tokenizer.ggml.model is {kind}): use token ids")
        return self.tokenizer

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of ``text``, see ``Tokenizer.encode``."""
        return self._text_tools().encode(text, add_special, parse_special)

    def detokenize(self, ids, skip_special: bool = False) -> str:
        """Text of token ids, see ``Tokenizer.decode``."""
        return self._text_tools().decode(ids, skip_special)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The file's chat template; ValueError if it has none."""
        tokenizer = self._text_tools()
        names = (tokenizer.token_text(i) if i is not None else "" for i in (tokenizer.bos_id, tokenizer.eos_id))
        return template_of(self.metadata, *names)

    # -- evaluation ----------------------------------------------------------------------------------------

    def new_cache(self, n_ctx: int | None = None) -> Cache:
        """An empty key-value cache for one sequence.

        Parameters
        ----------
        n_ctx : int, optional
            The most tokens it may hold; by default, and at most, the context length of the model.
        """
        config = self.config
        n_ctx = config.n_ctx if n_ctx is None else min(_at_least(1, "n_ctx", n_ctx), config.n_ctx)
        return Cache(config.n_layer, config.n_head_kv, config.head_dim, n_ctx, self.cache_type)

    def logits(self, tokens, cache: Cache | None = None) -> np.ndarray:
        """Evaluate tokens and give the logits after each of them.

        Parameters
        ----------
        tokens : sequence of int
            Token ids.
        cache : Cache, optional
            What came before; the tokens are appended to it. By default they start a new sequence.

        Returns
        -------
        ndarray of float32 [len(tokens), n_vocab]
            The same bits whether the tokens come at once or in pieces.

        Raises
        ------
        TypeError
            If tokens are not integers.
        ValueError
            If a token is outside the vocabulary, the context is exceeded, or the cache is that of a model with other
            dimensions. The cache is then unchanged.
        """
        ids, cache = self._ids(tokens), self._checked(cache)
        with cache.all_or_nothing(len(ids)):
            out = np.empty((len(ids), self.config.n_vocab), np.float32)
            for at in range(0, len(ids), CHUNK):
                chunk = ids[at : at + CHUNK]
                h = self._hidden(chunk, [Span(0, len(chunk), cache, cache.length)], None)
                ops.linear(h, self._output, out=out[at : at + CHUNK])
        return out

    def next_logits(self, tokens, cache: Cache) -> np.ndarray:
        """Like ``logits``, but only those after the last token: float32 [n_vocab]. Much less work for a prompt."""
        return self.batch_logits([(tokens, cache)])[0]

    def batch_logits(self, parts) -> np.ndarray:
        """Evaluate tokens of several sequences at once and give the logits after the last token of each.

        Parameters
        ----------
        parts : sequence of (tokens, Cache)
            Token ids, at least one, and what came before them; each sequence with a cache of its own, to which the
            tokens are appended.

        Returns
        -------
        ndarray of float32 [len(parts), n_vocab]
            For each sequence the same bits as alone.

        Raises
        ------
        TypeError, ValueError
            As ``logits`` does; all caches are then unchanged.
        """
        parts = [(self._ids(tokens), self._checked(cache)) for tokens, cache in parts]
        if any(not len(ids) for ids, _ in parts):
            raise ValueError("every sequence needs at least one token")
        if len({id(cache) for _, cache in parts}) < len(parts):
            raise ValueError("two sequences cannot share a cache")
        logits = np.empty((len(parts), self.config.n_vocab), np.float32)
        with ExitStack() as stack:
            for ids, cache in parts:
                stack.enter_context(cache.all_or_nothing(len(ids)))
            finished = 0
            while finished < len(parts):
                # A chunk of rows: whole sequences, and of the last one as much as there is room for.
                room, taken, spans = CHUNK, [], []
                for ids, cache in parts[finished:]:
                    taken.append(ids[:room])
                    spans.append(Span(CHUNK - room, len(taken[-1]), cache, cache.length))
                    room -= len(taken[-1])
                    if not room:
                        break
                last = finished + len(spans) - 1
                ids, cache = parts[last]
                parts[last] = ids[len(taken[-1]) :], cache
                start, finished = finished, last + (not len(parts[last][0]))
                tokens = taken[0] if len(taken) == 1 else np.concatenate(taken)
                self._evaluate(tokens, spans, logits[start:finished])
        return logits

    def choose(self, token: int, cache: Cache, choice):
        """``choice(logits, greatest)`` of the logits after one more token, which is appended to the cache.

        For loops that generate: ``choice`` gets the logits in a buffer that the next evaluation overwrites, and where
        the greatest of them stands. An array and a search for every token would cost a small model 3 % of its time.

        Parameters
        ----------
        token : int
        cache : Cache
            What came before.
        choice : callable
            Takes float32 [n_vocab] and the index of the greatest, which is -1 if it is not known or if some are not
            finite. Must not keep the array, nor evaluate anything.

        Raises
        ------
        TypeError, ValueError
            As ``logits`` does. Whatever ``choice`` raises leaves the cache unchanged, too.
        """
        token, cache = self._id(token), self._checked(cache)
        with cache.all_or_nothing(1):
            if self._programs is None or not self._replaying.acquire(blocking=False):
                return choice(self.next_logits((token,), cache), -1)
            try:
                return choice(*self._programs.one(token, cache))
            finally:
                self._replaying.release()

    def _evaluate(self, ids: np.ndarray, spans: list[Span], out: np.ndarray) -> None:
        """Append the tokens ``ids`` to the caches of ``spans``; ``out`` gets the logits after the last tokens of as many
        spans as it has rows."""
        # The programs have one set of buffers: a second Python thread goes op by op meanwhile.
        alike = all(span.cache.type == spans[0].cache.type for span in spans)
        if self._programs is not None and alike and self._replaying.acquire(blocking=False):
            try:
                logits = self._programs(ids, spans, len(out) > 0)
                if len(out):
                    out[...] = logits[: len(out)]
            finally:
                self._replaying.release()
            return
        h = self._hidden(ids, spans, [span.first + span.rows - 1 for span in spans[: len(out)]])
        if len(out):
            ops.linear(h, self._output, out=out)

    def _hidden(self, ids: np.ndarray, spans: list[Span], wanted) -> np.ndarray:
        """Op by op: normalized output of the last layer for the rows ``wanted`` (None: all), float32 [rows, n_embd]."""
        for span in spans:
            span.cache.reserve(span.rows)
        x = self._embed(ids)
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        angles = self._angles_to(int(positions.max(initial=0)))
        tables = [(cos[positions], sin[positions]) for cos, sin in angles]
        last = self._layers[-1]
        with np.errstate(over="ignore"):  # a key or value beyond the range of f16 is infinite in the cache
            for layer in self._layers:
                x = layer(x, tables[layer.rope], spans, wanted if layer is last else None)
        for span in spans:
            span.cache.length = span.end
        return ops.rms_norm(x, self._output_norm, self.config.eps) if len(x) else x

    def _embed(self, ids: np.ndarray) -> np.ndarray:
        """Where the residual stream starts."""
        x = ops.embedding(ids, self._embedding)
        return ops.scale(x, self.config.embedding_scale, out=x) if self.config.arch.scale_embedding else x

    def _angles_to(self, position: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Cosines and sines of each kind of rotation for the positions up to ``position`` at least."""
        angles = self._angles
        if not angles or position >= len(angles[0][0]):
            positions = np.arange(min(self.config.n_ctx, max(256, 2 * position)))
            angles = self._angles = [
                ops.rope_tables(positions, self.config.rope_pairs, base, scale, self._rope_factors)
                for base, scale in self._ropes
            ]
        return angles

    def _id(self, token) -> int:
        """One token, checked as ``_ids`` does."""
        try:
            number = operator.index(token)
        except TypeError:
            raise TypeError(f"tokens must be integers, got {token!r}") from None
        if not 0 <= number < self.config.n_vocab:
            raise ValueError(f"token {number} is outside the vocabulary of {self.config.n_vocab}")
        return number

    def _ids(self, tokens) -> np.ndarray:
        ids = np.asarray(tokens)
        if ids.ndim != 1:
            raise ValueError(f"tokens must be a sequence of integers, got shape {ids.shape}")
        if ids.dtype.kind not in "iu" and ids.size:
            raise TypeError(f"tokens must be integers, got {ids.dtype}")
        if ids.size and not below(ids, self.config.n_vocab):
            outside = ids[(ids < 0) | (ids >= self.config.n_vocab)][0]
            raise ValueError(f"token {outside} is outside the vocabulary of {self.config.n_vocab}")
        return ids.astype(np.int64)

    def _checked(self, cache: Cache | None) -> Cache:
        if not self._layers:
            raise ValueError("the model is closed")
        if cache is None:
            return self.new_cache()
        if not isinstance(cache, Cache):
            raise TypeError(f"cache must be a Cache, got {type(cache).__name__}")
        config = self.config
        if cache.dims != (config.n_layer, config.n_head_kv, config.head_dim):
            raise ValueError(f"the cache is another model's: layers, heads and features are {cache.dims}")
        if cache.n_ctx > config.n_ctx:
            raise ValueError(f"the cache is for {cache.n_ctx} tokens, the context of the model is {config.n_ctx}")
        return cache

    # -- generation ----------------------------------------------------------------------------------------

    def generate(self, prompt, max_tokens: int = 256, temperature: float = 0.0, seed: int | None = None,
                 cache: Cache | None = None, **sampling) -> Generation:  # fmt: skip
        """Continue a prompt.

        Parameters
        ----------
        prompt : str or sequence of int
            Text, which is tokenized without special tokens but for BOS where nothing came before, or token ids.
        max_tokens : int
            The most tokens to generate.
        temperature, seed, **sampling
            How to choose tokens, see ``Sampler``: ``top_k``, ``top_p``, ``min_p``, ``repetition_penalty``,
            ``repeat_last``. Greedy by default.
        cache : Cache, optional
            What came before the prompt; it grows along. Its tokens are not known, only their keys and values:
            ``repetition_penalty`` looks at the prompt and what is generated.

        Returns
        -------
        Generation
            Iterator over pieces of text, each of whole characters. Nothing is evaluated before the first is asked
            for. It may be closed, or left by an exception such as KeyboardInterrupt, at any time.

        Raises
        ------
        TypeError, ValueError
            If an argument is not valid, the prompt is empty or does not fit the context, or the model file has no
            tokenizer.
        """
        started = perf_counter()
        stream = self._text_tools().stream
        return self._generation(prompt, max_tokens, temperature, seed, cache, sampling, stream, started)

    def generate_tokens(self, prompt, max_tokens: int = 256, temperature: float = 0.0, seed: int | None = None,
                        cache: Cache | None = None, **sampling) -> Generation:  # fmt: skip
        """Like ``generate`` for token ids: an iterator over token ids. Needs no tokenizer."""
        return self._generation(prompt, max_tokens, temperature, seed, cache, sampling, None, perf_counter())

    def chat(self, messages, max_tokens: int = 1024, temperature: float = 0.0, seed: int | None = None,
             variables: dict | None = None, **sampling) -> Generation:  # fmt: skip
        """Answer chat messages, with the chat template of the file.

        Parameters
        ----------
        messages : list of dict
            ``{"role": "system" | "user" | "assistant", "content": str}``, oldest first.
        variables : dict, optional
            More variables for the template.
        max_tokens, temperature, seed, **sampling
            See ``generate``.

        Raises
        ------
        ValueError
            If the file has no chat template, or the template fails.
        """
        started, tokenizer = perf_counter(), self._text_tools()
        text = self.chat_template.render(messages, **(variables or {}))
        prompt = tokenizer.encode(text, add_special=False, parse_special=True)
        if tokenizer.add_bos and prompt[:1] != [tokenizer.bos_id]:  # templates differ in whether they write it
            prompt.insert(0, tokenizer.bos_id)
        return self._generation(prompt, max_tokens, temperature, seed, None, sampling, tokenizer.stream, started)

    def prepared(self, prompt, max_tokens, cache: Cache | None = None) -> tuple[list[int], int, Cache]:
        """The checked arguments of a generation: the prompt as token ids, ``max_tokens``, the cache to continue."""
        cache = self._checked(cache)
        if isinstance(prompt, str):
            tokenizer = self._text_tools()
            start = [tokenizer.bos_id] if tokenizer.add_bos and not cache.length else []
            prompt = start + tokenizer.encode(prompt, add_special=False)
        prompt = self._ids(prompt).tolist()
        if not prompt:
            raise ValueError("the prompt is empty: there is nothing to continue")
        if cache.length + len(prompt) > cache.n_ctx:
            raise ValueError(f"{cache.length + len(prompt)} tokens do not fit the context of {cache.n_ctx}")
        return prompt, _at_least(0, "max_tokens", max_tokens), cache

    def _generation(self, prompt, max_tokens, temperature, seed, cache, sampling, stream, started) -> Generation:
        prompt, max_tokens, cache = self.prepared(prompt, max_tokens, cache)
        sampler = Sampler(temperature, seed=seed, **sampling)
        stream = stream(prompt[-1]) if stream is not None else None
        return Generation(self, prompt, sampler, max_tokens, cache, stream, started)


def load(path, *, cache_type: str = "f16", pack: bool = True) -> Model:
    """Load a language model.

    The file is mapped and the weights stay quantized.

    Parameters
    ----------
    path : str or os.PathLike
        A GGUF file of the llama, qwen2, qwen3 or gemma3 architecture.
    cache_type : {"f16", "f32", "q8_0"}
        How keys and values are remembered.
    pack : bool
        Copy matrices into the layout of the fastest products, in as much memory as they have in the file.
        When False they are used where the file is mapped: generation is slower, the results are the same. Models with
        dense matrices are then evaluated operation by operation, and providers may take their products over.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is not a valid GGUF file, or its architecture, tokenizer or a tensor type is not supported (by name).
    """
    started = perf_counter()
    file = open_gguf(path)
    try:
        model = Model(file, cache_type=cache_type, pack=pack)
    except BaseException:
        file.close()
        raise
    model.load_seconds = perf_counter() - started
    return model


def _packed(tensor):
    """A matrix in the layout of the fastest products; vectors and what is missing as they are."""
    if isinstance(tensor, QTensor):
        return tensor.pack() if tensor.spec.code >= 0 else tensor
    return ops.pack_weight(tensor) if tensor is not None and tensor.ndim == 2 else tensor


def _at_least(low: int, name: str, value) -> int:
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")
    return value
