"""Token after token: the loop that evaluates, samples and decodes."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter


@dataclass
class GenerationStats:
    """Counts and times of a generation; the times hold no work of the caller.

    Attributes
    ----------
    prompt_tokens, prompt_seconds : int, float
        Tokens of the prompt and the time to evaluate them.
    generated_tokens : int
        Tokens chosen, without the one that ended the text.
    evaluations, seconds : int, float
        Tokens evaluated one by one after the prompt, and the time of that with sampling. The first token comes from
        the prompt's last logits, so this is mostly one less than ``generated_tokens``.
    first_token_seconds : float or None
        Time to the first token, from the call of ``generate``, ``generate_tokens`` or ``chat``: its preparation (chat
        template, tokenization), ``prompt_seconds`` and the choice of the token. None before that.
    """

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    generated_tokens: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    first_token_seconds: float | None = None

    @property
    def prompt_tokens_per_second(self) -> float:
        """Speed of prompt evaluation."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Speed of generation."""
        return self.evaluations / self.seconds if self.seconds else 0.0


class Generation:
    """An iterator over what a model generates. Made by ``Model.generate``, ``generate_tokens`` and ``chat``.

    Attributes
    ----------
    tokens : list of int
        The tokens generated so far.
    stats : GenerationStats
        Counts and times so far.
    finish_reason : str or None
        Why it ended: ``"stop"`` (the model ended its text), ``"length"`` (``max_tokens``), ``"context"`` (no room
        left); None before that.
    cache : Cache
        Keys and values of the prompt and of all tokens but the last.
    """

    def __init__(self, model, prompt: list[int], sampler, max_tokens: int, cache, stream, started: float):
        self.tokens: list[int] = []
        self.stats = GenerationStats(prompt_tokens=len(prompt))
        self.finish_reason: str | None = None
        self.cache = cache
        items = self._choose(model, prompt, sampler, max_tokens, perf_counter() - started)
        self._items = items if stream is None else _text(items, stream)

    def __iter__(self) -> Generation:
        return self

    def __next__(self):
        return next(self._items)

    def close(self) -> None:
        """End early. What was generated stays in ``tokens`` and ``cache``."""
        self._items.close()

    def _choose(self, model, prompt: list[int], sampler, max_tokens: int, preparation: float):
        stats, tokens = self.stats, self.tokens
        if not max_tokens:
            self.finish_reason = "length"
            return
        start = perf_counter()
        logits = model.next_logits(prompt, self.cache)
        stats.prompt_seconds = perf_counter() - start
        recent = list(prompt)
        choice = lambda logits, greatest=-1: sampler.sample(logits, recent, greatest)
        start = perf_counter()
        token = choice(logits)
        stats.seconds += perf_counter() - start
        stats.first_token_seconds = preparation + stats.prompt_seconds + stats.seconds
        while True:
            if token in model.eos_ids:
                self.finish_reason = "stop"
                return
            tokens.append(token)
            recent.append(token)
            stats.generated_tokens += 1
            yield token
            if len(tokens) == max_tokens:
                self.finish_reason = "length"
                return
            if self.cache.length == self.cache.n_ctx:
                self.finish_reason = "context"
                return
            start = perf_counter()
            token = model.choose(token, self.cache, choice)
            stats.seconds += perf_counter() - start
            stats.evaluations += 1


def _text(tokens, stream):
    """Pieces of text, of whole characters, for tokens."""
    try:
        for token in tokens:
            if piece := stream.feed(token):
                yield piece
        if rest := stream.flush():
            yield rest
    finally:
        tokens.close()
