"""The roofline plot: where points and roofs are, of what the benchmarks write."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import plot_roofline  # noqa: E402
from plot_roofline import Point  # noqa: E402

BATCH = {"gmac_per_s": 80.0, "fma_gmac_per_s": 50.0}
QUANT = {"variant": "v", "results": {
    "q8_0": BATCH | {"gb_per_s": 17.0, "threads": 2, "read_gb_per_s": 30.0}, "q4_k": BATCH | {"gmac_per_s": 90.0},
}}  # fmt: skip
GEMM = {"variant": "v", "rows": [
    {"part": "decode", "name": "float16 64 -> 64 packed", "threads": 2, "ours GFLOP/s": 8.0, "GB/s": 8.0, "of read": 0.8},
    {"part": "decode", "name": "float16 64 -> 128 packed", "threads": 2, "ours GFLOP/s": 6.0, "GB/s": 6.0, "of read": 0.6},
    {"part": "decode", "name": "float16 64 -> 256 as stored", "threads": 2, "ours GFLOP/s": 2.0},
    {"part": "batch", "name": "float32 256 x 1024 -> 3072", "threads": 1, "ours GFLOP/s": 90.0, "of peak": 0.9},
    {"part": "linear", "name": "32 x 1024 -> 3072", "threads": 1, "ours GFLOP/s": 90.0},
    {"part": "squares", "name": "64 NN", "threads": 1, "ours GFLOP/s": 90.0},
]}  # fmt: skip
PEAK = {"variant": "v", "units": {}, "threads": {
    "1": {"fma": 104.0, "read": 20.0}, "2": {"fma": 200.0, "read": 28.0},
}}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / name for name in ("quant.json", "gemm.json", "peak.json")]
    for path, document in zip(paths, (QUANT, GEMM, PEAK)):
        path.write_text(json.dumps(document))
    return paths


def test_points_and_limits(files):
    points, limits = plot_roofline.read(files)
    assert points == [
        Point("q8_0", 256, 1, 256 * 32 / 34, 80.0), Point("q8_0", 1, 2, 32 / 34, pytest.approx(16.0)),
        Point("q4_k", 256, 1, pytest.approx(256 * 256 / 144), 90.0),
        Point("f16", 1, 2, 0.5, 3.0), Point("f32", 256, 1, 64.0, 45.0),
    ]  # fmt: skip
    assert limits == {1: {"f32": 52.0, "read": 20.0}, 2: {"read": 30.0, "f32": 100.0}}


def test_labels_keep_apart():
    assert plot_roofline.spread([1.0, 5.0], 0.5) == [1.0, 5.0]
    assert plot_roofline.spread([1.0, 1.0, 1.0], 0.5) == [0.5, 1.0, 1.5]


@pytest.mark.parametrize("count", [1, 3])
def test_command(files, tmp_path, count):
    pytest.importorskip("matplotlib")
    out, again = tmp_path / "roofline.svg", tmp_path / "again.svg"
    for path in (out, again):
        assert plot_roofline.main([*map(str, files[:count]), "-o", str(path)]) == 0
    assert out.read_text() == again.read_text()
    texts = {"".join(element.itertext()) for element in ElementTree.parse(out).iter() if element.tag.endswith("text")}
    assert {"q8_0", "q4_k", "1 row, 2 threads", "256 rows, 1 thread", "GMAC/s"} <= texts
    roofs = {text for text in texts if ":" in text}
    assert roofs == (
        {"1 thread: f32 50.0 GMAC/s", "2 threads: read 30.0 GB/s"} if count == 1 else
        {"1 thread: read 20.0 GB/s, f32 52.0 GMAC/s", "2 threads: read 30.0 GB/s, f32 100.0 GMAC/s"}
    )  # fmt: skip


def test_files_without_products_are_errors(files, tmp_path, capsys):
    out = tmp_path / "roofline.svg"
    assert plot_roofline.main([str(files[2]), "-o", str(out)]) == 2
    assert "no products" in capsys.readouterr().err
    for text in ("[]", "{", '{"results": {"q9": {}}}', '{"results": {}}', '{"rows": [{}]}'):
        files[0].write_text(text)
        assert plot_roofline.main([str(files[0]), "-o", str(out)]) == 2 and not out.exists()
        assert str(files[0]) in capsys.readouterr().err
