"""The seam for other ways to compute a product: a real second provider, asked first, that may decline."""

from __future__ import annotations

import numpy as np
import pytest
from references import F, close, normal, same
from tolerances import chain

from fucina import ops
from fucina.runtime import providers


class Provider:
    """NumPy's products, as a provider with a taste of its own; keeps the requests it was asked for."""

    def __init__(self, likes=lambda a, b, out, accumulate: True):
        self.likes = likes
        self.taken, self.declined = [], []

    def __call__(self, a, b, out, accumulate, threads):
        assert out.shape == np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1])
        assert a.shape[-1] == b.shape[-2] and threads >= 1
        if not self.likes(a, b, out, accumulate):
            self.declined.append(out.shape)
            return False
        product = np.matmul(a.astype(np.float64), b.astype(np.float64))
        out[...] = out + product if accumulate else product
        self.taken.append(out.shape)
        return True


@pytest.fixture
def provide():
    """``provide(provider, name)`` registers it for the time of a test."""
    names = []

    def register(provider, name="numpy"):
        providers.register(name, provider)
        names.append(name)
        return provider

    yield register
    for name in names:
        providers.unregister(name)


def product64(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def test_a_provider_computes(provide):
    a, b = normal(20, 300), normal(300, 30, seed=1)
    own = ops.matmul(a, b)
    numpy = provide(Provider())
    same(ops.matmul(a, b), product64(a, b).astype(F))
    same(ops.matmul(a.T.copy(), b.T.copy(), trans_a=True, trans_b=True), product64(a, b).astype(F))
    old = normal(20, 30, seed=2)
    out = old.copy()
    assert ops.matmul(a, b, out=out, accumulate=True) is out
    same(out, (old + product64(a, b)).astype(F))
    same(ops.matmul(a.astype(np.float16), b.astype(np.float16), dtype=F),
         product64(a.astype(np.float16), b.astype(np.float16)).astype(F))
    assert numpy.taken == [(20, 30)] * 4 and not numpy.declined
    assert (own != ops.matmul(a, b)).any(), "float64 sums differ somewhere, or the provider was not used"


def test_linear_layers_ask_too(provide):
    x, w, bias = normal(2, 9, 40), normal(30, 40, seed=1), normal(30)
    expected = ops.linear(x, w, bias)
    numpy = provide(Provider())
    y = ops.linear(x, w, bias)
    close(y, expected.astype(np.float64), chain(41) * (np.abs(x) @ np.abs(w.T) + np.abs(bias)))
    assert numpy.taken == [(18, 30)]
    same(ops.linear(x, ops.pack_weight(w), bias), expected)
    assert len(numpy.taken) == 1, "packed weights are the kernel's own"


def test_batches_reach_it_whole(provide):
    a, b = normal(4, 3, 5, 8), normal(3, 8, 7, seed=1)
    numpy = provide(Provider())
    close(ops.matmul(a, b), product64(a, b), 1e-5)
    ops.matmul(a, b[0])
    assert numpy.taken == [(4, 3, 5, 7), (60, 7)], "one right operand for all is one tall product"


def test_what_is_declined_is_computed_all_the_same(provide):
    cases = [(normal(m, k), normal(k, n, seed=1)) for m, n, k in [(1, 1, 1), (5, 40, 7), (40, 5, 64), (64, 64, 64)]]
    expected = [ops.matmul(a, b) for a, b in cases]
    picky = provide(Provider(lambda a, b, out, accumulate: min(out.shape) >= 64 and not accumulate), "picky")
    for (a, b), y in zip(cases[:3], expected):
        same(ops.matmul(a, b), y)
    ops.matmul(*cases[3])
    out = np.zeros((64, 64), F)
    same(ops.matmul(*cases[3], out=out, accumulate=True), expected[3])
    assert picky.taken == [(64, 64)] and len(picky.declined) == 4


def test_the_last_one_registered_is_asked_first(provide):
    first, second = provide(Provider(lambda *request: False), "first"), provide(Provider(), "second")
    ops.matmul(normal(3, 4), normal(4, 5))
    assert second.taken == [(3, 5)] and not first.declined
    second.likes = lambda *request: False
    same(ops.matmul(normal(3, 4), normal(4, 5)), ops.matmul(normal(3, 4), normal(4, 5)))
    assert len(first.declined) == len(second.declined) == 2
    assert [name for name, _ in providers.chain][:2] == ["second", "first"]


def test_an_error_of_a_provider_is_seen(provide):
    def broken(*request):
        raise RuntimeError("out of memory on the other side")

    provide(broken)
    with pytest.raises(RuntimeError, match="other side"):
        ops.matmul(normal(3, 4), normal(4, 5))


def test_nothing_is_asked_where_nothing_is_to_do(provide):
    numpy = provide(Provider())
    assert ops.matmul(np.zeros((3, 0), F), np.zeros((0, 4), F)).shape == (3, 4)
    assert ops.matmul(np.zeros((0, 3), F), np.zeros((3, 4), F)).shape == (0, 4)
    assert not numpy.taken and not numpy.declined


def test_registration(provide):
    provide(Provider(), "mine")
    with pytest.raises(ValueError, match="'mine' already"):
        providers.register("mine", Provider())
    with pytest.raises(TypeError, match="must be callable"):
        providers.register("other", 5)
    with pytest.raises(KeyError, match="no provider 'other'"):
        providers.unregister("other")
