"""Encoding to grid blocks: ggml's bytes; the specification looks points up one by one, so it is tried on a few rows."""

from __future__ import annotations

import numpy as np
import pytest
from encoding import awkward, check_error, check_golden, encode, keys, names
from references import agree, normal, same

from fucina.formats import FORMATS, lattices

FORMAT = pytest.mark.parametrize("name", names("encode_iq"))


@pytest.mark.parametrize("key", keys("encode_iq"))
def test_golden(key):
    """Rows 0 to 12 are the adversarial ones, of which 0, 4, 8 and 12 are tried, and 36 of the random ones."""
    check_golden(key, slice(0, 40, 4) if key.startswith("iq1") else [0, 4, 8, 12, 36])


@FORMAT
def test_error(name):
    check_error(name, 1000)


@pytest.mark.parametrize(
    ("name", "imatrix"),
    [(n, i) for n in names("encode_iq") for i in (False, True) if i or FORMATS[n].imatrix != "required"],
)
def test_awkward_rows(name, imatrix):
    x = awkward(256)
    weights = np.abs(normal(256, seed=9)) + np.float32(0.1)
    weights[::5] = 0
    key = name + "_im" * imatrix
    whole = agree(lambda: encode(key, x, weights), scalar=False)
    part = np.ascontiguousarray(x[[0, 1, 2, 3, 7, 9, 11, 12]])
    same(agree(lambda: encode(key, part, weights), threads=(1,)), whole[[0, 1, 2, 3, 7, 9, 11, 12]])


# ---- the lattices -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", lattices.LATTICES)
def test_search_tables(name):
    """Every position leads to its point, or to the points in the first distances."""
    lattice = lattices.LATTICES[name]
    points, where, near = lattices.search_tables(name)
    base = len(lattice.levels)
    digits = points // 2
    assert points.shape[1] == lattice.dims and where.shape == (base**lattice.dims,)
    own = where[(digits * base ** np.arange(lattice.dims)).sum(-1)]
    assert own.tolist() == list(range(len(points)))
    outside = np.flatnonzero(where < 0)
    assert len(outside) == len(where) - len(points)
    for position in outside[:: len(outside) // 40]:
        start = -1 - where[position]
        members = near[start + 1 : start + 1 + near[start]]
        here = position // base ** np.arange(lattice.dims) % base
        distance = ((digits - here) ** 2).sum(-1)
        limit = np.unique(distance)[: lattice.rings][-1]
        expected = np.flatnonzero(distance <= limit)
        assert members.tolist() == expected[np.argsort(distance[expected], kind="stable")].tolist()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("iq1", "IQ1_S"), ("iq2_xxs", "IQ2_XXS"), ("iq2_xs", "IQ2_XS"), ("iq2_s", "IQ2_S"), ("iq3_xxs", "IQ3_XXS"),
     ("iq3_s", "IQ3_S")],
)
def test_points_are_those_of_the_gguf_package(name, kind):
    quants = pytest.importorskip("gguf.quants")
    reference = getattr(quants, kind)
    reference.init_grid()
    np.testing.assert_array_equal(lattices.grid(name).view(np.int8), reference.grid.reshape(reference.grid_shape))
