"""``ops.matmul`` and packed weights: one chain of fused multiply-adds per output, whatever route computes it."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import SPECIAL, F, agree, close, engine, guarded, kernel_of, layouts, normal, same
from tolerances import chain

import fucina
from fucina import ops
from fucina._scalar import _f64
from fucina._scalar import matmul as specification
from fucina._scalar._f32 import fma
from fucina.runtime import isa, workspace

ml_dtypes = pytest.importorskip("ml_dtypes")
BF16 = ml_dtypes.bfloat16
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": BF16, "float64": np.float64}
KINDS = {"plain": (False, False), "trans_a": (True, False), "trans_b": (False, True), "both": (True, True)}
MS, NS, KS = (1, 7, 8, 9, 23), (1, 11, 12, 13, 37), (1, 63, 64, 65)
ROUTES = {"direct": 1, "stream": 2, "strip": 3}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
types = pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
half_types = pytest.mark.parametrize("dtype", [np.float16, BF16], ids=["float16", "bfloat16"])


def stored(x, transposed):
    """``x`` as the caller of ``trans_…`` has it."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)) if transposed else x


def product64(a, b, c=None):
    """In float64, and the sum of magnitudes of the terms."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    y, size = a @ b, np.abs(a) @ np.abs(b)
    return (y, size) if c is None else (y + c.astype(np.float64), size + np.abs(c.astype(np.float64)))


def chained(a, b, c=None):
    """The specification in words, for float32."""
    y = np.zeros((a.shape[0], b.shape[1]), F) if c is None else c.copy()
    for p in range(a.shape[1]):
        y = fma(a[:, p, None], b[None, p], y)
    return y


# ---- the matrix of kinds, types, sizes ---------------------------------------------------------------------------


@kinds
@types
def test_kinds_types_and_tails(kind, dtype):
    """All tails of rows, columns and depth, replacing or adding to either layout; the result of a part is part of the
    result."""
    scale = 2.0**-29 if dtype is np.float64 else 1
    wide = np.float64 if dtype is np.float64 else F
    old = normal(max(MS), max(NS), seed=2).astype(wide)
    for k in KS:
        a, b = normal(max(MS), k).astype(dtype), normal(k, max(NS), seed=1).astype(dtype)
        full = agree(lambda a=a, b=b: ops.matmul(a, b, dtype=wide), threads=(1, 2, 3, 5))
        added = agree(lambda a=a, b=b: ops.matmul(a, b, out=old.copy(), accumulate=True), threads=(1, 2, 3, 5))
        for y, (exact, size) in ((full, product64(a, b)), (added, product64(a, b, old))):
            close(y, exact, chain(k + 1) * size * scale)
        for m, n in itertools.product(MS, NS):
            x, y = stored(a[:m], kind[0]), stored(b[:, :n], kind[1])

            def call(x=x, y=y):
                return ops.matmul(x, y, trans_a=kind[0], trans_b=kind[1], dtype=wide)

            def add(x=x, y=y, order="C" if (m + n) % 2 else "F"):
                out = old[: len(x.T if kind[0] else x), : len(y if kind[1] else y.T)].copy(order)
                ops.matmul(x, y, trans_a=kind[0], trans_b=kind[1], out=out, accumulate=True)
                return np.ascontiguousarray(out)

            for what, part, whole in (("new", call, full), ("added", add, added)):
                part = agree(part, scalar=m * n < 100, threads=(1, 2))
                same(part, np.ascontiguousarray(whole[:m, :n]), f"{what} {m} {n} {k}")


@types
@pytest.mark.parametrize("layout", ["C", "F", "stepped"])
def test_accumulate(dtype, layout):
    for m, n, k in [(1, 1, 1), (1, 37, 65), (3, 20, 9), (7, 12, 64), (23, 13, 65), (65, 40, 70)]:
        a, b = normal(m, k).astype(dtype), normal(k, n, seed=1).astype(dtype)
        old = normal(m, n, seed=2).astype(dtype)

        def call(a=a, b=b, old=old):
            out = dict(layouts(old))[layout]
            assert ops.matmul(a, b, out=out, accumulate=True) is out
            return np.ascontiguousarray(out)

        y = agree(call, scalar=m < 30, threads=(1, 3))
        exact, size = product64(a, b, old)
        rounding = {2: np.finfo(np.float16).eps if dtype is np.float16 else 2.0**-8, 4: 0, 8: 0}[y.itemsize]
        close(y, exact, chain(k) * size * (2.0**-29 if dtype is np.float64 else 1) + rounding * np.abs(exact) + 1e-7)


@pytest.mark.parametrize(("ta", "tb"), list(itertools.product(list(TYPES)[:3], repeat=2)))
def test_mixed_types(ta, tb):
    """16-bit numbers are widened exactly: the product is that of the widened operands, rounded once to the result."""
    a, b = normal(13, 40).astype(TYPES[ta]), normal(40, 21, seed=1).astype(TYPES[tb])
    wide = ops.matmul(a.astype(F), b.astype(F))
    y = agree(lambda: ops.matmul(a, b))
    assert y.dtype == (a.dtype if ta == tb else F)
    for name in list(TYPES)[:3]:
        with np.errstate(over="ignore"):
            expected = wide.astype(TYPES[name])
        same(agree(lambda name=name: ops.matmul(a, b, dtype=TYPES[name])), expected, name)
        out = np.empty((13, 21), TYPES[name])
        assert ops.matmul(a, b, out=out) is out
        same(out, expected, name)


@pytest.mark.parametrize("k", [511, 512, 513, 1025])
def test_borders_of_blocks(k):
    """Depths, heights and widths around the sizes of blocks, on every route."""
    for m, n in [(2, 20), (5, 70), (7, 1030), (179, 33), (181, 530), (370, 17)]:
        a, b = normal(m, k), normal(k, n, seed=1)
        expected = chained(a, b) if m * n < 5000 else ops.matmul(a, b)
        for kind in KINDS.values():
            x, y = stored(a, kind[0]), stored(b, kind[1])
            same(agree(lambda x=x, y=y, kind=kind: ops.matmul(x, y, trans_a=kind[0], trans_b=kind[1]), scalar=False),
                 expected, f"{m} {n} {kind}")


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@types
def test_every_route_gives_the_same_bits(variant, route, dtype):
    """The kernel called directly: each way to bring b to the tile, for each kind and layout of the result."""
    kernels = variant.kernel("matmul")
    code = {np.float32: 0, np.float16: 1, BF16: 2, np.float64: 3}[dtype]
    raw = (lambda x: x.view(np.uint16)) if dtype is BF16 else (lambda x: x)
    space = workspace.aligned_empty(1 << 22, np.uint8)
    for m, n, k in [(1, 1, 1), (1, 16, 30), (2, 50, 64), (3, 33, 100), (4, 100, 37), (7, 18, 65), (30, 40, 330),
                    (125, 20, 12)]:
        a, b = raw(normal(m, k).astype(dtype)), raw(normal(k, n, seed=1).astype(dtype))
        expected = np.empty((m, n), np.float64 if code == 3 else F)
        specification.matmul_into_unchecked(code, a, code, b, code and 3 * (code == 3), expected, None, False, 0, None)
        for x, y in itertools.product((a, np.asfortranarray(a)), (b, np.asfortranarray(b))):
            for how, c in layouts(np.full_like(expected, np.nan)):
                if how in ("offset by a byte", "read-only", "broadcast"):
                    continue
                for nth in (1, 3):
                    c[...] = np.nan
                    need = kernels.matmul_into_unchecked(
                        code, x, code, y, 3 * (code == 3), c, None, False, route, space, nth
                    )
                    assert need == 0
                    same(np.ascontiguousarray(c), expected, f"{m} {n} {k} {how} {nth}")


@pytest.mark.parametrize("step", ["plain", "reordered"])
def test_the_first_steps_compute_the_same_chains(variant, step):
    for m, n, k in [(1, 1, 1), (7, 13, 65), (9, 37, 20)]:
        a, b, c = normal(m, k), normal(k, n, seed=1), np.full((m, n), np.nan, F)
        getattr(variant.kernel("matmul_steps"), f"{step}_into_unchecked")(a, b, c, 1)
        same(c, chained(a, b))


def test_kernel_asks_for_workspace(variant):
    a, b, c = normal(200, 300), normal(300, 200), np.zeros((200, 200), F)
    kernels = variant.kernel("matmul")
    need = kernels.matmul_into_unchecked(0, a, 0, b, 0, c, None, False, 0, None, 2)
    assert need > 0 and not c.any(), "nothing may be computed without workspace"
    small = np.empty(need - 1, np.uint8)
    assert kernels.matmul_into_unchecked(0, a, 0, b, 0, c, None, False, 0, small, 2) == need and not c.any()
    space = workspace.aligned_empty(need + 64, np.uint8)
    space[need:] = 7
    assert kernels.matmul_into_unchecked(0, a, 0, b, 0, c, None, False, 0, space[:need], 2) == 0
    same(c, chained(a, b))
    assert (space[need:] == 7).all()


# ---- layouts, memory ---------------------------------------------------------------------------------------------


def test_layouts(tmp_path):
    a, b = normal(9, 21), normal(21, 18, seed=1)
    for how, x in layouts(a, tmp_path):
        same(agree(lambda x=x: ops.matmul(x, b)), ops.matmul(x.copy(), b), f"a {how}")
    for how, x in layouts(b, tmp_path):
        same(agree(lambda x=x: ops.matmul(a, x)), ops.matmul(a, x.copy()), f"b {how}")
    expected = ops.matmul(a, b)
    for how, out in layouts(expected, tmp_path):
        if how not in ("read-only", "broadcast", "mapped"):
            out[...] = np.nan
            assert ops.matmul(a, b, out=out) is out
            same(np.ascontiguousarray(out), expected, f"out {how}")


def test_fields_of_a_record():
    """Strides that are no whole number of elements."""
    record = np.zeros((6, 5), np.dtype([("x", np.float32), ("y", np.uint8)]))
    record["x"] = normal(6, 5)
    same(ops.matmul(record["x"], normal(5, 4)), ops.matmul(record["x"].copy(), normal(5, 4)))
    out = np.zeros((6, 4), np.dtype([("x", np.float32), ("y", np.uint8)]))
    assert ops.matmul(normal(6, 5), normal(5, 4), out=out["x"]) is not None
    same(out["x"].copy(), ops.matmul(normal(6, 5), normal(5, 4)))
    assert not out["y"].any()


def test_nothing_is_copied_where_one_stride_is_one():
    """Transposed, sliced and broadcast operands reach the kernel as they are."""
    seen = []
    module = kernel_of(isa.variant())("matmul")

    class Spy:
        @staticmethod
        def matmul_into_unchecked(at, a, bt, b, *rest):
            seen.append((a, b))
            return module.matmul_into_unchecked(at, a, bt, b, *rest)

    with engine(isa.variant()):
        fucina.ops.matmul.__globals__["kernel"] = lambda stem: Spy
        x = normal(40, 60)
        for a, b in [(x.T, x), (x[:, 10:50].T, x[:, ::2]), (x, x.T), (x[::-1], x.T[:, ::3]), (x[5:6], x.T)]:
            same(ops.matmul(a, b), ops.matmul(a.copy(), b.copy()))
            assert all(np.shares_memory(view, x) for view in seen[-2])


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 15, 4), (6, 16, 9), (7, 17, 40), (23, 37, 65), (130, 70, 330)])
def test_nothing_is_written_beyond_out(shape):
    m, n, k = shape
    for dtype in (F, np.float16):
        a, b = normal(m, k).astype(dtype), normal(k, n, seed=1).astype(dtype)

        def call(a=a, b=b, dtype=dtype):
            out, check = guarded((m, n), dtype)
            ops.matmul(a, b, out=out)
            check()
            return out

        agree(call, scalar=False)


def test_out_may_overlap_an_operand():
    x = normal(30, 30)
    expected = ops.matmul(x, x)
    y = x.copy()
    same(ops.matmul(y, y, out=y), expected)
    y = np.concatenate([x, x])
    ops.matmul(y[:30], x, out=y[15:45])
    same(y[15:45], expected)
    y = x.copy()
    same(ops.matmul(y, x, out=y, accumulate=True), chained(x, x, x))
    wide = np.lib.stride_tricks.as_strided(np.zeros(70, F), (30, 30), (4, 4), writeable=True)
    ops.matmul(x, x, out=wide)     # elements of out share memory: the last one written wins, nothing breaks


def test_nan_in_old_out_does_not_leak():
    for m, n, k in [(1, 1, 1), (5, 20, 3), (23, 37, 65), (200, 70, 330)]:
        for dtype in TYPES.values():
            out = np.full((m, n), np.nan, dtype)
            ops.matmul(np.zeros((m, k), dtype), np.zeros((k, n), dtype), out=out)
            assert not out.any()


# ---- values ------------------------------------------------------------------------------------------------------


def test_special_values():
    pairs = np.stack(np.meshgrid(SPECIAL, SPECIAL), -1).reshape(-1, 2).astype(F)
    agree(lambda: ops.matmul(pairs[:70], np.ascontiguousarray(pairs[200:260].T)))
    agree(lambda: ops.matmul(SPECIAL[:, None], SPECIAL[None]))
    with np.errstate(over="ignore"):
        half = SPECIAL.astype(np.float16)
    agree(lambda: ops.matmul(half[:, None], half[None]))
    agree(lambda: ops.matmul(half[:, None], half[None], dtype=BF16))


@half_types
def test_every_16_bit_number(dtype):
    """Read exactly and written rounded to nearest, ties to even, by rows, by columns and packed."""
    x = np.arange(65536, dtype=np.uint16).view(dtype)
    one = np.ones((1, 1), dtype)
    with np.errstate(invalid="ignore"):
        wide = x.astype(F) + F(0)
    same(agree(lambda: ops.matmul(x[:, None], one, dtype=F))[:, 0], wide)
    same(agree(lambda: ops.matmul(one, x[None], dtype=F))[0], wide)
    rows = x.reshape(-1, 256)
    eye = np.eye(256, dtype=dtype)
    finite = np.where(np.isfinite(rows.astype(F)), rows, dtype(0))
    expected = finite.astype(F) + F(0)
    same(agree(lambda: ops.matmul(finite, eye, dtype=F), scalar=False), expected)
    same(agree(lambda: ops.matmul(eye.T, finite.T.copy(), dtype=F), scalar=False), np.ascontiguousarray(expected.T))
    same(agree(lambda: ops.linear(np.eye(256, dtype=F), ops.pack_weight(finite)), scalar=False),
         np.ascontiguousarray(expected.T))


@half_types
def test_results_round_to_nearest_even(dtype):
    """Halfway cases and their neighbours, through vectors and one by one."""
    base = np.array([1.0, 1.5, 3.75, 1e-6, 6e-8, 65504.0, 3e4, 1e-3], F)
    with np.errstate(over="ignore"):
        step = np.spacing(base.astype(dtype)).astype(F)
    step[~np.isfinite(step)] = 32
    x = np.concatenate([base + f * step for f in (0.25, 0.5, 0.75, 1.5, 2.5)]).astype(F)
    x = np.concatenate([x, -x, np.nextafter(x, F(np.inf)), np.nextafter(x, F(0)), [F(np.inf), F(np.nan)]])
    with np.errstate(over="ignore"):
        expected = x.astype(dtype)
    same(agree(lambda: ops.matmul(np.ones((1, 1), F), x[None], dtype=dtype))[0], expected)
    same(agree(lambda: ops.matmul(x[:, None], np.ones((1, 1), F), dtype=dtype))[:, 0], expected)


def test_float64_chain_of_the_specification():
    """The emulated fused multiply-add against exact rational arithmetic."""
    from fractions import Fraction

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(400) * 2.0 ** rng.integers(-60, 60, 400) for _ in range(2))
    c = -a * b * rng.choice([1.0, 1 + 2.0**-52, 1 - 2.0**-53, 0.5, 1e-9, 3e16], 400)
    expected = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c)]
    same(_f64.fma(a, b, c), np.array(expected))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 70), st.sampled_from(sorted(TYPES)), st.booleans(),
       st.booleans(), st.booleans())
def test_any_shape(m, n, k, dtype, trans_a, trans_b, accumulate):
    a, b = normal(m, k).astype(TYPES[dtype]), normal(k, n, seed=1).astype(TYPES[dtype])
    old = normal(m, n, seed=2).astype(TYPES[dtype])
    a, b = stored(a, trans_a), stored(b, trans_b)
    agree(lambda: ops.matmul(a, b, trans_a=trans_a, trans_b=trans_b, out=old.copy(), accumulate=accumulate))


# ---- batches -----------------------------------------------------------------------------------------------------


@kinds
def test_batches(kind):
    a, b = normal(3, 4, 10, 21), normal(3, 4, 21, 19, seed=1)
    x, y = stored(a, kind[0]), stored(b, kind[1])
    c = agree(lambda: ops.matmul(x, y, trans_a=kind[0], trans_b=kind[1]))
    for i, j in np.ndindex(3, 4):
        same(c[i, j], ops.matmul(a[i, j], b[i, j]))


@pytest.mark.parametrize(("sa", "sb"), [
    ((5, 7, 9), (9, 11)), ((7, 9), (5, 9, 11)), ((2, 1, 7, 9), (3, 9, 11)), ((1, 7, 9), (4, 9, 11)),
    ((2, 3, 7, 9), (1, 1, 9, 11)), ((3, 1, 9), (9, 40)), ((0, 7, 9), (9, 11)), ((2, 0, 9), (9, 11)), ((2, 7, 9), (9, 0)),
])
def test_leading_axes_broadcast(sa, sb):
    a, b = normal(*sa), normal(*sb, seed=1)
    c = agree(lambda: ops.matmul(a, b))
    lead = np.broadcast_shapes(sa[:-2], sb[:-2])
    assert c.shape == (*lead, sa[-2], sb[-1])
    x, y = np.broadcast_to(a, lead + sa[-2:]), np.broadcast_to(b, lead + sb[-2:])
    for i in np.ndindex(lead):
        same(c[i], ops.matmul(x[i], y[i]))
    out = np.zeros((*lead, sb[-1], sa[-2]), F).swapaxes(-1, -2)
    assert ops.matmul(a, b, out=out) is out
    same(np.ascontiguousarray(out), c)
    out = c.copy()
    ops.matmul(a, b, out=out, accumulate=True)
    for i in np.ndindex(lead):
        same(out[i], chained(x[i], y[i], c[i]))


def test_large_batch_of_small_products():
    a, b = normal(500, 3, 5), normal(500, 5, 4, seed=1)
    c = agree(lambda: ops.matmul(a, b))
    same(c[123], chained(a[123], b[123]))


# ---- packed weights ----------------------------------------------------------------------------------------------


@types
@pytest.mark.parametrize("k", [1, 2, 15, 16, 33, 330, 2049])
def test_packed_weights(dtype, k):
    w = normal(70, k, seed=1).astype(dtype)
    x = normal(20, k).astype(np.float64 if dtype is np.float64 else F)
    full = ops.matmul(x, w, trans_b=True)
    for m, n in itertools.product((1, 2, 3, 4, 6, 7, 20), (1, 15, 16, 17, 48, 64, 70)):
        rows = x[:m]
        y = agree(lambda rows=rows, n=n: ops.matmul(rows, ops.pack_weight(w[:n]), trans_b=True),
                  scalar=m * n * k < 20000, threads=(1, 3))
        same(y, np.ascontiguousarray(full[:m, :n]), f"{m} {n}")


@pytest.mark.parametrize("a_type", list(TYPES.values())[:3], ids=list(TYPES)[:3])
@pytest.mark.parametrize("dtype", list(TYPES.values())[:3], ids=list(TYPES)[:3])
def test_packed_weights_meet_rows_of_any_type_and_layout(dtype, a_type):
    packed, w = ops.pack_weight(normal(70, 331, seed=1).astype(dtype)), normal(70, 331, seed=1).astype(dtype)
    for m in (1, 2, 3, 4, 7, 20):
        for how, a in layouts(normal(m, 331).astype(a_type)):
            y = agree(lambda a=a: ops.matmul(a, packed, trans_b=True, dtype=F), scalar=False, threads=(1, 3))
            same(y, ops.matmul(a.astype(F, order="C"), w, trans_b=True, dtype=F), f"{m} rows, {how}")


@pytest.mark.parametrize("dtype", list(TYPES.values())[:3], ids=list(TYPES)[:3])
def test_packed_weights_in_linear(dtype):
    x, w, bias = normal(2, 30, 100), normal(50, 100, seed=1).astype(dtype), normal(50, seed=2)
    packed = ops.pack_weight(w)
    assert packed.shape == (50, 100) and packed.dtype == w.dtype and packed.ndim == 2
    assert packed.nbytes == 64 * 100 * w.itemsize and "PackedWeight" in repr(packed)
    same(agree(lambda: ops.linear(x, packed, bias)), ops.linear(x, w, bias))
    for i in range(30):
        same(agree(lambda i=i: ops.linear(x[1, i], packed, bias), scalar=False), ops.linear(x, w, bias)[1, i])
    out = np.empty((2, 30, 50), F)
    assert ops.linear(x, packed, bias, out=out) is out
    for how, a in layouts(w):
        same(ops.linear(x, ops.pack_weight(a)), ops.linear(x, a.copy()), how)


def test_packed_batches():
    packed = ops.pack_weight(normal(33, 20))
    a = normal(2, 3, 20, 7)
    expected = ops.matmul(a, normal(33, 20), trans_a=True, trans_b=True)
    same(agree(lambda: ops.matmul(a, packed, trans_a=True, trans_b=True)), expected)
    out = np.zeros((2, 3, 33, 7), F).swapaxes(-1, -2)
    same(np.ascontiguousarray(ops.matmul(a, packed, trans_a=True, trans_b=True, out=out)), expected)


@types
def test_packing_is_the_layout_of_the_specification(dtype):
    for n, k in [(1, 1), (16, 16), (17, 33), (40, 50), (8, 7)]:
        w = normal(n, k).astype(dtype)
        panels = agree(lambda w=w: ops.pack_weight(w).data)
        code = {np.float32: 0, np.float16: 1, BF16: 2, np.float64: 3}[dtype]
        raw = w.view(np.uint16) if dtype is BF16 else w
        np.testing.assert_array_equal(specification.unpack(code, panels, n, k), raw.T)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_packed_empty_weights(shape):
    packed = ops.pack_weight(normal(*shape))
    x, bias = normal(3, shape[1]), normal(shape[0])
    same(ops.linear(x, packed, bias), np.broadcast_to(bias, (3, shape[0])).copy())


# ---- edges of the request ----------------------------------------------------------------------------------------


@types
def test_no_depth_and_no_outputs(dtype):
    a, b = np.zeros((3, 0), dtype), np.zeros((0, 4), dtype)
    same(agree(lambda: ops.matmul(a, b)), np.zeros((3, 4), dtype))
    out = np.full((3, 4), np.nan, dtype)
    same(ops.matmul(a, b, out=out), np.zeros((3, 4), dtype))
    out = np.full((3, 4), 5, dtype)
    same(ops.matmul(a, b, out=out, accumulate=True), np.full((3, 4), 5, dtype))
    assert ops.matmul(np.zeros((0, 5), dtype), np.zeros((5, 4), dtype)).shape == (0, 4)
    assert ops.matmul(np.zeros((2, 3, 5), dtype), np.zeros((2, 5, 0), dtype)).shape == (2, 3, 0)


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: ops.matmul(normal(2, 3), normal(4, 5)), ValueError, "inner sizes differ"),
    (lambda: ops.matmul(normal(2, 3), normal(3, 5), trans_b=True), ValueError, r"a \(2, 3\) times b \(5, 3\)"),
    (lambda: ops.matmul(normal(2, 3), normal(3, 5), trans_a=True), ValueError, r"a \(3, 2\) times b \(3, 5\)"),
    (lambda: ops.matmul(normal(3), normal(3, 5)), ValueError, "a must be a matrix"),
    (lambda: ops.matmul(normal(2, 3), normal(3)), ValueError, "b must be a matrix"),
    (lambda: ops.matmul(F(1), normal(3, 3)), ValueError, "a must be a matrix"),
    (lambda: ops.matmul(normal(2, 4, 3), normal(3, 3, 5)), ValueError, "do not broadcast"),
    (lambda: ops.matmul(normal(*[1] * 40), normal(1, 1)), ValueError, "at most 32 axes"),
    (lambda: ops.matmul(np.ones((2, 3)), normal(3, 5)), TypeError, "float64 meets only float64"),
    (lambda: ops.matmul(np.ones((2, 3), int), normal(3, 5)), TypeError, "a must be float32.*got int64"),
    (lambda: ops.matmul(normal(2, 3), normal(3, 5).astype(">f4")), TypeError, "foreign byte order"),
    (lambda: ops.matmul(normal(2, 3), normal(3, 5), dtype=np.float64), TypeError, "cannot be float64"),
    (lambda: ops.matmul(normal(2, 3), normal(3, 5), dtype=np.int32), TypeError, "the result must be float32"),
    (lambda: ops.matmul(normal(2, 3), normal(3, 5), accumulate=True), ValueError, "out, which is missing"),
    (lambda: ops.matmul(normal(2, 3), normal(3, 5), out=[0]), TypeError, "out must be a NumPy array"),
    (lambda: ops.matmul(normal(2, 3), normal(3, 5), out=normal(2, 4)), ValueError, r"out must have shape \(2, 5\)"),
    (lambda: ops.matmul(normal(2, 3), normal(3, 5), out=np.zeros((2, 5))), TypeError, "cannot be float64"),
    (lambda: ops.matmul(normal(2, 3), normal(3, 5), out=normal(2, 5).astype(">f4")), TypeError, "byte order"),
    (lambda: ops.matmul(normal(2, 3), normal(3, 5), dtype=np.float16, out=normal(2, 5)), TypeError, "out must be float16"),
    (lambda: ops.matmul(normal(2, 3), normal(3, 5), out=np.broadcast_to(F(0), (2, 5))), ValueError, "read-only"),
    (lambda: ops.matmul(normal(2, 3), ops.pack_weight(normal(5, 3))), ValueError, "use it with trans_b=True"),
    (lambda: ops.matmul(normal(2, 4), ops.pack_weight(normal(5, 3)), trans_b=True), ValueError, "inner sizes differ"),
    (lambda: ops.linear(normal(2, 3), ops.pack_weight(np.ones((5, 3)))), TypeError, "got float64"),
    (lambda: ops.pack_weight(normal(3)), ValueError, "w must be a matrix"),
    (lambda: ops.pack_weight(normal(2, 3, 4)), ValueError, r"matrix \(n, k\)"),
    (lambda: ops.pack_weight(np.ones((2, 3), np.int8)), TypeError, "got int8"),
])
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


# ---- the team ----------------------------------------------------------------------------------------------------


def test_large_products_on_any_number_of_threads():
    for m, n, k in [(700, 500, 300), (33, 3000, 700), (3000, 20, 100), (1, 5000, 600), (2, 3, 50000), (5, 1500, 1500)]:
        a, b = normal(m, k), normal(k, n, seed=1)
        agree(lambda a=a, b=b: ops.matmul(a, b), scalar=False, threads=(1, 2, 3, 5))
        y = ops.matmul(a, b)
        exact, size = product64(a, b)
        close(y, exact, chain(k) * size)


def test_no_team_below_the_gate(monkeypatch, threads):
    threads(4)
    asked = []
    module = fucina.ops.matmul.__globals__
    enter = module["enter"]
    monkeypatch.setitem(module, "enter", lambda work, gate: asked.append(enter(work, gate)) or asked[-1])
    ops.matmul(normal(4, 4), normal(4, 4))
    assert asked == [1]
    ops.matmul(normal(300, 300), normal(300, 300))
    assert asked[1] == fucina.get_num_threads()


def test_many_callers_at_once():
    """Eight Python threads, one team: everyone gets the right answer."""
    cases = [(normal(90 + i, 120), normal(120, 150, seed=i)) for i in range(8)]
    expected = [ops.matmul(a, b) for a, b in cases]
    wrong = []

    def work(i):
        for _ in range(5):
            if not np.array_equal(ops.matmul(*cases[i]), expected[i]):
                wrong.append(i)

    callers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not wrong and not any(caller.is_alive() for caller in callers)


def test_forked_child_computes(run_isolated):
    done = run_isolated("""
