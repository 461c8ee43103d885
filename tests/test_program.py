"""Programs: recorded steps give the bits of the operations called one by one, whatever the number of threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from references import F, engine, normal, random_blocks, same

from fucina import ops
from fucina.ops.program import Activations, Batch, Program

HEADS, KV_HEADS, D, WIDE = 8, 2, 32, 512
N = HEADS * D
CELLS = {"float32": (0, 4), "float16": (1, 2), "q8_0": (2, 34 / 32)}
MOST = 24       # keys
ANGLES = ops.rope_tables(np.arange(MOST), D // 2)


class Layer:
    """One layer of a language model, by operations and as a program over the same weights, for up to ``rows`` rows."""

    def __init__(self, cache: str, packed: bool, window: int = 0, rows: int = 1):
        self.cache, self.window, self.rows = cache, window, rows
        kv = KV_HEADS * D
        make = lambda name, n, k, seed: (lambda w: w.pack() if packed else w)(random_blocks(name, n, k, seed=seed))
        self.q, self.k, self.v = make("q4_k", N, N, 1), make("q6_k", kv, N, 2), make("q4_0", kv, N, 3)
        self.o, self.gate = make("q8_0", N, N, 4), make("q5_k", WIDE, N, 5)
        self.up, self.down = make("q4_1", WIDE, N, 6), make("q5_1", N, WIDE, 7)
        self.norm, self.head_norm, self.bias = normal(N, seed=8), normal(D, seed=10), normal(WIDE, seed=9)
        self.record()

    def record(self):
        code, size = CELLS[self.cache]
        cell = int(D * size)
        # Two sequences, each with a cache for keys and one for values.
        self.memory = np.zeros((2, 2, KV_HEADS, MOST, cell), np.uint8)
        self.places = [[half.__array_interface__["data"][0] for half in both] + [MOST * cell] for both in self.memory]
        batch = self.batch = Batch(1, 2)
        p = self.program = Program(self.rows)
        self.x = p.buffer(N)
        h, y, hidden = Activations(p.buffer(N)), Activations(p.buffer(N)), Activations(p.buffer(WIDE))
        q, k, v = p.buffer(N), p.buffer(KV_HEADS * D), p.buffer(KV_HEADS * D)
        gate, branch = p.buffer(WIDE), p.buffer(N)
        with p.chain():
            p.rms_norm(self.x, self.norm, 1e-5, h.x)
            p.quantize(h, (self.q, self.k, self.v))
        p.barrier()
        for w, out in ((self.q, q), (self.k, k), (self.v, v)):
            p.linear(h, w, None, out)
        p.barrier()
        split = lambda a: a.reshape(self.rows, -1, D)
        with p.chain():
            p.rms_norm(split(q), self.head_norm, 1e-5, split(q))
            p.rope(split(q), *ANGLES, False, split(q), batch)
        with p.chain():
            p.rope(split(k), *ANGLES, False, split(k), batch)
            p.store(code, split(k), cell, False, batch, 0)
            p.store(code, split(v), cell, True, batch, 0)
        p.barrier()
        p.attention(code, split(q), KV_HEADS, cell, 0.2, self.window, split(y.x), batch, 0, MOST)
        p.barrier()
        p.quantize(y, (self.o,))
        p.barrier()
        p.linear(y, self.o, None, branch)
        p.barrier()
        with p.chain():
            p.add(self.x, branch, self.x)
            p.rms_norm(self.x, None, 1e-5, h.x)
            p.quantize(h, (self.gate, self.up))
        p.barrier()
        p.linear(h, self.gate, self.bias, gate)
        p.linear(h, self.up, None, hidden.x)
        p.barrier()
        p.gated("silu", hidden.x, gate, hidden.x)
        p.barrier()
        p.quantize(hidden, (self.down,))
        p.barrier()
        p.linear(hidden, self.down, None, branch)
        p.barrier()
        p.add(self.x, branch, self.x)

    def run(self, pieces) -> list[np.ndarray]:
        """One run; ``pieces``: (sequence, position, tokens) of each sequence that takes part."""
        self.x[...] = np.nan
        first, spans = 0, []
        for _, at, tokens in pieces:
            rows = slice(first, first + len(tokens))
            self.x[rows] = tokens
            spans.append((first, len(tokens), at + len(tokens)))
            first += len(tokens)
        self.batch.fill(spans, [self.places[sequence] for sequence, _, _ in pieces])
        self.program.run(first)
        return [self.x[start : start + count].copy() for start, count, _ in spans]

    def replayed(self, tokens: np.ndarray, sizes=()) -> np.ndarray:
        """The outputs for tokens [n, N] by the program, in pieces of ``sizes`` and then one after the other."""
        at, results = 0, []
        for size in [*sizes, *[1] * (len(tokens) - sum(sizes))]:
            results += self.run([(0, at, tokens[at : at + size])])
            at += size
        return np.concatenate(results)

    def called(self, tokens: np.ndarray) -> np.ndarray:
        """The outputs for tokens [n, N], all at once, by the operations."""
        n = len(tokens)
        h = ops.rms_norm(tokens, self.norm, 1e-5)
        q, k, v = (ops.linear(h, w).reshape(n, -1, D) for w in (self.q, self.k, self.v))
        q, k = ops.rope(ops.rms_norm(q, self.head_norm, 1e-5), range(n)), ops.rope(k, range(n))
        k, v = (ops.quantize(c, "q8_0") if self.cache == "q8_0" else c.astype(self.cache) for c in (k, v))
        y = ops.attention(q, k, v, scale=0.2, window=self.window).reshape(n, N)
        x = ops.add(tokens, ops.linear(y, self.o))
        h = ops.rms_norm(x, None, 1e-5)
        hidden = ops.swiglu(ops.linear(h, self.up), ops.linear(h, self.gate, self.bias))
        return ops.add(x, ops.linear(hidden, self.down))


@pytest.mark.parametrize("cache", CELLS)
@pytest.mark.parametrize("packed", [False, True], ids=["raw", "packed"])
@pytest.mark.parametrize(("count", "window"), [(1, 0), (2, 0), (3, 5), (5, 0)])
def test_a_program_has_the_bits_of_its_operations(cache, packed, count, window, threads):
    """Token by token or in pieces against all at once: programs, batches and threads make no difference."""
    threads(count)
    layer = Layer(cache, packed, window, rows=MOST)
    tokens = normal(MOST, N)
    expected = layer.called(tokens)
    for sizes in ((), (MOST,), (1, 2, 3, 17), (7, 7, 7)):
        same(layer.replayed(tokens, sizes), expected, str(sizes))
    same(Layer(cache, packed, window).replayed(tokens), expected, "made for one row")
    threads(1)
    same(layer.replayed(tokens, (5,)), expected, "recorded for more threads than there are now")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_sequences_of_a_batch_do_not_meet(count, threads):
    threads(count)
    layer = Layer("float16", True, rows=20)
    one, two = normal(MOST, N, seed=1), normal(MOST, N, seed=2)
    first, second = layer.called(one), layer.called(two)
    got = layer.run([(0, 0, one[:3]), (1, 0, two[:17])])
    same(got[0], first[:3])
    same(got[1], second[:17])
    got = layer.run([(1, 17, two[17:18]), (0, 3, one[3:10])])
    same(got[0], second[17:18])
    same(got[1], first[3:10])
    same(layer.run([(0, 10, one[10:])])[0], first[10:])


def test_many_runs(threads):
    """No run depends on the one before, on who draws which share, or on what the buffers held."""
    threads(3)
    layer = Layer("float16", True)
    tokens = normal(2, N)
    expected = layer.replayed(tokens)
    for _ in range(300):
        same(layer.replayed(tokens), expected)


def test_programs_of_several_python_threads(threads):
    threads(2)
    tokens = normal(6, N)
    expected = Layer("float16", True).called(tokens)
    errors = []

    def run():
        try:
            layer = Layer("float16", True)
            for _ in range(20):
                same(layer.replayed(tokens), expected)
        except BaseException as error:
            errors.append(error)

    team = [threading.Thread(target=run) for _ in range(4)]
    for t in team:
        t.start()
    for t in team:
        t.join(60)
    assert not errors and not any(t.is_alive() for t in team)


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dense_products_have_the_bits_of_linear(variant, dtype, count, bias, threads):
    """Any number of rows in one program: few, one block of them, several."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    threads(count)
    shapes = [(1, 1), (1, 300), (7, 33), (16, 64), (17, 5), (100, 17), (100, 301), (130, 1100), (1090, 20), (40, 4100)]
    for most, n, k in [(64, *shape) for shape in shapes] + [(400, 100, 600)]:
        x, w = normal(most, k), normal(n, k, seed=1).astype(dtype)
        b = normal(n, seed=2) if bias else None
        with engine(variant.name, count):
            packed = ops.pack_weight(w)
            p = Program(most)
            a, out = Activations(p.buffer(k)), p.buffer(n)
            p.linear(a, packed, b, out)
            for rows in (1, 2, 3, 5, 16, 17, 33, 64, most, 1):
                a.x[...], out[...] = np.nan, np.nan
                a.x[:rows] = x[:rows]
                p.run(rows)
                same(out[:rows], ops.linear(x[:rows], w, b), f"{rows} rows of {n} x {k}")
                assert np.isnan(out[rows:]).all()


