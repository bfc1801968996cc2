"""When requests of a schedule are sent, and from when their latency counts."""

from __future__ import annotations

import multiprocessing

import pytest

from shoal.perf import worker
from shoal.perf.connection import Endpoint, SlotConnection
from shoal.perf.messages import Load, LoadJob, ReportCommand
from shoal.perf.schedule import constant
from shoal.perf.worker import LoadWorker

MS = 1_000_000


class Connection(SlotConnection):
    """Sends nothing; the test ends its requests."""

    def open(self):
        """There is no server."""

    def start(self, replay, position):
        self.position = position
        self.start_ns = worker.perf_counter_ns()

    def on_readable(self):
        raise AssertionError("nothing is sent, so nothing arrives")


class Clock:
    """Stands still until the test moves it."""

    now_ns = 0

    def __call__(self):
        return self.now_ns


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(worker, "perf_counter_ns", clock)
    return clock


@pytest.fixture
def single(clock, monkeypatch):
    """A worker with one slot, and our end of its pipe."""
    monkeypatch.setattr(worker, "MOST_SLOTS", 1)
    ours, theirs = multiprocessing.Pipe()
    job = LoadJob(Endpoint("http", "localhost", 1, False), [[None]], connection=Connection)
    made = LoadWorker(job, theirs)
    yield made, ours
    made._close()
    ours.close()


def command(made, pipe, order):
    pipe.send(order)
    made.on_readable()


def test_a_stall_of_the_server_shows_in_all_requests_that_were_due_meanwhile(clock, single):
    made, pipe = single
    command(made, pipe, Load(schedule=constant(1000)))  # one a millisecond
    made._dispatch()
    clock.now_ns = 50 * MS  # the first response is late; 50 more requests were due by now
    for _ in range(60):
        (slot,) = made._slots
        made.finished(slot, clock.now_ns)
        made._dispatch()
        clock.now_ns += MS // 10  # all others are answered quickly
    command(made, pipe, ReportCommand())
    report = pipe.recv()
    latencies = [end - start for start, end in zip(report.starts, report.ends, strict=True)]
    assert report.starts[:3].tolist() == [0, MS, 2 * MS]  # when they were due
    assert latencies[0] == 50 * MS
    assert latencies[10] == 50 * MS + 10 * MS // 10 - 10 * MS
    assert sum(latency > 10 * MS for latency in latencies) > 40  # not only the first one
    assert report.delayed > 40


def test_requests_on_time_count_from_their_moment(clock, single):
    made, pipe = single
    command(made, pipe, Load(schedule=constant(1000)))
    for count in range(3):
        clock.now_ns = count * MS + 1000  # a microsecond late
        made._dispatch()
        made.finished(made._slots[0], clock.now_ns + 200_000)
    command(made, pipe, ReportCommand())
    report = pipe.recv()
    assert report.starts.tolist() == [0, MS, 2 * MS]
    assert (report.delayed, report.sent) == (0, 3)
