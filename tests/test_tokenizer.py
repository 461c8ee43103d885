"""Tokenizers against plain re-implementations of their rules, and against llama.cpp's tokens for the real models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina import open_gguf
from fucina.llm.bpe import PRE_TOKENIZERS, byte_characters
from fucina.llm.spm import ScoreMerger
from fucina.llm.tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Tokenizer, load_tokenizer

GOLDEN = Path(__file__).resolve().parent / "golden"
BYTES = byte_characters()
UNICODE = st.text(st.characters(codec="utf-8"), max_size=40)


# ---- small vocabularies ---------------------------------------------------------------------------------------

MERGES = """h e|l l|he ll|hell o|Ġ w|o r|Ġw or|l d|Ġwor ld|Ġ t|Ġt he|Ġ Ġ|ĠĠ ĠĠ|Ċ Ċ|1 2|12 3|3 4|' s|' S|Ġ a|a b
ab a|aba b|Ã ©|c a|ca f|caf Ã©|! !|!! !!|Ġ !|. .|Ġ 1|Ġ '""".replace("\n", "|").split("|")
SPECIAL = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<tag>": USER_DEFINED, "<tag><tag>": USER_DEFINED}


def bpe_metadata(pre="gpt-2", merges=MERGES, **changes) -> dict:
    """A byte-level vocabulary: all bytes, what the merges make, special tokens."""
    tokens = list(dict.fromkeys([*BYTES, *(m.replace(" ", "") for m in merges), *SPECIAL]))
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([SPECIAL.get(t, NORMAL) for t in tokens], np.int32),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
    }
    return {key: value for key, value in (metadata | changes).items() if value is not None}


def spm_metadata(**changes) -> dict:
    """A scored vocabulary: letters, a few words, bytes, special tokens. "é" is missing, so that it becomes bytes."""
    words = {w: -float(i) for i, w in enumerate("▁t he ▁the ▁a in ▁in ing th lo hel hello ▁hello ab ba aba".split())}
    letters = {c: -100.0 - i for i, c in enumerate("▁abcdefghijklmnopqrstuvwxyz.,!")}
    rows = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    rows += [(f"<0x{b:02X}>", BYTE, 0.0) for b in range(256)]
    rows += [(text, NORMAL, score) for text, score in (words | letters).items()]
    rows += [("\n\n", USER_DEFINED, 0.0), ("<b>", USER_DEFINED, 0.0), ("<end_of_turn>", CONTROL, 0.0)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [text for text, _, _ in rows],
        "tokenizer.ggml.token_type": np.array([kind for _, kind, _ in rows], np.int32),
        "tokenizer.ggml.scores": np.array([score for _, _, score in rows], np.float32),
    }
    return {key: value for key, value in (metadata | changes).items() if value is not None}


def texts(tokenizer: Tokenizer, ids) -> list[str]:
    return [tokenizer.token_text(i) for i in ids]


# ---- byte-level BPE -------------------------------------------------------------------------------------------

# The pre-tokenizers for ASCII text in Python's own regular expressions, written independently.
_GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)"
_REST = r"| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"(?i:'(?:s|t|re|ve|m|ll|d))|[^\r\nA-Za-z0-9]?[A-Za-z]+|"
SPLITS = {
    "gpt-2": [_GPT2],
    "smollm": ["[0-9]", _GPT2],
    "qwen2": [_WORD + "[0-9]" + _REST],
    "llama-bpe": [_WORD + "[0-9]{1,3}" + _REST],
    "default": [r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_{|}~]+", _GPT2, "[0-9]+", "[0-9]{3}"],
}


PARTS = ["hello", " world", " the", "12", "1234", "3", " 1", "!", "!!!!", " !", "'s", "'S", " '", "aba", "..", "<=>"]
PARTS += [" ", "  ", "\n", "\n\n", "\r\n", "\t", "_", "-", "x"]


def plain_split(text: str, patterns) -> list[str]:
    pieces = [text]
    for pattern in patterns:
        cut = []
        for piece in pieces:
            end = 0
            for match in re.finditer(pattern, piece):
                cut += [piece[end : match.start()], match.group()]
                end = match.end()
            cut.append(piece[end:])
        pieces = [piece for piece in cut if piece]
    return pieces


def plain_merge(piece: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    symbols = [BYTES[b] for b in piece.encode()]
    while True:
        pairs = [(ranks[pair], i) for i, pair in enumerate(zip(symbols, symbols[1:])) if pair in ranks]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@pytest.mark.parametrize("pre", SPLITS)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=10))