def test_dense_and_quantized_products_of_the_same_rows(threads):
    """Only what meets quantized weights is quantized; columns need not be whole blocks where nothing does."""
    threads(2)
    x, dense, blocks = normal(5, 64), normal(9, 64, seed=1), random_blocks("q4_0", 9, 64)
    p = Program(5)
    a, one, two = Activations(p.buffer(64)), p.buffer(9), p.buffer(9)
    packed = ops.pack_weight(dense)
    p.quantize(a, (packed,))
    assert not a.kinds
    p.quantize(a, (packed, blocks))
    p.barrier()
    p.linear(a, packed, None, one)
    p.linear(a, blocks, None, two)
    a.x[...] = x
    p.run(5)
    same(one, ops.linear(x, dense))
    same(two, ops.linear(x, blocks))


def test_a_program_can_grow_after_a_run(threads):
    threads(2)
    p = Program(4)
    x, y = p.buffer(64), p.buffer(64)
    x[...], y[...] = 1, 2
    p.add(x, y, y)
    p.run(4)
    assert (y == 3).all()
    p.barrier()
    p.gated("silu", y, x, x)
    p.run(3)
    assert (y[:3] == 4).all() and (y[3] == 3).all() and (x[3] == 1).all()
    same(x[:3], F(4) * ops.silu(np.ones((3, 64), F)))
    for rows in (0, 5):
        with pytest.raises(ValueError, match="for 1 to 4 rows"):
            p.run(rows)


