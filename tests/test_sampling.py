"""Sampling: which tokens can come, how often, and that equal seeds give equal tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.llm.sampling import Sampler

LOGITS = np.array([1.0, 3.0, 2.0, -1.0, 2.5], np.float32)


def drawn(sampler: Sampler, logits=LOGITS, n=3000, recent=()) -> np.ndarray:
    """How often each token came in ``n`` draws."""
    return np.bincount([sampler.sample(logits, recent) for _ in range(n)], minlength=len(logits))


def softmax(x) -> np.ndarray:
    e = np.exp(np.asarray(x, np.float64) - np.max(x))
    return e / e.sum()


# ---- greedy ---------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20))
def test_greedy_takes_the_first_maximum(values):
    logits, greatest = np.array(values, np.float32), values.index(max(values))
    assert Sampler().sample(logits) == Sampler().sample(logits, (), greatest) == greatest
    a, b = (Sampler(0.8, top_k=3, repetition_penalty=1.3, seed=1) for _ in "ab")
    assert a.sample(logits, [0]) == b.sample(logits, [0], greatest)


def test_greedy_ignores_what_narrows_and_the_logits_stay():
    before = LOGITS.copy()
    sampler = Sampler(0.0, top_k=2, top_p=0.1, min_p=0.9, repetition_penalty=1.5)
    assert sampler.sample(LOGITS, [0]) == 1
    assert np.array_equal(before, LOGITS)
    frozen = LOGITS.copy()
    frozen.flags.writeable = False
    assert Sampler(1.0, seed=1, repetition_penalty=2.0).sample(frozen, [1]) in range(5)


def test_forbidden_tokens_never_come():
    logits = np.array([-np.inf, 0.0, -np.inf, 1.0], np.float32)
    counts = drawn(Sampler(5.0, seed=3), logits, 500)
    assert counts[0] == counts[2] == 0 and counts[1] > 0 and counts[3] > 0


# ---- frequencies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature):
    counts = drawn(Sampler(temperature, seed=7))
    expected = 3000 * softmax(LOGITS / temperature)
    # Four standard deviations of a binomial count; the seed is fixed, so this either holds or it does not.
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected) + 1).all()


def test_tiny_temperature_is_greedy_and_huge_one_uniform():
    assert drawn(Sampler(1e-300, seed=0), n=50)[1] == 50
    assert (drawn(Sampler(1e9, seed=0)) > 500).all()


def test_equal_seeds_equal_tokens():
    a, b, c = (Sampler(1.0, seed=seed) for seed in (5, 5, 6))
    first, second, third = ([s.sample(LOGITS) for _ in range(60)] for s in (a, b, c))
    assert first == second != third
    free = Sampler(1.0), Sampler(1.0)
    assert [free[0].sample(np.zeros(1000)) for _ in range(9)] != [free[1].sample(np.zeros(1000)) for _ in range(9)]


# ---- narrowing ------------------------------------------------------------------------------------------------


def came(sampler: Sampler, logits=LOGITS) -> set[int]:
    return set(np.flatnonzero(drawn(sampler, logits, 800)))


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 4}),
        ({"top_k": 3}, {1, 2, 4}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        # Probabilities are 0.455, 0.276, 0.168, 0.062, 0.008 of tokens 1, 4, 2, 0, 3.
        ({"top_p": 0.4}, {1}),
        ({"top_p": 0.5}, {1, 4}),
        ({"top_p": 0.8}, {1, 4, 2}),
        ({"top_p": 1e-9}, {1}),
        ({"min_p": 1.0}, {1}),
        ({"min_p": 0.5}, {1, 4}),
        ({"min_p": 0.3}, {1, 4, 2}),
        # One after the other: of the three best, those that make 0.6 of what these three have.
        ({"top_k": 3, "top_p": 0.6}, {1, 4}),
        ({"top_k": 2, "min_p": 0.01}, {1, 4}),
        ({"top_p": 0.8, "min_p": 0.5}, {1, 4}),
    ],
)
def test_which_tokens_remain(options, tokens):
    # A high temperature makes every token that remains come.
    assert came(Sampler(50.0, seed=1, **options)) == tokens


def test_ties_at_the_border_of_top_k():
    logits = np.zeros(50, np.float32)
    assert len(came(Sampler(1.0, top_k=7, seed=0), logits)) == 7


@given(
    st.integers(1, 3000), st.floats(0.01, 0.999), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 10.0])
)
def test_nucleus_is_the_smallest_that_suffices(n, top_p, seed, spread):
    logits = np.random.default_rng(seed).standard_normal(n) * spread
    x = logits - logits.max()
    kept = Sampler(1.0, top_p=top_p)._nucleus(x)
    p = softmax(x)
    inside = np.zeros(n, bool)
    inside[kept] = True
    assert inside.sum() == len(kept) > 0
    assert p[kept].sum() >= top_p - 1e-9
    assert p[kept].sum() - p[kept].min() < top_p + 1e-9
    assert not (~inside).any() or p[kept].min() >= p[~inside].max()


# ---- repetition -----------------------------------------------------------------------------------------------


def test_repetition_penalty():
    logits = np.array([2.0, 1.9, -1.0, -1.1], np.float32)
    penalized = Sampler(repetition_penalty=1.5)
    assert penalized.sample(logits, []) == 0
    assert penalized.sample(logits, [0]) == 1
    assert penalized.sample(logits, [0, 0, 0, 0]) == 1  # 2/1.5, not 2/1.5^4, and still above the negative ones
    assert penalized.sample(logits, [0, 1]) == 0
    # A negative logit moves down as well.
    assert Sampler(repetition_penalty=1.5).sample(logits[2:], [0]) == 1
    assert Sampler(repetition_penalty=0.5).sample(logits, [1]) == 1


def test_repetition_penalty_looks_back_a_limited_way():
    logits = np.array([2.0, 1.9], np.float32)
    near = Sampler(repetition_penalty=1.5, repeat_last=3)
    assert near.sample(logits, [0, 1, 1]) == 0 and near.sample(logits, [0, 0, 1, 1, 1]) == 0
    assert Sampler(repetition_penalty=1.5, repeat_last=3).sample(logits, [9, 9, 0, 0, 0][2:]) == 1
    assert Sampler(repetition_penalty=1.5, repeat_last=0).sample(logits, [0]) == 0
    assert Sampler(repetition_penalty=1.5).sample(logits, [0] + [1] * 64) == 0
    assert Sampler(repetition_penalty=1.5).sample(logits, [0] * 64) == 1


# ---- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "logits", [[0.0, np.nan], [np.nan, np.inf], [0.0, np.inf], [-np.inf, -np.inf], [], [[1.0, 2.0]], 3.0]
)
def test_logits_that_allow_no_choice(logits, temperature):
    with pytest.raises(ValueError, match="logits"):
        Sampler(temperature, top_k=1, seed=0).sample(np.array(logits, np.float32))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"temperature": -0.1}, ValueError),
        ({"temperature": np.nan}, ValueError),
        ({"temperature": np.inf}, ValueError),
        ({"temperature": "1"}, TypeError),
        ({"temperature": True}, TypeError),
        ({"temperature": None}, TypeError),
        ({"temperature": 1j}, TypeError),
        ({"top_k": -1}, ValueError),
        ({"top_k": 1.5}, TypeError),
        ({"top_p": 0.0}, ValueError),
        ({"top_p": 1.1}, ValueError),
        ({"top_p": np.nan}, ValueError),
        ({"min_p": -0.1}, ValueError),
        ({"min_p": 1.1}, ValueError),
        ({"repetition_penalty": 0.0}, ValueError),
        ({"repetition_penalty": 1e9}, ValueError),
        ({"repeat_last": -1}, ValueError),
        ({"repeat_last": "64"}, TypeError),
        ({"seed": -1}, ValueError),
        ({"seed": 1.0}, TypeError),
    ],
)
def test_arguments_are_checked(options, error):
    with pytest.raises(error, match=next(iter(options))):
        Sampler(**options)


def test_numbers_of_any_kind_are_accepted():
    sampler = Sampler(np.float32(0.5), top_k=np.int64(3), top_p=1, min_p=np.float64(0.1), seed=np.int32(4))
    assert sampler.sample(LOGITS) in (1, 2, 4)
