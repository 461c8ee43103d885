"""Every kernel has its specification and the other way round; the format table, decoders and products agree."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import numpy as np
import pytest
import tolerances
from references import PRODUCTS, engine, normal, random_blocks, same, set_scales, unit

import fucina
from fucina import QTensor, ops
from fucina._scalar import _blocks, act_quant
from fucina.formats import FORMATS
from fucina.runtime import isa

PACKAGE = Path(fucina.__file__).parent
SPECIFIED = sorted(p.stem for p in (PACKAGE / "_scalar").glob("[a-z]*.py"))
# Families that compute nothing themselves: "program" runs the cores of the others.
DRIVERS = ["peak", "program"]
# Operations whose results are not one array.
WITHOUT_OUT = {
    "kv_store", "moe_route", "pack", "pack_weight", "quantize", "quantize_activations", "rope_tables", "top_k",
}
PAIRING = importlib.import_module("fucina.ops.linear").ACTIVATIONS


def public(module) -> dict:
    """Functions that a module defines itself and does not hide."""
    return {
        name: thing for name, thing in vars(module).items()
        if callable(thing) and not name.startswith("_") and not isinstance(thing, type)
        and getattr(thing, "__module__", "").rpartition(".")[2] == module.__name__.rpartition(".")[2]
    }


def is_entry(name: str) -> bool:
    return name.endswith(("_into", "_into_unchecked"))


def mismatches(compiled: dict, specified: dict) -> list[str]:
    """What is wrong with a family: public functions of the kernel and of its specification, by name.

    An entry ``name_step`` makes a step of a program from the core of ``name_into_unchecked`` and computes nothing.
    """
    wrong = []
    for name in sorted(compiled.keys() | {n for n in specified if is_entry(n)}):
        if name.endswith("_step"):
            if name[: -len("_step")] + "_into_unchecked" not in compiled:
                wrong.append(f"{name} is a step of no entry")
        elif name not in specified:
            wrong.append(f"{name} has no specification")
        elif name not in compiled:
            wrong.append(f"{name} has no kernel")
        else:
            expected = list(inspect.signature(specified[name]).parameters) + ["nth"] * is_entry(name)
            if list(inspect.signature(compiled[name]).parameters) != expected:
                wrong.append(f"{name}{inspect.signature(compiled[name])} should take {expected}")
    return wrong


def test_every_family_is_compiled_specified_and_tested(variant):
    sources = sorted(p.stem for p in (PACKAGE / "_kernels").glob("[a-z]*.pyx"))
    assert isa.stems(variant.name) == sorted([*SPECIFIED, *DRIVERS]) == sources
    assert sorted(tolerances.EXACT) == SPECIFIED
    here = {p.stem for p in Path(__file__).parent.glob("test_*.py")}
    for stem in sources:
        # One file may test all of a family: test_dequantize.py also dequantize_iq.
        assert {f"test_{stem}", f"test_{stem.partition('_')[0]}"} & here, f"{stem} has no tests"


@pytest.mark.parametrize("stem", SPECIFIED)
def test_kernels_and_specification_have_the_same_entries(variant, stem):
    compiled = public(variant.kernel(stem))
    specified = public(importlib.import_module(f"fucina._scalar.{stem}"))
    assert any(map(is_entry, compiled)), "no entry found: the test looks in the wrong place"
    assert mismatches(compiled, specified) == []


def test_mismatches_are_found():
    def norm_into(x, out, nth):
        pass

    def norm_into_specified(x, out):
        pass

    def other_into(x, nth):
        pass

    def size(n):
        pass

    good = {"norm_into": norm_into, "size": size}, {"norm_into": norm_into_specified, "size": size, "free": size}
    assert mismatches(*good) == []
    step = {"norm_into_unchecked": norm_into, "norm_step": size}
    assert mismatches(step, {"norm_into_unchecked": norm_into_specified}) == []
    assert mismatches({"norm_step": size}, {}) == ["norm_step is a step of no entry"]
    assert mismatches({"norm_into": norm_into}, {}) == ["norm_into has no specification"]
    assert mismatches({"size": size}, {}) == ["size has no specification"]
    assert mismatches({}, {"norm_into": norm_into_specified}) == ["norm_into has no kernel"]
    assert "should take" in mismatches({"norm_into": other_into}, {"norm_into": norm_into_specified})[0]


def test_entries_say_what_they_do(variant):
    for stem in (*SPECIFIED, *DRIVERS):
        module = variant.kernel(stem)
        assert (module.__doc__ or "").strip(), f"{stem} has no docstring"
        for name, function in public(module).items():
            assert (function.__doc__ or "").strip(), f"{stem}.{name} has no docstring"


def test_operations_are_documented_and_take_out():
    for name in ops.__all__:
        function = getattr(ops, name)
        for heading in ("Parameters\n", *(["Returns\n"] if name != "kv_store" else [])):
            assert heading in function.__doc__, f"{name} lacks {heading!r}"
        if name not in WITHOUT_OUT:
            out = inspect.signature(function).parameters["out"]
            assert out.kind is out.KEYWORD_ONLY and out.default is None, name
            assert "out : ndarray" in function.__doc__, name


# ---- formats -----------------------------------------------------------------------------------------------------


def test_products_have_codes_fields_and_activations():
    for spec in (FORMATS[name] for name in PRODUCTS):
        assert _blocks.FIELDS[spec.code].__name__ == spec.name.removesuffix("_g128")
        block = act_quant.BLOCK[PAIRING[spec.activation]]
        assert block % spec.block == 0 or spec.block % block == 0, "blocks of weights and activations end together"
    assert sorted(FORMATS[name].code for name in PRODUCTS) == list(range(len(PRODUCTS)))
    assert sorted(PAIRING.values()) == list(range(len(act_quant.BLOCK))) == list(range(len(act_quant.AUX)))


@pytest.mark.parametrize("name", PRODUCTS)
def test_half_at_leaves_whole_words(name):
    """Panels are words: at least four, in one piece, with the odd bytes before or behind them."""
    spec = FORMATS[name]
    odd = spec.nbytes % 4
    assert spec.nbytes >= 16 and (spec.half_at in (0, spec.nbytes - odd) if odd else spec.half_at == -1)


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_byte_of_a_block_counts_and_no_other(variant, name):
    """The size in the table is the size that decoding and products really use."""
    spec, k = FORMATS[name], unit(name)
    blocks = np.full((3 * k // spec.block, spec.nbytes), 0x96, np.uint8)
    set_scales(name, blocks, 1.0)
    x = normal(3, k)

    def results(blocks):
        in_a_row = QTensor(blocks.reshape(-1), name, (3 * k,))
        return ops.dequantize(in_a_row).reshape(3, -1), ops.linear(x, QTensor(blocks.reshape(-1), name, (3, k))).T

    with engine(variant.name):
        values, products = results(blocks)
        assert values.shape == (3, k) and (values == values[0]).all()
        for i in range(spec.nbytes):
            changed = blocks.copy()
            changed[k // spec.block, i] ^= 0x2A
            v, p = results(changed)
            assert (v[1] != values[1]).any(), f"byte {i} does not matter to the decoder"
            assert (p[1] != products[1]).any(), f"byte {i} does not matter to the product"
            same(v[::2], values[::2], f"byte {i} of row 1 changed another row")
            same(p[::2], products[::2], f"byte {i} of row 1 changed another product")


@pytest.mark.parametrize("name", PRODUCTS)
def test_product_and_decoder_mean_the_same_weight(variant, name):
    """A row of the unit matrix times 127 is quantized without loss: the product is the decoded column, nearly."""
    k = unit(name)
    w = random_blocks(name, 8, k, seed=1)
    with engine(variant.name):
        values = ops.dequantize(w)
        products = ops.linear(127 * np.eye(k, dtype=np.float32), w)
    size = np.abs(values).max()
    assert np.abs(products.T / 127 - values).max() <= 2e-3 * size, "codes of table, decoder and product differ"
    assert np.abs(products.T / 127 - values)[:, ::2].max() <= 2e-3 * size
