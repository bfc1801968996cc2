"""What the soak calls a leak."""

from __future__ import annotations

import pytest
from benchmarks.resources import Held, Record
from benchmarks.soak import leaks

MB = 1_000_000


def record(megabytes):
    """A reading a second, with so much memory at each moment."""
    made = Record()
    for second in range(0, 600, 4):
        made.add(float(second), Held(int(megabytes(second) * MB), 40, 100, 2))
    return made


@pytest.mark.parametrize(
    ("megabytes", "leaking"),
    [
        (lambda second: 400, False),
        (lambda second: 400 + second % 7, False),  # noise
        (lambda second: 400 + 30 * (second % 50 == 0), False),  # a spike at each reload
        (lambda second: 400 + 0.1 * second, True),  # 48 MB after the warm-up
        (lambda second: 400 + 0.1 * second + 20 * (second % 2), True),
        (lambda second: 400 + 60 * (second > 350), False),  # one step
        (lambda second: 400 + 60 * (second > 250), False),
        (lambda second: 400 + 4 * (second // 60), True),  # many steps
        (lambda second: 400 + min(second, 100), False),  # warm-up
        (lambda second: 460 - 0.1 * second, False),  # it becomes less
    ],
)
def test_what_is_a_leak(megabytes, leaking):
    found = leaks(record(megabytes), warm_up=120)
    assert bool(found) is leaking, found
    assert all("memory_bytes" in fault for fault in found)
