"""Choosing the next token from logits."""

from __future__ import annotations

import math
import operator

import numpy as np


class Sampler:
    """Greedy or random choice of a token.

    With ``temperature`` 0 the token of the highest logit is taken (the first of equal ones). Otherwise, in this
    order: keep the ``top_k`` highest; of these the smallest set whose probabilities sum to ``top_p``; of these the
    ones at least ``min_p`` times as probable as the best; then draw from softmax(logits / temperature).

    Parameters
    ----------
    temperature : float
        0 for greedy; higher is more random.
    top_k : int
        Candidates to keep; 0 keeps all.
    top_p : float
        Probability to keep, in (0, 1]; 1 keeps all.
    min_p : float
        Probability to keep relative to the best, in [0, 1]; 0 keeps all.
    repetition_penalty : float
        Logits of tokens among the last ``repeat_last`` ones are divided by this if positive and multiplied by it
        otherwise, before all else; in [0.01, 100], 1 changes nothing.
    repeat_last : int
        How many tokens back the penalty looks.
    seed : int or None
        Seed of the random generator; None takes one from the operating system. Equal seeds give equal choices.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of its range.
    """

    def __init__(
        self,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        repeat_last: int = 64,
        seed: int | None = None,
    ):
        self.temperature = _number("temperature", temperature, 0.0, np.inf)
        self.top_k = _count("top_k", top_k)
        self.top_p = _number("top_p", top_p, 0.0, 1.0, open_low=True)
        self.min_p = _number("min_p", min_p, 0.0, 1.0)
        self.repetition_penalty = _number("repetition_penalty", repetition_penalty, 0.01, 100.0)
        self.repeat_last = _count("repeat_last", repeat_last)
        self._random = np.random.default_rng(None if seed is None else _count("seed", seed))

    def sample(self, logits: np.ndarray, recent=(), greatest: int = -1) -> int:
        """The next token.

        Parameters
        ----------
        logits : ndarray
            One score per token, 1-D.
        recent : sequence of int
            The tokens so far, newest last, for the repetition penalty.
        greatest : int
            The index of the greatest logit, if the caller knows it and that all are finite; otherwise negative.

        Raises
        ------
        ValueError
            If the logits are empty or not 1-D, hold NaN or +inf, or leave no token to choose (all -inf).
        """
        best = greatest
        if best < 0:
            logits = np.asarray(logits)
            if logits.ndim != 1 or logits.size == 0:
                raise ValueError(f"logits must have one non-empty axis, got shape {logits.shape}")
            # argmax stops at NaN, and a maximum that is a number rules out NaN, +inf and all -inf at once.
            best = int(logits.argmax())
            if not np.isfinite(logits[best]):
                raise ValueError(f"logits must be numbers, the greatest is {logits[best]} (token {best})")
        if self.repetition_penalty != 1.0 and self.repeat_last and len(recent):
            logits = self._penalized(logits, recent)
            best = int(logits.argmax())
        if self.temperature == 0.0:
            return best
        return self._draw(logits)

    def _penalized(self, logits: np.ndarray, recent) -> np.ndarray:
        seen = np.asarray(recent[-self.repeat_last :], dtype=np.int64)
        logits = logits.astype(np.float64)
        x = logits[seen]  # a copy: a token that comes several times is penalized once
        logits[seen] = np.where(x > 0, x / self.repetition_penalty, x * self.repetition_penalty)
        return logits

    def _draw(self, logits: np.ndarray) -> int:
        if 0 < self.top_k < logits.size:
            keep = np.argpartition(-logits, self.top_k - 1)[: self.top_k]
        else:
            keep = np.arange(logits.size)
        x = logits[keep].astype(np.float64)
        x -= x.max()
        if self.top_p < 1.0:
            nucleus = self._nucleus(x)
            keep, x = keep[nucleus], x[nucleus]
        if self.min_p > 0.0:
            likely = np.exp(x) >= self.min_p
            keep, x = keep[likely], x[likely]
        keep, x = keep[(order := np.argsort(keep))], x[order]
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf
            total = np.exp(x / self.temperature).cumsum()
        return int(keep[np.searchsorted(total, self._random.random() * total[-1], side="right")])

    def _nucleus(self, x: np.ndarray) -> np.ndarray:
        """Indices of the fewest highest logits whose probabilities sum to ``top_p``."""
        p = np.exp(x)
        target, n = self.top_p * p.sum(), 256
        while True:  # sorting all of a large vocabulary would cost as much as evaluating a small model
            best = np.argpartition(-p, n)[:n] if n < p.size else np.arange(p.size)
            best = best[np.lexsort((best, -p[best]))]
            sums = p[best].cumsum()
            if n >= p.size or sums[-1] >= target:
                return best[: min(int(np.searchsorted(sums, target)) + 1, best.size)]
            n *= 8


def _number(name: str, value, low: float, high: float, open_low: bool = False) -> float:
    if isinstance(value, (bool, str)) or not np.isscalar(value) or not np.isreal(value):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    inside = low <= value <= high and np.isfinite(value) and not (open_low and value == low)
    if not inside:
        raise ValueError(f"{name} must be in {'(' if open_low else '['}{low:g}, {high:g}], got {value!r}")
    return value


def _count(name: str, value) -> int:
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")
    return value
