"""The loops that measure the machine do what they claim to: so much work, by so many threads."""

from __future__ import annotations

import numpy as np
import pytest

counts = pytest.mark.parametrize("nth", [1, 2, 3])


@counts
def test_work_is_counted(variant, nth):
    peak = variant.kernel("peak")
    assert peak.fma(10, nth) == 8 * 12 * 10 * nth
    assert peak.dot8(10, nth) == 32 * 12 * 10 * nth


@counts
@pytest.mark.parametrize("size", [256, 1000, 4096, 10000])
def test_memory_is_read_in_whole_lines(variant, nth, size):
    memory = np.ones(size, np.uint8)
    memory.flags.writeable = False
    assert variant.kernel("peak").read(memory, nth) == size // nth // 256 * 256 * nth


@counts
def test_every_thread_enters_every_region(variant, nth):
    slots = np.zeros(16 * nth, np.int32)
    variant.kernel("peak").regions(20, slots, nth)
    # A build without OpenMP, or a limit on its threads, leaves all to the first thread.
    assert slots[0] == 20 and slots.sum() == 20 * np.count_nonzero(slots)
    assert not np.delete(slots.reshape(nth, 16), 0, axis=1).any()


@counts
def test_barriers_let_go(variant, nth):
    variant.kernel("peak").barriers(20, nth)
