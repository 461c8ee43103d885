"""Text to token ids and back, from the vocabulary that a GGUF file carries."""

from __future__ import annotations

import codecs
import operator
from functools import cached_property

import numpy as np

from .bpe import ByteLevelBPE, pre_tokenizer
from .spm import ScoreMerger

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Tokens that end a turn or a document, by text: files name at most one of them in their metadata.
END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>",
    "<eos>", "<EOT>", "<｜end▁of▁sentence｜>", "<end_of_utterance>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>",
    "<|repo_name|>", "<|fim_repo|>", "<reponame>", "<|file_sep|>",
)  # fmt: skip
# Also an HTML tag, which gemma3 has as an ordinary token: it ends a text only where the file says it is control.
END_TEXTS_IF_CONTROL = ("</s>",)


class Tokenizer:
    """A vocabulary with its rules, from the metadata of a GGUF file.

    Parameters
    ----------
    metadata : mapping
        Metadata of the file (``fucina.open_gguf(path).metadata``).

    Attributes
    ----------
    kind : str
        ``"gpt2"`` (byte-level BPE) or ``"llama"`` (merging by score).
    vocab_size : int
        Number of tokens.
    bos_id, eos_id, unk_id, pad_id : int or None
        Special tokens, None where the file names none.
    eos_ids : frozenset of int
        All tokens that end generation (end of text, of turn, of message).
    add_bos, add_eos : bool
        Whether ``encode`` puts the BOS token first and the EOS token last.
    add_space_prefix : bool
        Whether text gets a space in front (only ``"llama"`` vocabularies).

    Raises
    ------
    ValueError
        If the tokenizer or pre-tokenizer is not supported (by name), or the metadata contradicts itself.

    Notes
    -----
    In a ``"llama"`` vocabulary the space is written U+2581, so that a U+2581 in the text comes back as a space;
    all other text is given back exactly.
    """

    def __init__(self, metadata):
        self.kind = metadata.get("tokenizer.ggml.model")
        if self.kind not in ("gpt2", "llama"):
            raise ValueError(f"unsupported tokenizer {self.kind!r} (tokenizer.ggml.model); supported: gpt2, llama")
        self._texts = _array(metadata, "tokens", required=True)
        if not self._texts or not isinstance(self._texts[0], str):
            raise ValueError("tokenizer.ggml.tokens must be a non-empty array of strings")
        self.vocab_size = n = len(self._texts)
        if "" in self._texts:
            self._texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(self._texts)]
        self._ids = dict(zip(self._texts, range(n), strict=True))
        if len(self._ids) != n:
            twice = next(text for i, text in enumerate(self._texts) if self._ids[text] != i)
            raise ValueError(f"tokenizer.ggml.tokens names {twice!r} twice")
        types = _array(metadata, "token_type")
        self._types = [NORMAL] * n if types is None else _numbers(types, "token_type", n)

        if self.kind == "gpt2":
            self._pre = pre_tokenizer(metadata.get("tokenizer.ggml.pre", "default"))
            self._merges = _array(metadata, "merges", required=True)
            if self._merges and not isinstance(self._merges[0], str):
                raise ValueError("tokenizer.ggml.merges must be an array of strings")
            self.add_space_prefix = False
            bos, eos, unk, add_bos = None, None, None, self._pre.add_bos
            self.piece = ByteLevelBPE.piece
        else:
            scores = _array(metadata, "scores")
            self._scores = [0.0] * n if scores is None else _numbers(scores, "scores", n)
            self.add_space_prefix = _flag(metadata, "add_space_prefix", True)
            bos, eos, unk, add_bos = (i if i < n else None for i in (1, 2, 0, 1))
            add_bos = True
            self.piece = ScoreMerger.piece

        self.bos_id = self._special(metadata, "bos_token_id", bos)
        self.eos_id = self._special(metadata, "eos_token_id", eos)
        self.unk_id = self._special(metadata, "unknown_token_id", unk)
        self.pad_id = self._special(metadata, "padding_token_id", None)
        self.add_bos = _flag(metadata, "add_bos_token", add_bos)
        self.add_eos = _flag(metadata, "add_eos_token", False)
        for wanted, token, name in ((self.add_bos, self.bos_id, "bos"), (self.add_eos, self.eos_id, "eos")):
            if wanted and token is None:
                raise ValueError(f"the tokenizer adds a {name} token but names none (tokenizer.ggml.{name}_token_id)")

        ends = {self.eos_id, *(self._special(metadata, f"{key}_token_id", None) for key in ("eot", "eom"))}
        for text in END_TEXTS:
            if (token := self._ids.get(text)) is not None:
                ends.add(token)
                self._types[token] = CONTROL
        for text in END_TEXTS_IF_CONTROL:
            if (token := self._ids.get(text)) is not None and self._types[token] == CONTROL:
                ends.add(token)
        self.eos_ids = frozenset(ends - {None})

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {self.vocab_size} tokens)"

    def _special(self, metadata, name: str, default: int | None) -> int | None:
        token = metadata.get(f"tokenizer.ggml.{name}", default)
        if token is not None and (isinstance(token, bool) or not isinstance(token, (int, np.integer))):
            raise ValueError(f"tokenizer.ggml.{name} must be an integer, got {token!r}")
        if token is not None and not 0 <= token < self.vocab_size:
            raise ValueError(f"tokenizer.ggml.{name} is {token}, but there are {self.vocab_size} tokens")
        return None if token is None else int(token)

    # -- text to tokens ------------------------------------------------------------------------------------

    @cached_property
    def _core(self):
        """What encodes plain text; built when first needed."""
        if self.kind == "gpt2":
            return ByteLevelBPE(self._ids, self._merges, self._pre)
        return ScoreMerger(self._ids, self._scores, self.unk_id)

    @cached_property
    def _specials(self) -> list[tuple[str, int, bool]]:
        """(text, id, always matched) of the tokens that are found before the text is encoded, longest first."""
        found = [i for i, kind in enumerate(self._types) if kind in (CONTROL, UNKNOWN, USER_DEFINED)]
        found.sort(key=lambda i: -len(self._texts[i].encode("utf-8", "surrogateescape")))
        return [(self._texts[i], i, self._types[i] == USER_DEFINED) for i in found]

    def _fragments(self, text: str, parse_special: bool) -> list[str | int]:
        """``text`` cut at special tokens: the longest one first, everywhere, then the next."""
        parts: list[str | int] = [text] if text else []
        for special, token, always in self._specials:
            if not (always or parse_special) or special not in text:
                continue
            cut: list[str | int] = []
            for part in parts:
                if isinstance(part, int):
                    cut.append(part)
                    continue
                for i, piece in enumerate(part.split(special)):
                    if i:
                        cut.append(token)
                    if piece:
                        cut.append(piece)
            parts = cut
        return parts

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of ``text``.

        Parameters
        ----------
        text : str
            Any Unicode text without lone surrogates.
        add_special : bool
            Put BOS first and EOS last where the file asks for it.
        parse_special : bool
            Turn the text of control tokens into these tokens (for chat templates). User-defined tokens are
            always found.

        Raises
        ------
        TypeError
            If ``text`` is not a str.
        ValueError
            If it holds lone surrogates, or characters that the vocabulary cannot express.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, got {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"text has a lone surrogate at {error.start}: it is not valid Unicode") from None
        out = [self.bos_id] if add_special and self.add_bos else []
        after_special = True
        for part in self._fragments(text, parse_special):
            if isinstance(part, int):
                out.append(part)
                after_special = True
            else:
                out += self._core.encode(" " + part if after_special and self.add_space_prefix else part)
                after_special = False
        if add_special and self.add_eos:
            out.append(self.eos_id)
        return out

    # -- tokens to text ------------------------------------------------------------------------------------

    def token_id(self, text: str) -> int | None:
        """Id of the token written ``text`` in the vocabulary, or None."""
        return self._ids.get(text)

    def token_text(self, token: int) -> str:
        """The token as the vocabulary writes it (``"Ġthe"``, ``"<|im_end|>"``)."""
        return self._texts[self._checked(token)]

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for; of a special token, its name."""
        return self._bytes_of(self._checked(token))

    def _bytes_of(self, token: int) -> bytes:
        text, kind = self._texts[token], self._types[token]
        if kind in (CONTROL, UNKNOWN, USER_DEFINED):
            return text.encode("utf-8", "surrogateescape")
        if kind == BYTE and text[:3] == "<0x" and text[5:] == ">":
            try:
                return bytes.fromhex(text[3:5])
            except ValueError:  # a byte token in name only
                pass
        return self.piece(text)

    def _checked(self, token: int) -> int:
        try:
            token = operator.index(token)
        except TypeError:
            raise TypeError(f"tokens must be integers, got {token!r}") from None
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        return token

    def decode(self, ids, skip_special: bool = False) -> str:
        """Text of token ids; ``decode(encode(text)) == text``.

        The BOS and EOS tokens that ``encode`` adds, and the space that it puts in front, are taken off again.

        Parameters
        ----------
        ids : iterable of int
            Token ids.
        skip_special : bool
            Leave out control tokens instead of writing their names.

        Raises
        ------
        TypeError, ValueError
            If an id is not an integer or outside the vocabulary.
        """
        ids = [self._checked(i) for i in ids]
        if self.add_bos and ids[:1] == [self.bos_id]:
            ids = ids[1:]
        if self.add_eos and ids[-1:] == [self.eos_id]:
            ids = ids[:-1]
        stream = Stream(self, self.bos_id, skip_special)
        return b"".join(map(stream.bytes_of, ids)).decode("utf-8", "replace")

    def stream(self, previous: int | None = None, skip_special: bool = True) -> Stream:
        """A decoder for tokens that arrive one by one, after the token ``previous``."""
        return Stream(self, previous, skip_special)


class Stream:
    """Decodes tokens one by one and never gives out half a character. Made by ``Tokenizer.stream``."""

    def __init__(self, tokenizer: Tokenizer, previous: int | None, skip_special: bool):
        self._tokenizer = tokenizer
        self._skip = (CONTROL, UNKNOWN) if skip_special else ()
        # Text after a special token starts with the space that encode puts there.
        self._strip = tokenizer.add_space_prefix and previous is not None and self._is_special(previous)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def _is_special(self, token: int) -> bool:
        return self._tokenizer._types[token] in (CONTROL, UNKNOWN, USER_DEFINED)

    def bytes_of(self, token: int) -> bytes:
        """The bytes that ``token`` adds to the text at this place."""
        piece = self._tokenizer.token_bytes(token)
        if self._is_special(token):
            self._strip = self._tokenizer.add_space_prefix
            return b"" if self._tokenizer._types[token] in self._skip else piece
        if self._strip:
            self._strip = False
            piece = piece.removeprefix(b" ")
        return piece

    def feed(self, token: int) -> str:
        """The characters that are complete with ``token``; may be empty."""
        return self._utf8.decode(self.bytes_of(token))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character."""
        return self._utf8.decode(b"", final=True)


def load_tokenizer(metadata) -> Tokenizer | None:
    """The tokenizer of a GGUF file's metadata; None for a file that declares to have none."""
    if metadata.get("tokenizer.ggml.model") in (None, "none", "no_vocab"):
        return None
    return Tokenizer(metadata)


def _array(metadata, name: str, required: bool = False) -> list | None:
    """A metadata array as a list."""
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None and not required:
        return None
    if value is None:
        raise ValueError(f"the file has no tokenizer.ggml.{name}")
    if isinstance(value, str) or not hasattr(value, "__len__"):
        raise ValueError(f"tokenizer.ggml.{name} must be an array, got {value!r}")
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _numbers(values: list, name: str, n: int) -> list:
    if len(values) != n:
        raise ValueError(f"tokenizer.ggml.{name} has {len(values)} entries for {n} tokens")
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise ValueError(f"tokenizer.ggml.{name} must hold finite numbers")
    return values


def _flag(metadata, name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"tokenizer.ggml.{name} must be a bool, got {value!r}")
    return bool(value)
