"""What every operation promises about its arguments: ``out``, overlap, wrong types, empty arrays, threads, memory."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from references import _OPS, F, agree, engine, layouts, normal, random_blocks, same, swapped

import fucina
from fucina import QTensor, ops
from fucina._kernels import _openmp
from fucina.formats import PackedQTensor, QActivations
from fucina.ops.matmul import PackedWeight
from fucina.runtime import isa, workspace

ml_dtypes = pytest.importorskip("ml_dtypes")
needs_openmp = pytest.mark.skipif(not _openmp.runtime_version(), reason="built without OpenMP")


class Case:
    """A call: the operation, its array arguments by name, and options. Calling it gives the result."""

    def __init__(self, op, options=None, **arrays):
        self.op, self.options, self.arrays = op, options or {}, arrays

    def __call__(self, out=None, **changed):
        return self.op(**(self.arrays | self.options | changed), out=out)

    def floats(self):
        """The arguments that must be float32 arrays."""
        return {name: a for name, a in self.arrays.items() if isinstance(a, np.ndarray) and a.dtype == F}


def cases(n: int = 7, formats=("q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq2_xs")) -> dict[str, Case]:
    """Every operation that takes ``out``, by name, at a size that depends on ``n``."""
    x, y = normal(3, n), normal(3, n, seed=1)
    result = {name: Case(getattr(ops, name), x=x) for name in
              ("relu", "exp", "sqrt", "sigmoid", "silu", "tanh", "gelu", "gelu_quant", "quick_gelu", "negative", "abs")}
    result |= {name: Case(getattr(ops, name), x=x, y=y) for name in
               ("add", "subtract", "multiply", "divide", "maximum", "minimum")}
    result["scale"] = Case(ops.scale, {"s": 1.5}, x=x)
    result["swiglu"] = Case(ops.swiglu, x=x, gate=y)
    result["geglu"] = Case(ops.geglu, x=x, gate=y)
    result["rms_norm"] = Case(ops.rms_norm, x=x, weight=normal(n))
    result["softmax"] = Case(ops.softmax, x=x, mask=y)
    result["softmax of columns"] = Case(ops.softmax, {"axis": 0}, x=x, mask=y)
    result["rope"] = Case(ops.rope, {"positions": None, "tables": ops.rope_tables(np.arange(3), 3)}, x=normal(3, n, 6))
    result["linear"] = Case(ops.linear, x=normal(n, n), w=normal(n, n, seed=1), bias=normal(n))
    for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        w = normal(n, 11, seed=1).astype(dtype)
        result[f"linear {name}"] = Case(ops.linear, x=normal(n, 11), w=w, bias=normal(n))
    for name in formats:
        w = random_blocks(name, n, 256)
        result[f"linear {name}"] = Case(ops.linear, x=normal(n, 256), w=w, bias=normal(n))
        result[f"linear packed {name}"] = Case(ops.linear, x=normal(n, 256), w=w.pack(), bias=normal(n))
        result[f"dequantize {name}"] = Case(ops.dequantize, q=w)
        result[f"embedding {name}"] = Case(ops.embedding, ids=np.arange(n)[::-1].copy(), table=w)
    for name, layout in (("q4_1", "q8_1"), ("q5_0", "q8_0"), ("q4_k", "q8_k"), ("q6_k", "q8_k306")):
        a, w = ops.quantize_activations(normal(n, 256), layout), random_blocks(name, n, 256)
        result[f"block_dot {name}"] = Case(ops.block_dot, a=a, w=w)
    for name in ("tq1_0", "tq2_0", "i2_s"):
        result[f"ternary_linear {name}"] = Case(ops.ternary_linear, x=normal(n, 256), w=random_blocks(name, n, 256),
                                                bias=normal(n))
    ids, parts = np.arange(2 * n).reshape(n, 2) * 5 % 3, normal(n, 2)
    result["moe_linear"] = Case(ops.moe_linear, x=normal(n, 5), w=normal(3, n, 5), ids=ids, weights=parts)
    w = random_blocks("q4_k", 3, n, 256)
    result["moe_linear q4_k"] = Case(ops.moe_linear, x=normal(n, 256), w=w, ids=ids, weights=parts, bias=normal(3, n))
    result["moe_linear of slots"] = Case(ops.moe_linear, x=normal(n, 2, 256), w=w, ids=ids)
    result["embedding"] = Case(ops.embedding, ids=np.arange(n)[::-1].copy(), table=normal(n, 5))
    result["embedding float16"] = Case(ops.embedding, ids=np.arange(n), table=normal(n, 5).astype(np.float16))
    q, k, v = normal(3, 4, n), normal(9, 2, n, seed=1), normal(9, 2, n, seed=2)
    result |= {name: Case(getattr(ops, name), {"axis": -1}, x=x) for name in ("sum", "prod", "mean", "max", "min", "var")}
    result["sum of columns"] = Case(ops.sum, {"axis": 0}, x=x)
    result["dot"] = Case(ops.dot, x=x, y=y)
    result["linear packed"] = Case(ops.linear, x=normal(n, n), w=ops.pack_weight(normal(n, n, seed=1)), bias=normal(n))
    result["matmul"] = Case(ops.matmul, a=normal(n, n), b=normal(n, n, seed=1))
    turned = {"trans_a": True, "trans_b": True}
    result["matmul trans"] = Case(ops.matmul, turned, a=normal(2, n, n), b=normal(n, n, seed=1))
    result["attention"] = Case(ops.attention, q=q, k=k, v=v, bias=normal(3, 9))
    k, v = k.astype(np.float16), v.astype(np.float16)
    result["attention float16"] = Case(ops.attention, {"window": 4}, q=q, k=k, v=v)
    k, v = normal(150, 1, n, seed=1), normal(150, 1, n, seed=2)
    result["attention of many keys"] = Case(ops.attention, {"window": 140}, q=normal(21, 2, n), k=k, v=v)
    k, v = (ops.quantize(normal(9, 2, 32, seed=s), "q8_0") for s in (1, 2))
    result["attention q8_0"] = Case(ops.attention, q=normal(3, 4, 32), k=k, v=v)
    return result


CASES = cases()
each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
FEW = ["silu", "add", "rms_norm", "softmax", "rope", "linear", "linear q4_k", "dequantize q4_0", "embedding",
       "attention"]
few = pytest.mark.parametrize("case", [CASES[name] for name in FEW], ids=FEW)


def rebuilt(a, raw: np.ndarray):
    """An argument like ``a`` with its bytes in ``raw``."""
    if isinstance(a, QTensor):
        return QTensor(raw, a.format, a.shape)
    if isinstance(a, PackedQTensor):
        return PackedQTensor(raw, a.spec, a.shape)
    if isinstance(a, QActivations):
        return QActivations(raw, a.layout, a.shape)
    return PackedWeight(raw, a.dtype, a.code, a.shape) if isinstance(a, PackedWeight) else raw


def test_no_operation_is_forgotten():
    """But for those that have no ``out`` of float32."""
    others = {"argmax", "kv_store", "moe_route", "pack", "pack_weight", "quantize", "quantize_activations", "rope_tables",
              "top_k"}
    assert {case.op.__name__ for case in CASES.values()} == set(ops.__all__) - others


# ---- out ---------------------------------------------------------------------------------------------------------


@each
def test_out_is_filled_and_returned(case, tmp_path):
    expected = agree(case, threads=(1, 2))
    assert expected.dtype == F and expected.flags.c_contiguous and expected.flags.writeable
    for how, out in layouts(expected, tmp_path):
        if how in ("read-only", "broadcast", "mapped"):
            continue
        out[...] = np.nan
        with engine(isa.runnable_variants()[-1], 2):
            assert case(out=out) is out, how
        same(out, expected, how)
    mapped = np.memmap(tmp_path / "out.bin", F, "w+", shape=expected.shape)
    assert case(out=mapped) is mapped
    mapped.flush()
    same(np.fromfile(tmp_path / "out.bin", F).reshape(expected.shape), expected)


@each
def test_strided_out_is_written_in_place(case):
    expected = case()
    wide = np.full(tuple(2 * n for n in expected.shape), F(7))
    case(out=wide[(slice(None, None, 2),) * expected.ndim])
    same(wide[(slice(None, None, 2),) * expected.ndim].copy(), expected)
    for axis in range(expected.ndim):
        between = np.take(wide, range(1, wide.shape[axis], 2), axis)
        assert (between == 7).all(), "written between the elements"


@each
def test_out_may_overlap_an_input(case):
    """Every float32 argument in turn shares memory with out, at the same place or shifted either way."""
    expected = case()
    for name, a in case.floats().items():
        for shift in (0, 1, -1, 3, -5, a.size - 1, 1 - expected.size):
            pad = a.size + expected.size
            buffer = np.zeros(3 * pad, F)
            place = buffer[pad : pad + a.size].reshape(a.shape)
            place[...] = a
            out = buffer[pad + shift : pad + shift + expected.size].reshape(expected.shape)
            assert case(out=out, **{name: place}) is out
            same(out, expected, f"out over {name}, {shift} elements on")


@each
def test_out_may_be_an_input(case):
    expected = case()
    for name, a in case.floats().items():
        if a.shape == expected.shape:
            for make in (np.copy, np.asfortranarray):
                both = make(a) if make is np.copy else make(a.copy())
                assert case(out=both, **{name: both}) is both
                same(both.copy(order="C"), expected, name)


def test_out_may_overlap_blocks():
    memory = np.zeros(4096, np.uint8)
    q = QTensor(memory[:34], "q8_0", (32,))
    q.data[...] = random_blocks("q8_0", 32).data
    expected = q.dequantize()
    out = memory[32 : 32 + 128].view(F)
    same(ops.dequantize(q, out=out).copy(), expected)
    w = random_blocks("q4_0", 8, 64)
    x = normal(2, 64)
    expected = ops.linear(x, w)
    for weights in (w, w.pack()):
        memory[: weights.nbytes] = weights.data.reshape(-1)
        there = memory[: weights.nbytes].reshape(weights.data.shape)
        moved = QTensor(there, "q4_0", w.shape) if weights is w else PackedQTensor(there, w.spec, w.shape)
        same(ops.linear(x, moved, out=memory[: 4 * 16].view(F).reshape(2, 8)).copy(), expected)


@each
def test_wrong_out_is_refused(case):
    expected = case()
    for wrong in (expected.tolist(), memoryview(expected), 1.0):
        with pytest.raises(TypeError, match=f"out must be a NumPy array, got {type(wrong).__name__}"):
            case(out=wrong)
    # Products may have other types, see their tests.
    for dtype in (np.int32, np.complex64, *((np.float64, np.float16) if case.op is not ops.matmul else ())):
        with pytest.raises(TypeError, match=f"(out|the result) must be float32.* got {np.dtype(dtype).name}"):
            case(out=np.zeros(expected.shape, dtype))
    with pytest.raises(TypeError, match="(out|the result) must be float32.* got float32 .*foreign byte order"):
        case(out=swapped(expected))
    for shape in (expected.shape + (1,), (1,) + expected.shape, (expected.size + 1,), ()):
        with pytest.raises(ValueError, match="out must have shape"):
            case(out=np.empty(shape, F))
    fixed = expected.copy()
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        case(out=fixed)


def test_out_of_other_types_for_dequantize():
    q = random_blocks("q6_k", 3, 256)
    for dtype in (np.float16, np.float64):
        out = np.full((3, 512), np.nan, dtype)[:, ::2]
        assert ops.dequantize(q, dtype=dtype, out=out) is out
        same(out.copy(), q.dequantize(dtype))
        with pytest.raises(TypeError, match="out must be float32"):
            ops.dequantize(q, out=out)


# ---- inputs ------------------------------------------------------------------------------------------------------


@each
def test_wrong_types_are_refused_by_name(case):
    for name, a in case.floats().items():
        wrong = [swapped(a), a.astype(object), a.astype(int), a.astype(complex), None, "text"]
        for value in wrong if case.op is ops.matmul else [*wrong, a.astype(np.float64)]:
            if value is None and name in ("bias", "weight", "weights", "mask", "gate"):
                continue
            with pytest.raises(TypeError, match=f"{name} must be.*(float32|QTensor).*, got"):
                case(**{name: value})
        with pytest.raises(TypeError, match="foreign byte order"):
            case(**{name: swapped(a)})


@each
def test_inputs_stay_as_they_are(case):
    """Read-only inputs are fine, and their bytes are the same afterwards."""
    expected = case()
    frozen = {}
    for name, a in case.arrays.items():
        raw = a if isinstance(a, np.ndarray) else a.data
        raw = raw.copy()
        raw.flags.writeable = False
        frozen[name] = rebuilt(a, raw)
    same(agree(lambda: case(**frozen), threads=(1, 2)), expected)
    for name, a in case.arrays.items():
        now = frozen[name]
        same(now if isinstance(now, np.ndarray) else now.data, a if isinstance(a, np.ndarray) else a.data, name)


def test_wrong_weights_and_tables_are_refused():
    x = normal(2, 4)
    for wrong in ([[1.0] * 4], None, "w", 3):
        with pytest.raises(TypeError, match="w must be an ndarray, PackedWeight, QTensor or PackedQTensor, got"):
            ops.linear(x, wrong)
    for wrong in (normal(3, 4).astype(np.float64), np.ones((3, 4), np.int8), swapped(normal(3, 4)),
                  swapped(normal(3, 4).astype(np.float16))):
        for rows in (x, x[:0]):
            with pytest.raises(TypeError, match="w must be float32, float16 or bfloat16 in native byte order, got"):
                ops.linear(rows, wrong)
    for wrong in (normal(4), normal(1, 3, 4), np.empty(0, F)):
        with pytest.raises(ValueError, match=r"w must be a matrix \(n, k\), got shape"):
            ops.linear(x, wrong)
    for wrong in (normal(2, 3), normal(4, 2), np.full((), 1, F), normal(5)):
        with pytest.raises(ValueError, match=r"x must have the 4 columns of w \(3, 4\), got x of shape"):
            ops.linear(wrong, normal(3, 4))
    with pytest.raises(ValueError, match=r"bias must have the 3 rows of w \(3, 4\), got shape \(4,\)"):
        ops.linear(x, normal(3, 4), normal(4))
    with pytest.raises(ValueError, match="the 32 columns of w"):
        ops.linear(x, random_blocks("q4_0", 3, 32))
    with pytest.raises(ValueError, match="w must be a matrix"):
        ops.linear(normal(2, 32), random_blocks("q4_0", 2, 3, 32))
    packed = random_blocks("q4_0", 8, 32).pack()
    for wrong in (normal(3, 4).astype(np.float64), swapped(normal(3, 4)), packed, [[1.0]], None):
        with pytest.raises(TypeError, match="table must be a QTensor or an array of float32, float16 or bfloat16, got"):
            ops.embedding([0], wrong)
    for wrong in (normal(4), normal(1, 2, 3), random_blocks("q4_0", 32)):
        with pytest.raises(ValueError, match="table must be a matrix, got"):
            ops.embedding([0], wrong)
    for ids in ([4], [-1], np.uint64([0, 2**63]), [[0], [7]]):
        with pytest.raises(ValueError, match=r"ids must be in \[0, 4\)"):
            ops.embedding(ids, normal(4, 2))
    for ids in ([0.0], [True], "0", None):
        with pytest.raises(TypeError, match="ids must be integers"):
            ops.embedding(ids, normal(4, 2))
    for wrong in (normal(3, 4), None, packed):
        with pytest.raises(TypeError, match="dequantize takes a QTensor, got"):
            ops.dequantize(wrong)
    for op, args in ((ops.add, (normal(3), normal(4))), (ops.swiglu, (normal(2, 3), normal(3, 2)))):
        with pytest.raises(ValueError, match="do not broadcast"):
            op(*args)


def test_numbers():
    x = normal(3)
    for wrong in (None, "2", [2], True, 1j, np.ones(1), np.float32(1)[None]):
        with pytest.raises(TypeError, match="s must be a number, got"):
            ops.scale(x, wrong)
    with pytest.raises(ValueError, match="beyond the range of a float"):
        ops.scale(x, 10**400)


def test_quantize():
    x = normal(3, 64)
    for how, a in layouts(x):
        expected = ops.quantize(np.array(a, order="C"), "q8_0").data
        same(agree(lambda a=a: ops.quantize(a, "q8_0").data), expected, how)
    assert ops.quantize(x, "Q8_0").shape == (3, 64)
    assert ops.quantize(x[:0], "q8_0").shape == (0, 64) and ops.quantize(x[:, :0], "q8_0").shape == (3, 0)
    large = normal(9375, 32)
    same(agree(lambda: ops.quantize(large, "q8_0").data, scalar=False)[77], ops.quantize(large[77], "q8_0").data)
    for value in (np.nan, np.inf, -np.inf):
        bad = x.copy()
        bad[1, 63] = value
        with pytest.raises(ValueError, match="NaN or infinity"):
            ops.quantize(bad, "q8_0")
    with pytest.raises(ValueError, match="multiple of 32 elements, got 63"):
        ops.quantize(x[:, :63], "q8_0")
    with pytest.raises(ValueError, match="unknown format"):
        ops.quantize(x, "q8")
    with pytest.raises(ValueError, match="at least one axis"):
        ops.quantize(F(1), "q8_0")
    with pytest.raises(TypeError, match="x must be float32"):
        ops.quantize(x.astype(np.float64), "q8_0")


# ---- nothing to do -----------------------------------------------------------------------------------------------


def test_empty_arrays():
    def empty(*shape):
        return np.empty(shape, F)

    for shape in ((0,), (0, 5), (3, 0), (2, 0, 4)):
        x = empty(*shape)
        for name in ("silu", "exp", "abs"):
            assert getattr(ops, name)(x).shape == shape
        for name in ("add", "maximum", "swiglu"):
            assert getattr(ops, name)(x, x).shape == shape
        assert ops.scale(x, 2).shape == shape
        assert ops.rms_norm(x, normal(shape[-1])).shape == shape
        for axis in range(len(shape)):
            assert ops.softmax(x, axis, mask=x).shape == shape
    assert ops.add(empty(0, 5), normal(5)).shape == (0, 5)
    assert ops.swiglu(empty(3, 0)).shape == (3, 0)
    assert ops.rope(empty(0, 2, 8), []).shape == (0, 2, 8)
    assert ops.rope(empty(3, 0, 8), range(3)).shape == (3, 0, 8)
    assert ops.attention(empty(0, 4, 8), normal(5, 2, 8), normal(5, 2, 8)).shape == (0, 4, 8)
    assert ops.attention(empty(0, 4, 8), empty(0, 2, 8), empty(0, 2, 8)).shape == (0, 4, 8)
    assert ops.attention(empty(2, 0, 8), normal(5, 2, 8), normal(5, 2, 8)).shape == (2, 0, 8)
    assert ops.attention(empty(2, 4, 0), empty(5, 2, 0), empty(5, 2, 0)).shape == (2, 4, 0)
    assert ops.embedding([], normal(3, 4)).shape == (0, 4)
    assert ops.embedding([0, 1], empty(3, 0)).shape == (2, 0)
    assert ops.embedding(np.empty((2, 0), int), random_blocks("q4_0", 3, 32)).shape == (2, 0, 32)
    with pytest.raises(ValueError, match=r"\[0, 0\)"):
        ops.embedding([0], empty(0, 4))
    assert random_blocks("q4_k", 0, 256).dequantize().shape == (0, 256)
    assert QTensor(np.empty(0, np.uint8), "q4_k", (3, 0)).dequantize().shape == (3, 0)


def products(n, k):
    """Weights of every kind, also empty."""
    yield normal(n, k)
    yield normal(n, k).astype(np.float16)
    if k % 32 == 0:
        w = random_blocks("q4_0", n, k)
        yield w
        yield w.pack()


def test_empty_products():
    bias = normal(5)
    for lead in ((0,), (2, 0), (0, 3), (2,), (2, 3), ()):
        for w in products(5, 32):
            x = normal(*lead, 32)
            assert ops.linear(x, w).shape == (*lead, 5) and ops.linear(x, w, bias).shape == (*lead, 5)
        for w in products(0, 32):
            assert ops.linear(normal(*lead, 32), w).shape == (*lead, 0)
        for w in products(5, 0):
            # A sum of nothing is 0, also where out held something else.
            out = np.full((*lead, 5), np.nan, F)
            x = np.empty((*lead, 0), F)
            assert (ops.linear(x, w, out=out) == 0).all()
            same(ops.linear(x, w, bias), np.broadcast_to(bias, (*lead, 5)).copy())
        for w in products(0, 0):
            assert ops.linear(np.empty((*lead, 0), F), w).shape == (*lead, 0)


def test_results_do_not_depend_on_what_memory_held():
    """Scratch and out are full of NaN before every call."""
    for case in CASES.values():
        expected = case()
        with engine(isa.runnable_variants()[-1], 3):
            case()
            workspace._local.buffer[...] = 0xFF
            same(case(out=np.full(expected.shape, np.nan, F)), expected, case.op.__name__)


# ---- threads and processes ---------------------------------------------------------------------------------------


def large_cases() -> dict[str, Case]:
    """Work above the gates."""
    x = normal(256, 512)
    return {
        "silu": Case(ops.silu, x=x),
        "rms_norm": Case(ops.rms_norm, x=x, weight=normal(512)),
        "softmax": Case(ops.softmax, x=x),
        "rope": Case(ops.rope, {"positions": np.arange(64)}, x=normal(64, 8, 64)),
        "linear": Case(ops.linear, x=x[:33], w=normal(200, 512)),
        "linear q4_k": Case(ops.linear, x=x[:33], w=random_blocks("q4_k", 200, 512)),
        "linear q8_0": Case(ops.linear, x=x[:1], w=random_blocks("q8_0", 2000, 512).pack()),
        "dequantize": Case(ops.dequantize, q=random_blocks("q5_1", 200, 512)),
        "attention": Case(ops.attention, q=normal(40, 4, 64), k=normal(300, 2, 64), v=normal(300, 2, 64, seed=1)),
    }


@needs_openmp
def test_eight_python_threads_at_once(threads):
    threads(2)
    work = large_cases()
    expected = {name: case() for name, case in work.items()}
    errors = []
    start = threading.Barrier(8)

    def run(seed):
        start.wait()
        try:
            for name in np.random.default_rng(seed).permutation(list(work) * 4):
                same(work[name](), expected[name], name)
        except BaseException as error:
            errors.append(error)

    team = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for t in team:
        t.start()
    for t in team:
        t.join(60)
    assert not any(t.is_alive() for t in team) and not errors


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_computes(run_isolated):
    """Also while the parent's pool of threads exists; the child is serial and right."""
    code = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import fucina
