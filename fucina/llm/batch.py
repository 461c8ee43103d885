"""Several sequences at once: every weight is read once per step for all of them."""

from __future__ import annotations

from .sampling import Sampler


class Sequence:
    """One of the sequences of a ``Batch``. Made by ``Batch.add``.

    Attributes
    ----------
    tokens : list of int
        The tokens generated so far.
    finish_reason : str or None
        Why it ended: ``"stop"`` (the model ended its text), ``"length"`` (``max_tokens``), ``"context"`` (no room left),
        ``"removed"``; None before that.
    cache : Cache
        Keys and values of the prompt and of all tokens but the last; the batch's own while the sequence is in it.
    """

    def __init__(self, model, prompt: list[int], sampler: Sampler, max_tokens: int, cache):
        self.tokens: list[int] = []
        self.finish_reason: str | None = None
        self.cache = cache
        self._model, self._prompt, self._sampler, self._max_tokens = model, prompt, sampler, max_tokens
        self._start = cache.length

    def __repr__(self) -> str:
        return f"Sequence({len(self.tokens)} tokens, {self.finish_reason or 'going on'})"

    @property
    def text(self) -> str:
        """The tokens as the text that goes on after the prompt, special ones left out; ValueError if the model has no
        tokenizer."""
        stream = self._model._text_tools().stream(self._prompt[-1])
        return "".join(map(stream.feed, self.tokens)) + stream.flush()

    # What to do next follows from `tokens` alone, so that an exception at any point costs no more than work.

    def _pending(self) -> list[int]:
        """The tokens to evaluate next, with the cache as it was before them."""
        at = self._start + (len(self._prompt) + len(self.tokens) - 1 if self.tokens else 0)
        if self.cache.length < at:
            raise ValueError(f"{self!r} lost its cache: {at} tokens were in it, {self.cache.length} are left")
        self.cache.truncate(at)
        return self.tokens[-1:] or self._prompt

    def _choose(self, logits) -> int | None:
        """Take the next token, or end."""
        token = self._sampler.sample(logits, self._prompt + self.tokens)
        if token in self._model.eos_ids:
            self.finish_reason = "stop"
            return None
        self.tokens.append(token)
        return token

    def _goes_on(self) -> bool:
        """Whether there is a next token; if not, with the reason."""
        if self.finish_reason is None and len(self.tokens) >= self._max_tokens:
            self.finish_reason = "length"
        if self.finish_reason is None and self._start + len(self._prompt) + len(self.tokens) > self.cache.n_ctx:
            self.finish_reason = "context"
        return self.finish_reason is None


class Batch:
    """Generate for several prompts at the same time; sequences come and go between steps.

    Each sequence has the tokens, bit for bit, that it would have alone. Made with a model:

    >>> batch = llm.Batch(model)                                    # doctest: +SKIP
    >>> stories = [batch.add(prompt, max_tokens=64) for prompt in ("Once", "In the beginning", "It was")]
    ...                                                             # doctest: +SKIP
    >>> while batch:                                                # doctest: +SKIP
    ...     batch.step()
    >>> [story.text for story in stories]                           # doctest: +SKIP

    Attributes
    ----------
    sequences : list of Sequence
        The ones that go on.
    """

    def __init__(self, model):
        self.sequences: list[Sequence] = []
        self._model = model

    def __len__(self) -> int:
        """How many sequences go on."""
        return len(self.sequences)

    def add(self, prompt, max_tokens: int = 256, temperature: float = 0.0, seed: int | None = None, cache=None,
            **sampling) -> Sequence:  # fmt: skip
        """Let a sequence join; its prompt is evaluated in the next step. Parameters as for ``Model.generate``.

        Raises
        ------
        TypeError, ValueError
            As ``Model.generate`` does, and if another sequence of the batch has the same cache.
        """
        model = self._model
        prompt, max_tokens, cache = model.prepared(prompt, max_tokens, cache)
        if any(other.cache is cache for other in self.sequences):
            raise ValueError("two sequences cannot share a cache")
        sequence = Sequence(model, prompt, Sampler(temperature, seed=seed, **sampling), max_tokens, cache)
        if sequence._goes_on():
            self.sequences.append(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Let a sequence go before its end; ValueError if it is not in the batch."""
        if sequence not in self.sequences:
            raise ValueError(f"{sequence!r} is not in the batch")
        self.sequences.remove(sequence)
        sequence.finish_reason = "removed"

    def step(self) -> list[tuple[Sequence, int]]:
        """One more token for every sequence; the ones that end leave the batch.

        An exception, such as KeyboardInterrupt, leaves every sequence with the tokens that it had, or with one more.

        Returns
        -------
        list of (Sequence, int)
            The new tokens. A sequence that ended its text has none.

        Raises
        ------
        ValueError
            If the cache of a sequence was shortened meanwhile, or its logits are not numbers. It then leaves the batch.
        """
        parts = []
        self.sequences = [sequence for sequence in self.sequences if sequence._goes_on()]
        for sequence in self.sequences:
            try:
                parts.append((sequence._pending(), sequence.cache))
            except ValueError:
                self.remove(sequence)
                raise
        if not parts:
            return []
        logits = self._model.batch_logits(parts)
        chosen, problems = [], []
        for sequence, row in zip(tuple(self.sequences), logits):
            try:
                chosen.append((sequence, sequence._choose(row)))
            except ValueError as error:
                self.remove(sequence)
                problems.append(error)
        self.sequences = [sequence for sequence in self.sequences if sequence._goes_on()]
        if problems:
            raise problems[0]
        return [(sequence, token) for sequence, token in chosen if token is not None]
