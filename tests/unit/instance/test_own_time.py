"""A model is judged by the time it takes itself, not by that which it has to wait for a processor."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from shoal.instance import own_time

MILLISECOND = 1_000_000


@pytest.fixture
def counted(monkeypatch):
    """Set what the system says of the thread: seconds in user and system mode, and waits."""

    def count(user, system, waits):
        used = SimpleNamespace(ru_utime=user, ru_stime=system, ru_nvcsw=waits)
        monkeypatch.setattr(own_time, "usage_of_thread", lambda: used)
        return used

    return count


def test_a_thread_that_was_not_let_run_has_taken_what_it_ran(counted):
    before = counted(1.0, 0.5, 7)
    counted(1.001, 0.502, 7)
    assert own_time.own_ns(80 * MILLISECOND, before, 20 * MILLISECOND) == pytest.approx(
        3 * MILLISECOND, abs=1000
    )


def test_a_thread_that_waited_long_has_taken_all_of_it(counted):
    before = counted(1.0, 0.5, 7)
    counted(1.001, 0.502, 8)
    assert own_time.own_ns(80 * MILLISECOND, before, 20 * MILLISECOND) == 80 * MILLISECOND


def test_a_short_wait_does_not_count(counted):
    before = counted(1.0, 0.5, 7)
    counted(1.001, 0.5, 8)
    assert own_time.own_ns(9 * MILLISECOND, before, 20 * MILLISECOND) == pytest.approx(
        MILLISECOND, abs=1000
    )


def test_never_more_than_has_elapsed(counted):
    before = counted(1.0, 0.5, 7)
    counted(1.004, 0.5, 7)  # its clock is coarse
    assert own_time.own_ns(MILLISECOND, before, 20 * MILLISECOND) == MILLISECOND


def test_where_nobody_counts_waits_a_long_time_is_the_models(monkeypatch):
    monkeypatch.setattr(own_time, "usage_of_thread", lambda: 5 * MILLISECOND)
    own_ns = own_time.own_ns
    assert own_ns(80 * MILLISECOND, 4 * MILLISECOND, 20 * MILLISECOND) == 80 * MILLISECOND
    assert own_ns(9 * MILLISECOND, 4 * MILLISECOND, 20 * MILLISECOND) == MILLISECOND


def test_the_system_tells_work_from_waiting():
    before = own_time.usage_of_thread()
    time.sleep(0.03)
    assert own_time.own_ns(30 * MILLISECOND, before, 20 * MILLISECOND) == 30 * MILLISECOND
    before, begun = own_time.usage_of_thread(), time.thread_time_ns()
    while time.thread_time_ns() - begun < 5 * MILLISECOND:
        pass
    assert own_time.own_ns(60_000 * MILLISECOND, before, 60_001 * MILLISECOND) >= 4 * MILLISECOND
