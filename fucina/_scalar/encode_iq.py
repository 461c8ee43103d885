"""Encoding to grid blocks (specification of ``_kernels/encode_iq.pyx``).

A group of weights is stored as signs and points of a lattice, or as points of -1, 0, 1 with a common shift. ``points``
are odd coordinates (digit d is 2 d + 1), ``where`` leads from a position (the number with the digits of a group) to a
point or to a list in ``near``; see ``fucina.formats.lattices.search_tables``. All groups take the same steps side by
side; the few that leave the lattice are looked up one by one.
"""

import numpy as np

from . import _pack
from ._f32 import F
from ._search import nearest, ordered_sum, positive, quotient


class Lattice:
    """The tables of one lattice and the look-ups in them."""

    def __init__(self, points, where, near):
        self.points, self.where, self.near = np.asarray(points), np.asarray(where), np.asarray(near)
        self.dims = self.points.shape[1]
        self.base = 3 if self.dims == 8 else 8
        self.powers = self.base ** np.arange(self.dims)

    def find(self, digits):
        """The entries of ``where`` for digits [..., groups * dims]: [..., groups], negative outside the lattice."""
        groups = digits.reshape(digits.shape[:-1] + (-1, self.dims))
        return self.where[(groups * self.powers).sum(-1)]

    def digits(self, index):
        """Digits [..., groups * dims] of points [..., groups]."""
        return (self.points[index] // 2).astype(np.int32).reshape(index.shape[:-1] + (-1,))

    def nearby(self, entry):
        """Numbers of the points in the list that a negative entry leads to."""
        start = -1 - entry
        return self.near[start + 1 : start + 1 + self.near[start]]

    def closest(self, index, x, w, scale, levels=None):
        """Replace negative entries [..., groups] by the nearby point with the smallest sum w (scale * level - x)^2.

        Levels are the coordinates, or ``levels[..., digit]``. The first of equal points wins.
        """
        index = index.copy()
        x, w = (v.reshape(index.shape + (self.dims,)) for v in (x, w))
        for at in zip(*np.nonzero(index < 0)):
            members = self.nearby(index[at])
            q = self.points[members].astype(F) if levels is None else levels[at][self.points[members] // 2]
            e = scale[at[:-1]] * q - x[at]
            distance = ordered_sum(w[at] * e * e)
            index[at] = members[np.argmin(distance)]
        return index


def _halves(scale, nmax):
    """The block scale d and the codes c of sub-block scales ~ d (2 c + 1); the largest one gets c = nmax."""
    d = scale.max(-1) / F(2 * nmax + 1)
    inverse = F(1) / np.where(d > 0, d, F(1))
    return np.where(d > 0, d, F(0)), np.clip(nearest(F(0.5) * (inverse[..., None] * scale - F(1))), 0, nmax)


def _signs(x, w, even):
    """Magnitudes and sign bytes; with ``even`` the cheapest sign is wrong where the number of minus signs is odd."""
    g, w = (v.reshape(v.shape[:-1] + (-1, 8)) for v in (x, w))
    minus = g < 0
    size = np.where(g >= 0, g, -g)
    if even:
        odd = minus.sum(-1) % 2 == 1
        cheapest = np.argmin(w * g * g, axis=-1)[..., None] == np.arange(8)
        flip = odd[..., None] & cheapest
        size, minus = np.where(flip, -size, size), minus ^ flip
    mask = 127 if even else 255
    return size.reshape(x.shape), _pack.bits(minus)[..., 0].astype(np.int32) & mask, mask


def _levels(inverse, size, base):
    """Digits of the odd levels nearest to inverse * size."""
    return np.clip(nearest(F(0.5) * (inverse[..., None] * size - F(1))), 0, base - 1)


def _fit(lattice, index, size, w):
    """Least squares sums of points against magnitudes."""
    q = (2 * lattice.digits(index) + 1).astype(F)
    return ordered_sum(w * size * q), ordered_sum(w * q * q)


def _grid(lattice, size, w, start, steps, stretch, top, redo):
    """The points and the scale of groups [..., n]: candidates around ``top``, then a refinement with the best scale.

    ``redo`` says what the refinement looks up again: the ``"off"`` points that were not hit exactly, ``"all"`` of a
    group with such a point, or ``"always"`` all.
    """
    root = np.sqrt(w)
    q = 2 * lattice.base - 1
    scale, best = start, np.zeros_like(start)
    index = np.zeros(size.shape[:-1] + (size.shape[-1] // lattice.dims,), np.int32)
    hit = np.full(index.shape, redo == "off")
    for step in range(-steps, steps + 1):
        inverse = (F(q) + F(step) * F(stretch)) / top
        entry = lattice.find(_levels(inverse, size, lattice.base))
        trial = lattice.closest(entry, size, root, F(1) / inverse)
        qx, qq = _fit(lattice, trial, size, w)
        better = (qq > 0) & (qx * qx > best * qq)
        scale = np.where(better, quotient(qx, qq), scale)
        best = np.where(better, scale * qx, best)
        index = np.where(better[..., None], trial, index)
        hit = np.where(better[..., None], entry >= 0, hit)
    missed = ~hit if redo != "always" else np.ones_like(hit)
    again = (scale > 0) & missed.any(-1)
    if redo == "all":
        missed = np.ones_like(hit)
    entry = lattice.find(_levels(F(1) / np.where(again, scale, F(1)), size, lattice.base))
    entry = np.where(again[..., None] & missed, entry, index)
    index = lattice.closest(entry, size, root, scale)
    qx, qq = _fit(lattice, index, size, w)
    return index, np.where(again & (qq > 0), quotient(qx, qq), scale)


def _block_weights(x, w, factor, alone):
    """w sqrt(sigma2 + x^2), without importance ``alone(sigma2, x)``; sigma2 is ``factor`` times the mean square."""
    sigma2 = (F(factor) * ordered_sum(x * x) / F(256))[..., None]
    return alone(sigma2, x) if w is None else w * np.sqrt(sigma2 + x * x)


def _signed_grid(lattice, x, w, n, even, tiny, redo, steps, stretch):
    """Points, sign bytes and scales of groups of ``n`` elements; groups below ``tiny`` are all zero."""
    x, w = x.reshape(-1, 256 // n, n), w.reshape(-1, 256 // n, n)
    size, signs, mask = _signs(x, w, even)
    top = size.max(-1)
    live = top >= tiny if tiny else top != 0
    top = np.where(live, top, F(1))
    start = top / F(2 * lattice.base - 1)
    if redo == "always":
        _, start = positive(size, 4, w)
        top = start * F(3)
        live &= top > 0
        top = np.where(live, top, F(1))
    index, scale = _grid(lattice, size, w, start, steps, stretch, top, redo)
    negative = scale < 0
    signs = np.where(negative[..., None], ~signs & mask, signs)
    scale = np.where(live, np.abs(scale), F(0))
    index = np.where(live[..., None], index, 0).reshape(len(x), -1)
    signs = np.where(live[..., None], signs, 0).reshape(len(x), -1)
    return index, signs, scale, live


def _clear(blocks, d):
    """All zero where the scale of the block is."""
    return np.where((d > 0)[:, None], blocks, 0).astype(np.uint8)


def iq2_xxs(lattice, x, w):
    w = _block_weights(x, w, 1, None)
    index, signs, scale, _ = _signed_grid(lattice, x, w, 32, True, F(1e-15), "always", 6, 0.1)
    d, code = _halves(scale, 15)
    signs = (signs.reshape(-1, 8, 4) << 7 * np.arange(4)).sum(-1) | code.astype(np.int64) << 28
    words = np.concatenate([index.reshape(-1, 8, 4), _pack.word32(signs).reshape(-1, 8, 4)], axis=-1)
    return _clear(_pack.join(_pack.half(d), words.reshape(-1, 64)), d)


def iq2_xs(lattice, x, w):
    w = _block_weights(x, w, 1, None)
    index, signs, scale, _ = _signed_grid(lattice, x, w, 16, True, F(1e-15), "off", 9, 0.1)
    d, code = _halves(scale, 15)
    return _clear(_pack.join(_pack.half(d), _pack.word16(index | signs << 9), _pack.nibble_pairs(code)), d)


def iq2_s(lattice, x, w):
    w = _block_weights(x, w, 2, lambda sigma2, x: F(0.25) * sigma2 + x * x)
    index, signs, scale, _ = _signed_grid(lattice, x, w, 16, False, F(1e-8), "off", 9, 0.1)
    d, code = _halves(scale, 15)
    high = _pack.planes(index >> 8, 1)
    return _pack.join(_pack.half(d * F(0.9875)), index & 255, signs, high, _pack.nibble_pairs(code))


def iq3_xxs(lattice, x, w):
    w = _block_weights(x, w, 2, lambda sigma2, x: x * x)
    index, signs, scale, _ = _signed_grid(lattice, x, w, 32, True, F(1e-8), "off", 15, 0.2)
    d, code = _halves(scale, 15)
    words = (signs.reshape(-1, 8, 4) << 7 * np.arange(4)).sum(-1) | code.astype(np.int64) << 28
    return _clear(_pack.join(_pack.half(d * F(1.0125)), index, _pack.word32(words)), d)


def iq3_s(lattice, x, w):
    """Groups that are all zero take no room in ggml's indices and signs: what follows moves up."""
    w = _block_weights(x, w, 2, lambda sigma2, x: x * x)
    index, signs, scale, live = _signed_grid(lattice, x, w, 32, False, 0, "all", 9, 0.2)
    d, code = _halves(scale, 15)
    order = np.argsort(~live, axis=-1, kind="stable")[..., None]
    low = np.take_along_axis((index & 255).reshape(-1, 8, 8), order, 1).reshape(-1, 64)
    signs = np.take_along_axis(signs.reshape(-1, 8, 4), order, 1).reshape(-1, 32)
    return _pack.join(_pack.half(d * F(1.033)), low, _pack.bits(index >> 8), signs, _pack.nibble_pairs(code))


SHIFT = F(0.125)
UP = np.array([-1, 0, 1], F) + SHIFT
DOWN = np.array([-1, 0, 1], F) - SHIFT


def _sorted(x, w):
    """Order of the elements by value, and their w x and w in that order."""
    order = np.argsort(x, axis=-1, kind="stable")
    return order, np.take_along_axis(w * x, order, -1), np.take_along_axis(w, order, -1)


def _prefix(terms):
    """Sums of the first 0, 1, ... n terms, added in order."""
    total = [np.zeros(terms.shape[:-1], F)]
    for i in range(terms.shape[-1]):
        total.append(total[-1] + terms[..., i])
    return np.stack(total, -1)


def _splits(x, candidates):
    """The best way to cut sorted elements into -1, 0 and 1: (cut, cut, variant, scale, found) per group.

    ``candidates(i, j)`` yields, for cuts before elements i and j, the sums q x and q q of each variant.
    """
    shape = x.shape[:-1]
    scale, best = np.abs(x).max(-1), np.full(shape, np.finfo(F).min)
    first, second, variant = (np.full(shape, -1) for _ in range(3))
    for i in range(x.shape[-1] + 1):
        for j in range(i, x.shape[-1] + 1):
            for k, (qx, qq) in enumerate(candidates(i, j)):
                better = (qq > 0) & (qx * qx > best * qq)
                scale = np.where(better, quotient(qx, qq), scale)
                best = np.where(better, scale * qx, best)
                first, second = np.where(better, i, first), np.where(better, j, second)
                variant = np.where(better, k, variant)
    return first, second, variant, scale, variant >= 0


def _cut_digits(order, first, second):
    """Digits 0, 1, 2 of the elements in their own order."""
    rank = np.argsort(order, axis=-1, kind="stable")
    return (rank >= first[..., None]).astype(np.int32) + (rank >= second[..., None])


def _shifted_points(lattice, digits, x, w, scale, levels):
    """Points for digits; where one was not there, the scale is fitted again. ``levels`` is [..., groups, 3]."""
    entry = lattice.find(digits)
    index = lattice.closest(entry, x, w, scale, levels)
    q = np.take_along_axis(levels, lattice.digits(index).reshape(index.shape + (8,)), -1).reshape(x.shape)
    qx, qq = ordered_sum(w * q * x), ordered_sum(w * q * q)
    fit = (entry < 0).any(-1) & (qx > 0) & (qq > 0)
    return index, np.where(fit, quotient(qx, qq), scale)


def iq1_s(lattice, x, w):
    """One shift per 32 elements, found together with the cuts by trying all of them."""
    w = _block_weights(x, w, 2, None).reshape(-1, 8, 32)
    x = x.reshape(w.shape)
    order, wx, ws = _sorted(x, w)
    sx, sw = _prefix(wx), _prefix(ws)

    def candidates(i, j):
        for v in (UP, DOWN):
            qx = (sx[..., i] - sx[..., 0]) * v[0] + (sx[..., j] - sx[..., i]) * v[1] + (sx[..., 32] - sx[..., j]) * v[2]
            qq = ((sw[..., i] - sw[..., 0]) * v[0] * v[0] + (sw[..., j] - sw[..., i]) * v[1] * v[1]
                  + (sw[..., 32] - sw[..., j]) * v[2] * v[2])
            yield qx, qq

    first, second, variant, scale, found = _splits(x, candidates)
    live = found & (np.abs(x).max(-1) >= F(1e-12))
    digits = _cut_digits(order, first, second)
    negative = scale < 0
    digits = np.where(negative[..., None], 2 - digits, digits)
    scale, down = np.abs(scale), (variant == 1) ^ negative
    levels = np.where(down[..., None, None], DOWN, UP).repeat(4, -2)
    index, scale = _shifted_points(lattice, digits, x, w, scale, levels)
    index, scale, down = np.where(live[..., None], index, 0), np.where(live, scale, F(0)), down & live
    d, code = _halves(scale, 7)
    high = ((index >> 8) << 3 * np.arange(4)).sum(-1)
    code = np.where((d > 0)[:, None], (code | down << 3) << 12, 0)
    low = (index & 255).reshape(-1, 32)
    return _pack.join(_pack.half(d * F(1.125)), low, _pack.word16(high | code))


def iq1_m(lattice, x, w):
    """One shift per 8 and one scale per 16 elements; the scale of the block is fitted at the end."""
    w = _block_weights(x, w, 2, lambda sigma2, x: x * x).reshape(-1, 16, 16)
    x = x.reshape(w.shape)
    order, wx, ws = _sorted(x, w)
    halves = [order < 8, order >= 8]
    sx, sw = ([_prefix(np.where(h, v, F(0))) for h in halves] for v in (wx, ws))

    def candidates(i, j):
        qx, qq = [], []
        for s, t in zip(sx, sw):
            cut = s[..., i] + s[..., j]
            qx.append([s[..., 16] * v[2] - cut for v in (UP, DOWN)])
            qq.append([t[..., 16] * v[2] * v[2] + t[..., i] * (v[0] * v[0] - v[1] * v[1])
                       + t[..., j] * (v[1] * v[1] - v[2] * v[2]) for v in (UP, DOWN)])
        for k in range(4):
            yield qx[0][k >> 1] + qx[1][k & 1], qq[0][k >> 1] + qq[1][k & 1]

    first, second, variant, scale, found = _splits(x, candidates)
    live = found & (np.abs(x).max(-1) >= F(1e-7))
    digits = _cut_digits(order, first, second)
    negative = scale < 0
    digits = np.where(negative[..., None], 2 - digits, digits)
    scale, variant = np.abs(scale), np.where(negative, 3 - variant, variant)
    variant = np.where(live, variant, 0)
    down = np.stack([variant >> 1, variant & 1], -1)
    levels = np.where(down[..., None] > 0, DOWN, UP)
    index, scale = _shifted_points(lattice, digits, x, w, scale, levels)
    index, scale = np.where(live[..., None], index, 0), np.where(live, scale, F(0))
    d, code = _halves(scale, 7)
    some = d > 0
    q = np.take_along_axis(levels, lattice.digits(index).reshape(index.shape + (8,)), -1).reshape(x.shape)
    q = (q * (2 * code + 1).astype(F)[..., None]).reshape(-1, 256)
    wq = w.reshape(-1, 256) * q
    qx, qq = ordered_sum(wq * x.reshape(-1, 256)), ordered_sum(wq * q)
    d = np.where(some & (qq > 0), quotient(qx, qq), d)
    bits = _pack.half(d * F(1.1125)).view(np.uint16).astype(np.int32)
    nibble = index >> 8 | np.where(some[:, None, None], down.reshape(-1, 16, 2) << 3, 0).reshape(index.shape)
    word = (code.reshape(-1, 4, 4) << 3 * np.arange(4)).sum(-1) | (bits >> 4 * np.arange(4) & 15) << 12
    return _pack.join((index & 255).reshape(-1, 32), _pack.nibble_pairs(nibble.reshape(-1, 32)), _pack.word16(word))


ENCODERS = {20: iq2_xxs, 21: iq2_xs, 22: iq2_s, 23: iq3_xxs, 24: iq3_s, 25: iq1_s, 26: iq1_m}


def encode_rows_into_unchecked(number, points, where, near, x, imatrix, out, finite):
    """Rows x [m, k] to blocks; ``imatrix`` [k] or None weighs the errors; rows that are not ``finite`` are zero."""
    x = _pack.only_finite(np.asarray(x), finite)
    w = None if imatrix is None else np.broadcast_to(np.asarray(imatrix), x.shape).reshape(-1, 256)
    with np.errstate(all="ignore"):
        blocks = ENCODERS[number](Lattice(points, where, near), x.reshape(-1, 256), w).reshape(out.shape)
    out[...] = np.where(np.asarray(finite)[:, None] == 1, blocks, 0)
