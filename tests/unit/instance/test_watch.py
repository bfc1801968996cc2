"""When an execution is given up, and what its thread gets then: no thread and no clock."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.backends.base import DeviceExecutor, Executor, RequestExecutor
from shoal.instance.failures import ExecutionAbandoned
from shoal.instance.watch import (
    ExecutionWatch,
    WatchedDeviceExecutor,
    WatchedExecutor,
    WatchedRequestExecutor,
    watched,
)
from tests.support.fakes import FakeClock

LIMIT_NS = 100


class ManualTimer:
    """Keeps callbacks, and calls those that are due when the test says so."""

    def __init__(self, clock):
        self.clock = clock
        self.entries = []

    def at(self, when_ns, callback):
        self.entries.append((when_ns, callback))

    def fire(self):
        due = [entry for entry in self.entries if entry[0] <= self.clock()]
        self.entries = [entry for entry in self.entries if entry not in due]
        for _, callback in due:
            callback()


class World:
    def __init__(self):
        self.clock = FakeClock()
        self.timer = ManualTimer(self.clock)
        self.timeouts = 0
        self.watch = ExecutionWatch(LIMIT_NS, self.timed_out, timer=self.timer, clock=self.clock)

    def timed_out(self):
        self.timeouts += 1

    def spend(self, ns):
        """As time passes during a call: the timer fires when something is due."""
        self.clock.advance(ns)
        self.timer.fire()
        return ns


@pytest.fixture
def world():
    return World()


def test_calls_within_the_limit_return_what_they_return(world):
    assert [world.watch.call(world.spend, 60) for _ in range(10)] == [60] * 10
    assert world.timeouts == 0
    assert len(world.timer.entries) <= 1


def test_an_idle_executor_leaves_the_timer(world):
    world.watch.call(world.spend, 1)
    world.spend(LIMIT_NS)
    assert world.timer.entries == []


def test_a_long_call_is_given_up_once_and_its_result_discarded(world):
    with pytest.raises(ExecutionAbandoned):
        world.watch.call(lambda: (world.spend(LIMIT_NS), world.spend(LIMIT_NS)))
    assert world.timeouts == 1


def test_an_exception_after_that_is_discarded_too(world):
    def fail():
        world.spend(LIMIT_NS)
        raise ValueError

    with pytest.raises(ExecutionAbandoned):
        world.watch.call(fail)


def test_an_exception_in_time_passes(world):
    def fail():
        raise ValueError

    with pytest.raises(ValueError):
        world.watch.call(fail)
    assert world.watch.call(world.spend, 1) == 1


def test_the_time_of_each_call_counts_from_its_own_beginning(world):
    for _ in range(5):
        world.watch.call(world.spend, 99)
    assert world.timeouts == 0
    with pytest.raises(ExecutionAbandoned):
        world.watch.call(world.spend, 100)


def test_several_executions_in_a_call_have_the_limit_each(world):
    assert world.watch.call_for(3, world.spend, 299) == 299
    with pytest.raises(ExecutionAbandoned):
        world.watch.call_for(3, world.spend, 300)


def test_a_short_call_after_a_long_group_is_not_checked_later_than_its_limit(world):
    world.watch.call_for(10, world.spend, 1)
    with pytest.raises(ExecutionAbandoned):
        world.watch.call(lambda: [world.spend(20) for _ in range(10)])


def test_a_call_that_was_ended_lets_others_follow(world):
    with pytest.raises(ExecutionAbandoned) as ended:
        world.watch.call(world.spend, LIMIT_NS)
    assert ended.value.on_return is None
    assert world.watch.wait_for_return(0)
    assert world.watch.call(world.spend, 1) == 1


def test_what_an_abandoned_thread_does_at_its_end(world):
    returned = []

    def hang():
        world.spend(LIMIT_NS)
        assert not world.watch.wait_for_return(0)
        assert world.watch.abandon(lambda: returned.append(True))

    with pytest.raises(ExecutionAbandoned) as abandoned:
        world.watch.call(hang)
    abandoned.value.on_return()
    assert returned == [True]


def test_one_that_has_returned_cannot_be_abandoned(world):
    with pytest.raises(ExecutionAbandoned):
        world.watch.call(world.spend, LIMIT_NS)
    assert not world.watch.abandon(lambda: None)


def test_a_closed_watch_keeps_nothing_alive(world):
    world.watch.call(world.spend, 1)
    world.watch.close()
    world.spend(LIMIT_NS)
    assert world.timeouts == 0
    assert world.timer.entries == []


# ---- executors


class Tensors(Executor):
    def run(self, inputs, outputs):
        return [inputs["x"]]

    def bind(self, inputs, outputs):
        return None if len(inputs) > 1 else bytes


class OnDevice(Tensors, DeviceExecutor):
    def run_on_device(self, inputs, outputs, keep):
        return ["on device"]


class Requests(RequestExecutor):
    ahead = 3

    def __init__(self):
        self.seen = None

    def execute(self, batch):
        self.seen = list(batch)


def test_tensors(world):
    executor = watched(Tensors(), world.watch)
    assert type(executor) is WatchedExecutor
    array = np.zeros(1)
    assert executor.run({"x": array}, ["y"])[0] is array
    assert executor.bind([1], [1])(b"abc") == b"abc"
    assert executor.bind([1, 2], [1]) is None
    assert not executor.end_execution("")


def test_a_bound_run_is_watched(world):
    class Slow(Tensors):
        def bind(self, inputs, outputs):
            return lambda contents: world.spend(LIMIT_NS)

    with pytest.raises(ExecutionAbandoned):
        watched(Slow(), world.watch).bind([1], [1])(b"abc")


def test_tensors_on_a_device(world):
    executor = watched(OnDevice(), world.watch)
    assert type(executor) is WatchedDeviceExecutor
    assert executor.run_on_device({}, [], ()) == ["on device"]


def test_requests(world):
    inner = Requests()
    executor = watched(inner, world.watch)
    assert type(executor) is WatchedRequestExecutor
    assert executor.ahead == 3
    executor.execute([1, 2])
    assert inner.seen == [1, 2]
    assert len(executor.execute_several([[1], [2]])) == 2
    assert executor.pending == ()  # an idle instance keeps no requests alive


def test_pending_requests_stay_for_the_thread_that_answers_them(world):
    class Slow(Requests):
        def execute(self, batch):
            world.spend(LIMIT_NS)

    executor = watched(Slow(), world.watch)
    with pytest.raises(ExecutionAbandoned):
        executor.execute([1, 2])
    assert executor.pending == [[1, 2]]