@pytest.mark.parametrize("table", ["q6_k", "q4_0", "iq3_s", "tq1_0", "i2_s", "mxfp4", "float32", "float16"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_embedding_scale_and_argmax(table, count, threads):
    """The steps at both ends of a model read the numbers of every run anew."""
    threads(count)
    w = normal(9, 256).astype(table) if table.startswith("float") else random_blocks(table, 9, 256)
    p = Program(5)
    ids, best, x, y = p.indices(), p.indices(), p.buffer(256), p.buffer(256)
    with p.chain():
        p.embedding(ids, w, x)
        p.scale(x, 0.3, y)
    p.barrier()
    p.argmax(y, best)
    for rows in (1, 5, 2):
        ids[:rows] = (8, 0, 3, 3, 5)[:rows]
        p.run(rows)
        same(x[:rows], ops.embedding(ids[:rows], w))
        same(y[:rows], ops.scale(x[:rows], 0.3))
        expected = np.where(np.isfinite(y[:rows]).all(1), ops.argmax(y[:rows], 1), -1)
        assert np.array_equal(best[:rows], expected)
    p = Program(5)
    ids, x = p.indices(), p.buffer(256)
    p.embedding(ids, w, x)
    ids[:] = 1, 8, 0, 3, 7
    p.run(5)
    same(x, ops.embedding(ids, w), "outside of a chain")


@pytest.mark.parametrize("n", [1, 7, 64, 2047, 2048, 2049, 5000, 300000])
def test_argmax_of_finite_rows(n):
    """The first of equal maxima, wherever pieces end; -1 as soon as one value is not finite."""
    p = Program(4)
    x, best = p.buffer(n), p.indices()
    p.argmax(x, best)
    x[...] = -5
    x[1, n // 2 :] = 3
    x[2] = np.float32(-3e38)    # the sum overflows
    x[3, n - 1] = 0
    p.run(4)
    assert best.tolist() == [0, n // 2, 0, n - 1]
    for value in (np.nan, np.inf, -np.inf):
        x[...] = 1
        x[range(3), [0, n // 2, n - 1]] = value
        p.run(3)
        assert best[:3].tolist() == [-1] * 3


def test_wrong_steps_are_refused():
    p, more = Program(), Program(2)
    a = Activations(p.buffer(64))
    w = random_blocks("q4_0", 8, 64)
    for x, weight, out in ((p.buffer(4), normal(5), p.buffer(4)), (p.buffer(4), None, more.buffer(4))):
        with pytest.raises(ValueError, match="shapes do not fit"):
            p.rms_norm(x, weight, 1e-5, out)
    for wrong, out in ((random_blocks("q4_0", 8, 32), p.buffer(8)), (w, p.buffer(7)), (w, more.buffer(8))):
        with pytest.raises(ValueError, match="shapes do not fit"):
            p.linear(a, wrong, None, out)
    with pytest.raises(ValueError, match="shapes do not fit"):
        p.linear(a, w, normal(7), p.buffer(8))
    for other in (w[::2], normal(4, 64), ops.pack_weight(np.ones((4, 64))), ops.pack_weight(normal(0, 64)), None):
        with pytest.raises(ValueError, match="quantized weights or packed dense ones"):
            p.linear(a, other, None, p.buffer(4))
    dense = ops.pack_weight(normal(8, 64))
    for wrong, bias, out in ((ops.pack_weight(normal(8, 63)), None, p.buffer(8)), (dense, None, p.buffer(7)),
                             (dense, normal(7), p.buffer(8)), (dense, None, more.buffer(8))):  # fmt: skip
        with pytest.raises(ValueError, match="shapes do not fit"):
            p.linear(a, wrong, bias, out)
    with pytest.raises(ValueError, match="whole number of blocks of 256"):
        p.quantize(a, (random_blocks("q4_k", 8, 256),))
    with pytest.raises(ValueError, match="shapes do not fit"):
        p.add(p.buffer(4), p.buffer(5), p.buffer(4))
    with pytest.raises(ValueError, match="shapes do not fit"):
        p.rope(p.buffer(2, 8), normal(9, 4), normal(9, 3), False, p.buffer(2, 8), Batch(1, 1))
    for table, out in ((normal(4, 8), p.buffer(9)), (normal(8, 8)[::2], p.buffer(8)), (w, p.buffer(8))):
        with pytest.raises(ValueError, match="shapes do not fit or the table is not contiguous"):
            p.embedding(p.indices(), table, out)
    with pytest.raises(ValueError, match="shapes do not fit"):
        p.scale(p.buffer(4), 2.0, p.buffer(5))
    with pytest.raises(ValueError, match="shapes do not fit"):
        p.argmax(p.buffer(4), more.indices())
    with p.chain(), pytest.raises(ValueError, match="work on rows"):
        p.linear(a, w, None, p.buffer(8))


def test_the_scalar_backend_has_no_programs(run_isolated):
    code = "from fucina.ops.program import Program\ntry:\n    Program()\nexcept ValueError as error:\n    print(error)"
    done = run_isolated(code, env={"FUCINA_BACKEND": "scalar"})
    assert "programs need compiled kernels" in done.stdout and done.returncode == 0
