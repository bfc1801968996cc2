"""The executions of one model that are under way, what they cost, and how to divide a batch.

Keeps the table that `division` needs: which batches run, since when, and what batches of that work
took before. Not thread-safe; the batcher guards it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.concurrency import ExpectedConcurrency
from shoal.core.planned import PlannedRequest
from shoal.core.request import Request
from shoal.scheduler import division
from shoal.scheduler.costs import ExecutionCosts
from shoal.scheduler.division import WORTHWHILE_NS, Workload

_SHORTEST_NS = 2 * WORTHWHILE_NS  # half of a shorter execution is not a worthwhile gain
_OVERDUE = 1.25  # times the expected end: no batch is held back for longer


@dataclass(slots=True)
class _Execution:
    """A batch that runs."""

    batch: Sequence[Request]
    start_ns: int
    planned: int  # executions at the same time, as expected when it began
    concurrency_ns: float  # the value of the table's sum when it began


class ConcurrentExecutions:
    """What runs at the same time on one model's instances."""

    def __init__(
        self,
        expected: ExpectedConcurrency | None = None,
        *,
        padded: bool = False,
        ragged: bool = False,
    ) -> None:
        """`expected` is kept up to date. Requests of one batch may have rows of different sizes
        if they are `padded` to the largest, or `ragged`."""
        self._expected = expected
        self._padded = padded
        self._even = not padded and not ragged
        self._running: dict[int, _Execution] = {}  # by the id of the first request
        self._costs = ExecutionCosts()
        self._changed_ns = 0
        self._concurrency_ns = 0.0  # the number that run, summed over time
        self._last_ns = 0  # duration of the last execution

    @property
    def busy(self) -> int:
        """How many batches run."""
        return len(self._running)

    @property
    def worth_dividing(self) -> bool:
        """Whether executions take long enough."""
        return self._last_ns >= _SHORTEST_NS

    def started(self, batch: Sequence[Request], now_ns: int, others: int = 0) -> None:
        """An instance has taken the batch; `others` are about to take some, too."""
        self._advance(now_ns)
        planned = len(self._running) + 1 + others
        self._running[id(batch[0])] = _Execution(batch, now_ns, planned, self._concurrency_ns)
        if self._expected is not None:
            self._expected.executions = planned

    def expect_nothing(self) -> None:
        """From now on batches run elsewhere."""
        if self._expected is not None:
            self._expected.executions = 0

    def finished(self, batch: Sequence[Request], now_ns: int) -> None:
        """The batch was executed. Batches that were not `started` here are ignored."""
        done = self._running.get(id(batch[0]))
        if done is None:
            return
        self._advance(now_ns)
        del self._running[id(batch[0])]
        moments = batch[0].moments
        if moments is None or now_ns <= done.start_ns:
            return
        took_ns = moments[2] - moments[0]
        if took_ns <= 0:  # its end is not known
            return
        self._last_ns = took_ns
        if self.worth_dividing:
            mean = (self._concurrency_ns - done.concurrency_ns) / (now_ns - done.start_ns)
            self._costs.observe(mean, self._work(batch), took_ns)

    def _advance(self, now_ns: int) -> None:
        self._concurrency_ns += len(self._running) * (now_ns - self._changed_ns)
        self._changed_ns = now_ns

    def divided(
        self, batch: Sequence[Request], max_rows: int, idle: int, others: int
    ) -> list[list[Request]]:
        """A batch as parts for at most `idle` instances, which end at about the same time.

        `batch` may have more than `max_rows` rows, if they fit into `idle` batches. Beside the
        batches that run, `others` are about to.
        """
        load = self._load(batch)
        busy = len(self._running) + others
        ends = division.divide(load, max_rows, idle, busy, self._costs.estimate)
        return [list(batch[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

    def hold_ns(self, batch: Sequence[Request], now_ns: int) -> int:
        """How long to keep a batch waiting although an instance is idle; mostly 0.

        Executions that were begun as the only ones (on all cores, say) may suffer more from one
        beside them than that one gains.
        """
        costs = self._costs
        busy = len(self._running)
        left_ns = self._soonest_ns(now_ns)
        if not busy or left_ns <= 0:
            return 0
        work = self._work(batch)
        if costs.knows(busy, work):
            if not costs.knows(busy + 1, work):
                return 0
            if self._planned() > busy and costs.is_worth_another(busy, work):
                return 0
            running_rows = sum([r.rows for one in self._running.values() for r in one.batch])
            waiting_rows = sum([request.rows for request in batch])
            alone_ns = costs.estimate(busy, work) or 0.0
            if not division.is_better_later(
                waiting_rows, alone_ns, running_rows, left_ns, costs.slowdown(busy, work)
            ):
                return 0
        return math.ceil(left_ns * _OVERDUE)

    def _planned(self) -> int:
        """The fewest executions that one of the running expected beside it, itself included."""
        return min([one.planned for one in self._running.values()])

    def is_worth_another(self, batch: Sequence[Request], more: int = 0) -> bool:
        """Whether a batch like this should run beside those that run and `more` others."""
        return self._costs.is_worth_another(len(self._running) + more, self._work(batch))

    def portion(self, batch: Sequence[Request], now_ns: int) -> int:
        """How many requests of a batch to take, where all other instances are busy."""
        soonest_ns = self._soonest_ns(now_ns)
        if not self._running or len(batch) == 1 or soonest_ns <= 0:
            return len(batch)
        cost = self._costs.estimate
        return division.portion(self._load(batch), len(self._running), soonest_ns, cost)

    def _soonest_ns(self, now_ns: int) -> float:
        """When the first of those that run is expected to end; 0 if that is overdue or unknown."""
        soonest_ns = math.inf
        for running in self._running.values():
            concurrency = max(running.planned, len(self._running))
            took_ns = self._costs.estimate(concurrency, self._work(running.batch))
            soonest_ns = min(soonest_ns, running.start_ns + (took_ns or 0.0) - now_ns)
        return max(0.0, soonest_ns)

    def _work(self, batch: Sequence[Request]) -> float:
        return self._load(batch).work(0, len(batch))

    def _load(self, batch: Sequence[Request]) -> Workload:
        rows = [request.rows for request in batch]
        if self._even:
            return Workload(rows, [row_size(batch[0])] * len(batch))
        return Workload(rows, [row_size(request) for request in batch], padded=self._padded)


def row_size(request: Request) -> float:
    """The elements of all inputs in one row of the request."""
    template = request.template if isinstance(request, PlannedRequest) else None
    if template is not None:
        elements = sum([math.prod(shape) for _, _, shape in template.inputs])
    else:
        elements = sum([tensor.element_count for tensor in request.inputs.values()])
    return max(1, elements) / max(1, request.rows)
