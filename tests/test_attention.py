"""Attention: groups of heads, causal limits, windows, cache types; and that nothing leaks from where nobody looks."""

from __future__ import annotations

import numpy as np
import pytest
import tolerances
from hypothesis import given
from hypothesis import strategies as st
from references import (
    SPECIAL,
    THREADS,
    F,
    agree,
    attention64,
    close,
    guarded,
    layouts,
    normal,
    random_blocks,
    same,
    visible,
)

from fucina import QTensor, ops

CACHES = ("float32", "float16", "q8_0")
caches = pytest.mark.parametrize("cache", CACHES)


def stored(x: np.ndarray, cache: str):
    """Keys or values as a cache holds them."""
    return ops.quantize(x, cache) if cache == "q8_0" else x.astype(cache)


def loaded(x) -> np.ndarray:
    return x.dequantize() if isinstance(x, QTensor) else x.astype(F)


def tokens(seq: int, kv_seq: int, heads: int, kv_heads: int, d: int, cache: str = "float32"):
    """Queries, keys and values."""
    q, k, v = normal(seq, heads, d), normal(kv_seq, kv_heads, d, seed=1), normal(kv_seq, kv_heads, d, seed=2)
    return q, stored(k, cache), stored(v, cache)


def check(q, k, v, scalar=True, threads=THREADS, **options):
    """Agreement of all engines and closeness to float64."""
    y = agree(lambda: ops.attention(q, k, v, **options), scalar=scalar, threads=threads)
    exact, largest = attention64(q, loaded(k), loaded(v), **options)
    bound = tolerances.attention(len(loaded(k)), q.shape[2], largest) * np.abs(loaded(v)).max()
    close(y, exact, bound, str(options))
    return y


@pytest.mark.parametrize(("cache", "d"), [
    (cache, d) for cache in CACHES for d in (1, 3, 8, 16, 31, 32, 40, 64, 80, 96, 128, 256)
    if cache != "q8_0" or d % 32 == 0
])
def test_features(cache, d):
    for seq, kv_seq in ((1, 1), (1, 17), (5, 5), (3, 40)):
        q, k, v = tokens(seq, kv_seq, 4, 2, d, cache)
        check(q, k, v)
    check(q, k, v, scale=0.7, causal=False)


@caches
@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_groups(cache, group, kv_heads):
    for seq, kv_seq in ((1, 9), (1, 130), (9, 9)):
        q, k, v = tokens(seq, kv_seq, group * kv_heads, kv_heads, 32, cache)
        check(q, k, v)


@pytest.mark.parametrize("seq", [1, 2, 5, 6, 7, 13, 16, 17, 33, 49])
@pytest.mark.parametrize("before", [0, 1, 15, 100])
def test_lengths(seq, before):
    """Tiles of queries, blocks of 16 keys and panels of 128 values, with every remainder."""
    q, k, v = tokens(seq, seq + before, 2, 1, 8)
    for causal in (True, False):
        check(q, k, v, causal=causal, threads=(1, 3))


@caches
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 2, 3, 8, 15, 16, 17, 31, 100, 2**40, 2**70])
def test_windows(cache, causal, window):
    for seq, kv_seq in ((1, 40), (23, 23), (20, 50)):
        q, k, v = tokens(seq, kv_seq, 4, 2, 32, cache)
        y = check(q, k, v, window=window, causal=causal, threads=(1, 3))
        if window >= kv_seq:
            same(y, ops.attention(q, k, v, causal=causal))
    if window == 1 and causal:
        # A query that sees only itself returns its own value.
        same(y, np.repeat(loaded(v)[-20:], 2, axis=1))


@pytest.mark.parametrize(("seq", "kv_seq", "heads", "kv_heads", "d", "window"), [
    (1, 4099, 9, 3, 64, 0), (1, 70001, 2, 1, 8, 0), (257, 257, 4, 2, 24, 0), (130, 1031, 3, 1, 16, 128),
    (61, 61, 1, 1, 300, 0),
])
def test_large(seq, kv_seq, heads, kv_heads, d, window):
    q, k, v = tokens(seq, kv_seq, heads, kv_heads, d)
    y = check(q, k, v, scalar=False, window=window)
    i = seq // 2
    last = kv_seq - seq + i + 1
    same(ops.attention(q[i : i + 1], k[:last], v[:last], window=window), y[i : i + 1], "a query alone")


