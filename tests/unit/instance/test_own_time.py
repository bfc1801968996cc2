"""A model is judged by the time it takes itself, not by that which it has to wait for a processor."""

from __future__ import annotations

import time

import pytest

from shoal.instance import own_time

MILLISECOND = 1_000_000


@pytest.mark.parametrize(
    ("elapsed_ns", "cpu_ns", "own_ns"),
    [
        (80 * MILLISECOND, 3 * MILLISECOND, 3 * MILLISECOND),  # it was not scheduled
        (MILLISECOND, 2 * MILLISECOND, MILLISECOND),  # never more than has elapsed
        (MILLISECOND, MILLISECOND // 2, MILLISECOND // 2),
        (50_000, 10_000, 50_000),  # too short to ask for the CPU time
    ],
)
def test_time_for_which_the_thread_did_not_run_does_not_count(
    monkeypatch, elapsed_ns, cpu_ns, own_ns
):
    monkeypatch.setattr(own_time, "thread_cpu_ns", lambda: 7 * MILLISECOND + cpu_ns)
    assert own_time.own_ns(elapsed_ns, 7 * MILLISECOND) == own_ns


def test_half_a_millisecond_of_computing_is_seen():
    """Counters of the system that advance with its ticks would report none or several."""
    before_ns, begun_ns = own_time.thread_cpu_ns(), time.thread_time_ns()
    while (burnt_ns := time.thread_time_ns() - begun_ns) < MILLISECOND // 2:
        pass
    own_ns = own_time.own_ns(60_000 * MILLISECOND, before_ns)
    assert burnt_ns <= own_ns <= time.thread_time_ns() - before_ns
