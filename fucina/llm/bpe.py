"""Byte-level BPE (``tokenizer.ggml.model`` = "gpt2"): pre-tokenizers as data, merging by ``tokenizers``.

The text is cut by the regular expressions of its pre-tokenizer, one after the other, each inside the pieces that
the ones before left; the UTF-8 bytes of a piece become 256 printable characters, and those are merged in the
order of the file's merge list.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut before merging.

    Attributes
    ----------
    patterns : tuple of str
        Regular expressions (Oniguruma syntax), applied in turn; matches and gaps are both pieces.
    ignore_merges : bool
        A piece that is a token as a whole is taken as it is.
    add_bos : bool
        Whether the sequence starts with the BOS token unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_ANY_CASE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Words of Mistral's tekken: letters are told apart by being in a-z or A-Z, as the reference tokenizer does.
_UP, _LOW = r"((?=[\p{L}])([^a-z]))", r"((?=[\p{L}])([^A-Z]))"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_LEAD}{_UP}*{_LOW}+|{_LEAD}{_UP}+{_LOW}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_LLAMA3 = PreTokenizer((_ANY_CASE + _WORDS + r"\p{N}{1,3}" + _REST,), ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer((_ANY_CASE + _WORDS + r"\p{N}" + _REST,))
_DIGITS = PreTokenizer((r"\p{N}", _GPT2))

# By the value of tokenizer.ggml.pre; the rows are those that llama, qwen2, qwen3 and gemma3 files use.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    "gpt-2": PreTokenizer((_GPT2,)),
    "gpt2": PreTokenizer((_GPT2,)),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "midm-2.0": _LLAMA3,
    "smaug-bpe": PreTokenizer(_LLAMA3.patterns),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "deepseek-coder": PreTokenizer(
        # The ranges of the fourth hold Unicode spaces, which the reference tokenizer does not count in.
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "(?:(?!\\s)[\u0800-\u9fa5\uac00-\ud7ff])+", r"\p{N}")
    ),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The row called ``name``; ValueError that lists the known names otherwise."""
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        raise ValueError(f"unsupported pre-tokenizer {name!r}; supported: {', '.join(PRE_TOKENIZERS)}") from None


@cache
def byte_characters() -> str:
    """The 256 characters that stand for the bytes 0..255 in a byte-level vocabulary.

    Printable Latin-1 characters stand for themselves; the others get the code points from 256 up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return "".join(chr(b) if b in printable else chr(next(spare)) for b in range(256))


@cache
def _byte_of() -> dict[int, int]:
    return {ord(c): b for b, c in enumerate(byte_characters())}


class ByteLevelBPE:
    """Byte-level BPE over a vocabulary.

    Parameters
    ----------
    ids : dict of str to int
        The vocabulary.
    merges : iterable of str
        ``"left right"``, most important first.
    pre : PreTokenizer
        How to cut the text.

    Raises
    ------
    ImportError
        If the ``tokenizers`` package is missing.
    ValueError
        If the merges do not fit the vocabulary.
    """

    def __init__(self, ids: dict[str, int], merges, pre: PreTokenizer):
        try:
            import tokenizers
            from tokenizers import models, pre_tokenizers
        except ImportError as error:
            raise ImportError("byte-level BPE needs the tokenizers package: pip install 'fucina[llm]'") from error
        # The first of two equal merges counts; a later duplicate would lower its rank.
        pairs = [tuple(merge.split(" ", 1)) for merge in dict.fromkeys(merges)]
        if any(len(pair) != 2 for pair in pairs):
            bad = next(pair for pair in pairs if len(pair) != 2)
            raise ValueError(f"a merge must be two tokens with a space between, got {bad[0]!r}")
        try:
            model = models.BPE(vocab=ids, merges=pairs, ignore_merges=pre.ignore_merges)
        except Exception as error:  # the package raises bare Exception
            raise ValueError(f"the merge list does not fit the vocabulary: {error}") from None
        split = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in pre.patterns]
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, as_bytes])

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; bytes that the vocabulary lacks are left out.

        ValueError if the regular expressions give up, as they do at runs of some 10 million spaces.
        """
        try:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        except BaseException as error:  # the package panics then, with an exception that is no Exception
            if type(error).__name__ != "PanicException":
                raise
            raise ValueError(f"a text of {len(text)} characters cannot be cut into tokens: {error}") from None

    @staticmethod
    def piece(text: str) -> bytes:
        """The bytes that the vocabulary entry ``text`` stands for."""
        try:
            return bytes(map(_byte_of().__getitem__, map(ord, text)))
        except KeyError:  # not written in byte characters
            return text.encode("utf-8", "surrogateescape")
