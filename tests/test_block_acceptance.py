"""Quantized blocks from the outside: layouts by hand, bits one by one, and the figures of a worked example.

What the other files test kernel by kernel is tested here as someone would who has only the definition of the formats and
a calculator.
"""

from __future__ import annotations

import struct
import threading
import tracemalloc

import numpy as np
import pytest
from references import F, engine, normal, random_blocks, same, set_half

from fucina import QTensor, ops
from fucina.formats import FORMATS, lookup
from fucina.formats.activations import LAYOUTS
from fucina.runtime import isa, threads

LEGACY = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]
K = ["q4_k", "q5_k", "q6_k"]


def decode(name: str, raw: bytes) -> np.ndarray:
    """One block, decoded; the same on all variants and in the specification."""
    block = QTensor(np.frombuffer(raw, np.uint8), name, (1, FORMATS[name].block))
    with engine("scalar"):
        expected = ops.dequantize(block)
    for variant in isa.runnable_variants():
        with engine(variant):
            same(ops.dequantize(block), expected)
    return expected[0]


# ---- layouts -----------------------------------------------------------------------------------------------------


def test_sizes_of_blocks_and_tensors():
    assert [FORMATS[name].nbytes for name in LEGACY] == [18, 20, 22, 24, 34]
    assert [FORMATS[name].nbytes for name in K] == [144, 176, 210]
    assert FORMATS["q4_0"].row_bytes(896) == 504 and FORMATS["q4_0"].tensor_bytes((896, 896)) == 451_584
    for name in (*LEGACY, *K):
        with pytest.raises(ValueError, match=f"{name} rows hold a multiple of {FORMATS[name].block} elements, got 900"):
            FORMATS[name].tensor_bytes((4, 900))


def test_blocks_of_32_by_hand():
    """Byte j has element j in its low and element j + 16 in its high half; fifth bits lie in order in one word."""
    half, codes = struct.Struct("<e"), bytes([0x21, *[0x88] * 15])
    y = decode("q4_0", half.pack(1) + codes)
    assert (y[0], y[16]) == (-7, -6) and not y[1:16].any() and not y[17:].any()
    y = decode("q4_1", half.pack(0.5) + half.pack(-3) + codes)
    assert (y[0], y[16]) == (0.5 - 3, 1 - 3) and (np.delete(y, [0, 16]) == 4 - 3).all()
    fifth = 1 << 0 | 1 << 31
    y = decode("q5_0", half.pack(2) + struct.pack("<I", fifth) + codes)
    assert (y[0], y[16], y[31]) == (2 * (1 + 16 - 16), 2 * (2 - 16), 2 * (8 + 16 - 16)) and (y[1:16] == -16).all()
    y = decode("q5_1", half.pack(2) + half.pack(1) + struct.pack("<I", fifth) + codes)
    assert (y[0], y[16], y[31], y[1]) == (2 * 17 + 1, 2 * 2 + 1, 2 * 24 + 1, 2 * 8 + 1)
    y = decode("q8_0", half.pack(-0.25) + np.arange(-16, 16, dtype=np.int8).tobytes())
    np.testing.assert_array_equal(y, np.arange(-16, 16) * -0.25)


def scale_bits(name: str, block: bytes) -> tuple[list[int], list[int]]:
    """Eight scales and eight mins of 6 bits out of twelve bytes."""
    b = block[4:16]
    scales = [b[j] & 63 for j in range(4)] + [b[j + 4] & 15 | (b[j - 4] >> 6) << 4 for j in range(4, 8)]
    mins = [b[j + 4] & 63 for j in range(4)] + [b[j + 4] >> 4 | (b[j] >> 6) << 4 for j in range(4, 8)]
    return scales, mins