def test_bpe_follows_its_rules(pre, parts):
    text = "".join(parts)
    tokenizer = Tokenizer(bpe_metadata(pre, **{"tokenizer.ggml.add_bos_token": False}))
    ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(MERGES)}
    whole = set(tokenizer._texts) if PRE_TOKENIZERS[pre].ignore_merges else set()
    expected = []
    for piece in plain_split(text, SPLITS[pre]):
        written = "".join(BYTES[b] for b in piece.encode())
        expected += [written] if written in whole else plain_merge(piece, ranks)
    assert texts(tokenizer, tokenizer.encode(text)) == expected


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "a 1234 b's", ["a", "Ġ1234", "Ġb", "'s"]),
        ("smollm", "a 1234 b's", ["a", "Ġ", "1", "2", "3", "4", "Ġb", "'s"]),
        ("qwen2", "1234 don'T", ["1", "2", "3", "4", "Ġdon", "'T"]),
        ("llama-bpe", "1234 ½٣", ["123", "4", "Ġ", "Â½Ù£"]),
        ("llama-bpe", "a\n\n  b", ["a", "ĊĊ", "Ġ", "Ġb"]),
        ("qwen2", "éa!\n\nx", ["Ã©a", "!ĊĊ", "x"]),
        ("default", "1234<=>", ["123", "4", "<=>"]),
        ("tekken", "HelloWorld12", ["Hello", "World", "1", "2"]),
        ("deepseek-coder", "ab 12", ["ab", "Ġ", "1", "2"]),
    ],
)
def test_pre_tokenizers_cut_where_they_should(pre, text, pieces):
    """Seen from outside: where any two neighbours can be merged, one token is left per piece."""
    whole = "".join(pieces)
    n = len(whole) + 1
    cuts = [(i, j, k) for i in range(n) for j in range(i + 1, n) for k in range(j + 1, n)]
    merges = dict.fromkeys(f"{whole[i:j]} {whole[j:k]}" for i, j, k in cuts)
    tokenizer = Tokenizer(bpe_metadata(pre, list(merges), **{"tokenizer.ggml.add_bos_token": False}))
    assert texts(tokenizer, tokenizer.encode(text)) == pieces


def test_ignore_merges_takes_whole_pieces():
    merges = ["a b"]
    changes = {"tokenizer.ggml.tokens": [*BYTES, "ab", "abc"], "tokenizer.ggml.token_type": None}
    changes |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": None}
    for pre, expected in (("llama-bpe", ["abc"]), ("qwen2", ["ab", "c"])):
        tokenizer = Tokenizer(bpe_metadata(pre, merges, **changes))
        assert texts(tokenizer, tokenizer.encode("abc")) == expected


def test_first_of_two_equal_merges_counts():
    merges = ["a b", "b c", "a b"]  # as the last of three, "a b" would come after "b c"
    tokenizer = Tokenizer(bpe_metadata(merges=merges))
    assert texts(tokenizer, tokenizer.encode("abc")) == ["ab", "c"]


@given(text=UNICODE, pre=st.sampled_from(sorted(PRE_TOKENIZERS)))
def test_bpe_round_trip_is_exact(text, pre):
    tokenizer = Tokenizer(bpe_metadata(pre))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


# ---- merging by score -----------------------------------------------------------------------------------------


def plain_score_merge(text: str, scores: dict[str, float]) -> list[str]:
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(zip(symbols, symbols[1:])) if a + b in scores]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@given(
    text=st.text("ab ", max_size=24),
    words=st.dictionaries(st.text("ab▁", min_size=2, max_size=6), st.integers(-3, 0), max_size=12),
)
def test_score_merging_takes_best_then_leftmost(text, words):
    scores = {"a": 0.0, "b": 0.0, "▁": 0.0} | {word: float(score) for word, score in words.items()}
    ids = {word: i for i, word in enumerate(scores)}
    merger = ScoreMerger(ids, list(scores.values()), None)
    assert [list(ids)[i] for i in merger.encode(text)] == plain_score_merge(text, scores)


