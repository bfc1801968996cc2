"""Taking batches out of a queue: what the policy decides, divided among the instances.

    queue --policy.cut--> batch ──▶ the instance that asks
                            └─▶ parts, for other idle instances (where that ends earlier)

Nothing here waits, wakes an instance or takes a lock: the batcher does, and guards the cutter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter

from shoal.core.request import EXECUTING, Request
from shoal.scheduler.base import RECENT_CUTS
from shoal.scheduler.concurrency import ConcurrentExecutions
from shoal.scheduler.policy import BatchCut, Policy, Reason
from shoal.scheduler.queue import RequestQueue

_ALL_TIME_NS = 1 << 62

_rows_and_key = attrgetter("rows", "batch_key")


class BatchCutter:
    """Cuts one model's queue into batches. Not thread-safe."""

    __slots__ = (
        "_admission",
        "_concurrent",
        "_cuts",
        "_divisible_rows",
        "_hold_until",
        "_max_delay_ns",
        "_policy",
        "_queue",
        "draining",
        "instances",
        "last_group",
        "parts",
        "recent",
    )

    def __init__(
        self,
        policy: Policy,
        queue: RequestQueue,
        *,
        hold_until: int = 0,
        concurrent: ConcurrentExecutions | None = None,
    ) -> None:
        """See `Batcher`. `concurrent` and the queue's admission control are told what is taken."""
        self._policy = policy
        self._max_delay_ns = policy.max_delay_ns
        self._divisible_rows = policy.divisible_rows
        self._queue = queue
        self._hold_until = hold_until
        self._concurrent = concurrent
        self._admission = queue.admission
        self.instances = 0  # that take batches
        self.draining = False  # whether no more requests will come: batches wait for nothing
        self.parts: deque[list[Request]] = deque()  # of divided batches, for the next instances
        self.recent: deque[tuple[Reason, int]] = deque(maxlen=RECENT_CUTS)
        # Why requests that arrived together are one batch, and its rows, by the rows of each and
        # their number; and the last of these.
        self._cuts: dict[tuple[int, int], tuple[Reason, int]] = {}
        self.last_group: tuple[int, int, tuple[Reason, int] | None] = (0, 0, None)

    def cut(self, now_ns: int, waiting: int | None = None) -> tuple[list[Request], int | None]:
        """A batch if one is ready, otherwise how long until time alone makes one ready.

        If some of the other instances, of which so many are `waiting`, can take a part of it, the
        batch is divided, and `parts` has what is theirs. With None it is left whole.
        """
        concurrent = None
        if waiting is not None and self.instances > 1:
            concurrent = self._concurrent
        if waiting is None or concurrent is None:
            batch, reason, wait_ns = self._take(now_ns)
            if not batch:
                return [], wait_ns
        else:
            divides = self._divisible_rows and concurrent.worth_dividing
            batch, reason, wait_ns = self._take(now_ns, concurrent if divides else None, waiting)
            if not batch:
                return [], wait_ns
            idle = waiting - len(self.parts)  # other instances that will take nothing else
            if divides and idle > 0:
                batch, reason = self._divide(batch, reason, concurrent, idle, now_ns)
            others = len(self.parts)
            if self._queue and waiting > others:  # an idle instance takes the next batch
                others += not divides or concurrent.is_worth_another(batch, others + 1)
            concurrent.started(batch, now_ns, others)
        self._leave_queue(batch, reason)
        if self._admission is not None:
            self._admission.started(batch, now_ns)
        return batch, None

    def next_part(self, now_ns: int) -> list[Request]:
        """The oldest of `parts`, of which there are some."""
        part = self.parts.popleft()
        if self._concurrent is not None:
            self._concurrent.started(part, now_ns, len(self.parts))
        if self._admission is not None:
            self._admission.started(part, now_ns)
        return part

    def take_single(self, most: int) -> list[Request]:
        """At most so many requests of a queue in which each is a batch."""
        requests = self._queue.take(min(len(self._queue), most))
        for request in requests:
            self._leave_queue((request,), Reason.SINGLE)
        return requests

    def group(self, rows: int, key: object, count: int) -> tuple[Reason, int] | None:
        """Why `count` requests of `rows` rows each, alone in the queue, would be a batch, and its
        rows; None if they would not be one.

        Without a delay this does not depend on anything else, so that the policy is asked once.
        """
        cut = self._cuts.get((rows, count))
        if cut is None:
            if self._max_delay_ns or self._hold_until:
                return None
            decided = self._policy.cut(((rows, key),) * count, 0, count)
            if decided.count != count:
                return None
            cut = self._cuts[rows, count] = (decided.reason, rows * count)
        self.last_group = (rows, count, cut)
        return cut

    def _take(
        self, now_ns: int, concurrent: ConcurrentExecutions | None = None, waiting: int = 0
    ) -> tuple[list[Request], Reason, int | None]:
        """Take from the queue what the policy decides; see `cut`.

        With `concurrent`, less or nothing where that is better beside those that run.
        """
        queue = self._queue
        if not queue or (len(queue) < self._hold_until and not self.draining):
            return [], Reason.WAITING, None
        self._hold_until = 0
        waited_ns = _ALL_TIME_NS if self.draining else now_ns - queue.oldest_ns()
        cut = self._policy.cut(map(_rows_and_key, queue), waited_ns, queue.leading())
        if concurrent is not None and concurrent.busy and cut.count and not self._max_delay_ns:
            wait_ns = self._consider(cut, concurrent, waiting, now_ns)
            if wait_ns:
                return [], Reason.WAITING, wait_ns
        batch = queue.take(cut.count) if cut.positions is None else queue.take_at(cut.positions)
        return batch, cut.reason, None if batch else self._max_delay_ns - waited_ns

    def _consider(
        self, cut: BatchCut, concurrent: ConcurrentExecutions, waiting: int, now_ns: int
    ) -> int:
        """Beside instances that run: leave some requests to one that ends soon, or wait for it.

        Returns how long to wait. A configured delay is a promise, so this is not for those.
        """
        if cut.positions is None:
            found = list(islice(self._queue, cut.count))
        else:
            queued = list(islice(self._queue, cut.positions[-1] + 1))
            found = [queued[position] for position in cut.positions]
        wait_ns = 0 if self.draining else concurrent.hold_ns(found, now_ns)
        if not wait_ns and waiting <= len(self.parts):
            count = concurrent.portion(found, now_ns)
            if count < cut.count:
                cut.count, cut.reason = count, Reason.SHARED
                if cut.positions is not None:
                    cut.positions = cut.positions[:count]
        return wait_ns

    def _divide(
        self,
        batch: list[Request],
        reason: Reason,
        concurrent: ConcurrentExecutions,
        idle: int,
        now_ns: int,
    ) -> tuple[list[Request], Reason]:
        """Divide this batch, and others that are ready, among this and the `idle` instances.

        Returns this instance's part; `parts` gets those of the others.
        """
        key = batch[0].batch_key
        whole = batch
        others: list[tuple[list[Request], Reason]] = []
        batches = 1
        while batches <= idle and concurrent.is_worth_another(batch, batches):
            more, why, _ = self._take(now_ns)
            if not more:
                break
            batches += 1
            if more[0].batch_key == key:
                whole = whole + more
            else:
                others.append((more, why))
        if batches == 1 and not concurrent.is_worth_another(batch, 1):
            return batch, reason
        parts = concurrent.divided(whole, self._divisible_rows, idle + 1 - len(others), len(others))
        if len(parts[0]) != len(batch):
            reason = Reason.SHARED
        for part, why in [*((part, reason) for part in parts[1:]), *others]:
            self._leave_queue(part, why)
            self.parts.append(part)
        return parts[0], reason

    def _leave_queue(self, batch: Sequence[Request], reason: Reason) -> None:
        """A batch goes to an instance, the only one to answer its requests from now on."""
        for request in batch:
            request.state = EXECUTING
            request.on_cancel = None
        rows = batch[0].rows if len(batch) == 1 else sum([request.rows for request in batch])
        self.recent.append((reason, rows))
