"""The executions of one model that are under way, what they cost, and how much to run next.

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
_OWN_NS = 300_000  # what our own code costs for each execution, about
_LEAST_CERTAINTY = 0.2  # of what is observed beside fewer executions than planned
_OVERDUE = 2  # times the expected time: no batch is held back for such an execution
_LATER = 1.25  # times the expected end, at which one that waits for it decides anew
_WHEN_LATE = 0.1  # of the time of a batch, after which it decides anew if that is over
_DECISIONS = 4  # that it may make meanwhile, if requests arrive
_MUCH_SHORTER = 3  # times what is left of others: such an execution does not wait for them
_KEPT = 0.9  # of the work that ran or waited, from one decision to the next
_DIFFERENT = 4  # times the usual work, or a part of it, to learn how the time grows


@dataclass(slots=True)
class _Execution:
    """A batch that runs."""

    batch: Sequence[Request]
    start_ns: int
    planned: int  # executions at the same time, as expected when it began
    spent_ns: dict[int, int]  # the table's times when it began
    work: float = 0.0  # 0: not calculated, see `_work_of`


@dataclass(frozen=True, slots=True)
class Share:
    """What an idle instance does: takes `count` requests, or waits for `wait_ns`."""

    count: int
    others: int = 0  # instances that should take some of the rest now
    wait_ns: int = 0


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
        self.padded = padded
        self._even = not padded and not ragged
        self._running: dict[int, _Execution] = {}  # by the id of the first request
        self._costs = ExecutionCosts()
        self._changed_ns = 0
        self._spent_ns: dict[int, int] = {}  # time by the number that ran
        self._last_ns = 0  # duration of the last execution
        self._held_until_ns = 0
        self._total_work = 0.0  # that ran or waited lately
        self._most_work = 0.0  # of a batch, lately

    @property
    def busy(self) -> int:
        """How many batches run."""
        return len(self._running)

    @property
    def is_long(self) -> bool:
        """Whether executions take so long that dividing them is worthwhile."""
        return self._last_ns >= _SHORTEST_NS

    def started(self, batch: Sequence[Request], now_ns: int, others: int = 0) -> None:
        """An instance has taken the batch; `others` are about to take some, too."""
        self._advance(now_ns)
        self._held_until_ns = 0
        planned = len(self._running) + 1 + others
        spent_ns = self._spent_ns.copy()
        self._running[id(batch[0])] = _Execution(batch, now_ns, planned, spent_ns)
        if self._expected is not None:
            self._expected.executions = planned

    def held_ns(self, now_ns: int) -> int:
        """How long nothing should begin, as decided a moment ago; requests that arrive meanwhile
        change that only later."""
        return max(0, self._held_until_ns - now_ns)

    def expect_nothing(self) -> None:
        """From now on batches run on the event loop."""
        if self._expected is not None:
            self._expected.executions = 0

    def finished(self, batch: Sequence[Request], now_ns: int) -> None:
        """The batch was executed. Batches that were not `started` here are ignored."""
        done = self._running.get(id(batch[0]))
        if done is None:
            return
        self._advance(now_ns)
        self._held_until_ns = 0
        del self._running[id(batch[0])]
        moments = batch[0].moments
        if moments is None or now_ns <= done.start_ns:
            return
        took_ns = moments[2] - moments[0]
        if took_ns <= 0:  # its end is not known
            return
        self._last_ns = took_ns
        if not self.is_long:
            return
        total_ns = now_ns - done.start_ns
        scale = took_ns / total_ns
        times_ns: dict[int, float] = {}
        planned_ns = more_ns = 0  # with as many as the backend was told, and with more
        for number, ns in self._times(done):
            planned_ns += ns * (number == done.planned)
            more_ns += ns * (number > done.planned)
            level = max(number, done.planned)
            times_ns[level] = times_ns.get(level, 0.0) + ns * scale
        if 2 * more_ns < total_ns:  # else it may have had more threads than such executions have
            certainty = max(_LEAST_CERTAINTY, planned_ns / total_ns)
            self._costs.observe(times_ns, self._work_of(done), certainty)

    def _times(self, one: _Execution) -> list[tuple[int, int]]:
        """How long it ran beside how many, itself included."""
        before = one.spent_ns
        return [
            (number, ns - before.get(number, 0))
            for number, ns in self._spent_ns.items()
            if ns > before.get(number, 0)
        ]

    def _advance(self, now_ns: int) -> None:
        running = len(self._running)
        if running:
            self._spent_ns[running] = self._spent_ns.get(running, 0) + now_ns - self._changed_ns
        self._changed_ns = now_ns

    def share(
        self,
        alike: Sequence[Request],
        count: int,
        queued: int,
        idle: int,
        max_rows: int,
        now_ns: int,
    ) -> Share:
        """How much of what waits an instance takes now, while `idle` others wait.

        The policy would take the first `count` of the requests `alike`, which can be a batch. In
        all, `queued` requests wait.
        """
        self._advance(now_ns)
        load = self._load(alike)
        work = load.work(0, count)
        costs = self._costs
        running = [one for one in self._running.values() if not self._is_overdue(one, now_ns)]
        running_work = [self._work_of(one) for one in running]
        busy = len(running)
        key = alike[0].batch_key
        mixed = queued > len(alike) or any(one.batch[0].batch_key != key for one in running)
        rows = sum(load.rows[:count])
        most_work = max([work, *running_work])
        if not mixed:  # else batches have one key each, and are not larger if fewer run
            most_work = max(most_work, work * max_rows / rows)
        total_work = work * queued / count + sum(running_work)
        # Clients that were just answered are about to ask again.
        total_work = self._total_work = max(total_work, _KEPT * self._total_work)
        most_work = self._most_work = max(most_work, _KEPT * self._most_work)
        best = costs.best_concurrency(total_work, most_work, busy + idle + 1)
        if busy >= best:
            wait_ns = self._hold_ns(running, work, rows)
            if wait_ns:
                self._held_until_ns = now_ns + wait_ns // _DECISIONS
                return Share(0, wait_ns=wait_ns)
        beside = max(1, min(idle + 1, best - busy))  # that begin now
        taken = self._efficient(load, count)
        parts = max(1, beside * len(alike) // queued) if mixed else beside
        if parts > 1:
            equal = load.pieces(total_work / best, max_rows)[0]
            taken = min(taken, max(equal, division.share(load, max_rows, parts)))
        elif busy and taken > 1 and not idle:
            left_ns = min([self._left_ns(one) for one in running])
            part = Workload(load.rows[:taken], load.sizes[:taken], load.padded)
            taken = division.portion(part, busy, left_ns, costs.estimate)
        return Share(taken, min(beside - 1, queued - taken))

    def _efficient(self, load: Workload, count: int) -> int:
        """How many of the first `count` requests are nearly as efficient a batch as any."""
        costs = self._costs
        usual = costs.usual_work
        if count == 1 or not usual:
            return count
        if not costs.knows_growth:  # take much more than usual, or much less, to learn it
            work = load.work(0, count)
            different = usual * _DIFFERENT if work > 2 * usual else work / _DIFFERENT
            return min(count, load.pieces(different, count * max(load.rows))[0])
        own = _OWN_NS * usual / (costs.estimate(1, usual) or 1.0)
        part = Workload(load.rows[:count], load.sizes[:count], load.padded)
        return division.efficient(part, costs.fixed_work + own)

    def _hold_ns(self, running: Sequence[_Execution], work: float, rows: int) -> int:
        """How long to keep a batch waiting although an instance is idle, because one more
        execution would answer no more requests; 0 where it hardly hinders the others, or where
        it is far shorter than what is left of them."""
        costs = self._costs
        busy = len(running)
        left_ns = min([self._left_ns(one) for one in running])
        slowdown = costs.slowdown(busy, work)
        if not costs.hinders(busy, work):
            return 0
        alone_ns = costs.estimate(busy, work) or 0.0
        if _MUCH_SHORTER * alone_ns < left_ns:
            running_rows = sum([r.rows for one in running for r in one.batch])
            if not division.is_better_later(rows, alone_ns, running_rows, left_ns, slowdown):
                return 0
        return math.ceil(max(left_ns * _LATER, alone_ns * _WHEN_LATE, WORTHWHILE_NS))

    def _expected_ns(self, one: _Execution) -> float:
        concurrency = max(one.planned, len(self._running))
        return self._costs.estimate(concurrency, self._work_of(one)) or 0.0

    def _is_overdue(self, one: _Execution, now_ns: int) -> bool:
        return now_ns - one.start_ns > _OVERDUE * self._expected_ns(one)

    def _left_ns(self, one: _Execution) -> float:
        """How long it will run, if as many run as now; 0 if that is over already."""
        work = self._work_of(one)
        done = 0.0
        for number, ns in self._times(one):
            done += ns / (self._costs.estimate(max(number, one.planned), work) or 1.0)
        return max(0.0, (1 - done) * self._expected_ns(one))

    def _work_of(self, one: _Execution) -> float:
        if not one.work:
            one.work = self._load(one.batch).work(0, len(one.batch))
        return one.work

    def _load(self, batch: Sequence[Request]) -> Workload:
        rows = [request.rows for request in batch]
        if self._even:
            return Workload(rows, [row_size(batch[0])] * len(batch))
        return Workload(rows, [row_size(request) for request in batch], padded=self.padded)


def row_size(request: Request) -> float:
    """The elements of all inputs in one row of the request."""
    template = request.template if isinstance(request, PlannedRequest) else None
    if template is not None:
        elements = sum([math.prod(shape) for _, _, shape in template.inputs])
    else:
        elements = sum([tensor.element_count for tensor in request.inputs.values()])
    return max(1, elements) / max(1, request.rows)
