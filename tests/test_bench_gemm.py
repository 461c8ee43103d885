"""The benchmarks of dense products run and say what they measured; what they measure is not tested."""

from __future__ import annotations

import json
import sys

import pytest
from conftest import ROOT

from fucina.runtime import blas

pytest.importorskip("scipy")
pytest.importorskip("ml_dtypes")


@pytest.fixture
def tools(monkeypatch, threads):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import bench_gemm
    import bench_peak

    threads(2)
    monkeypatch.setattr(bench_peak, "COUNT", 10)
    monkeypatch.setattr(bench_peak, "REPEAT", 2)
    monkeypatch.setattr(bench_peak, "MEMORY", 1 << 16)
    monkeypatch.setattr(bench_gemm, "BURST", {False: 0, True: 0})
    before = [(lib, lib.get_num_threads()) for lib in blas._libraries()]
    yield bench_gemm, bench_peak
    for lib, number in before:
        lib.set_num_threads(number)
    for name in ("bench_gemm", "bench_peak"):
        sys.modules.pop(name, None)


def test_peaks(tools, tmp_path, capsys):
    path = tmp_path / "peak.json"
    assert tools[1].main(["--threads", "1,2", "--rounds", "1", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert set(found["threads"]) == {"1", "2"} and found["variant"] in capsys.readouterr().out
    for peaks in found["threads"].values():
        assert set(peaks) == set(found["units"]) == {"fma", "dot8", "read", "region", "barrier"}
        assert min(peaks.values()) > 0


def test_products(tools, tmp_path, capsys):
    path = tmp_path / "gemm.json"
    command = ["squares", "types", "stairs", "small", "--sizes", "8,16", "--seconds", "0", "--json", str(path)]
    assert tools[0].main(command) == 0
    rows = json.loads(path.read_text())["rows"]
    assert {(row["part"], row["threads"]) for row in rows} == {
        ("squares", 1), ("squares", 2), ("types", 1), ("types", 2), ("stairs", 1), ("small", 1), ("small", 2),
    }
    assert all(row["turns"] == tools[0].LEAST and row["ours GFLOP/s"] > 0 for row in rows if row["part"] == "squares")
    assert {"/ blocked", "/ tiles", "/ reordered", "/ plain"} <= set(next(r for r in rows if r["part"] == "stairs"))
    assert "squares, 2 threads, against scipy: mean" in capsys.readouterr().out


def test_layers_and_weights(tools):
    bench = tools[0].Bench(1, 0)
    bench.linear(((20, 30),))
    bench.decode(((20, 30),))
    bench.batch((4, 20, 30))
    assert [row["part"] for row in bench.rows] == ["linear"] * 6 + ["decode"] * 6 + ["batch"] * 3
    assert all(row["of read"] > 0 for row in bench.rows[6:12])
    assert [row["name"] for row in bench.rows[12:]] == [f"{t} 4 x 30 -> 20" for t in ("float32", "float16", "bfloat16")]


def test_unknown_parts_are_named(tools, capsys):
    with pytest.raises(SystemExit):
        tools[0].main(["cubes"])
    assert "no part cubes; there are squares" in capsys.readouterr().err
