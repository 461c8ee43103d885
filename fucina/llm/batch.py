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
        Keys and values of the prompt and of all tokens but the last.
    """

    def __init__(self, model, prompt: list[int], sampler: Sampler, max_tokens: int, cache):
        self.tokens: list[int] = []
        self.finish_reason: str | None = None
        self.cache = cache
        self._model, self._sampler, self._max_tokens = model, sampler, max_tokens
        self._next, self._recent = prompt, list(prompt)

    def __repr__(self) -> str:
        return f"Sequence({len(self.tokens)} tokens, {self.finish_reason or 'going on'})"

    @property
    def text(self) -> str:
        """The tokens as text, special ones left out; ValueError if the model has no tokenizer."""
        return self._model.detokenize(self.tokens, skip_special=True)

    def _choose(self, logits) -> int | None:
        """Take the next token, or end."""
        token = self._sampler.sample(logits, self._recent)
        if token in self._model.eos_ids:
            self.finish_reason = "stop"
            return None
        self.tokens.append(token)
        self._recent.append(token)
        self._next = [token]
        if len(self.tokens) >= self._max_tokens:
            self.finish_reason = "length"
        elif self.cache.length == self.cache.n_ctx:
            self.finish_reason = "context"
        return token


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
        prompt, cache = model.prepared(prompt, cache)
        if any(other.cache is cache for other in self.sequences):
            raise ValueError("two sequences cannot share a cache")
        sequence = Sequence(model, prompt, Sampler(temperature, seed=seed, **sampling), max_tokens, cache)
        if max_tokens < 1:
            sequence.finish_reason = "length"
        else:
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

        Returns
        -------
        list of (Sequence, int)
            The new tokens. A sequence that ended its text has none.
        """
        going = list(self.sequences)
        if not going:
            return []
        logits = self._model.batch_logits([(sequence._next, sequence.cache) for sequence in going])
        chosen = [(sequence, sequence._choose(row)) for sequence, row in zip(going, logits)]
        self.sequences = [sequence for sequence in self.sequences if sequence.finish_reason is None]
        return [(sequence, token) for sequence, token in chosen if token is not None]