def element(name: str, block: bytes, i: int) -> F:
    """Element ``i`` of a block of 256, from the map of its bits."""
    if name == "q6_k":
        half, run, l = i // 128, i % 128 // 32, i % 32
        low, high = block[64 * half + l + 32 * (run & 1)], block[128 + 32 * half + l]
        code = (low >> 4 if run > 1 else low & 15) | (high >> 2 * run & 3) << 4
        scale = struct.unpack_from("<b", block, 192 + i // 16)[0]
        return F(struct.unpack_from("<e", block, 208)[0]) * F(scale) * F(code - 32)
    d, dmin = (F(v) for v in struct.unpack_from("<ee", block))
    sub, l = i // 32, i % 32
    byte = block[(16 if name == "q4_k" else 48) + 32 * (sub // 2) + l]
    code = byte >> 4 if sub % 2 else byte & 15
    if name == "q5_k":
        code |= (block[16 + l] >> sub & 1) << 4
    scales, mins = scale_bits(name, block)
    return d * F(scales[sub]) * F(code) - dmin * F(mins[sub])


@pytest.mark.parametrize("name", K)
def test_blocks_of_256_against_the_map_of_their_bits(name):
    for seed in range(8):
        block = random_blocks(name, 256, seed=seed).data.tobytes()
        same(decode(name, block), np.array([element(name, block, i) for i in range(256)], F), f"block {seed}")


@pytest.mark.parametrize("name", K)
def test_every_element_has_its_own_place(name):
    """One element at a time is set to the largest code; only its own value changes."""
    spec = FORMATS[name]
    base = np.zeros((1, spec.nbytes), np.uint8)
    if name == "q6_k":
        base[0, 192:208] = 1
        set_half(base, 208, 1.0)
    else:
        base[0, 4:16] = 1           # scales 1 everywhere, and mins that dmin = 0 makes no use of
        set_half(base, 0, 1.0)
    zero = decode(name, base.tobytes())
    seen = np.zeros((256, 256), bool)
    for i in range(256):
        block = base.copy()
        if name == "q6_k":
            half, run, l = i // 128, i % 128 // 32, i % 32
            block[0, 64 * half + l + 32 * (run & 1)] |= 0xF0 if run > 1 else 0x0F
            block[0, 128 + 32 * half + l] |= 3 << 2 * run
        else:
            block[0, (16 if name == "q4_k" else 48) + 32 * (i // 64) + i % 32] |= 0xF0 if i // 32 % 2 else 0x0F
            if name == "q5_k":
                block[0, 16 + i % 32] |= 1 << i // 32
        seen[i] = decode(name, block.tobytes()) != zero
    np.testing.assert_array_equal(seen, np.eye(256, dtype=bool))


@pytest.mark.parametrize("name", ["q4_k", "q5_k"])
def test_every_bit_of_scales_and_mins(name):
    """Each of the 96 bits alone reaches one bit of one scale or one min; all together make 63."""
    spec = FORMATS[name]
    code = 15 if name == "q4_k" else 31

    def scales_and_mins(twelve):
        block = np.zeros((1, spec.nbytes), np.uint8)
        block[0, 16:] = 0xFF
        set_half(block, 0, 1.0)
        block[0, 4:16] = twelve
        scales = decode(name, block.tobytes())[::32] / code
        set_half(block, 0, 0.0)
        set_half(block, 2, 1.0)
        return np.concatenate([scales, -decode(name, block.tobytes())[::32]]).astype(int)

    places = set()
    for bit in range(96):
        twelve = np.zeros(12, np.uint8)
        twelve[bit // 8] = 1 << bit % 8
        found = scales_and_mins(twelve)
        at = np.flatnonzero(found)
        assert len(at) == 1, f"bit {bit} reaches {at}"
        value = int(found[at[0]])
        assert value in (1, 2, 4, 8, 16, 32)
        assert found.tolist() == sum(scale_bits(name, b"0000" + twelve.tobytes()), [])
        places.add((int(at[0]), value))
    assert len(places) == 96 and (scales_and_mins(0xFF) == 63).all()


def test_all_65536_half_precision_scales():
    patterns = np.arange(65536, dtype=np.uint16)
    blocks = np.zeros((65536, 34), np.uint8)
    blocks[:, :2] = patterns[:, None].view(np.uint8)
    blocks[:, 2] = 1
    with np.errstate(all="ignore"):
        y = ops.dequantize(QTensor(blocks.reshape(-1), "q8_0", (65536, 32)))
        same(y[:, 0], patterns.view(np.float16).astype(F))


def test_names_that_are_no_format_of_weights_are_refused():
    for name in ("q8_k", "q8_1", "q4_2", "iq5_k"):
        with pytest.raises(ValueError, match=f"unknown format '{name}'; known: f32, .*q4_k.*iq1_m"):
            lookup(name)
        with pytest.raises(ValueError, match=f"unknown format '{name}'"):
            QTensor(np.zeros(292, np.uint8), name, (256,))
        with pytest.raises(ValueError, match=f"unknown format '{name}'"):
            ops.quantize(normal(256), name)
    with pytest.raises(ValueError, match="there is no product for weights of format i2_s|multiple of 256"):
        ops.linear(normal(1, 128), random_blocks("i2_s", 1, 128))


# ---- encoders ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "steps"), [("q4_0", 16), ("q4_1", 15), ("q5_0", 32), ("q5_1", 31), ("q8_0", 254)])
def test_encoders_are_off_by_half_a_step(name, steps):
    """But for the end that has one code less in q4_0 and q5_0, where it is a whole one."""
    x = normal(500, 64)
    w = ops.quantize(x, name)
    blocks = x.reshape(-1, 32)
    if name.endswith("_1"):
        step = (blocks.max(-1) - blocks.min(-1)) / steps
        room = 0.5
    else:
        step = np.abs(blocks).max(-1) * 2 / steps
        room = 0.5 if name == "q8_0" else 1.0
    error = np.abs(ops.dequantize(w).reshape(-1, 32) - blocks)
    # Scale and offset are rounded to half precision, whose error the codes multiply.
    rounding = 2.0**-10 * np.abs(blocks).max(-1)
    assert (error <= (room * step + rounding)[:, None]).all()
    assert np.mean(error <= (0.5 * step + rounding)[:, None]) > 0.98


# ---- products ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*LEGACY, *K])
def test_error_of_rounding_the_activations(name):
    """Root mean square of the error over that of the result: what 8 bits per activation cost."""
    x, w = normal(32, 2048), random_blocks(name, 64, 2048)
    exact = x.astype(float) @ ops.dequantize(w).astype(float).T
    error = np.sqrt(np.mean((ops.linear(x, w) - exact) ** 2) / np.mean(exact**2))
    assert error < 0.012, f"{name}: {error:.4f}"
    assert error > 1e-4, "activations were not rounded at all"


@pytest.mark.parametrize("name", ["f32", "f16", *LEGACY, *K])
def test_outputs_are_token_major_with_their_bias(name):
    n, k = 13, 256
    w = normal(n, k).astype(np.float16 if name == "f16" else F) if name[0] == "f" else random_blocks(name, n, k)
    bias = normal(n)
    for m in range(1, 17):
        x = normal(m, k, seed=m)
        y = ops.linear(x, w)
        assert y.shape == (m, n)
        for t in range(m):
            same(ops.linear(x[t], w), y[t], f"token {t} of {m}")
        same(ops.linear(x, w, bias), y + bias)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_k", "q6_k"])
def test_any_number_of_threads(name):
    x, w = normal(5, 512), random_blocks(name, 37, 512)
    with engine(isa.runnable_variants()[-1], 1):
        expected = ops.linear(x, w)
    for nth in (2, 3, 4, 7):
        for variant in isa.runnable_variants():
            with engine(variant, nth):
                same(ops.linear(x, w), expected, f"{variant} on {nth}")


def test_small_products_open_no_parallel_region(monkeypatch):
    """A gate, counted: below it one thread, above it the team."""
    seen = []
    module = __import__("importlib").import_module("fucina.ops.linear")
    monkeypatch.setattr(module, "enter", lambda work, gate: seen.append(work >= gate) or 1)
    monkeypatch.setattr(module, "leave", lambda n: None)
    ops.linear(normal(1, 256), random_blocks("q4_k", 4, 256))
    ops.linear(normal(64, 1024), random_blocks("q4_k", 1024, 1024))
    assert seen == [False, True]
    assert threads.get_num_threads() >= 1


def test_eight_callers_at_once():
    """64 products each, every one right."""
    w = [random_blocks(name, 33, 256) for name in (*LEGACY, *K)]
    x = normal(3, 256)
    expected = [ops.linear(x, one) for one in w]
    wrong = []

    def work(i):
        wrong.extend(i for _ in range(64) if ops.linear(x, w[i]).tobytes() != expected[i].tobytes())

    callers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    assert wrong == []


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "q6_k"])
def test_no_float_copy_of_the_weights(name):
    """What a product allocates is room for its activations and one panel of rows, not for the matrix."""
    m, n, k = 2, 2048, 2048
    x, w, out = normal(m, k), random_blocks(name, n, k), np.empty((m, n), F)
    with engine(isa.runnable_variants()[-1], 2):
        tracemalloc.start()
        ops.linear(x, w, out=out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 300_000 < w.nbytes


def test_a_worked_example():
    """A prompt of 100 tokens through one 896 x 896 matrix of q4_0: bytes in, between, and out."""
    x, w = normal(100, 896), random_blocks("q4_0", 896, 896)
    a = ops.quantize_activations(x, "q8_0")
    assert (x.nbytes, a.data.nbytes, w.nbytes) == (358_400, 95_200, 451_584)
    y = ops.linear(x, w)
    assert y.shape == (100, 896) and y.nbytes == 358_400
    size = np.abs(a.dequantize().astype(float)) @ np.abs(ops.dequantize(w)).astype(float).T
    exact = a.dequantize().astype(float) @ ops.dequantize(w).astype(float).T
    assert (np.abs(y - exact) <= 1e-5 * size).all() and (np.abs(ops.block_dot(a, w) - exact) <= 1e-5 * size).all()


def test_which_kernels_run_can_be_asked_and_forced(run_isolated):
    """Every lower level gives the same bits as the chosen one."""
    code = """
import hashlib, numpy as np, fucina
from fucina import ops
from fucina.runtime import isa
rng = np.random.default_rng(0)
x = rng.standard_normal((3, 512), np.float32)
digest = hashlib.sha256()
for name in ("q4_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"):
    w = ops.quantize(rng.standard_normal((9, 512), np.float32), name)
    digest.update(ops.linear(x, w).tobytes())
    layout = "q8_k306" if name.endswith("k") else "q8_0"
    digest.update(ops.block_dot(ops.quantize_activations(x, layout), w).tobytes())
print(isa.backend(), isa.variant(), digest.hexdigest())
"""
    settings = [{"FUCINA_ISA": name} for name in isa.runnable_variants()] + [{"FUCINA_BACKEND": "scalar"}]
    lines = [run_isolated(code, env).stdout.split() for env in settings]
    assert [line[1] for line in lines[:-1]] == list(isa.runnable_variants()) and lines[-1][0] == "scalar"
    assert len({line[2] for line in lines}) == 1


def test_wrong_lengths_are_refused():
    with pytest.raises(ValueError, match="q4_0 rows hold a multiple of 32"):
        QTensor(np.zeros(18, np.uint8), "q4_0", (1, 33))
    with pytest.raises(ValueError, match="needs 36 bytes, got 35"):
        QTensor(np.zeros(35, np.uint8), "q4_0", (2, 32))
    for layout, k in (("q8_0", 31), ("q8_1", 48), ("q8_k", 128), ("q8_k306", 300)):
        with pytest.raises(ValueError, match=f"{layout} rows hold a multiple of {LAYOUTS[layout].block}"):
            ops.quantize_activations(normal(2, k), layout)
    with pytest.raises(ValueError, match="the last axis of x must have the 256 columns"):
        ops.linear(normal(2, 255), random_blocks("q4_k", 3, 256))


# ---- rows of tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FORMATS if FORMATS[name].is_block])
def test_rows_of_a_table_are_the_rows_of_the_decoded_table(name):
    """Rows are whole blocks: one that ends inside a block cannot be made, so there is none to look up."""
    table = random_blocks(name, 17, 256)
    ids = np.array([[3, 0, 16], [3, 3, 9]])
    same(ops.embedding(ids, table), ops.dequantize(table)[ids])
    for wrong in (17, -1, [0, 17]):
        with pytest.raises(ValueError, match=r"ids must be in \[0, 17\)"):
            ops.embedding(wrong, table)
    with pytest.raises(ValueError, match=f"{name} rows hold a multiple"):
        QTensor(table.data.reshape(-1), name, (17, 255))