fucina.set_num_threads(2)
from test_ops_arguments import large_cases
from references import same
work = large_cases()
expected = {name: case() for name, case in work.items()}
for generation in range(2):
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status))
    signal.alarm(40)
    assert fucina.get_num_threads() == 1
    for name, case in work.items():
        same(case(), expected[name], name)
print("right", flush=True)
os._exit(0)
"""
    done = run_isolated(["-W", "ignore", "-c", code, str(Path(__file__).parent)], timeout=100)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


@needs_openmp
@few
def test_limits_of_threadpoolctl_reach_the_kernels(case, threads, monkeypatch):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    monkeypatch.setattr(sys.modules[case.op.__module__], "GATE", 0)
    seen = []

    def spy(stem):
        kernels = importlib.import_module(f"fucina._kernels.{isa.variant()}.{stem}")

        class Spy:
            def __getattr__(self, name):
                function = getattr(kernels, name)
                if not name.endswith("_unchecked"):
                    return function
                return lambda *args: (seen.append(args[-1]), function(*args))[1]

        return Spy()

    for module in _OPS:
        monkeypatch.setattr(module, "kernel", spy)
    threads(2)
    expected = case()
    with threadpoolctl.threadpool_limits(1, user_api="openmp"):
        same(case(), expected)
    with threadpoolctl.threadpool_limits(2):
        same(case(), expected)
    assert seen == [2, 1, 2]


@few
def test_small_work_runs_on_one_thread(case, monkeypatch):
    module = sys.modules[case.op.__module__]
    asked = []
    monkeypatch.setattr(module, "enter", lambda work, gate: asked.append((work, gate)) or 1)
    monkeypatch.setattr(module, "leave", lambda nth: asked.append(nth))
    case()
    (work, gate), given_back = asked
    assert 0 < work < gate and given_back == 1


@few
def test_the_team_is_given_back_after_an_error(case, monkeypatch):
    module = sys.modules[case.op.__module__]
    given_back = []
    monkeypatch.setattr(module, "enter", lambda work, gate: 2)
    monkeypatch.setattr(module, "leave", given_back.append)

    def broken(stem):
        raise RuntimeError("no kernel")

    for caller in _OPS:
        monkeypatch.setattr(caller, "kernel", broken)
    with pytest.raises(RuntimeError, match="no kernel"):
        case()
    assert given_back == [2]


def test_the_scalar_backend_gives_the_same_bits(run_isolated, tmp_path):
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from fucina.runtime import isa
from test_ops_arguments import cases
assert isa.backend() == "scalar"
np.savez(sys.argv[2], *[case() for case in cases().values()])
"""
    arguments = ["-c", code, str(Path(__file__).parent), str(tmp_path / "all.npz")]
    done = run_isolated(arguments, env={"FUCINA_BACKEND": "scalar"})
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "all.npz") as results:
        for (name, case), key in zip(CASES.items(), results.files, strict=True):
            same(case(), results[key], name)


