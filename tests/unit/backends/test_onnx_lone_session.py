"""A second session for executions that run alone: when it is opened, compared, used and closed."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("onnxruntime")

from shoal.backends import onnx_lone_session
from shoal.backends.onnx_lone_session import LoneSession
from shoal.core.concurrency import ExpectedConcurrency
from shoal.errors import Internal
from tests.support.fakes import WAIT_SECS, FakeClock

LONG_NS = 1_000_000
LONG_FOR_LONE_NS = 100_000
LONG = 100  # elements
CHECK_NS = 15_000_000_000
SECOND = object()


class World:
    """A model with its own session and a second one. An execution takes so many ns an element; all
    clocks are the world's."""

    def __init__(
        self, monkeypatch, *, first_ns=10_000, second_ns=5_000, fails=None, is_light=False
    ):
        self.clock = FakeClock()
        self.first_ns, self.second_ns = first_ns, second_ns
        self.cpu_share = 1.0
        self.cpu_ns = 0
        self.opened = 0
        self.fails = fails
        self.has_lone_client = False
        self.concurrency = ExpectedConcurrency(lambda: self.has_lone_client)
        self.concurrency.executions = 1
        times = type("Times", (), {"perf_counter_ns": self.clock, "thread_time_ns": self.cpu_time})
        monkeypatch.setattr(onnx_lone_session, "time", times)
        monkeypatch.setattr(onnx_lone_session, "_COMPARED_NS", 0)
        monkeypatch.setattr(onnx_lone_session, "_SETTLING_NS", 0)
        monkeypatch.setattr(onnx_lone_session, "_LONG_NS", LONG_NS)
        monkeypatch.setattr(onnx_lone_session, "_LONG_FOR_LONE_CLIENT_NS", LONG_FOR_LONE_NS)
        self.lone = LoneSession(
            self.open, self.concurrency, "m", is_light=is_light, clock=self.clock
        )

    def cpu_time(self):
        return self.cpu_ns

    def open(self):
        self.opened += 1
        if self.fails:
            raise self.fails
        return SECOND

    def run(self, elements=LONG, times=1, *, until_open=True):
        """Execute, and return the numbers of the sessions that ran it."""

        def ran(number, ns):
            self.clock.now_ns += ns * elements
            self.cpu_ns += int(ns * elements * self.cpu_share)
            return number

        def with_second(session):
            assert session is SECOND
            return ran(2, self.second_ns)

        numbers = []
        for _ in range(times):
            numbers.append(self.lone.run(elements, lambda: ran(1, self.first_ns), with_second))
            if until_open and self.lone._opening is not None:
                self.lone._opening.join(WAIT_SECS)
        return numbers

    def open_it(self):
        assert self.run(times=2) == [1, 1]
        assert self.opened == 1


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


COMPARED = [1] * 8 + [2] * 8


def test_short_executions_get_no_second_session(world):
    assert world.run(elements=99, times=100) == [1] * 100
    assert not world.opened
    assert not world.lone.knows(99)
    assert not world.lone.last_was_long


def test_executions_that_waited_for_a_core_are_short(world):
    """Many models at once on a busy machine: each would get a second session it cannot use."""
    world.cpu_share = 0.01
    world.run(times=100)
    assert not world.opened
    assert not world.lone.last_was_long


def test_executions_that_do_not_run_alone_get_none(world):
    world.concurrency.executions = 2
    world.run(times=100)
    assert not world.opened
    assert world.lone.knows(LONG)
    world.concurrency.executions = 1
    world.run()
    assert world.opened == 1


def test_long_executions_get_one_which_is_compared_and_used(world):
    world.open_it()
    assert world.lone.session is SECOND
    assert world.run(times=16) == COMPARED
    assert world.run(times=100) == [2] * 100
    world.concurrency.executions = 2
    assert world.run(times=3) == [1] * 3
    world.concurrency.executions = 1
    assert world.run() == [2]
    assert world.opened == 1


def test_long_executions_are_known_after_two(world):
    """The first may be slow for other reasons."""
    world.run()
    assert world.lone.last_was_long
    assert not world.lone.knows(LONG)
    world.run()
    assert world.lone.knows(LONG)
    world.run(elements=10)
    assert not world.lone.last_was_long
    assert not world.lone.knows(10)
    assert world.lone.knows(LONG)


def test_short_executions_after_a_long_one_do_not_count(world):
    for _ in range(3):
        world.first_ns = 10_000
        world.run()
        world.first_ns = 9_000
        world.run()
    assert not world.opened


def test_short_sizes_stay_where_they_are(world):
    world.open_it()
    world.run(times=16)
    assert world.run(elements=50, times=10) == [1] * 10
    assert world.run() == [2]


def test_sizes_are_judged_separately(world):
    """Two threads may halve the time of large batches, and none of smaller ones."""
    world.open_it()
    assert world.run(times=17) == [*COMPARED, 2]
    world.second_ns = 12_000
    world.run(elements=300)
    assert world.run(elements=300, times=20) == [*COMPARED[1:], *[1] * 5]
    assert world.run() == [2]
    assert world.lone.session is SECOND