@caches
@pytest.mark.parametrize("window", [0, 5, 20])
def test_together_in_chunks_and_one_by_one(cache, window):
    q, k, v = tokens(45, 60, 6, 2, 32, cache)
    y = agree(lambda: ops.attention(q, k, v, window=window))
    for size in (1, 7, 16, 44):
        parts = []
        for i in range(0, 45, size):
            part, keys = slice(i, i + size), slice(0, min(15 + i + size, 60))

            def call(part=part, keys=keys):
                return ops.attention(q[part], k[keys], v[keys], window=window)

            parts.append(agree(call, scalar=False, threads=(1, 2) if size > 1 else (1,)))
        same(np.concatenate(parts), y, f"chunks of {size}")


def test_heads_alone():
    """A query head depends on nothing but itself and its key-value head."""
    q, k, v = tokens(6, 30, 6, 2, 16)
    y = ops.attention(q, k, v)
    for h in range(6):
        g = h // 3
        same(ops.attention(q[:, h : h + 1], k[:, g : g + 1], v[:, g : g + 1])[:, 0], y[:, h], f"head {h}")


# ---- what may not be seen ----------------------------------------------------------------------------------------


@caches
@pytest.mark.parametrize(("seq", "kv_seq", "causal", "window"), [
    (1, 40, True, 0), (20, 40, True, 0), (20, 40, True, 4), (40, 40, True, 17), (20, 40, False, 3),
    (17, 150, True, 130),
])
def test_nothing_leaks_from_keys_that_a_query_does_not_see(cache, seq, kv_seq, causal, window):
    q, k, v = tokens(seq, kv_seq, 4, 2, 32, cache)
    options = {"causal": causal, "window": window}
    clean = ops.attention(q, k, v, **options)
    sees = visible(seq, kv_seq, causal, window)
    for at in (0, 1, kv_seq // 2, kv_seq - 2, kv_seq - 1):
        for which in "kv":
            ruined = [ruin(x, at) if name == which else x for name, x in (("k", k), ("v", v))]
            y = agree(lambda ruined=ruined: ops.attention(q, *ruined, **options), scalar=at == 1, threads=(1, 2))
            same(y[~sees[:, at]], clean[~sees[:, at]], f"{which} at {at} leaks")
            assert np.isnan(y[sees[:, at]]).all(), "who looks at it sees it"


def ruin(x, at: int):
    """The same cache with one position that is NaN throughout."""
    if isinstance(x, QTensor):
        data = x.data.copy()
        data[at] = 0xFF
        return QTensor(data, x.format, x.shape)
    x = x.copy()
    x[at] = np.nan
    return x


def test_infinite_values_and_keys():
    q, k, v = tokens(5, 20, 2, 1, 16)
    for value in (np.inf, -np.inf, np.nan, 3e38):
        for which in (0, 1, 2):
            args = [a.copy() for a in (q, k, v)]
            args[which][3, 0, 5] = value
            agree(lambda args=args: ops.attention(*args))
    keys = np.resize(SPECIAL, (9, 1, 8))
    agree(lambda: ops.attention(np.resize(SPECIAL, (4, 2, 8)), keys, keys[::-1]))


@pytest.mark.parametrize("lane", range(0, 37))
def test_nan_in_every_place(lane):
    """Of features and of keys: 16 and 16 and 5."""
    q, k, v = tokens(3, 37, 2, 1, 37)
    clean = ops.attention(q, k, v, causal=False)
    for which, ruined_queries in ((1, slice(None)), (2, slice(None)), (0, slice(1, 2))):
        args = [q.copy(), k.copy(), v.copy()]
        args[which][1 if which == 0 else lane, 0, lane] = np.nan
        y = agree(lambda args=args: ops.attention(*args, causal=False), threads=(1, 3))
        if which == 2:
            assert np.isnan(y[..., lane]).all()
            same(np.delete(y, lane, -1), np.delete(clean, lane, -1))
        else:
            assert np.isnan(y[ruined_queries, 0]).all()


# ---- scores ------------------------------------------------------------------------------------------------------


@caches
def test_bias(cache):
    q, k, v = tokens(7, 25, 4, 2, 32, cache)
    bias = normal(7, 25, seed=3)
    for options in ({}, {"window": 6}, {"causal": False}, {"scale": -0.3}):
        check(q, k, v, bias=bias, **options)
    same(ops.attention(q, k, v, bias=np.zeros((7, 25), F)), ops.attention(q, k, v))
    # -inf takes a key away: what is left is attention over the others.
    bias[:, [3, 10]] = -np.inf
    y = agree(lambda: ops.attention(q, k, v, bias=bias, causal=False))
    keep = [j for j in range(25) if j not in (3, 10)]
    exact, largest = attention64(q, loaded(k)[keep], loaded(v)[keep], causal=False, bias=bias[:, keep])
    close(y, exact, tolerances.attention(25, 32, largest) * np.abs(loaded(v)).max())
    bias[2] = -np.inf
    y = agree(lambda: ops.attention(q, k, v, bias=bias, causal=False))
    assert np.isnan(y[2]).all() and np.isfinite(np.delete(y, 2, 0)).all()


def test_bias_outside_of_sight_does_not_matter():
    q, k, v = tokens(9, 30, 2, 1, 16)
    bias = normal(9, 30, seed=3)
    for window in (0, 4):
        clean = ops.attention(q, k, v, bias=bias, window=window)
        ruined = np.where(visible(9, 30, True, window), bias, F(np.nan))
        same(agree(lambda w=window, b=ruined: ops.attention(q, k, v, bias=b, window=w)), clean)


def test_scales():
    q, k, v = tokens(4, 12, 2, 1, 25)
    same(ops.attention(q, k, v), ops.attention(q, k, v, scale=0.2), "1 / sqrt(d)")
    for scale in (0, -1.0, 1e-30, 30.0, np.float64(0.5), 3):
        check(q, k, v, scale=scale)
    for scale in (1e30, np.inf, np.nan, 1e300):
        agree(lambda scale=scale: ops.attention(q, k, v, scale=scale))
    # Scores that are far apart pick one value.
    y = ops.attention(q, k, v, scale=1e6, causal=False)
    best = (q[:, 0].astype(float) @ k[:, 0].T.astype(float)).argmax(-1)
    same(y[:, 0], v[best, 0])
    # All alike: the mean.
    y = ops.attention(q, k, v, scale=0, causal=False)
    close(y[0, 0], v[:, 0].mean(0, dtype=np.float64), 20 * tolerances.U * np.abs(v).max())


# ---- arrays ------------------------------------------------------------------------------------------------------


@caches
def test_slices_of_a_cache_are_used_in_place(cache):
    """The cache of a model has room for more positions, and other layers beside it."""
    q, k, v = tokens(5, 30, 6, 2, 64, cache)
    y = ops.attention(q, k, v)

    def views(make):
        """The raw rows of keys and values inside larger arrays made by ``make(rows)``."""
        for x in (k, v):
            rows = x.data if isinstance(x, QTensor) else x
            part = make(rows)
            part[...] = rows
            yield QTensor(part, "q8_0", x.shape) if isinstance(x, QTensor) else part

    def roomy(rows):
        return np.full((50, *rows.shape[1:]), 0x7F, rows.dtype)[:30]

    def heads_first(rows):
        return np.full((rows.shape[1], 40, rows.shape[2]), 0x7F, rows.dtype).transpose(1, 0, 2)[:30]

    def one_layer(rows):
        return np.full((40, 3, *rows.shape[1:]), 0x7F, rows.dtype)[2:32, 1]

    def backwards(rows):
        return np.full(rows.shape, 0x7F, rows.dtype)[::-1, ::-1]

    for make in (roomy, heads_first, one_layer, backwards):
        ks, vs = views(make)
        same(agree(lambda ks=ks, vs=vs: ops.attention(q, ks, vs)), y, make.__name__)


@caches
def test_layouts(cache, tmp_path):
    q, k, v = tokens(4, 9, 4, 2, 32, cache)
    for how, a in layouts(q, tmp_path):
        same(agree(lambda a=a: ops.attention(a, k, v)), ops.attention(a.copy(), k, v), f"q {how}")
    for which, x in (("k", k), ("v", v)):
        for how, a in layouts(x.data if cache == "q8_0" else x, tmp_path):
            view, copy = (QTensor(b, cache, x.shape) if cache == "q8_0" else b for b in (a, np.array(a)))
            pair, expected = ((view, v), (copy, v)) if which == "k" else ((k, view), (k, copy))
            same(agree(lambda pair=pair: ops.attention(q, *pair)), ops.attention(q, *expected), f"{which} {how}")
    bias = normal(4, 9)
    for how, a in layouts(bias, tmp_path):
        same(agree(lambda a=a: ops.attention(q, k, v, bias=a)), ops.attention(q, k, v, bias=a.copy()), f"bias {how}")


def test_one_feature_out_of_a_wider_array():
    wide = normal(6, 2, 3)
    q, thin = normal(2, 2, 1), wide[..., :1]
    same(agree(lambda: ops.attention(q, thin, thin)), ops.attention(q, thin.copy(), thin.copy()))
    same(ops.attention(q[:1, :1], wide[:1, :1, 2:], wide[:1, :1, 1:2]), wide[:1, :1, 1:2].copy())


def test_random_q8_0_bytes():
    for finite in (True, False):
        k, v = random_blocks("q8_0", 20, 2, 64, finite=finite), random_blocks("q8_0", 20, 2, 64, seed=1, finite=finite)
        agree(lambda k=k, v=v: ops.attention(normal(6, 4, 64), k, v))


@pytest.mark.parametrize(("seq", "heads", "d"), [(1, 1, 1), (3, 2, 7), (5, 3, 17), (17, 1, 64)])
def test_nothing_is_written_beyond_out(seq, heads, d):
    q, k, v = tokens(seq, 20, heads, 1, d)

    def call():
        out, check = guarded(q.shape)
        assert ops.attention(q, k, v, out=out) is out
        check()
        return out

    same(agree(call), ops.attention(q, k, v))


def test_wrong_arguments():
    q, k, v = tokens(3, 5, 4, 2, 32)
    attention = ops.attention
    with pytest.raises(ValueError, match=r"float32 of shape \(5, 2, 32\) and float16 of shape"):
        attention(q, k, v.astype(np.float16))
    with pytest.raises(ValueError, match=r"float32 of shape \(5, 2, 32\) and float32 of shape \(4, 2, 32\)"):
        attention(q, k, v[:4])
    with pytest.raises(ValueError, match="same features per head"):
        attention(q, k[..., :16], v[..., :16])
    for kv_heads in (0, 3):
        with pytest.raises(ValueError, match=f"4 query heads cannot share {kv_heads} key-value heads evenly"):
            attention(q, np.zeros((5, kv_heads, 32), F), np.zeros((5, kv_heads, 32), F))
    with pytest.raises(ValueError, match="3 queries need at least as many keys, got 2"):
        attention(q, k[:2], v[:2])
    with pytest.raises(ValueError, match="window must not be negative, got -1"):
        attention(q, k, v, window=-1)
    with pytest.raises(TypeError, match="window must be an integer, got float"):
        attention(q, k, v, window=2.0)
    with pytest.raises(TypeError, match="scale must be a number"):
        attention(q, k, v, scale="0.1")
    for bias in (normal(3, 4), normal(5, 3)):
        with pytest.raises(ValueError, match=r"bias must have shape \(3, 5\)"):
            attention(q, k, v, bias=bias)
    with pytest.raises(ValueError, match=r"bias must have 2 axes, got shape \(4, 3, 5\)"):
        attention(q, k, v, bias=normal(4, 3, 5))
    with pytest.raises(ValueError, match=r"k must have the axes \(kv_seq, kv_heads, d\), got shape \(10, 32\)"):
        attention(q, k.reshape(10, 32), v)
    with pytest.raises(ValueError, match="k may be quantized as q8_0 only, got q4_0"):
        attention(q, random_blocks("q4_0", 5, 2, 32), v)
    for wrong in (k.astype(np.float64), k.astype(">f4"), k.astype(">f2"), k.astype(int), k.tolist(), None, "k"):
        with pytest.raises(TypeError, match="k must be float32, float16 or a q8_0 QTensor, got"):
            attention(q, wrong, v)
    with pytest.raises(ValueError, match=r"q must have 3 axes, got shape \(12, 32\)"):
        attention(q.reshape(12, 32), k, v)


@given(st.integers(1, 20), st.integers(0, 30), st.integers(1, 3), st.integers(1, 4), st.integers(1, 40), st.booleans(),
       st.integers(0, 40))
def test_any_shape(seq, before, kv_heads, group, d, causal, window):
    check(*tokens(seq, seq + before, kv_heads * group, kv_heads, d), threads=(1, 2), causal=causal, window=window)
