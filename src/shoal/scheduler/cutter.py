"""Taking batches out of a queue: what the policy decides, or less where instances share the cores.

    queue --policy.cut--> batch --concurrent.share--> the part of the instance that asks

What it leaves in the queue is ready for the next instance. Nothing here waits, wakes an instance or
takes a lock: the batcher does, and guards the cutter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice, takewhile
from operator import attrgetter

from shoal.core.request import EXECUTING, Request
from shoal.scheduler.base import RECENT_CUTS
from shoal.scheduler.concurrency import ConcurrentExecutions, Share
from shoal.scheduler.look_ahead import DEFAULT_WINDOW
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
        "_ready_ns",
        "draining",
        "given_back",
        "instances",
        "last_group",
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
        self.given_back: deque[list[Request]] = deque()  # batches for the next instances
        self._ready_ns = -1  # requests that came until then wait for no others
        self.recent: deque[tuple[Reason, int]] = deque(maxlen=RECENT_CUTS)
        # Why requests that arrived together are one batch, and its rows, by the rows of each and
        # their number; and the last of these.
        self._cuts: dict[tuple[int, int], tuple[Reason, int]] = {}
        self.last_group: tuple[int, int, tuple[Reason, int] | None] = (0, 0, None)

    def cut(self, now_ns: int, waiting: int | None = None) -> tuple[list[Request], int | None]:
        """A batch if one is ready, otherwise how long until time alone makes one ready.

        It is a part of what waits if some of the other instances should take parts, too; `waiting`
        is the number of those that are idle. With None it is left whole.
        """
        concurrent = self._concurrent
        if waiting is None or (self.instances < 2 and not (concurrent and concurrent.padded)):
            concurrent = None
        batch, reason, wait_ns, others = self._take(now_ns, concurrent, waiting or 0)
        if not batch:
            return [], wait_ns
        if concurrent is not None:
            concurrent.started(batch, now_ns, others)
        self._leave_queue(batch, reason)
        if self._admission is not None:
            self._admission.started(batch, now_ns)
        return batch, None

    def next_given_back(self, now_ns: int) -> list[Request]:
        """The oldest of those that were given back, of which there are some."""
        batch = self.given_back.popleft()
        if self._concurrent is not None:
            self._concurrent.started(batch, now_ns, len(self.given_back))
        if self._admission is not None:
            self._admission.started(batch, now_ns)
        return batch

    def take_single(self, most: int) -> list[Request]:
        """Up to `most` requests of a queue in which each is a batch."""
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
        self, now_ns: int, concurrent: ConcurrentExecutions | None, waiting: int
    ) -> tuple[list[Request], Reason, int | None, int]:
        """Take from the queue what the policy decides; see `cut`.

        With `concurrent`, less or nothing where that is better beside those that run. Returns the
        batch, why it was closed, how long to wait if there is none, and how many other instances
        should take one now.
        """
        queue = self._queue
        if not queue or (len(queue) < self._hold_until and not self.draining):
            return [], Reason.WAITING, None, 0
        self._hold_until = 0
        if concurrent is not None and not self.draining:
            held_ns = concurrent.held_ns(now_ns)
            if held_ns:
                return [], Reason.WAITING, held_ns, 0
        oldest_ns = queue.oldest_ns()
        ready = self.draining or oldest_ns <= self._ready_ns
        waited_ns = _ALL_TIME_NS if ready else now_ns - oldest_ns
        cut = self._policy.cut(map(_rows_and_key, queue), waited_ns, queue.leading())
        others = int(waiting > 0 and len(queue) > cut.count)
        if concurrent is not None and cut.count and self._divisible_rows and concurrent.is_long:
            share = self._share(cut, concurrent, waiting, now_ns)
            if share.wait_ns:
                return [], Reason.WAITING, share.wait_ns, 0
            others = share.others
        batch = queue.take(cut.count) if cut.positions is None else queue.take_at(cut.positions)
        return batch, cut.reason, None if batch else self._max_delay_ns - waited_ns, others

    def _share(
        self, cut: BatchCut, concurrent: ConcurrentExecutions, waiting: int, now_ns: int
    ) -> Share:
        """Reduce the cut to what this instance should take, or say how long to wait."""
        max_rows = self._divisible_rows
        most = (waiting + 1) * max_rows
        positions = cut.positions or (0,)
        queued = list(islice(self._queue, max(DEFAULT_WINDOW, most, positions[-1] + 1)))
        key = queued[positions[0]].batch_key
        if cut.positions is None:
            alike = list(takewhile(lambda request: request.batch_key == key, queued))
        else:
            alike = [request for request in queued if request.batch_key == key]
        share = concurrent.share(
            alike[:most], cut.count, len(self._queue), waiting, max_rows, now_ns
        )
        if self.draining and share.wait_ns:
            return Share(cut.count)
        if 0 < share.count < cut.count:
            cut.count, cut.reason = share.count, Reason.SHARED
            cut.positions = cut.positions and cut.positions[: share.count]
            self._ready_ns = now_ns  # the rest does not wait for a delay a second time
        return share

    def _leave_queue(self, batch: Sequence[Request], reason: Reason) -> None:
        """A batch goes to an instance, the only one to answer its requests from now on."""
        for request in batch:
            request.state = EXECUTING
            request.on_cancel = None
        rows = batch[0].rows if len(batch) == 1 else sum([request.rows for request in batch])
        self.recent.append((reason, rows))