def test_characters_that_are_no_tokens():
    tokenizer = Tokenizer(spm_metadata())
    assert texts(tokenizer, tokenizer.encode("aé", add_special=False)) == ["▁a", "<0xC3>", "<0xA9>"]
    merger = ScoreMerger({"a": 0, "<unk>": 1, "xy": 2}, [0.0, 0.0, 0.0], 1)
    assert merger.encode("aé") == [0, 1, 1]  # no byte tokens: unknown
    assert merger.encode("axy") == [0, 2]  # a merge of what are no tokens themselves
    with pytest.raises(ValueError, match="no token for 'é'"):
        ScoreMerger({"a": 0}, [0.0], None).encode("aé")


@given(text=UNICODE, prefix=st.booleans(), bos=st.booleans(), eos=st.booleans())
def test_spm_round_trip_is_exact(text, prefix, bos, eos):
    flags = {"add_space_prefix": prefix, "add_bos_token": bos, "add_eos_token": eos}
    tokenizer = Tokenizer(spm_metadata(**{f"tokenizer.ggml.{name}": value for name, value in flags.items()}))
    text = text.replace("▁", "_")  # a space in this vocabulary
    ids = tokenizer.encode(text)
    assert (ids[:1] == [1]) == bos and (ids[-1:] == [2]) == eos
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_space_prefix_comes_after_special_tokens_too_and_goes_again():
    tokenizer = Tokenizer(spm_metadata())
    ids = tokenizer.encode("the<b>hello</s>a", parse_special=True)
    assert texts(tokenizer, ids) == ["<s>", "▁the", "<b>", "▁hello", "</s>", "▁a"]
    assert tokenizer.decode(ids) == "the<b>hello</s>a"
    assert tokenizer.decode(ids, skip_special=True) == "the<b>helloa"
    plain = Tokenizer(spm_metadata(**{"tokenizer.ggml.add_space_prefix": False}))
    assert texts(plain, plain.encode("the a")) == ["<s>", "t", "he", "▁a"]


# ---- special tokens -------------------------------------------------------------------------------------------


def test_user_defined_tokens_are_always_found_control_tokens_on_request():
    tokenizer = Tokenizer(bpe_metadata())
    text = "<|im_start|>a<tag>b<tag><tag>c"
    plain = texts(tokenizer, tokenizer.encode(text))
    assert "<|im_start|>" not in plain and plain[-5:] == ["a", "<tag>", "b", "<tag><tag>", "c"]
    parsed = texts(tokenizer, tokenizer.encode(text, parse_special=True))
    assert parsed == ["<|im_start|>", "a", "<tag>", "b", "<tag><tag>", "c"]
    ids = tokenizer.encode(text, parse_special=True)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special=True) == "a<tag>b<tag><tag>c"


def test_tokens_are_integers():
    tokenizer = Tokenizer(bpe_metadata())
    for wrong in ("123", [1.9], [None], ["a"]):
        with pytest.raises(TypeError, match="tokens must be integers"):
            tokenizer.decode(wrong)
    assert tokenizer.decode(np.array(tokenizer.encode("ab"), np.int32)) == "ab"


def test_text_that_the_expressions_give_up_on():
    tokenizer = Tokenizer(bpe_metadata("qwen2"))
    with pytest.raises(ValueError, match="cannot be cut into tokens"):
        tokenizer.encode(" " * 11_000_000 + "a")
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"


def test_longest_special_token_is_found_first():
    # Of "aXb" and "Xbcd" in "aXbcd" the longer one wins, although the other starts earlier.
    tokens = [*BYTES, "aXb", "Xbcd"]
    types = np.array([NORMAL] * 256 + [USER_DEFINED] * 2, np.int32)
    tokenizer = Tokenizer({
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": [],
    })  # fmt: skip
    assert texts(tokenizer, tokenizer.encode("aXbcd aXb")) == ["a", "Xbcd", "Ġ", "aXb"]


def test_end_of_generation_tokens():
    tokenizer = Tokenizer(spm_metadata(**{"tokenizer.ggml.eot_token_id": 5}))
    assert tokenizer.eos_ids == {2, 5, tokenizer.token_id("<end_of_turn>")}
    # "</s>" as an ordinary token is an HTML tag and ends nothing.
    types = spm_metadata()["tokenizer.ggml.token_type"].copy()
    types[2] = NORMAL
    changes = {"tokenizer.ggml.token_type": types, "tokenizer.ggml.eos_token_id": 1}
    assert 2 not in Tokenizer(spm_metadata(**changes)).eos_ids