import os, numpy as np
from fucina import ops
a = np.arange(90000, dtype=np.float32).reshape(300, 300) / 1000
before = ops.matmul(a, a)
child = os.fork()
if not child:
    os._exit(0 if np.array_equal(ops.matmul(a, a), before) else 1)
print(os.waitpid(child, 0)[1])
""", env={"FUCINA_MAX_THREADS": "2"})
    assert done.stdout.strip() == "0", done.stderr


def test_threadpoolctl_limits_hold(run_isolated):
    done = run_isolated("""
import numpy as np, threadpoolctl
from fucina import ops
module, seen = ops.matmul.__globals__, []
enter = module["enter"]
module["enter"] = lambda work, gate: seen.append(enter(work, gate)) or seen[-1]
a = np.ones((300, 300), np.float32)
ops.matmul(a, a)
with threadpoolctl.threadpool_limits(1):
    ops.matmul(a, a)
ops.matmul(a, a)
print(seen)
""", env={"FUCINA_MAX_THREADS": "2"})
    assert done.stdout.strip() in ("[2, 1, 2]", "[1, 1, 1]"), done.stderr


def test_spin_budget_reaches_the_runtime(run_isolated):
    """Before it is loaded, and not the child processes."""
    code = "import os, fucina; print(os.environ.get('GOMP_SPINCOUNT'))"
    for env, spins in [
        ({"FUCINA_SPIN_BUDGET": "1234"}, "1234"), ({"FUCINA_SPIN_BUDGET": "12", "GOMP_SPINCOUNT": "34"}, "34"),
        ({"FUCINA_SPIN_BUDGET": "12", "OMP_WAIT_POLICY": "passive"}, "0"),
    ]:
        done = run_isolated(code, env=env | {"OMP_DISPLAY_ENV": "verbose"})
        if "GOMP_SPINCOUNT" not in done.stderr:
            pytest.skip("not GNU OpenMP")
        assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr
        assert done.stdout.strip() == env.get("GOMP_SPINCOUNT", "None")
    assert "FUCINA_SPIN_BUDGET" in run_isolated(code, env={"FUCINA_SPIN_BUDGET": "often"}).stderr
