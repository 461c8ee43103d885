"""Mixtures of experts: choices, weights, and products that are those of every token alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import PRODUCTS, F, agree, engine, normal, random_blocks, same, softmax64

from fucina import ops
from fucina.runtime import isa

ml_dtypes = pytest.importorskip("ml_dtypes")


# ---- choices -----------------------------------------------------------------------------------------------------


def both(call):
    """Values and ids as one array, the same everywhere."""
    return agree(lambda: np.concatenate([part.astype(np.float64) for part in call()], axis=-1))


@pytest.mark.parametrize("n", [1, 2, 7, 8, 64, 129, 1000])
@pytest.mark.parametrize("k", [1, 2, 7, 8, 100])
def test_top_k_is_a_stable_sort(n, k):
    if k > n:
        with pytest.raises(ValueError, match=f"k must be from 1 to the {n} elements"):
            ops.top_k(normal(3, n), k)
        return
    x = np.round(normal(33, n) * 4) / 4     # with equal elements
    values, ids = ops.top_k(x, k)
    both(lambda: ops.top_k(x, k))
    expected = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, expected)
    same(values, np.take_along_axis(x, expected, -1))
    assert ids.dtype == np.int64


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]), min_size=1, max_size=12), st.data())
def test_top_k_of_special_numbers(values, data):
    """NaN is never ahead of a number; equal elements keep their order."""
    k = data.draw(st.integers(1, len(values)))
    x = np.array(values, F)
    both(lambda: ops.top_k(x, k))
    order = sorted(range(len(values)), key=lambda i: (np.isnan(values[i]), 0 if np.isnan(values[i]) else -values[i], i))
    assert ops.top_k(x, k)[1].tolist() == order[:k]


def test_any_shape():
    x = normal(2, 3, 9)
    values, ids = ops.top_k(x, 4)
    assert values.shape == ids.shape == (2, 3, 4)
    same(ops.top_k(np.asfortranarray(x), 4)[1], ids)
    same(ops.top_k(x[1, 2], 4)[1], ids[1, 2])
    assert ops.top_k(x[:0], 2)[1].shape == (0, 3, 2)
    with pytest.raises(ValueError, match="x must have at least one axis"):
        ops.top_k(F(1), 1)
    with pytest.raises(TypeError, match="k must be an integer"):
        ops.top_k(x, 1.5)
    with pytest.raises(TypeError, match="k must be an integer, got bool"):
        ops.top_k(x, True)
    with pytest.raises(ValueError, match="k must be from 1 to the 9"):
        ops.top_k(x, 0)


# ---- routes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("experts", "k"), [(4, 1), (8, 2), (60, 4), (128, 8), (5, 5)])
def test_softmax_over_all_then_the_best(experts, k, normalize):
    logits = normal(37, experts) * 3
    ids, weights = ops.moe_route(logits, k, normalize=normalize, scale=2.5)
    both(lambda: ops.moe_route(logits, k, normalize=normalize, scale=2.5))
    np.testing.assert_array_equal(ids, np.argsort(-logits, axis=-1, kind="stable")[:, :k])
    expected = np.take_along_axis(softmax64(logits), ids, -1)
    if normalize:
        expected = expected / expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, expected * 2.5, rtol=2e-6)
    parts = np.take_along_axis(ops.softmax(logits), ids, -1)
    if normalize:
        total = parts[:, 0]
        for j in range(1, k):
            total = total + parts[:, j]
        parts = parts / total[:, None]
    same(weights, parts * F(2.5))
    for t in (0, 36):
        same(ops.moe_route(logits[t], k, normalize=normalize, scale=2.5)[1], weights[t], "a token alone")


def test_sigmoid_with_a_bias_for_the_choice():
    logits, bias = normal(9, 16), normal(16, seed=1)
    ids, weights = ops.moe_route(logits, 3, scoring="sigmoid", bias=bias)
    both(lambda: ops.moe_route(logits, 3, scoring="sigmoid", bias=bias))
    scores = ops.sigmoid(logits)
    np.testing.assert_array_equal(ids, np.argsort(-(scores + bias), axis=-1, kind="stable")[:, :3])
    parts = np.take_along_axis(scores, ids, -1)
    same(weights, parts / (parts[:, 0] + parts[:, 1] + parts[:, 2])[:, None])


def test_softmax_over_the_chosen():
    logits = normal(9, 32)
    ids, weights = ops.moe_route(logits, 4, scoring="chosen")
    both(lambda: ops.moe_route(logits, 4, scoring="chosen"))
    same(weights, ops.softmax(np.take_along_axis(logits, ids, -1)))
    same(ids, ops.top_k(logits, 4)[1])


def test_weights_that_vanish_are_not_divided_by_zero():
    logits = np.full((1, 4), -200, F)
    weights = ops.moe_route(logits, 2, scoring="sigmoid")[1]
    assert np.isfinite(weights).all()
    both(lambda: ops.moe_route(logits, 2, scoring="sigmoid"))


def test_a_route_without_numbers():
    logits = normal(3, 8)
    logits[1] = np.nan
    ids, weights = ops.moe_route(logits, 2)
    assert ids[1].tolist() == [0, 1] and np.isnan(weights[1]).all() and np.isfinite(weights[[0, 2]]).all()


def test_routes_that_are_refused():
    logits = normal(3, 8)
    with pytest.raises(ValueError, match="scoring must be 'softmax', 'sigmoid' or 'chosen', got 'best'"):
        ops.moe_route(logits, 2, scoring="best")
    with pytest.raises(ValueError, match="k must be from 1 to the 8 elements of the last axis of logits, got 9"):
        ops.moe_route(logits, 9)
    with pytest.raises(ValueError, match="bias must have one number for each"):
        ops.moe_route(logits, 2, bias=normal(7))
    with pytest.raises(TypeError, match="logits must be float32"):
        ops.moe_route(logits.astype(np.float64), 2)


# ---- products ----------------------------------------------------------------------------------------------------


def one_by_one(x, w, ids, weights=None, bias=None):
    """A loop over tokens and slots."""
    slots, out = ids.shape[-1], []
    for t, row in enumerate(ids):
        own = [x[t] if x.ndim == 2 else x[t, j] for j in range(slots)]
        y = [ops.linear(own[j], w[e], None if bias is None else bias[e]) for j, e in enumerate(row)]
        if weights is None:
            out.append(np.stack(y))
            continue
        total = weights[t, 0] * y[0]
        for j in range(1, slots):
            total = total + weights[t, j] * y[j]
        out.append(total)
    return np.stack(out)


def tokens(m: int, slots: int, experts: int, seed: int = 0) -> np.ndarray:
    """Different experts for each token; not all of them are asked for."""
    rng = np.random.default_rng([seed, m])
    return np.stack([rng.permutation(max(experts - 1, slots))[:slots] for _ in range(m)])


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", *PRODUCTS])
@pytest.mark.parametrize("m", [1, 5, 33])
def test_every_token_is_multiplied_as_if_alone(name, m):
    experts, n, k, slots = 6, 11, 256, 3
    if name in ("f32", "f16", "bf16"):
        w = normal(experts, n, k).astype({"f32": F, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[name])
    else:
        w = random_blocks(name, experts, n, k)
    ids, parts, bias = tokens(m, slots, experts), np.abs(normal(m, slots)), normal(experts, n)
    x, own = normal(m, k), normal(m, slots, k, seed=1)
    scalar = m == 1 and name in ("f32", "q4_k")
    same(agree(lambda: ops.moe_linear(x, w, ids, parts, bias), scalar, (1, 3)), one_by_one(x, w, ids, parts, bias))
    same(agree(lambda: ops.moe_linear(x, w, ids), False, (2,)), one_by_one(x, w, ids))
    same(agree(lambda: ops.moe_linear(own, w, ids, parts), scalar, (1, 2)), one_by_one(own, w, ids, parts))
    same(ops.moe_linear(own, w, ids), one_by_one(own, w, ids))


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "q6_k", "iq4_xs", "i2_s"])
def test_experts_in_a_list_may_be_packed(name):
    w = random_blocks(name, 5, 19, 512)
    x, ids, parts = normal(17, 512), tokens(17, 2, 5), normal(17, 2)
    expected = ops.moe_linear(x, w, ids, parts)
    same(ops.moe_linear(x, [w[e].pack() for e in range(5)], ids, parts), expected)
    same(ops.moe_linear(x, tuple(w[e] if e % 2 else w[e].pack() for e in range(5)), ids, parts), expected)
    dense = normal(3, 4, 8)
    same(ops.moe_linear(normal(5, 8), [ops.pack_weight(one) for one in dense], tokens(5, 2, 3)),
         ops.moe_linear(normal(5, 8), dense, tokens(5, 2, 3)))


def test_an_expert_may_be_chosen_twice_or_by_all():
    x, w = normal(9, 64), random_blocks("q8_0", 4, 7, 64)
    for ids in (np.full((9, 2), 3), np.zeros((9, 1), np.uint8), np.tile(np.int32([2, 1, 2]), (9, 1))):
        same(ops.moe_linear(x, w, ids), one_by_one(x, w, ids))


def test_leading_axes():
    x, w, ids, parts = normal(2, 3, 64), normal(4, 5, 64), tokens(6, 2, 4).reshape(2, 3, 2), normal(2, 3, 2)
    y = ops.moe_linear(x, w, ids, parts)
    assert y.shape == (2, 3, 5)
    same(y.reshape(6, 5), ops.moe_linear(x.reshape(6, 64), w, ids.reshape(6, 2), parts.reshape(6, 2)))
    assert ops.moe_linear(x, w, ids).shape == (2, 3, 2, 5)
    same(ops.moe_linear(x[1, 2], w, ids[1, 2], parts[1, 2]), y[1, 2])


def test_nothing_to_do():
    w = normal(4, 5, 8)
    assert ops.moe_linear(normal(0, 8), w, np.zeros((0, 2), int)).shape == (0, 2, 5)
    same(ops.moe_linear(normal(3, 8), w, np.zeros((3, 0), int), normal(3, 0)), np.zeros((3, 5), F))
    same(ops.moe_linear(normal(3, 0), normal(4, 5, 0), np.zeros((3, 2), int), normal(3, 2)), np.zeros((3, 5), F))


def test_a_feed_forward_layer_of_experts():
    """Route, gate and up, activation, down: against float64 of the decoded weights."""
    m, d, h, experts, k = 7, 256, 256, 8, 2
    x = normal(m, d)
    gate, up, down = (ops.quantize(normal(experts, *shape, seed=s) / 16, "q8_0")
                      for s, shape in enumerate([(h, d), (h, d), (d, h)]))
    logits = ops.linear(x, normal(experts, d, seed=9) / 16)
    ids, parts = ops.moe_route(logits, k)
    y = ops.moe_linear(ops.swiglu(ops.moe_linear(x, up, ids), ops.moe_linear(x, gate, ids)), down, ids, parts)
    wide = [ops.dequantize(w).astype(float) for w in (gate, up, down)]
    expected = np.zeros((m, d))
    for t in range(m):
        for j, e in enumerate(ids[t]):
            g, u = wide[0][e] @ x[t], wide[1][e] @ x[t]
            expected[t] += parts[t, j] * (wide[2][e] @ (g / (1 + np.exp(-g)) * u))
    assert np.abs(y - expected).max() <= 0.02 * np.abs(expected).max()


def test_out_of_range_and_other_refusals():
    x, w, ids = normal(3, 8), normal(4, 5, 8), np.zeros((3, 2), int)
    for wrong in (ids - 1, ids + 4):
        with pytest.raises(ValueError, match=r"ids must be in \[0, 4\), got values"):
            ops.moe_linear(x, w, wrong)
    with pytest.raises(TypeError, match="ids must be integers, got float64"):
        ops.moe_linear(x, w, ids.astype(float))
    with pytest.raises(ValueError, match="w must have shape"):
        ops.moe_linear(x, w[0], ids)
    with pytest.raises(ValueError, match="w holds no experts"):
        ops.moe_linear(x, [], ids)
    with pytest.raises(ValueError, match="matrices of one shape"):
        ops.moe_linear(x, [w[0], w[1, :3]], ids)
    with pytest.raises(TypeError, match="experts must be an ndarray, .* got str"):
        ops.moe_linear(x, [w[0], "x"], ids)
    with pytest.raises(TypeError, match="w must be float32.*got float64"):
        ops.moe_linear(x, [w[0], w[1].astype(np.float64)], ids)
    with pytest.raises(ValueError, match="x must have shape"):
        ops.moe_linear(normal(3, 9), w, ids)
    with pytest.raises(ValueError, match="weights must have the shape of ids"):
        ops.moe_linear(x, w, ids, normal(3, 3))
    with pytest.raises(ValueError, match="bias must have shape"):
        ops.moe_linear(x, w, ids, bias=normal(4, 6))
    with pytest.raises(ValueError, match="at least one axis, of slots"):
        ops.moe_linear(x, w, 0)


def test_the_pieces_keep_within_their_arrays():
    from references import guarded, kernel_of

    for name in ("scalar", *isa.runnable_variants()):
        moe = kernel_of(name)("moe")
        for n in (1, 7, 8, 9, 31):
            y, at, w = normal(6, n), np.array([[5, 0], [1, 1]]), normal(2, 2)
            out, check = guarded((2, n))
            moe.combine_into_unchecked(y, at, w, out, 2)
            check()
            same(out, w[:, :1] * y[at[:, 0]] + w[:, 1:] * y[at[:, 1]])
        ids = np.array([3, 1, 3, 0, 1])
        starts, ok = guarded((6,), np.int64)
        order, fine = guarded((5,), np.int64)
        moe.group_into_unchecked(ids, starts, order, 1)
        ok(), fine()
        assert starts.tolist() == [0, 1, 3, 3, 5, 5] and order.tolist() == [3, 1, 4, 0, 2]


def test_experts_stay_where_they_are():
    """No decoded copy of the weights: the call needs little more than its activations and its result."""
    import tracemalloc

    w = random_blocks("q4_k", 8, 512, 1024)
    x, ids, parts = normal(4, 1024), tokens(4, 2, 8), normal(4, 2)
    with engine(isa.runnable_variants()[-1], 2):
        ops.moe_linear(x, w, ids, parts)
        tracemalloc.start()
        ops.moe_linear(x, w, ids, parts)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < w.nbytes // 8