def test_bos_defaults():
    assert Tokenizer(spm_metadata()).add_bos and Tokenizer(spm_metadata()).bos_id == 1
    unset = {"tokenizer.ggml.add_bos_token": None}
    assert Tokenizer(bpe_metadata("llama-bpe", **unset)).add_bos
    assert not Tokenizer(bpe_metadata("qwen2", **unset)).add_bos
    with pytest.raises(ValueError, match="bos_token_id"):
        Tokenizer(bpe_metadata("llama-bpe", **unset, **{"tokenizer.ggml.bos_token_id": None}))


# ---- decoding -------------------------------------------------------------------------------------------------


def test_incomplete_characters():
    tokenizer = Tokenizer(bpe_metadata())
    ids = tokenizer.encode("a東b")
    assert len(ids) == 5
    assert tokenizer.decode(ids[:2]) == "a\ufffd"
    assert tokenizer.decode(ids[2:]) == "\ufffd\ufffdb"
    stream = tokenizer.stream()
    assert [stream.feed(i) for i in ids[:3]] == ["a", "", ""]
    assert stream.flush() == "\ufffd"


@given(text=UNICODE, data=st.data(), kind=st.sampled_from([bpe_metadata, spm_metadata]))
def test_stream_gives_whole_characters_and_the_same_text(text, data, kind):
    tokenizer = Tokenizer(kind())
    n = tokenizer.vocab_size
    ids = data.draw(st.lists(st.integers(0, n - 1), max_size=12)) + tokenizer.encode(text, add_special=False)
    stream = tokenizer.stream(tokenizer.bos_id, skip_special=False)
    pieces = [stream.feed(i) for i in ids] + [stream.flush()]
    tokenizer.add_bos = tokenizer.add_eos = False  # which decode takes off, a stream does not
    assert "".join(pieces) == tokenizer.decode(ids)
    assert "".join(pieces).encode() == b"".join(p.encode() for p in pieces)


def test_stream_keeps_the_space_between_words_of_a_continued_text():
    tokenizer = Tokenizer(spm_metadata())
    the, s = tokenizer.token_id("▁the"), tokenizer.bos_id
    assert tokenizer.stream().feed(the) == " the"
    assert tokenizer.stream(tokenizer.token_id("▁a")).feed(the) == " the"
    assert tokenizer.stream(s).feed(the) == "the"


def test_token_bytes():
    tokenizer = Tokenizer(spm_metadata())
    assert tokenizer.token_bytes(tokenizer.token_id("<0xE9>")) == b"\xe9"
    assert tokenizer.token_bytes(tokenizer.token_id("▁the")) == b" the"
    assert tokenizer.token_bytes(1) == b"<s>"
    tokenizer = Tokenizer(bpe_metadata())
    assert tokenizer.token_bytes(tokenizer.token_id("Ġwor")) == b" wor"
    assert tokenizer.token_bytes(tokenizer.token_id("Ã©")) == "é".encode()


# ---- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "t5", "rwkv", "plamo2", "gemma4", 7])
def test_unsupported_tokenizers_are_named(name):
    with pytest.raises(ValueError, match=f"{name!r}.*gpt2, llama"):
        load_tokenizer({"tokenizer.ggml.model": name})


def test_unsupported_pre_tokenizer_is_named():
    with pytest.raises(ValueError, match="'superbpe'.*qwen2"):
        Tokenizer(bpe_metadata("superbpe"))


@pytest.mark.parametrize("name", [None, "none", "no_vocab"])
def test_files_without_vocabulary(name):
    assert load_tokenizer({} if name is None else {"tokenizer.ggml.model": name}) is None


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("tokens", None, "no tokenizer.ggml.tokens"),
        ("tokens", [], "non-empty"),
        ("tokens", [1, 2], "strings"),
        ("tokens", "abc", "an array"),
        ("tokens", [*BYTES, "x"], "twice"),
        ("token_type", np.zeros(3, np.int32), "3 entries for"),
        ("bos_token_id", 10**6, "bos_token_id is 1000000"),
        ("eos_token_id", -1, "eos_token_id is -1"),
        ("eos_token_id", "a", "an integer"),
        ("bos_token_id", True, "an integer"),
        ("add_bos_token", 1, "a bool"),
        ("merges", None, "no tokenizer.ggml.merges"),
        ("merges", [1], "strings"),
    ],
)
def test_broken_metadata(key, value, complaint):
    with pytest.raises(ValueError, match=complaint):
        Tokenizer(bpe_metadata(**{f"tokenizer.ggml.{key}": value}))


