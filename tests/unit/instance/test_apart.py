"""Which batches the loop runs request by request, and how long it may take over them."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.backends.base import Executor
from shoal.core.dtypes import UINT8
from shoal.core.tensor import Tensor
from shoal.instance import inline
from shoal.instance.execution_placement import SLOW_NS, ExecutionMode, ExecutionPlacement
from shoal.instance.inline import LoopInstance, runs_apart
from tests.support.fakes import FakeClock, make_request

LARGE = 64 << 10


def request_of(size, *, raw=True):
    request, _ = make_request()
    array = np.zeros((1, size), np.uint8)
    tensor = (
        Tensor("IN", UINT8, (1, size), raw=array.tobytes())
        if raw
        else Tensor.from_array("IN", array)
    )
    request.inputs = {"IN": tensor}
    return request


@pytest.mark.parametrize(
    ("batch", "apart"),
    [
        ([request_of(LARGE)], True),
        ([request_of(LARGE), request_of(LARGE), request_of(LARGE)], True),
        ([request_of(LARGE - 1), request_of(LARGE - 1)], False),
        ([request_of(LARGE, raw=False), request_of(LARGE, raw=False)], False),
    ],
)
def test_only_large_inputs_that_would_be_copied(batch, apart):
    assert runs_apart(batch) == apart


def test_a_batch_of_sequences_stays_together():
    batch = [request_of(LARGE), request_of(LARGE)]
    batch[0].turn = object()
    assert not runs_apart(batch)


class Nothing(Executor):
    def __init__(self):
        self.closed = False

    def run(self, inputs, outputs):
        return []

    def close(self):
        self.closed = True


class Stage:
    """A loop instance whose batches and clock are the test's; each execution takes `took_ns`."""

    def __init__(self, monkeypatch, took_ns, *batches):
        self.took_ns = took_ns
        self.batches = list(batches)
        self.executed, self.finished_requests = [], []
        self.scheduled = self.handed_back = 0
        self.clock = FakeClock()
        monkeypatch.setattr(inline.time, "monotonic_ns", self.clock)
        self.executor = Nothing()
        self.placement = ExecutionPlacement(clock=self.clock)
        while self.placement.mode is ExecutionMode.THREADS:
            self.placement.observe_on_thread(1, 1000)
        self.instance = LoopInstance(self, self, self, self.executor, self.placement)

    def close(self, executor):  # as an execution
        executor.close()

    def run(self, executor, batch):  # as an execution
        assert not executor.closed
        self.executed.append([request.id for request in batch])
        self.clock.advance(self.took_ns)
        return len(batch), self.took_ns, self.took_ns

    def run_alone(self, executor, request, _start_ns):
        return self.run(executor, [request])

    def run_one_by_one(self, executor, requests):
        return 1, self.run(executor, requests[:1])

    measures_executions, runs_one_by_one = True, False  # from here on as a batcher

    def pending(self):
        return len(self.batches)

    def take_now(self):
        return (self.batches.pop(0) if self.batches else []), None

    def finished(self, batch):
        self.finished_requests += [request.id for request in batch]

    def give_back(self, requests):
        return False

    def hand_to_instances(self):
        self.handed_back += 1

    def call_soon(self, callback):  # as a loop
        self.scheduled += 1
        return True

    ran_count, last_ran = 0, None  # of the loop


def large(count):
    requests = [request_of(LARGE) for _ in range(count)]
    for number, request in enumerate(requests):
        request.id = str(number)
    return requests


def test_one_by_one(monkeypatch):
    stage = Stage(monkeypatch, 30_000, large(4))
    stage.instance._flush()
    assert stage.executed == [["0"], ["1"], ["2"], ["3"]]
    assert stage.finished_requests == ["0", "1", "2", "3"]
    assert not stage.scheduled


def test_sockets_are_read_in_between(monkeypatch):
    """However many there are: in each slice the loop is busy no longer than for a slow batch."""
    stage = Stage(monkeypatch, SLOW_NS // 3 + 1, large(16))
    executed = []
    while len(stage.executed) < 16:
        before = len(stage.executed)
        stage.instance._flush()
        executed.append(len(stage.executed) - before)
        assert stage.instance.busy_with == 16 - len(stage.executed)
    assert executed == [6, 6, 4]  # two slices in each iteration
    assert stage.scheduled == 2
    assert stage.finished_requests == [str(number) for number in range(16)]
    assert stage.placement.mode is ExecutionMode.LOOP


def test_the_rest_is_run_on_the_loop_when_the_queue_goes_to_threads(monkeypatch):
    stage = Stage(monkeypatch, 2 * SLOW_NS, large(6))
    while len(stage.executed) < 6:
        stage.instance._flush()
        stage.instance._scheduled = False
    assert stage.placement.mode is ExecutionMode.THREADS
    assert stage.handed_back
    assert stage.finished_requests == [str(number) for number in range(6)]


def test_stopping_answers_the_rest(monkeypatch):
    stage = Stage(monkeypatch, SLOW_NS // 2, large(9))
    stage.instance._flush()
    assert 0 < len(stage.executed) < 9
    stage.instance.stop()
    assert stage.finished_requests == [str(number) for number in range(9)]
    assert stage.executor.closed