# ---- memory ------------------------------------------------------------------------------------------------------

FENCED = """
import ctypes, mmap, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from fucina import ops
from fucina.runtime import isa
from references import _OPS, BLOCKS, PRODUCTS, engine, normal, random_blocks, same
from test_ops_arguments import cases, rebuilt

libc = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE
keep = []

def fenced(shape, dtype, at_end):
    # Memory between two pages that nobody may touch, against one of them.
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    pages = -(-size // PAGE) or 1
    area = mmap.mmap(-1, (pages + 2) * PAGE)
    keep.append(area)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for fence in (start, start + (pages + 1) * PAGE):
        assert libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(PAGE), 0) == 0
    offset = (pages + 1) * PAGE - size if at_end else PAGE
    return np.frombuffer(area, np.uint8, size, offset).view(dtype).reshape(shape)

def moved(a, at_end):
    raw = a if isinstance(a, np.ndarray) else a.data
    copy = fenced(raw.shape, raw.dtype, at_end)
    copy[...] = raw
    return rebuilt(a, copy)

for at_end in (True, False):
    for module in _OPS:
        if hasattr(module, "scratch"):
            module.scratch = lambda nbytes: fenced((nbytes,), np.uint8, at_end)
        if hasattr(module, "aligned_empty"):
            module.aligned_empty = lambda shape, dtype: fenced(shape, dtype, at_end)
    x = moved(normal(3, 256), at_end)
    for name in BLOCKS:
        with engine(isa.runnable_variants()[-1], 3):
            ops.quantize(x, name, imatrix=moved(np.ones(256, np.float32), at_end))
            ops.pack(moved(random_blocks(name, 3, 256), at_end))
    for m, n, k in ((1, 300, 700), (5, 33, 520), (70, 131, 300)):
        for types in (("f4", "f4"), ("f2", "f4"), ("f4", "f2"), ("f8", "f8")):
            a, b = normal(m, k).astype(types[0]), normal(n, k, seed=1).astype(types[1])
            for trans_a, trans_b in ((False, True), (False, False), (True, True)):
                left, right = (moved(np.ascontiguousarray(v.T if t else v), at_end)
                               for v, t in ((a, trans_a), (b, not trans_b)))
                expected = ops.matmul(a, b, trans_b=True)
                for variant in isa.runnable_variants():
                    for nth in (1, 3):
                        with engine(variant, nth):
                            out = fenced(expected.shape, expected.dtype, at_end)
                            same(ops.matmul(left, right, trans_a=trans_a, trans_b=trans_b, out=out), expected)
                keep.clear()
    for n in (1, 3, 8, 9, 17, 30):
        for name, case in cases(n, PRODUCTS).items():
            expected = case()
            arrays = {key: moved(a, at_end) for key, a in case.arrays.items()}
            for variant in isa.runnable_variants():
                for nth in (1, 3):
                    with engine(variant, nth):
                        y = case(out=fenced(expected.shape, np.float32, at_end), **arrays)
                        same(y, expected, name)
            keep.clear()
print("inside")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
def test_no_kernel_reads_or_writes_beyond_its_arrays(run_isolated):
    """Inputs, out and scratch lie against pages whose touch ends the process."""
    done = run_isolated(["-X", "faulthandler", "-c", FENCED, str(Path(__file__).parent)], timeout=120)
    assert (done.returncode, done.stdout) == (0, "inside\n"), done.stderr[-3000:]


def test_the_fence_holds(run_isolated):
    """A read of one element too many would be seen."""
    code = FENCED.split("for at_end in")[0] + """
