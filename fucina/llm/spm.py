"""SentencePiece-style merging (``tokenizer.ggml.model`` = "llama"): by score, with byte fallback.

Start from single characters, with U+2581 for the space. Merge the two neighbours whose concatenation is the
token of the highest score (the leftmost of equal ones) until no concatenation is a token. What is not a token
then becomes its UTF-8 bytes, as tokens ``<0x00>`` .. ``<0xFF>``.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

SPACE = "\u2581"


class ScoreMerger:
    """Merging by score over a vocabulary.

    Parameters
    ----------
    ids : dict of str to int
        The vocabulary.
    scores : sequence of float
        Score of each token; the highest is merged first.
    unk_id : int or None
        What a character becomes that is neither a token nor covered by byte tokens.
    """

    def __init__(self, ids: dict[str, int], scores, unk_id: int | None):
        self._ids = ids
        self._cost = [-s for s in scores]
        self._bytes = [ids.get(f"<0x{b:02X}>", unk_id) for b in range(256)]

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, in O(n log n) for n characters.

        Raises
        ------
        ValueError
            If a character is not a token and the vocabulary has neither byte tokens nor an unknown token.
        """
        symbols = list(text.replace(" ", SPACE))
        n = len(symbols)
        before = list(range(-1, n - 1))
        after = [*range(1, n), -1]
        find, cost = self._ids.get, self._cost

        # A candidate is (cost, left position, right position, length): outdated once either side has changed,
        # which shows in the length, because a symbol only grows, and is empty when merged away.
        heap = []
        for left in range(n - 1):
            token = find(symbols[left] + symbols[left + 1])
            if token is not None:
                heap.append((cost[token], left, left + 1, 2))
        heapify(heap)
        while heap:
            _, left, right, length = heappop(heap)
            a, b = symbols[left], symbols[right]
            if not a or not b or len(a) + len(b) != length:
                continue
            symbols[left], symbols[right] = a + b, ""
            follower = after[right]
            after[left] = follower
            if follower >= 0:
                before[follower] = left
                token = find(a + b + symbols[follower])
                if token is not None:
                    heappush(heap, (cost[token], left, follower, length + len(symbols[follower])))
            leader = before[left]
            if leader >= 0:
                token = find(symbols[leader] + a + b)
                if token is not None:
                    heappush(heap, (cost[token], leader, left, len(symbols[leader]) + length))

        out: list[int] = []
        for symbol in symbols:
            if symbol:
                token = find(symbol)
                out.extend(self._fallback(symbol) if token is None else (token,))
        return out

    def _fallback(self, symbol: str) -> list[int]:
        """The byte tokens of a character that is no token."""
        tokens = [self._bytes[b] for b in symbol.encode("utf-8")]
        if None in tokens:
            raise ValueError(f"the vocabulary has no token for {symbol!r}, no byte tokens and no unknown token")
        return tokens

    @staticmethod
    def piece(text: str) -> bytes:
        """The bytes that the vocabulary entry ``text`` stands for."""
        return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")
