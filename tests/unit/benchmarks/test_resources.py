"""What grows is told from what only varies."""

from __future__ import annotations

import os

import pytest
from benchmarks.resources import Growth, Held, Record, growth, held_by, table


def record(values, step=1.0):
    taken = Record()
    for number, value in enumerate(values):
        taken.add(number * step, Held(value, 10, 20, 1))
    return taken


def memory(taken, **options):
    return next(one for one in taken.growths(**options) if one.resource == "memory_bytes")


@pytest.mark.parametrize(
    ("values", "exceeds"),
    [
        ([100] * 50, False),
        ([100 + number % 7 for number in range(50)], False),  # varies, does not grow
        ([100] * 49 + [900], False),  # one outlier
        ([100 + number for number in range(50)], True),  # grows steadily
        ([100] * 25 + [120] * 25, True),  # one step that stays
        ([1000 - number for number in range(50)], False),  # less is fine
        ([1000 + number // 2 for number in range(50)], False),  # grows, within the limit
    ],
)
def test_growth(values, exceeds):
    assert memory(record(values)).exceeds() is exceeds


def test_the_slope_ignores_outliers():
    values = [100.0 + 2 * number for number in range(30)]
    values[7] = values[21] = 5000.0
    found = growth("threads", [10.0 * number for number in range(30)], values)
    assert found.slope == pytest.approx(0.2)


def test_the_warm_up_is_left_out():
    values = [10 * number for number in range(20)] + [200] * 30
    assert memory(record(values)).exceeds()
    assert not memory(record(values), warm_up=20).exceeds()


def test_too_few_readings_are_no_verdict():
    with pytest.raises(ValueError, match="3 readings after the warm-up are too few"):
        record([1] * 20).growths(warm_up=17)


def test_growth_from_nothing():
    assert Growth("processes", 0, 0, 0.0).share == 0
    assert Growth("processes", 0, 2, 0.1).exceeds()


def test_this_process_is_read():
    before = held_by(os.getpid())
    assert before.memory_bytes > 1_000_000
    assert before.threads >= 1
    reading, writing = os.pipe()
    try:
        assert held_by(os.getpid()).descriptors >= before.descriptors + 2
    finally:
        os.close(reading)
        os.close(writing)


def test_the_table_names_what_exceeds():
    lines = table(record([1_000_000 + 10_000 * n for n in range(50)]).growths(), "reload")
    row = next(line for line in lines.splitlines() if line.startswith("| memory"))
    assert row.endswith("more than 5% |")
    assert "+10.00 kB" in row
    assert "| threads | 10 | 10 | +0.0% | +0.0000 |  |" in lines
