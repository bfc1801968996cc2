"""Which requests belong to which window, without a load."""

from __future__ import annotations

from array import array
from time import perf_counter_ns

import pytest

from shoal.perf.messages import Load, ReportCommand, WorkerReport
from shoal.perf.worker_pool import LoadLevel, WorkerPool


class Member:
    """A worker with prepared reports."""

    def __init__(self, *reports):
        self._reports = list(reports)

    def send(self, command):
        assert isinstance(command, ReportCommand)

    def receive(self, kind):
        return self._reports.pop(0)


@pytest.fixture
def pool_of(monkeypatch):
    def make(*members):
        left = list(members)
        monkeypatch.setattr(
            "shoal.perf.worker_pool._WorkerHandle", lambda _job, process: left.pop(0)
        )
        return WorkerPool(None, len(members))

    return make


def answered(*ends, responses=()):
    starts = array("q", [end - 5 for end in ends])
    return WorkerReport(starts, array("q", ends), responses=array("q", responses))


def test_what_came_after_the_end_of_a_window_belongs_to_the_next(pool_of):
    pool = pool_of(
        Member(answered(10, 20, 30), answered(40)), Member(answered(15, 25), WorkerReport())
    )
    first, second = pool.end_window(end_ns=20), pool.end_window(end_ns=50)
    assert (sorted(first.ends), first.responses) == ([10, 15, 20], 3)
    assert (sorted(second.ends), second.responses) == ([25, 30, 40], 3)


def test_responses_go_with_their_requests(pool_of):
    """However late the worker hands over: a stall there is no burst of responses."""
    late = answered(10, 20, 30, 40, responses=(3, 1, 0, 7))
    pool = pool_of(Member(late, answered(50, responses=(2,))))
    first, second = pool.end_window(end_ns=20), pool.end_window(end_ns=60)
    assert (len(first.ends), first.responses) == (2, 4)
    assert (len(second.ends), second.responses) == (3, 9)


def test_a_window_begins_before_its_first_request(pool_of):
    """Even if a worker has all its responses before the load of the last one is started."""

    class Quick(Member):
        def send(self, command):
            if isinstance(command, Load):
                now = perf_counter_ns()
                self._reports.append(answered(now))

    pool = pool_of(Quick(), Quick())
    pool.start(LoadLevel(concurrency=2, limit=2))
    measurement = pool.end_window()
    assert measurement.begin_ns <= measurement.ends.min()
