"""The heat map of the model gate: which cells there are, and that noise has no ratio."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import plot_gate  # noqa: E402


def row(model, test, ratio, verdict="PASS", peer="llama.cpp"):
    return {"model": model, "test": test, "ratio": ratio, "verdict": verdict, "peer": peer}


RESULTS = [
    row("a<b", "tg32", 1.5), row("a<b", "pp16", 0.5, "FAIL"), row("a<b", "pp2", 3.0), row("c", "pp2@d64", 1.0),
    row("c", "pp2", 7.25, "NOISY"), row("c", "tg32", None, "MISSING"),
]  # fmt: skip


def texts(svg: str) -> list[str]:
    return [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


def test_cells():
    found = texts(plot_gate.heat_map(RESULTS))
    assert found[:4] == ["pp2", "pp16", "tg32", "pp2@d64"]
    assert found[4:8] == ["a<b / llama.cpp", "3.00", "0.50", "1.50"]
    assert found[8:] == ["c / llama.cpp", "noisy", "missing", "1.00"]
    assert "7.25" not in found


def test_a_later_measurement_replaces_an_earlier_one():
    assert "2.00" in texts(plot_gate.heat_map([row("m", "pp1", 1.0), row("m", "pp1", 2.0)]))


def test_colours():
    channels = lambda ratio: [int(pair, 16) for pair in re.findall("..", plot_gate.colour(ratio)[1:])]
    assert channels(1.0) == [255, 255, 255]
    red, _, blue = channels(2.0)
    assert blue > red
    red, _, blue = channels(0.5)
    assert red > blue
    assert channels(4.0) == channels(100.0) and channels(2.0) != channels(4.0)


def test_command(tmp_path, capsys):
    source, out = tmp_path / "results.json", tmp_path / "ratios.svg"
    source.write_text(json.dumps({"meta": {}, "results": RESULTS}))
    assert plot_gate.main([str(source), "-o", str(out)]) == 0 and texts(out.read_text())
    out.unlink()
    for text in ("[]", "{", '{"results": [{}]}'):
        source.write_text(text)
        assert plot_gate.main([str(source), "-o", str(out)]) == 2 and not out.exists()
        assert "results" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        plot_gate.main([])
