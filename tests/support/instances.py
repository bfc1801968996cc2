"""A batcher and its instances without threads, for tests of how instances share what waits."""

from __future__ import annotations

import numpy as np

from shoal.core.concurrency import ExpectedConcurrency
from shoal.core.tensor import Tensor
from shoal.scheduler.batcher import Batcher
from shoal.scheduler.concurrency import ConcurrentExecutions
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from tests.support.fakes import FakeClock, make_request

MS = 1_000_000


class Instance:
    stopping = False


class Instances:
    """A batcher and its instances without threads: those that wait are counted by hand."""

    def __init__(self, policy, count, **options):
        self.clock = FakeClock()
        self.expected = ExpectedConcurrency()
        self.concurrent = ConcurrentExecutions(self.expected, **options)
        self.dropped = []
        self.line = Batcher(
            policy,
            RequestQueue(QueuePolicy()),
            on_dropped=lambda request, error: self.dropped.append(request),
            concurrent=self.concurrent,
            clock=self.clock,
        )
        self.max_delay_ns = policy.max_delay_ns
        self.idle = count
        for _ in range(count):
            self.line.attach(Instance())

    def enqueue(self, size=1, rows=1, key=()):
        data = np.zeros((rows, size), np.int8)
        request, _ = make_request(Tensor.from_array("x", data), rows=rows)
        request.batch_key = key
        self.line.enqueue(request)
        return request

    def pull(self):
        """The batch of the next idle instance, while the other idle ones wait."""
        self.line._waiting = self.idle - 1
        batch = self.line.ready_batch(Instance())
        if batch:
            self.idle -= 1
        self.line._waiting = self.idle
        return batch

    def pull_all(self):
        batches = []
        while self.idle and (batch := self.pull()):
            batches.append(batch)
        return batches

    def finish(self, batch, took_ns):
        now = self.clock()
        for request in batch:
            request.moments = (now - took_ns, now - took_ns, now, now)
        self.line.finished(batch)
        self.idle += 1
        self.line._waiting = self.idle

    def teach(self, **costs):
        """See `teach`."""
        teach(self.concurrent, self.idle, **costs)


def teach(concurrent, instances, fixed_ms=100.0, row_ms=12.5, slowdown=lambda running: 1.0, size=1):
    """Executions with one row, four and sixteen of them, beside all numbers of others."""
    for running in range(1, instances + 1):
        for rows in (1, 16, 4) * 3:
            took_ns = (fixed_ms + row_ms * rows) * MS * slowdown(running)
            concurrent._costs.observe({running: took_ns}, rows * size)
    concurrent._last_ns = int((fixed_ms + row_ms) * MS)
