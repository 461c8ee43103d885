"""Decoding of level tables, ternary blocks and blocks of one or two bits: bit for bit the gguf package's values."""

from __future__ import annotations

import pytest
from decoding import check_every_byte_counts, check_layouts, check_random_bytes, check_rows, names

FORMAT = pytest.mark.parametrize("name", names("dequantize_tiny"))


@FORMAT
def test_random_bytes(name):
    check_random_bytes(name)


@FORMAT
def test_rows(name):
    check_rows(name)


@FORMAT
def test_every_byte_counts(name):
    check_every_byte_counts(name)


@FORMAT
def test_layouts(name, tmp_path):
    check_layouts(name, tmp_path)
