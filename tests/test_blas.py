"""The BLAS tier: right answers without copies, on as many threads as the kernels would have, and only when asked for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from references import F, close, layouts, normal, same
from tolerances import chain

from fucina import ops
from fucina.runtime import blas, isa, providers, tuning


@pytest.fixture
def always(monkeypatch):
    """BLAS at the front of the chain, wherever it can."""
    monkeypatch.setenv("FUCINA_BLAS", "1")
    blas._least_work.cache_clear()
    taken = []

    def offer(*request):
        answer = blas.offer(*request)
        taken.append(answer)
        return answer

    monkeypatch.setattr(providers, "chain", (("blas", offer),))
    yield taken
    blas._least_work.cache_clear()


def bound(a, b, old=0):
    return 2 * chain(a.shape[1]) * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64) + np.abs(old))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("trans_a", "trans_b"), list(itertools.product([False, True], repeat=2)))
def test_all_kinds(always, dtype, trans_a, trans_b):
    for m, n, k in [(16, 16, 16), (17, 40, 33), (100, 30, 65)]:
        a, b, old = (normal(*s, seed=i).astype(dtype) for i, s in enumerate([(m, k), (k, n), (m, n)]))
        x, y = np.ascontiguousarray(a.T) if trans_a else a, np.ascontiguousarray(b.T) if trans_b else b
        exact = a.astype(np.float64) @ b.astype(np.float64)
        scale = 1 if dtype is np.float32 else 2.0**-29
        close(ops.matmul(x, y, trans_a=trans_a, trans_b=trans_b), exact, bound(a, b) * scale)
        out = np.full((m, n), np.nan, dtype)
        assert ops.matmul(x, y, trans_a=trans_a, trans_b=trans_b, out=out) is out
        close(out, exact, bound(a, b) * scale)
        out = old.copy()
        ops.matmul(x, y, trans_a=trans_a, trans_b=trans_b, out=out, accumulate=True)
        close(out, exact + old, bound(a, b, old) * scale)
    assert always == [True] * 9


def test_what_it_cannot_do_is_declined(always):
    a, b = normal(40, 50), normal(50, 30, seed=1)
    providers_off = lambda: ops.matmul(normal(40, 50), normal(50, 30, seed=1))
    declined = [
        lambda: ops.matmul(a[:15], b), lambda: ops.matmul(a, b[:, :15]), lambda: ops.matmul(a[:, :15], b[:15]),
        lambda: ops.matmul(a[:, ::2], b[::2]), lambda: ops.matmul(a, np.repeat(b, 2, 1)[:, ::2]),
        lambda: ops.matmul(a, b, out=np.empty((30, 40), F).T), lambda: ops.matmul(a.astype(np.float16), b),
        lambda: ops.matmul(a, b, dtype=np.float16), lambda: ops.matmul(np.stack([a, a]), np.stack([b, b])),
    ]
    for call in declined:
        call()
    assert always == [False] * len(declined)
    providers_off()
    assert always[-1]


def test_layouts_without_copies(always):
    """A matrix by columns is BLAS's own; anything else that is not contiguous is left to the kernel."""
    a, b = normal(33, 64), normal(64, 48, seed=1)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for how, x in layouts(a):
        if how != "broadcast":
            close(ops.matmul(x, b), exact, bound(a, b), how)
    assert always == [how in ("C", "F", "offset by a byte", "read-only") for how, _ in layouts(a) if how != "broadcast"]


def test_nan_in_old_out_does_not_leak(always):
    out = np.full((20, 20), np.nan, F)
    ops.matmul(np.zeros((20, 20), F), np.zeros((20, 20), F), out=out)
    assert not out.any() and always == [True]


def test_linear_layers(always):
    x, w, bias = normal(20, 40), normal(30, 40, seed=1), normal(30)
    close(ops.linear(x, w, bias), x.astype(np.float64) @ w.T.astype(np.float64) + bias, bound(x, w.T, bias))
    assert always == [True]


def test_it_keeps_to_the_threads_it_gets(always, monkeypatch):
    libraries = blas._libraries()
    assert libraries, "SciPy has a BLAS"
    before = [lib.get_num_threads() for lib in libraries]
    seen = []
    from scipy.linalg import blas as scipy_blas

    gemm = scipy_blas.sgemm
    monkeypatch.setattr(
        scipy_blas, "sgemm", lambda *a, **k: seen.append([lib.get_num_threads() for lib in libraries]) or gemm(*a, **k)
    )
    for threads in (1, 2):
        assert blas.offer(normal(64, 64), normal(64, 64), np.empty((64, 64), F), False, threads)
        assert max(seen[-1]) <= threads
        assert [lib.get_num_threads() for lib in libraries] == before, "the number is put back"

    def fail(*a, **k):
        raise MemoryError

    monkeypatch.setattr(scipy_blas, "sgemm", fail)
    with pytest.raises(MemoryError):
        blas.offer(normal(64, 64), normal(64, 64), np.empty((64, 64), F), False, 1)
    assert [lib.get_num_threads() for lib in libraries] == before and not blas._busy.locked()


def test_one_caller_at_a_time(always):
    with blas._busy:
        same(ops.matmul(normal(64, 64), normal(64, 64)), ops.matmul(normal(64, 64), normal(64, 64)))
    assert always == [False, False]


@pytest.mark.parametrize("mode", ["0", "1", "auto"])
def test_the_knob(run_isolated, mode):
    done = run_isolated("""
import sys, numpy as np
from fucina import ops
from fucina.runtime import providers, isa
a = np.arange(10000, dtype=np.float32).reshape(100, 100) % 7
assert "scipy" not in sys.modules and "threadpoolctl" not in sys.modules, "imported before it is needed"
assert np.array_equal(ops.matmul(a, a), a @ a)      # whole numbers: no rounding
print(isa.variant(), [name for name, _ in providers.chain], "scipy.linalg" in sys.modules)
""", env={"FUCINA_BLAS": mode})
    variant, _, rest = done.stdout.strip().partition(" ")
    used = mode == "1" or mode == "auto" and variant in blas.FASTER_FROM
    assert rest == f"{[] if mode == '0' else ['blas']} {used}", done.stderr


def test_auto_follows_the_measurements(monkeypatch):
    monkeypatch.setenv("FUCINA_BLAS", "auto")
    for name in isa.runnable_variants():
        blas._least_work.cache_clear()
        monkeypatch.setattr(isa, "variant", lambda name=name: name)
        out = np.empty((200, 200), F)
        assert blas.offer(normal(200, 200), normal(200, 200), out, False, 1) == (name in blas.FASTER_FROM)
    blas._least_work.cache_clear()
    assert tuning.KNOBS["FUCINA_BLAS"].default == "0" and tuning.KNOBS["FUCINA_BLAS"].provenance
