"""What both gates agree on: what a set of samples is worth, and the exit status that says so."""

from __future__ import annotations

import statistics

# From the worst to the best. 2 is left to wrong usage and aborted runs.
EXIT = {"FAIL": 1, "MISSING": 4, "NOISY": 3, "PASS": 0}
ABORTED = 2


def cv(samples) -> float | None:
    """Coefficient of variation: standard deviation of a sample / mean; None of fewer than two samples."""
    return statistics.stdev(samples) / statistics.fmean(samples) if len(samples) > 1 else None


def noisy(samples, max_cv: float) -> bool:
    """Whether samples vary by more than ``max_cv``, or are too few to show how much they vary."""
    variation = cv(samples)
    return variation is None or variation > max_cv


def judge(ours, theirs, min_ratio: float = 1.0, max_cv: float = 0.08, allow_noisy: bool = False):
    """Compare two sides by their medians.

    Parameters
    ----------
    ours, theirs : sequence of float
        Samples of a speed: more is better.
    min_ratio : float
        Least ratio of the medians that passes.
    max_cv : float
        A side that varies by more makes the comparison worthless, whichever way it points; so does a single sample.
    allow_noisy : bool
        Judge noisy samples all the same.

    Returns
    -------
    (str, float or None)
        PASS, FAIL, NOISY or MISSING (a side has no samples); the ratio ours / theirs.
    """
    if not ours or not theirs:
        return "MISSING", None
    ratio = statistics.median(ours) / statistics.median(theirs)
    if (noisy(ours, max_cv) or noisy(theirs, max_cv)) and not allow_noisy:
        return "NOISY", ratio
    return ("PASS" if ratio >= min_ratio else "FAIL"), ratio


def overall(verdicts) -> str:
    """The worst of several verdicts; nothing measured is MISSING."""
    found = set(verdicts)
    return next((verdict for verdict in EXIT if verdict in found), "MISSING")


def geometric_mean(ratios) -> float | None:
    """Geometric mean of the ratios that exist."""
    known = [ratio for ratio in ratios if ratio is not None]
    return statistics.geometric_mean(known) if known else None
