"""Adaptive admission: refuses requests that a model could not answer within its target latency.

    batches --started, finished--> what they cost --expected_ns--> room_for(requests) --> refused

The expected latency of a request is what the running batches still take, then the batches before
it, then its own, each with the time that batches of that size took lately. It may be a share of the
target, because half of all estimates are too low: a late answer lowers the share, time raises it.
So the queue stays as long as the model can answer it in time, and refusals come at once.

No clock and no lock: the batcher guards it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.core.request import Request
from shoal.errors import QueueRejected
from shoal.scheduler.costs import ExecutionCosts
from shoal.scheduler.drain import finish_ns

FIRST_SHARE = 0.8  # of the target, which the expected latency may reach
LEAST_SHARE = 0.25
MOST_SHARE = 0.9
_LOWER = 0.93  # times the share after a late answer, once in each span of the target
_HIGHER = 0.03  # more of the target for each second
_FEWER = 0.125  # weight of the number that runs, where it is lower than expected
_NS_PER_MS, _NS_PER_SECOND = 1_000_000, 1_000_000_000


class Expectation(NamedTuple):
    """What is to be expected for a request that arrives now."""

    latency_ns: float = 0.0  # 0 while nothing is known
    in_time: bool = True
    waits: bool = False  # whether it would have to wait for others


class AdmissionReading(NamedTuple):
    """What the metrics show of a model with a target latency."""

    refused: int
    expected_ns: float  # of a request that arrives now


@dataclass(slots=True)
class _Batch:
    start_ns: int
    rows: int


class AdmissionControl:
    """Which requests one model can answer within its target latency."""

    def __init__(self, target_ns: int, max_rows: int) -> None:
        """Batches have at most `max_rows` rows; 0 if each request runs alone."""
        self.target_ns = target_ns
        self.refused = 0
        self.instances = 0  # that pull batches
        self._max_rows = max_rows
        # At first, a full batch is expected to take twice as long as a single row. If the first
        # guess were too high, the queue would stay too short for batches that show it.
        self._costs = ExecutionCosts(fixed_work=max(1, max_rows))
        self._running: dict[int, _Batch] = {}  # by the id of the first request
        self._parallel = 1.0  # batches that run at the same time under load
        self._waiting: dict[int, int] = {}  # rows by priority level
        self._requests = 0  # that wait
        self._share = FIRST_SHARE
        self._lowered_ns = 0
        self._raised_ns = 0

    # ---- what the batcher reports

    def joined(self, requests: Sequence[Request], level: int) -> None:
        """Requests of one priority level were queued."""
        rows = sum([request.rows for request in requests])
        self._waiting[level] = self._waiting.get(level, 0) + rows
        self._requests += len(requests)

    def left(self, request: Request, level: int) -> None:
        """A request has left the queue, to run or unanswered."""
        rows = self._waiting[level] - request.rows
        if rows:
            self._waiting[level] = rows
        else:
            del self._waiting[level]
        self._requests -= 1

    def started(self, batch: Sequence[Request], now_ns: int) -> None:
        """A batch is about to run."""
        rows = sum([request.rows for request in batch])
        self._running[id(batch[0])] = _Batch(now_ns, rows)
        count = len(self._running)
        if count > self._parallel:
            self._parallel = count
        elif self._requests:  # although requests wait: not all instances run at the same time
            self._parallel += _FEWER * (count - self._parallel)

    def finished(self, batch: Sequence[Request], now_ns: int) -> None:
        """A batch was executed. Those that were not `started` are ignored."""
        first = batch[0]
        done = self._running.get(id(first))
        if done is None:
            return
        self._costs.observe({len(self._running): now_ns - done.start_ns}, done.rows)
        del self._running[id(first)]
        # The first one has the highest priority of the batch, and has waited longest with it:
        # others may have had to wait because of requests that came after them.
        if now_ns - first.queued_ns > self.target_ns:
            if now_ns - self._lowered_ns >= self.target_ns:  # what waits was admitted before that
                self._share = max(LEAST_SHARE, self._share * _LOWER)
                self._lowered_ns = now_ns
        else:
            passed_ns = min(now_ns - self._raised_ns, _NS_PER_SECOND)
            self._share = min(MOST_SHARE, self._share + _HIGHER * passed_ns / _NS_PER_SECOND)
        self._raised_ns = now_ns

    # ---- decisions

    def room_for(self, requests: Sequence[Request], level: int, now_ns: int) -> int:
        """How many of the requests, from the first on, can be answered in time if they are queued.

        They have the same rows, time-out and priority level.
        """
        first = requests[0]
        rows = first.rows
        before = self._rows_before(level)
        budget_ns = self._share * limit_ns(first, self.target_ns, now_ns)
        if self._expected_ns(before + len(requests) * rows, rows, now_ns) <= budget_ns:
            return len(requests)
        fits, more = 0, len(requests)
        while more - fits > 1:
            middle = (fits + more) // 2
            if self._expected_ns(before + middle * rows, rows, now_ns) <= budget_ns:
                fits = middle
            else:
                more = middle
        # A request that an instance can begin with at once is never refused: none can do better.
        return min(len(requests), max(fits, self._idle()))

    def _idle(self) -> int:
        """How many requests instances can begin with at once."""
        return max(1, self.instances) - len(self._running) - self._requests

    def check(self, request: Request, level: int, now_ns: int) -> None:
        """Raise QueueRejected if the request cannot be answered in time."""
        if not self.room_for((request,), level, now_ns):
            self.refused += 1
            expected_ns = self._expected_ns(
                self._rows_before(level) + request.rows, request.rows, now_ns
            )
            raise late(request, self.target_ns, expected_ns, now_ns)

    def refusal(self, rows: int, count: int, now_ns: int) -> QueueRejected | None:
        """The error for `count` requests of `rows` rows each, if none would be admitted now. One
        of the highest priority and without a time-out is the last to be refused."""
        if self._idle() > 0:
            return None
        expected_ns = self._expected_ns(self._rows_before(1) + rows, rows, now_ns)
        if expected_ns <= self._share * self.target_ns:
            return None
        self.refused += count
        return QueueRejected(_reason(self.target_ns), _retry_secs(expected_ns - self.target_ns))

    def expectation(self, request: Request, level: int, now_ns: int) -> Expectation:
        """What would happen to such a request; nothing changes."""
        rows = request.rows
        expected_ns = self._expected_ns(self._rows_before(level) + rows, rows, now_ns)
        in_time = self.room_for((request,), level, now_ns) > 0
        return Expectation(expected_ns, in_time, self._idle() <= 0)

    def reading(self, now_ns: int) -> AdmissionReading:
        """For metrics: the expected latency is that of one row behind all others."""
        return AdmissionReading(
            self.refused, self._expected_ns(self._rows_before(None) + 1, 1, now_ns)
        )

    def drain_ns(self, now_ns: int) -> float | None:
        """When all that waits and runs now is answered; None while nothing is known."""
        rows, parallel = self._rows_before(None), max(1, round(self._parallel))
        own_rows = max(1, round(rows / max(1, self._requests)))
        busy_ns = self._busy_ns(parallel, now_ns)
        estimate = self._costs.estimate
        last_ns = finish_ns(rows, own_rows, self._max_rows, parallel, busy_ns, estimate)
        return None if last_ns is None else max([last_ns, *busy_ns])

    def _rows_before(self, level: int | None) -> int:
        waiting = self._waiting.items()
        return sum([rows for number, rows in waiting if level is None or number <= level])

    def _expected_ns(self, rows: int, own_rows: int, now_ns: int) -> float:
        """When the last of `rows` rows that wait is answered, which belongs to a request of
        `own_rows`; 0 while nothing is known."""
        parallel = max(1, round(self._parallel))
        busy_ns = self._busy_ns(parallel, now_ns)
        estimate = self._costs.estimate
        return finish_ns(rows, own_rows, self._max_rows, parallel, busy_ns, estimate) or 0.0

    def _busy_ns(self, parallel: int, now_ns: int) -> list[float]:
        """What each running batch still takes. One that is overdue is expected to take as much
        longer as it is late."""
        estimate = self._costs.estimate
        return [
            abs((estimate(parallel, one.rows) or 0.0) + one.start_ns - now_ns)
            for one in self._running.values()
        ]


def limit_ns(request: Request, target_ns: int, now_ns: int) -> int:
    """The target, or what the client is prepared to wait if that is less."""
    limit = target_ns
    if request.timeout_us:
        limit = min(limit, request.timeout_us * 1000)
    if request.answer_by_ns is not None:
        limit = max(0, min(limit, request.answer_by_ns - now_ns))
    return limit


def late(request: Request, target_ns: int, expected_ns: float, now_ns: int) -> QueueRejected:
    """The error for a request that cannot be answered in time."""
    limit = limit_ns(request, target_ns, now_ns)
    reason = _reason(target_ns) if limit == target_ns else _reason(0)
    return QueueRejected(reason, _retry_secs(expected_ns - limit), prefix=request.log_prefix())


def _reason(target_ns: int) -> str:
    """With 0: because of what the client allows."""
    what = f"its target latency of {target_ns / _NS_PER_MS:g} ms"
    return (
        f"the model is overloaded and cannot answer within "
        f"{what if target_ns else 'the time that the request allows'}; try again later"
    )


def _retry_secs(excess_ns: float) -> int:
    return max(1, math.ceil(excess_ns / _NS_PER_SECOND))