def test_a_light_model_uses_one_for_short_executions_of_a_lone_client(monkeypatch):
    """On the event loop; on threads, the other cores have other work."""
    world = World(monkeypatch, is_light=True)
    world.run(elements=20, times=100)  # 0.2 ms each, on a thread
    assert not world.opened
    world.concurrency.executions = 0
    world.run(elements=20, times=100)  # on the event loop, of several clients
    assert not world.opened
    world.has_lone_client = True
    assert world.run(elements=9, times=100) == [1] * 100
    assert not world.opened
    assert world.run(elements=20, times=20) == [1, *COMPARED, 2, 2, 2]
    world.has_lone_client = False
    assert world.run(elements=20, times=3) == [1] * 3
    world.concurrency.executions = 1
    assert world.run(elements=20, times=3) == [1] * 3
    assert world.opened == 1


def test_a_heavy_model_uses_none_for_short_executions(world):
    world.concurrency.executions = 0
    world.has_lone_client = True
    world.run(elements=20, times=100)
    assert not world.opened


def test_short_runs_are_compared_for_longer(world, monkeypatch):
    monkeypatch.setattr(onnx_lone_session, "_COMPARED_NS", 10 * LONG_NS)
    world.second_ns = 9_500
    world.open_it()
    assert world.run(times=40) == [1] * 10 + [2] * 11 + [1] * 19  # 0.95 ms each


def test_threads_have_time_to_settle(world, monkeypatch):
    """Where they begin is not where the kernel moves them to."""
    monkeypatch.setattr(onnx_lone_session, "_SETTLING_NS", 30 * LONG_NS)
    world.open_it()
    world.second_ns = 15_000
    assert world.run(times=28) == [1] * 8 + [2] * 20  # 1.5 ms each
    world.second_ns = 5_000
    assert world.run(times=20) == [2] * 20


def test_one_slow_moment_does_not_decide(world):
    world.open_it()
    assert world.run(times=9) == COMPARED[:9]
    world.second_ns = 1_000_000
    assert world.run(times=2) == [2] * 2
    world.second_ns = 5_000
    assert world.run(times=10) == [2] * 10


def test_one_that_gains_nothing_is_closed_and_tried_again_later(world):
    world.second_ns = 9_500
    world.open_it()
    assert world.run(times=16) == COMPARED
    assert world.lone.session is None
    assert world.run(times=100) == [1] * 100
    assert world.opened == 1
    world.clock.now_ns += CHECK_NS
    world.second_ns = 5_000  # the programs that used the other cores have ended
    assert world.run(times=2) == [1, 1]
    assert world.opened == 2
    assert world.run(times=17) == [*COMPARED, 2]


def test_one_that_gained_is_compared_again_and_may_be_closed(world):
    world.open_it()
    world.run(times=16)
    world.clock.now_ns += CHECK_NS
    world.second_ns = 20_000  # other programs have come
    assert world.run(times=16) == COMPARED
    assert world.run(times=4) == [1] * 4
    assert world.lone.session is None


def test_one_that_becomes_as_slow_as_the_own_session_is_closed_at_once(world):
    """On a machine without free cores, the kernel may move threads onto the same one."""
    world.open_it()
    world.run(times=16)
    world.second_ns = 9_900  # still quicker, if not by much
    assert world.run(times=24) == [2] * 24
    world.second_ns = 10_100
    assert world.run(times=12) == [2] * 8 + [1] * 4
    assert world.lone.session is None
    world.clock.now_ns += 2 * CHECK_NS
    world.second_ns = 5_000
    assert world.run(times=2) == [1, 1]
    assert world.run(times=17) == [*COMPARED, 2]


def test_one_slow_moment_does_not_close_it(world):
    world.open_it()
    world.run(times=16)
    for _ in range(10):
        world.second_ns = 100_000
        assert world.run(times=3) == [2] * 3
        world.second_ns = 5_000
        assert world.run(times=5) == [2] * 5


def test_the_time_between_comparisons_doubles(world):
    world.second_ns = 9_500
    world.open_it()
    world.run(times=16)
    for check in range(3):
        world.clock.now_ns += CHECK_NS * 2**check - 60 * LONG_NS
        world.run(times=3)
        assert world.opened == check + 1
        world.clock.now_ns += 60 * LONG_NS
        world.run(times=18)
        assert world.opened == check + 2


def test_one_that_cannot_be_opened_is_reported_once(monkeypatch, caplog):
    world = World(monkeypatch, fails=Internal("no memory"))
    assert world.run(times=20) == [1] * 20
    assert world.opened == 1
    assert "model 'm' runs without a second session for all cores: no memory" in caplog.text


def test_errors_are_raised(world):
    def fail():
        raise Internal("it failed")

    with pytest.raises(Internal, match="it failed"):
        world.lone.run(LONG, fail, fail)
    assert not world.lone.knows(LONG)


def test_closing_waits_for_one_that_is_being_opened(monkeypatch):
    world = World(monkeypatch)
    begun, goes_on = threading.Event(), threading.Event()

    def slowly():
        begun.set()
        assert goes_on.wait(WAIT_SECS)
        return SECOND

    world.lone._open_session = slowly
    world.run(times=2, until_open=False)
    assert begun.wait(WAIT_SECS)
    closing = threading.Thread(target=world.lone.close)
    closing.start()
    goes_on.set()
    closing.join(WAIT_SECS)
    assert not closing.is_alive()
    assert world.lone.session is None
