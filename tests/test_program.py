"""Programs: recorded steps give the bits of the operations called one by one, whatever the number of threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from references import F, normal, random_blocks, same

from fucina import ops
from fucina.ops.program import Activations, Program

HEADS, KV_HEADS, D, WIDE = 8, 2, 32, 512
N = HEADS * D
CELLS = {"float32": (0, 4), "float16": (1, 2), "q8_0": (2, 34 / 32)}
MOST = 24       # keys
ANGLES = ops.rope_tables(np.arange(MOST), D // 2)


class Layer:
    """One layer of a language model, by operations and as a program over the same weights."""

    def __init__(self, cache: str, packed: bool, window: int = 0):
        self.cache, self.window = cache, window
        kv = KV_HEADS * D
        make = lambda name, n, k, seed: (lambda w: w.pack() if packed else w)(random_blocks(name, n, k, seed=seed))
        self.q, self.k, self.v = make("q4_k", N, N, 1), make("q6_k", kv, N, 2), make("q4_0", kv, N, 3)
        self.o, self.gate = make("q8_0", N, N, 4), make("q5_k", WIDE, N, 5)
        self.up, self.down = make("q4_1", WIDE, N, 6), make("q5_1", N, WIDE, 7)
        self.norm, self.bias = normal(N, seed=8), normal(WIDE, seed=9)
        self.record()

    def record(self):
        code, size = CELLS[self.cache]
        self.row_bytes = int(KV_HEADS * D * size)
        self.memory = np.zeros((2, MOST, self.row_bytes), np.uint8)
        self.places = np.array([half.__array_interface__["data"][0] for half in self.memory], np.int64)
        self.length = np.zeros(1, np.int64)
        p = self.program = Program()
        self.x, self.cos, self.sin = p.buffer(1, N), p.buffer(1, D // 2), p.buffer(1, D // 2)
        h, y, hidden = Activations(p.buffer(1, N)), Activations(p.buffer(1, N)), Activations(p.buffer(1, WIDE))
        q, k, v = p.buffer(1, N), p.buffer(1, KV_HEADS * D), p.buffer(1, KV_HEADS * D)
        gate, branch = p.buffer(1, WIDE), p.buffer(1, N)
        with p.serial():
            p.rms_norm(self.x, self.norm, 1e-5, h.x)
            p.quantize(h, (self.q, self.k, self.v))
        p.barrier()
        for w, out in ((self.q, q), (self.k, k), (self.v, v)):
            p.linear(h, w, None, out)
        p.barrier()
        split = lambda a: a.reshape(1, -1, D)
        p.rope(split(q), self.cos, self.sin, False, split(q))
        with p.serial():
            p.rope(split(k), self.cos, self.sin, False, split(k))
            p.store(code, k, self.row_bytes, self.places[:1], self.length)
            p.store(code, v, self.row_bytes, self.places[1:], self.length)
        p.barrier()
        cells = np.empty((1, KV_HEADS, self.row_bytes // KV_HEADS), np.uint8)
        p.attention(code, split(q), cells, cells, 0.2, self.window, split(y.x), self.places, self.length, MOST)
        p.barrier()
        p.quantize(y, (self.o,))
        p.barrier()
        p.linear(y, self.o, None, branch)
        p.barrier()
        with p.serial():
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

    def replayed(self, tokens: np.ndarray) -> np.ndarray:
        """The outputs for tokens [n, N], one after the other, by the program."""
        results = []
        for i, token in enumerate(tokens):
            self.x[0], self.cos[0], self.sin[0] = token, ANGLES[0][i], ANGLES[1][i]
            self.length[0] = i + 1
            self.program.run()
            results.append(self.x[0].copy())
        return np.array(results)

    def called(self, tokens: np.ndarray) -> np.ndarray:
        """The outputs for tokens [n, N], all at once, by the operations."""
        n = len(tokens)
        h = ops.rms_norm(tokens, self.norm, 1e-5)
        q, k, v = (ops.linear(h, w).reshape(n, -1, D) for w in (self.q, self.k, self.v))
        q, k = ops.rope(q, range(n)), ops.rope(k, range(n))
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
    """Token by token against all at once: programs, batches and threads make no difference."""
    threads(count)
    layer = Layer(cache, packed, window)
    tokens = normal(MOST, N)
    expected = layer.called(tokens)
    same(layer.replayed(tokens), expected)
    threads(1)
    same(layer.replayed(tokens), expected, "recorded for more threads than there are now")


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


def test_a_program_can_grow_after_a_run(threads):
    threads(2)
    p = Program()
    x, y = p.buffer(4, 64), p.buffer(4, 64)
    x[...], y[...] = 1, 2
    p.add(x, y, y)
    p.run()
    assert (y == 3).all()
    p.barrier()
    p.gated("silu", y, x, x)
    p.run()
    assert (y == 4).all()
    same(x, F(4) * ops.silu(np.ones((4, 64), F)))


def test_wrong_steps_are_refused():
    p = Program()
    a = Activations(p.buffer(1, 64))
    w = random_blocks("q4_0", 8, 64)
    for x, weight, out in ((p.buffer(1, 4), normal(5), p.buffer(1, 4)), (p.buffer(1, 4), None, p.buffer(2, 4))):
        with pytest.raises(ValueError, match="shapes do not fit"):
            p.rms_norm(x, weight, 1e-5, out)
    for wrong, out in ((random_blocks("q4_0", 8, 32), p.buffer(1, 8)), (w, p.buffer(1, 7)), (w, p.buffer(2, 8))):
        with pytest.raises(ValueError, match="shapes do not fit"):
            p.linear(a, wrong, None, out)
    with pytest.raises(ValueError, match="shapes do not fit"):
        p.linear(a, w, normal(7), p.buffer(1, 8))
    with pytest.raises(ValueError, match="contiguous quantized weights"):
        p.linear(a, w[::2], None, p.buffer(1, 4))
    with pytest.raises(ValueError, match="whole number of blocks of 256"):
        p.quantize(a, (random_blocks("q4_k", 8, 256),))
    with pytest.raises(ValueError, match="shapes do not fit"):
        p.add(p.buffer(1, 4), p.buffer(1, 5), p.buffer(1, 4))
    with pytest.raises(ValueError, match="shapes do not fit"):
        p.rope(p.buffer(1, 2, 8), p.buffer(1, 4), p.buffer(1, 3), False, p.buffer(1, 2, 8))


def test_the_scalar_backend_has_no_programs(run_isolated):
    code = "from fucina.ops.program import Program\ntry:\n    Program()\nexcept ValueError as error:\n    print(error)"
    done = run_isolated(code, env={"FUCINA_BACKEND": "scalar"})
    assert "programs need compiled kernels" in done.stdout and done.returncode == 0
