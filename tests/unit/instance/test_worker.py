"""An instance that likes to have several batches at a time gets those that wait."""

from __future__ import annotations

import threading

import pytest

from shoal.backends.base import Placement, RequestExecutor
from shoal.core.signature import Signature
from shoal.instance.execution import Execution
from shoal.instance.worker import InstanceWorker
from shoal.scheduler.batcher import Batcher
from shoal.scheduler.policy import BatchPolicy, SingleRequestPolicy
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from shoal.statistics.model import ModelStatistics
from tests.support.fakes import WAIT_SECS, make_request


class Far(RequestExecutor):
    """Answers everything, once the gate is open, and notes what came together."""

    def __init__(self, ahead):
        self.ahead = ahead
        self.gate = threading.Event()
        self.began = threading.Event()
        self.groups = []

    def execute(self, batch):
        self.execute_several([batch])

    def execute_several(self, batches):
        self.began.set()
        assert self.gate.wait(WAIT_SECS)
        self.groups.append([len(batch) for batch in batches])
        for batch in batches:
            for pending in batch:
                pending.send()
        return [1000 * (index + 1) for index in range(len(batches))]


@pytest.fixture
def start():
    """A worker with its queue; ended with the test."""
    running = []

    def make(executor, policy):
        dropped = []
        queue = RequestQueue(QueuePolicy())
        batcher = Batcher(policy, queue, on_dropped=lambda r, e: dropped.append((r, e)))
        statistics = ModelStatistics("m", 1)
        execution = Execution(Signature("m", 8, {}, {}), 1, statistics)
        worker = InstanceWorker(Placement("KIND_CPU", name="m_0"), executor, batcher, execution)
        worker.start()
        running.append((worker, batcher))
        return batcher, worker, statistics

    yield make
    for worker, batcher in running:
        batcher.close()
        worker.join()


def run(start, executor, policy, count):
    batcher, worker, statistics = start(executor, policy)
    first, collected = make_request(rows=1)
    batcher.enqueue(first)
    assert executor.began.wait(WAIT_SECS)  # it is busy: what follows waits
    others = [make_request(rows=1) for _ in range(count)]
    for request, _ in others:
        batcher.enqueue(request)
    executor.gate.set()
    for collector in (collected, *(collector for _, collector in others)):
        collector.wait()
    batcher.close()
    worker.join()  # executions are counted once they are answered
    return statistics


def test_what_waits_comes_along(start):
    executor = Far(ahead=3)
    statistics = run(start, executor, SingleRequestPolicy(), 6)
    assert executor.groups == [[1], [1, 1, 1, 1], [1, 1]]
    reading = statistics.read()
    assert reading.execution_count == reading.success_count == 7
    assert reading.compute_infer_ns == 1000 + (1 + 2 + 3 + 4) * 1000 + (1 + 2) * 1000


def test_not_where_nobody_asked_for_it(start):
    executor = Far(ahead=0)
    run(start, executor, SingleRequestPolicy(), 3)
    assert executor.groups == [[1]] * 4


def test_not_where_batches_grow_while_they_wait(start):
    executor = Far(ahead=3)
    run(start, executor, BatchPolicy(2), 4)
    assert executor.groups == [[1], [2], [2]]


def test_a_failure_fails_all_of_them(start):
    class Failing(Far):
        def execute_several(self, batches):
            self.began.set()
            assert self.gate.wait(WAIT_SECS)
            raise RuntimeError("gone")

    executor = Failing(ahead=3)
    statistics = run(start, executor, SingleRequestPolicy(), 2)
    assert sum(statistics.read().failures.values()) == 3


def test_an_executor_that_knows_nothing_of_it_runs_them_one_by_one(start):
    class Plain(RequestExecutor):
        ahead = 2

        def __init__(self):
            self.began, self.gate = threading.Event(), threading.Event()
            self.sizes = []

        def execute(self, batch):
            self.began.set()
            assert self.gate.wait(WAIT_SECS)
            self.sizes.append(len(batch))
            for pending in batch:
                pending.send()

    executor = Plain()
    statistics = run(start, executor, SingleRequestPolicy(), 3)
    assert executor.sizes == [1] * 4
    assert statistics.read().execution_count == 4
