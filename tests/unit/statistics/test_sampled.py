from __future__ import annotations

import pytest

from shoal.statistics.sampled import Sampled


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_a_reading_is_kept_for_the_interval():
    clock, readings = Clock(), iter(range(10))
    sampled = Sampled(lambda: next(readings), 100, clock)
    assert [sampled.value(), sampled.value()] == [0, 0]
    clock.now_ns = 99
    assert sampled.value() == 0
    clock.now_ns = 100
    assert sampled.value() == 1
    clock.now_ns = 199
    assert sampled.value() == 1


def test_no_interval_reads_every_time():
    readings = iter(range(10))
    sampled = Sampled(lambda: next(readings), 0, Clock())
    assert [sampled.value(), sampled.value()] == [0, 1]


def test_a_failed_reading_is_tried_again():
    outcomes: list[object] = [OSError("busy"), "fine"]

    def read() -> object:
        outcome = outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    sampled = Sampled(read, 100, Clock())
    with pytest.raises(OSError, match="busy"):
        sampled.value()
    assert sampled.value() == "fine"