def test_bytes_without_a_token_are_left_out():
    tokens = [c for c in BYTES if c != BYTES[0xC3]]
    changes = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": [], "tokenizer.ggml.token_type": None}
    changes |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    tokenizer = Tokenizer(bpe_metadata(**changes))
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("aé")] == [b"a", b"\xa9"]


@pytest.mark.parametrize("merges", [["ab"], ["a zz"], ["a \udcff"]])
def test_broken_merges(merges):
    tokenizer = Tokenizer(bpe_metadata(**{"tokenizer.ggml.merges": merges}))
    with pytest.raises(ValueError, match="merge"):
        tokenizer.encode("x")


@pytest.mark.parametrize("scores", [np.full(400, np.nan), np.zeros(3), ["x"] * 400])
def test_broken_scores(scores):
    with pytest.raises(ValueError, match="scores"):
        Tokenizer(spm_metadata(**{"tokenizer.ggml.scores": scores}))


def test_bad_arguments():
    tokenizer = Tokenizer(bpe_metadata())
    with pytest.raises(TypeError, match="bytes"):
        tokenizer.encode(b"x")
    with pytest.raises(ValueError, match="lone surrogate at 1"):
        tokenizer.encode("a\ud800")
    for bad in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            tokenizer.decode([bad])
        with pytest.raises(ValueError, match="outside the vocabulary"):
            tokenizer.token_text(bad)


def test_tokens_that_are_not_utf8_decode_to_their_bytes():
    raw = b"\xff\xfe".decode("utf-8", "surrogateescape")  # as open_gguf hands them out
    tokens = spm_metadata()["tokenizer.ggml.tokens"].copy()
    tokens[5] = raw
    types = spm_metadata()["tokenizer.ggml.token_type"].copy()
    types[5] = NORMAL
    tokenizer = Tokenizer(spm_metadata(**{"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}))
    assert tokenizer.token_bytes(5) == b"\xff\xfe"
    assert tokenizer.decode([5]) == "\ufffd\ufffd"


def test_empty_tokens_get_a_name():
    tokens = [*BYTES, "", ""]
    tokenizer = Tokenizer(bpe_metadata(**{"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": None,
                                          "tokenizer.ggml.merges": [], "tokenizer.ggml.bos_token_id": 256,
                                          "tokenizer.ggml.eos_token_id": 257}))  # fmt: skip
    assert tokenizer.token_text(257) == "[EMPTY_257]"


# ---- the real models ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_tokens_of_real_models(name, real_model):
    with open_gguf(real_model(name)) as file:
        tokenizer = load_tokenizer(file.metadata)
    for prompt in json.loads((GOLDEN / f"{name}.json").read_text()).values():
        assert tokenizer.encode(prompt["text"]) == prompt["tokens"]
        assert tokenizer.decode(prompt["tokens"]) == prompt["text"]
        assert tokenizer.decode(prompt["greedy"]) == prompt["greedy_text"]
    assert tokenizer.token_text(tokenizer.eos_id) in ("<|im_end|>", "<eos>")


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
@given(text=UNICODE)
def test_round_trip_of_real_models(name, real_model, text):
    tokenizer = _cached(real_model(name))
    text = text.replace("▁", "_")
    if name == "smollm2":  # its vocabulary lacks bytes such as 0xF1, which start rare characters
        text = "".join(c for c in text if all(tokenizer.token_id(BYTES[b]) is not None for b in c.encode()))
    assert tokenizer.decode(tokenizer.encode(text)) == text


_LOADED: dict = {}


def _cached(path) -> Tokenizer:
    if path not in _LOADED:
        with open_gguf(path) as file:
            _LOADED[path] = load_tokenizer(file.metadata)
    return _LOADED[path]
