"""What a token costs outside of its program: the tool measures it, and says so when there is none."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import token_profile  # noqa: E402

from fucina.ops import program  # noqa: E402


def test_a_part_of_the_token_is_outside(text_model, capsys, threads):
    kernel = program.kernel
    assert token_profile.main([str(text_model), "-t", "1", "-n", "5", "-r", "2"]) == 0
    whole, outside, share = map(float, re.findall(r"[\d.]+(?= ms| %)", capsys.readouterr().out))
    assert 0 < outside < whole
    assert abs(share - 100 * outside / whole) < 3   # all three are rounded
    assert program.kernel is kernel


def test_rounds_are_of_tokens_alone(text_model):
    whole, outside = token_profile.profile(text_model, 4, 3)
    assert len(whole) == len(outside) == 3
    assert all(0 < part < all_ for part, all_ in zip(outside, whole))


def test_without_a_program(text_model, monkeypatch, capsys):
    monkeypatch.setenv("FUCINA_PROGRAM", "0")
    assert token_profile.main([str(text_model), "-n", "3", "-r", "1"]) == 2
    assert "there is no program" in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys):
    assert token_profile.main(["missing.gguf"]) == 2
    assert "missing.gguf" in capsys.readouterr().err
