"""The queue between one model's frontends and its instances.

    frontend --enqueue--> [ queue ] --next_batch--> instance thread

Instances pull. While all of them are busy the queue grows, so the next batch is larger by
itself. A `Policy`, which reads no clock and takes no lock, decides when a batch is ready; the
batcher only keeps the queue and waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import TypeAlias

from shoal.core.request import DONE, EXECUTING, QUEUED, Request
from shoal.errors import QueueRejected, ShoalError, Unavailable
from shoal.scheduler.admission import AdmissionControl, AdmissionReading, Expectation
from shoal.scheduler.base import RECENT_CUTS, EventLoop, Puller
from shoal.scheduler.concurrency import ConcurrentExecutions
from shoal.scheduler.drain import Waiting
from shoal.scheduler.order import OrderKeeper
from shoal.scheduler.policy import BatchCut, Policy, Reason, SingleRequestPolicy
from shoal.scheduler.queue import FULL, RequestQueue
from shoal.scheduler.timer import Timer, shared_timer

OnDropped: TypeAlias = Callable[[Request, ShoalError], None]
_Dropped: TypeAlias = Sequence[tuple[Request, ShoalError]]

_MOST_ONE_BY_ONE = 16  # requests that the loop takes at once where each is a batch
_MOST_READ = 1000  # requests of the queue, whose lock is held meanwhile

_rows_and_key = attrgetter("rows", "batch_key")


class BatcherClosed(Unavailable):
    """The model is unloading and takes no more requests; a newer version may."""


class Batcher:
    """One model's queue. Requests it accepted are served, or answered through `on_dropped`."""

    instances_linger = False

    # Together in memory, because each execution reads them; everything else is in the dictionary.
    __slots__ = (
        "__dict__",
        "_admission",
        "_clock",
        "_concurrent",
        "_last_start",
        "_lock",
        "_on_arrival",
        "_order",
        "_queue",
        "recent",
    )

    def __init__(
        self,
        policy: Policy,
        queue: RequestQueue,
        *,
        on_dropped: OnDropped,
        preserve_ordering: bool = False,
        hold_until: int = 0,
        loop: EventLoop | None = None,
        concurrent: ConcurrentExecutions | None = None,
        admission: AdmissionControl | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        timer: Timer = shared_timer,
    ) -> None:
        """`on_dropped` answers requests that expired or were cancelled; no lock is held then.

        `hold_until` delays the first batch until that many requests wait (for tests). Requests
        that arrive on the `loop` wake an instance only after the loop's I/O: a thread that wakes
        earlier only competes with the loop for the GIL. With `concurrent`, instances share the
        cores: what waits is divided among them, unless the policy keeps batches whole. With
        `admission`, requests that could not be answered in time are refused.
        """
        self._max_delay_ns = policy.max_delay_ns
        self._divisible_rows = policy.divisible_rows
        self._policy = policy
        single = isinstance(policy, SingleRequestPolicy)
        self.runs_one_by_one = single and admission is None  # which measures each execution
        self._queue = queue
        self._on_dropped = on_dropped
        self._order = OrderKeeper() if preserve_ordering else None
        self._hold_until = hold_until
        self._loop = loop
        self._concurrent = concurrent
        self._admission = admission
        self._instances = 0  # that were attached
        self._parts: deque[list[Request]] = deque()  # of a batch, or given back
        self._clock = clock
        self._timer = timer
        self._timer_at_ns: int | None = None
        self._lock = threading.RLock()  # guards everything above and below
        self._changed = threading.Condition(self._lock)
        self._any_cancelled = False
        self._closed = False
        self._waiting = 0  # instances, for a batch
        self._waking = False  # whether the loop is about to wake one
        self._on_arrival: Callable[[], None] | None = None  # set while the event loop pulls
        # Why requests that arrived together were taken at once, and the rows of the batch, by the
        # rows of each and their number; and the last of these.
        self._cuts: dict[tuple[int, int], tuple[Reason, int]] = {}
        self._last_start: tuple[int, int, tuple[Reason, int] | None] = (0, 0, None)
        self._starts_several = admission is None and queue.takes_any_number and not single
        self.recent: deque[tuple[Reason, int]] = deque(maxlen=RECENT_CUTS)

    def pending(self) -> int:
        """How many requests wait."""
        return len(self._queue) + (sum(map(len, self._parts)) if self._parts else 0)

    def waiting(self) -> Waiting:
        """What waits. Of a long queue, the rows are those of its first requests, extrapolated."""
        with self._lock:
            found = [*islice(self._queue, _MOST_READ), *chain.from_iterable(self._parts)]
            queued = self.pending()
        sums = sum([one.members for one in found]), sum([one.rows for one in found])
        return Waiting(*[queued * total // max(1, len(found)) for total in sums])

    def drain_ns(self) -> float | None:
        """See `Scheduler`."""
        if self._admission is None:
            return None
        with self._lock:
            return self._admission.drain_ns(self._clock())

    def admission(self) -> AdmissionReading | None:
        """The state of the admission control, for metrics; None without one."""
        if self._admission is None:
            return None
        with self._lock:
            return self._admission.reading(self._clock())

    def expectation(self, request: Request) -> Expectation:
        """Whether such a request would be admitted, and how long it would take."""
        if self._admission is None:
            return Expectation()
        with self._lock:
            level = self._queue.level_of(request)
            return self._admission.expectation(request, level, self._clock())

    def refusal(self, rows: int, count: int) -> QueueRejected | None:
        """The error for `count` requests of `rows` rows each, if none would be accepted now,
        whatever its priority."""
        if self._admission is None and not self._queue.is_limited:
            return None
        with self._lock:
            if self._queue.is_full():
                return QueueRejected(FULL)
            admission = self._admission
            return None if admission is None else admission.refusal(rows, count, self._clock())

    def enqueue(self, request: Request) -> None:
        """Take `request` over. If this raises, the request is still the caller's to answer."""
        with self._lock:  # entered through the condition it costs thrice as much
            if self._closed:
                raise BatcherClosed(request.log_prefix() + "model is unloading")
            now_ns = self._clock()
            admission = self._admission
            if admission is not None and not request.admitted:
                admission.check(request, self._queue.level_of(request), now_ns)
            self._queue.push(request, now_ns)
            if admission is not None:
                admission.joined((request,), self._queue.level_of(request))
            if self._order is not None:
                self._order.join(request)
            request.state = QUEUED
            request.on_cancel = self._cancelled
            if self._queue.next_deadline_ns is not None:
                self._set_timer()
            on_arrival = self._on_arrival
            if on_arrival is None and self._waiting and not self._wakes_soon():
                self._changed.notify()
        if on_arrival is not None:
            on_arrival()
        if request.cancelled:  # before `on_cancel` was set
            self._cancelled()

    def enqueue_group(self, requests: Sequence[Request]) -> int:
        """Take over requests of one template that arrived at the same moment: as many as there is
        room for, from the first on. Returns how many.

        It takes none where a request may expire or has to keep its order, and when the batcher is
        closed. `enqueue` the others one by one: each call takes its request over or raises.
        Requests that were cancelled already are dropped, as `enqueue` does.
        """
        with self._lock:
            if self._closed or self._order is not None:
                return 0
            now_ns = self._clock()
            admission = self._admission
            if admission is not None:
                requests = self._admitted(requests, admission, now_ns)
            count = self._queue.push_all(requests, now_ns) if requests else 0
            if not count:
                return 0
            if count < len(requests):
                requests = requests[:count]
            if admission is not None:
                admission.joined(requests, self._queue.level_of(requests[0]))
            cancelled = self._cancelled
            any_cancelled = False
            for request in requests:
                request.state = QUEUED
                request.on_cancel = cancelled
                if request.cancelled:
                    any_cancelled = self._any_cancelled = True  # before an instance takes it
            on_arrival = self._on_arrival
            if on_arrival is None and self._waiting and not self._wakes_soon():
                self._changed.notify()
        if on_arrival is not None:
            on_arrival()
        if any_cancelled:
            self._cancelled()
        return count

    def _admitted(
        self, requests: Sequence[Request], admission: AdmissionControl, now_ns: int
    ) -> Sequence[Request]:
        """Those that can be answered in time; none if they have to be checked one by one."""
        if any(request.answer_by_ns is not None for request in requests):
            return ()
        room = admission.room_for(requests, self._queue.level_of(requests[0]), now_ns)
        return requests[:room]

    def _wakes_soon(self) -> bool:
        """Whether the loop will wake an instance: on its own thread it does. The lock is held."""
        loop = self._loop
        if loop is None or not loop.here():
            return False
        if not self._waking:
            self._waking = loop.call_soon(self._wake_one)
        return self._waking

    def _wake_one(self) -> None:
        with self._lock:
            self._waking = False
            if self._queue:
                self._changed.notify()

    def attach(self, puller: Puller) -> None:  # noqa: ARG002 - they are all the same here
        """Any instance may run any request."""
        with self._lock:
            self._instances += 1
            if self._admission is not None:
                self._admission.instances = self._instances

    def next_batch(self, puller: Puller) -> list[Request]:
        """Wait for a batch; an empty list tells `puller` to end."""
        while True:
            dropped: _Dropped = ()
            batch: list[Request] = []
            done = False
            with self._changed:
                while not dropped and not batch:
                    if puller.stopping or (self._closed and not self._queue and not self._parts):
                        done = True
                        break
                    now_ns = self._clock()
                    dropped = self._prune(now_ns)
                    if dropped:
                        break
                    batch = self._pull(now_ns)
            self._drop(dropped)
            if batch or done:
                return batch

    def _pull(self, now_ns: int) -> list[Request]:
        """Take a batch if one is ready, otherwise wait for a change. The lock is held."""
        if self._parts:
            return self._next_part(now_ns)
        if self._on_arrival is not None:
            self._changed.wait()  # the event loop has the queue
            return []
        batch, wait_ns = self._cut(now_ns)
        if not batch:
            # No lock can wait for the longest delay a config can hold.
            wait_secs = None if wait_ns is None else min(wait_ns / 1e9, threading.TIMEOUT_MAX)
            self._waiting += 1
            try:
                self._changed.wait(wait_secs)
            finally:
                self._waiting -= 1
        elif self._queue:  # what stays behind may be ready too
            self._changed.notify()
        return batch

    def _cut(self, now_ns: int, *, alone: bool = False) -> tuple[list[Request], int | None]:
        """A batch if one is ready, otherwise how long until time alone makes one ready.

        If other instances can take a part of it, the batch is divided, unless it is to be taken
        `alone`. The event loop does not divide: instances cannot pull while it has the queue.
        """
        concurrent = None
        if not alone and self._instances > 1 and self._on_arrival is None:
            concurrent = self._concurrent
        divides = concurrent is not None and self._divisible_rows and concurrent.worth_dividing
        batch, reason, wait_ns = self._take(now_ns, concurrent if divides else None)
        if not batch:
            return [], wait_ns
        if concurrent is not None:
            idle = self._waiting - len(self._parts)  # other instances that will take nothing else
            if divides and idle > 0:
                batch, reason = self._divide(batch, reason, idle, now_ns)
            others = len(self._parts)
            if self._queue and self._waiting > others:  # an idle instance takes the next batch
                others += not divides or concurrent.is_worth_another(batch, others + 1)
            concurrent.started(batch, now_ns, others)
        self._leave_queue(batch, reason)
        if self._admission is not None:
            self._admission.started(batch, now_ns)
        return batch, None

    def _take(
        self, now_ns: int, concurrent: ConcurrentExecutions | None
    ) -> tuple[list[Request], Reason, int | None]:
        """Take from the queue what the policy decides; see `_cut`.

        With `concurrent`, less or nothing where that is better beside those that run.
        """
        queue = self._queue
        if not queue or (len(queue) < self._hold_until and not self._closed):
            return [], Reason.WAITING, None
        self._hold_until = 0
        waited_ns = now_ns - queue.oldest_ns()
        if self._closed:  # no more requests will come: run what there is
            waited_ns = 1 << 62
        cut = self._policy.cut(map(_rows_and_key, queue), waited_ns, queue.leading())
        if concurrent is not None and concurrent.busy and cut.count and not self._max_delay_ns:
            wait_ns = self._consider(cut, concurrent, now_ns)
            if wait_ns:
                return [], Reason.WAITING, wait_ns
        batch = queue.take(cut.count) if cut.positions is None else queue.take_at(cut.positions)
        return batch, cut.reason, None if batch else self._max_delay_ns - waited_ns

    def _consider(self, cut: BatchCut, concurrent: ConcurrentExecutions, now_ns: int) -> int:
        """Beside instances that run: leave some requests to one that ends soon, or wait for it.

        Returns how long to wait. A configured delay is a promise, so this is not for those.
        """
        if cut.positions is None:
            found = list(islice(self._queue, cut.count))
        else:
            waiting = list(islice(self._queue, cut.positions[-1] + 1))
            found = [waiting[position] for position in cut.positions]
        wait_ns = 0 if self._closed else concurrent.hold_ns(found, now_ns)
        if not wait_ns and self._waiting <= len(self._parts):
            count = concurrent.portion(found, now_ns)
            if count < cut.count:
                cut.count, cut.reason = count, Reason.SHARED
                if cut.positions is not None:
                    cut.positions = cut.positions[:count]
        return wait_ns

    def _divide(
        self, batch: list[Request], reason: Reason, idle: int, now_ns: int
    ) -> tuple[list[Request], Reason]:
        """Divide this batch, and others that are ready, among this and the idle instances.

        Returns this instance's part; `_parts` gets those of the others.
        """
        concurrent = self._concurrent
        assert concurrent is not None
        key = batch[0].batch_key
        whole = batch
        others: list[tuple[list[Request], Reason]] = []
        batches = 1
        while batches <= idle and concurrent.is_worth_another(batch, batches):
            more, why, _ = self._take(now_ns, None)
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
            self._parts.append(part)
        self._changed.notify(len(self._parts))
        return parts[0], reason

    def _leave_queue(self, batch: Sequence[Request], reason: Reason) -> None:
        """A batch goes to an instance, the only one to answer its requests from now on."""
        for request in batch:
            request.state = EXECUTING
            request.on_cancel = None
        rows = batch[0].rows if len(batch) == 1 else sum([request.rows for request in batch])
        self.recent.append((reason, rows))
        if self._admission is not None:
            self._leave_admission(batch, self._admission)

    def _leave_admission(self, requests: Iterable[Request], admission: AdmissionControl) -> None:
        for request in requests:
            admission.left(request, self._queue.level_of(request))

    def _next_part(self, now_ns: int) -> list[Request]:
        """The oldest part of a divided batch."""
        part = self._parts.popleft()
        if self._concurrent is not None:
            self._concurrent.started(part, now_ns, len(self._parts))
        if self._admission is not None:
            self._admission.started(part, now_ns)
        return part

    def ready_batch(self, puller: Puller) -> list[Request]:
        """As `next_batch`, without waiting: empty where no batch is ready."""
        with self._lock:
            if puller.stopping or self._on_arrival is not None:
                return []
            now_ns = self._clock()
            dropped = self._prune(now_ns)
            batch = self._next_part(now_ns) if self._parts else self._cut(now_ns)[0]
            if batch and self._queue:  # what stays behind may be ready too
                self._changed.notify()
        self._drop(dropped)
        return batch

    def more(self, most: int) -> list[list[Request]]:
        """Further batches for an instance that has just got one, without waiting.

        None where batches grow while they wait: those are cut when they are run.
        """
        batches: list[list[Request]] = []
        if self._policy.batches_grow:
            return batches
        with self._lock:
            now_ns = self._clock()
            dropped = self._prune(now_ns)
            while len(batches) < most and self._on_arrival is None:
                batch, _ = self._cut(now_ns, alone=True)
                if not batch:
                    break
                batches.append(batch)
        self._drop(dropped)
        return batches

    def take_now(self) -> tuple[list[Request], int | None]:
        """For the event loop: a batch if one is ready, without waiting.

        Otherwise an empty list, and how many nanoseconds later to ask again (None: at the next
        arrival). Always empty while instances pull. Where it `runs_one_by_one`, several requests.
        """
        with self._lock:
            if self._on_arrival is None:
                return [], None
            now_ns = self._clock()
            dropped: _Dropped = ()
            if self._any_cancelled or self._queue.next_deadline_ns is not None:
                dropped = self._prune(now_ns)
            batch, wait_ns = self._cut(now_ns)
            if batch and self.runs_one_by_one and self._queue:
                for request in self._queue.take(min(len(self._queue), _MOST_ONE_BY_ONE - 1)):
                    self._leave_queue((request,), Reason.SINGLE)
                    batch.append(request)
        self._drop(dropped)
        return batch, wait_ns

    def give_back(self, requests: Sequence[Request]) -> bool:
        """For the event loop: let instances execute requests that it has taken, each alone. False,
        with nothing done, if instances may have ended, or if they were one batch."""
        with self._changed:
            if self._closed or not self.runs_one_by_one:
                return False
            self._parts += [[request] for request in requests]
            self._changed.notify_all()
        return True

    def start_group(self, requests: Sequence[Request]) -> bool:
        """For the event loop: take requests of one template that arrived together over as a batch,
        as if they had been queued and taken at once. False, with nothing done, if others wait, if
        they might have to wait or be refused themselves, or if they would not be one batch."""
        first, count = requests[0], len(requests)
        if first.cancelled or (count > 1 and not self._starts_several):
            return False
        with self._lock:
            if self._on_arrival is None or self._queue or self._order is not None:
                return False
            last_rows, last_count, cut = self._last_start
            if last_rows != first.rows or last_count != count:
                cut = self._cut_of(first.rows, first.batch_key, count)
            if cut is None:
                return False
            if count > 1 and any([request.cancelled for request in requests]):  # noqa: C419 - faster
                return False
            now_ns = self._clock()
            for request in requests:
                request.queued_ns = now_ns
                request.state = EXECUTING
            self.recent.append(cut)
        return True

    def start_block(self, rows: int, key: object, count: int) -> bool:
        """As `start_group`, for `count` requests with `rows` rows each that are no objects. False,
        too, where the cost of each request is recorded."""
        if self._admission is not None:
            return False
        if self._concurrent is not None and self._concurrent.busy:
            return False
        with self._lock:
            if self._on_arrival is None or self._queue or self._order is not None:
                return False
            cut = self._cut_of(rows, key, count)
            if cut is None:
                return False
            self.recent.append(cut)
        return True

    def _cut_of(self, rows: int, key: object, count: int) -> tuple[Reason, int] | None:
        """Why `count` requests of `rows` rows each, alone in the queue, would be a batch, and its
        rows; None if they would not be one. The lock is held.

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
        self._last_start = (rows, count, cut)
        return cut

    def finished(self, batch: Sequence[Request]) -> None:
        """Record what the execution cost; no request waits for another to be executed."""
        if self._admission is not None:
            with self._lock:
                self._admission.finished(batch, self._clock())
        if self._concurrent is not None and self._concurrent.busy:
            with self._lock:
                self._concurrent.finished(batch, self._clock())
                if self._queue:  # it may have waited for this
                    self._changed.notify()

    def hand_to_loop(self, on_arrival: Callable[[], None]) -> None:
        """From now on the event loop takes the batches; `on_arrival` is called for each request.

        `on_arrival` must not block. A closed batcher stays with its instances.
        """
        with self._changed:
            if self._closed:
                return
            self._on_arrival = on_arrival
            if self._concurrent is not None:
                self._concurrent.expect_nothing()
            waiting = bool(self._queue)
        if waiting:
            on_arrival()

    def hand_to_instances(self) -> None:
        """From now on the instances pull again."""
        with self._changed:
            self._on_arrival = None
            self._changed.notify_all()

    def _set_timer(self) -> None:
        """Have expired requests answered on time even while all instances are busy."""
        deadline = self._queue.next_deadline_ns
        if deadline is not None and (self._timer_at_ns is None or deadline < self._timer_at_ns):
            self._timer_at_ns = deadline
            self._timer.at(deadline, self.expire)

    def expire(self) -> None:
        """Answer requests that expired or were cancelled."""
        with self._changed:
            self._timer_at_ns = None
            dropped = self._prune(self._clock())
            self._set_timer()
            self._changed.notify()
            on_arrival = self._on_arrival
        if on_arrival is not None:  # what is left may make a batch now
            on_arrival()
        self._drop(dropped)

    def _cancelled(self) -> None:
        with self._lock:  # or `_prune` on another thread could reset it unseen
            self._any_cancelled = True
        self.expire()

    def _prune(self, now_ns: int) -> _Dropped:
        """Take expired and cancelled requests out of the queue. The lock is held."""
        cancelled, self._any_cancelled = self._any_cancelled, False
        dropped = self._queue.prune(now_ns, cancelled=cancelled)
        if dropped and self._admission is not None:
            self._leave_admission([request for request, _ in dropped], self._admission)
        return dropped

    def _drop(self, dropped: _Dropped) -> None:
        """Answer what `_prune` returned, without the lock."""
        for request, error in dropped:
            request.state = DONE
            request.on_cancel = None
            self._on_dropped(request, error)

    def wake(self) -> None:
        """Make every waiting instance check again whether to stop."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse new requests. Those already queued are served first, then instances stop."""
        with self._changed:
            self._closed = True
            self._on_arrival = None
            self._changed.notify_all()
