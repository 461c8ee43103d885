"""Routing to experts (specification of ``_kernels/moe.pyx``)."""

import numpy as np

from ._f32 import F

# Below this a sum of weights is not divided by: half precision's smallest normal number.
LEAST = F(2.0**-14)


def top_k_into_unchecked(x, ids):
    """Places of the largest elements of rows of x [m, n], largest first; of equal ones the first; NaN comes last."""
    x = np.asarray(x)
    # A stable sort keeps equal elements in order; NaN is sorted behind everything.
    with np.errstate(invalid="ignore"):
        ids[...] = np.argsort(-x, axis=-1, kind="stable")[:, : ids.shape[1]]


def weigh_into_unchecked(scores, ids, normalize, scale, weights):
    """The scores of the chosen, over their sum (in the order of the choice) if asked for, times a factor."""
    w = np.take_along_axis(np.asarray(scores), np.asarray(ids), axis=-1)
    with np.errstate(all="ignore"):
        if normalize:
            total = w[:, 0]
            for j in range(1, w.shape[1]):
                total = total + w[:, j]
            w = w / np.where(total < LEAST, LEAST, total)[:, None]
        weights[...] = w * F(scale)


def group_into_unchecked(ids, starts, order):
    """Counting sort: expert e has the slots ``order[starts[e] : starts[e + 1]]``, in ascending order."""
    ids = np.asarray(ids)
    starts[0] = 0
    starts[1:] = np.cumsum(np.bincount(ids, minlength=len(starts) - 1))
    order[...] = np.argsort(ids, kind="stable")


def combine_into_unchecked(y, at, weights, out):
    """out[t] = sum of weights[t, j] * y[at[t, j]], products rounded, added in the order of j."""
    y, at, weights = np.asarray(y), np.asarray(at), np.asarray(weights)
    with np.errstate(all="ignore"):
        total = weights[:, 0, None] * y[at[:, 0]]
        for j in range(1, at.shape[1]):
            total = total + weights[:, j, None] * y[at[:, j]]
    out[...] = total