a = fenced((3, 7), np.float32, True)
print(a.sum(), flush=True)
print(np.lib.stride_tricks.as_strided(a, (22,), (4,))[21])
"""
    done = run_isolated(["-c", code, str(Path(__file__).parent)])
    assert done.returncode < 0 and done.stdout == "0.0\n"


def test_set_num_threads_changes_nothing_but_speed(threads):
    for name, case in large_cases().items():
        results = []
        for n in (1, 2, 3, 5):
            threads(n)
            results.append(case())
        for y in results[1:]:
            same(y, results[0], name)
    assert fucina.get_num_threads() == 5


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", ">i2"])
def test_negative_ids_of_any_width(kind):
    table = np.zeros((70_000, 1), np.float32)
    for value in (-1, -128):
        with pytest.raises(ValueError, match=r"ids must be in \[0, 70000\), got values from"):
            ops.embedding(np.array([0, value], kind), table)
    assert ops.embedding(np.array([0, 127], kind), table).shape == (2, 1)


def test_ids_that_the_output_overlaps():
    table = np.arange(256, dtype=np.float32).reshape(16, 16)
    memory = np.zeros(64, np.int64)
    ids, out = memory[:4], memory.view(np.float32)[:64].reshape(4, 16)
    ids[:] = 3, 1, 2, 15
    expected = table[[3, 1, 2, 15]]
    np.testing.assert_array_equal(ops.embedding(ids, table, out=out), expected)


def test_packed_weights_have_the_bytes_of_their_shape():
    w = ops.quantize(np.zeros((9, 64), np.float32), "q4_0").pack()
    for data, shape in ((w.data[:1], w.shape), (w.data[:, :-1], w.shape), (w.data.view(np.int8), w.shape), (w.data, (9, 96))):
        with pytest.raises(ValueError, match="packed q4_0 weights of shape"):
            PackedQTensor(data, w.spec, shape)
