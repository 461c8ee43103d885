"""``fucina verify``: what it covers, that it finds everything right here, and what it says when something is wrong."""

from __future__ import annotations

import json

import pytest
from references import PRODUCTS

from fucina import cli, ops, verification
from fucina.formats import FORMATS
from fucina.runtime import isa
from fucina.verification.cases import cases

NAMES = [name for name, _ in cases()]


def test_verified_here(run_isolated, tmp_path):
    """In a folder that holds another fucina, which is not to be taken for this one."""
    (tmp_path / "fucina").mkdir()
    (tmp_path / "fucina" / "__init__.py").write_text("raise ImportError('the wrong one')")
    done = run_isolated(["-P", "-m", "fucina", "verify", "--json", "-t", "1,3"], timeout=900, cwd=tmp_path)
    report = json.loads(done.stdout)
    assert done.returncode == 0, report["differences"]
    assert report["differences"] == []
    assert report["engines"] == ["specification", *isa.runnable_variants()]
    assert report["results"] == len(NAMES) * (1 + 2 * len(isa.runnable_variants()))
    assert sum(report["families"].values()) == len(NAMES)
    assert done.stderr.count("results") == len(report["engines"])


def test_cases_and_record_are_the_same():
    """After a change of the cases: tools/record_bits.py."""
    assert list(verification.recorded()) == NAMES
    assert len(set(NAMES)) == len(NAMES)


def test_everything_is_covered():
    families = {name.split()[0] for name in NAMES}
    assert {f"linear {name}" for name in PRODUCTS if FORMATS[name].encoder} <= set(NAMES)
    assert {f"quantize {name}" for name, spec in FORMATS.items() if spec.encoder} <= set(NAMES)
    single = {name.split()[1] for name in NAMES if name.startswith(("elementwise", "reduce"))}
    helpers = {"pack", "pack_weight", "rope_tables", "embedding", "quantize_activations"}  # part of other cases, or no kernel
    parts = {"kv_store", "moe_linear", "moe_route", "top_k"}
    assert set(ops.__all__) - families - single - helpers - parts == set()
    assert {"kv_store", "moe", "activations"} <= families


def judged(monkeypatch, change) -> dict:
    """The report when engines give the recorded bits but for what ``change(engine, digests)`` does to them."""

    def run(engine, threads, show):
        counts = (1,) if engine == verification.SPECIFICATION else threads
        digests = {(name, count): digest for name, digest in verification.recorded().items() for count in counts}
        return digests, change(engine, digests) or ""

    monkeypatch.setattr(verification, "_run", run)
    return verification.verify()


def test_recorded_bits_are_right(monkeypatch):
    report = judged(monkeypatch, lambda engine, digests: None)
    assert report["differences"] == []
    assert "verified: the same bits everywhere" in verification.format_verification(report)


def test_a_variant_that_differs_is_named(monkeypatch):
    def change(engine, digests):
        if engine == isa.runnable_variants()[-1]:
            digests["linear q4_k", 2] = "0"

    report = judged(monkeypatch, change)
    assert len(report["differences"]) == 1
    assert "linear q4_k" in report["differences"][0] and "on 2 threads" in report["differences"][0]
    text = verification.format_verification(report)
    assert "NOT verified: 1 difference" in text
    assert sum("DIFFERENT" in line for line in text.splitlines()) == 1


def test_bits_that_differ_from_the_record_everywhere(monkeypatch):
    def change(engine, digests):
        for case, count in digests:
            if case == "softmax":
                digests[case, count] = "0"

    report = judged(monkeypatch, change)
    assert report["differences"] == ["softmax: the specification has not the bits that were recorded"]


def test_a_process_that_ends_early_is_a_difference(monkeypatch):
    def change(engine, digests):
        if engine == isa.runnable_variants()[-1]:
            for key in list(digests)[5:]:
                del digests[key]
            return "it ended"

    report = judged(monkeypatch, change)
    assert report["differences"] == ["it ended"]


def test_without_threads_nothing_would_be_compared(capsys):
    for threads in ("0", "2,0", "1,-1"):
        assert cli.main(["verify", f"-t={threads}"]) == 2
        assert "threads must be one or more numbers of at least 1" in capsys.readouterr().err
    with pytest.raises(ValueError, match="at least 1, got none"):
        verification.verify(())


def test_without_a_variant_there_is_nothing_to_verify(monkeypatch):
    monkeypatch.setattr(isa, "runnable_variants", lambda: ())
    isa._choose.cache_clear()
    isa.variant.cache_clear()
    try:
        with pytest.raises(ImportError, match="no kernel variant of fucina"):
            verification.verify()
    finally:
        isa._choose.cache_clear()
        isa.variant.cache_clear()


def test_a_real_process_that_fails():
    lines = []
    digests, problem = verification._run("no_such_variant", (1,), lines.append)
    assert digests == {} and "no_such_variant" in problem and "no such variant" in problem
    assert len(lines) == 1


def test_status_1_for_differences(monkeypatch, capsys):
    monkeypatch.setattr(verification, "verify", lambda *_: {
        "engines": ["generic"], "threads": [1], "families": {"softmax": 1}, "results": 1, "seconds": 0.0,
        "differences": ["softmax: generic on 1 threads has not the bits of the specification"],
    })
    assert cli.main(["verify"]) == 1
    assert "NOT verified" in capsys.readouterr().out
