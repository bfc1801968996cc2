"""The queue between one model's frontends and its instances.

    frontend --enqueue--> [ queue ] --next_batch--> instance thread

Instances pull. While all of them are busy the queue grows, so the next batch is larger by
itself. A `Policy`, which reads no clock and takes no lock, decides when a batch is ready, and a
`BatchCutter` takes it out of the queue; the batcher only keeps the queue and waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import TypeAlias

from shoal.core.request import DONE, EXECUTING, QUEUED, Request
from shoal.errors import QueueRejected, ShoalError
from shoal.scheduler.admission import AdmissionReading, Expectation
from shoal.scheduler.base import BatcherClosed, EventLoop, OnDropped, Puller
from shoal.scheduler.concurrency import ConcurrentExecutions
from shoal.scheduler.cutter import BatchCutter
from shoal.scheduler.drain import Waiting
from shoal.scheduler.order import OrderKeeper
from shoal.scheduler.policy import Policy, SingleRequestPolicy
from shoal.scheduler.queue import RequestQueue
from shoal.scheduler.timer import Timer, shared_timer

_Dropped: TypeAlias = Sequence[tuple[Request, ShoalError]]

_MOST_ONE_BY_ONE = 16  # requests that the loop takes at once where each is a batch
_MOST_READ = 1000  # requests of the queue, whose lock is held meanwhile


class Batcher:
    """One model's queue. Requests it accepted are served, or answered through `on_dropped`."""

    instances_linger = False

    # Together in memory, because each execution reads them; everything else is in the dictionary.
    __slots__ = (
        "__dict__",
        "_admission",
        "_clock",
        "_concurrent",
        "_cutter",
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
        clock: Callable[[], int] = time.monotonic_ns,
        timer: Timer = shared_timer,
    ) -> None:
        """`on_dropped` answers requests that expired or were cancelled; no lock is held then.

        `hold_until` delays the first batch until that many requests wait (for tests). Requests
        that arrive on the `loop` wake an instance only after the loop's I/O: a thread that wakes
        earlier only competes with the loop for the GIL. With `concurrent`, instances share the
        cores: what waits is divided among them, unless the policy keeps batches whole.
        """
        admission = queue.admission
        self._batches_grow = policy.batches_grow
        single = isinstance(policy, SingleRequestPolicy)
        self.measures_executions = admission is not None
        self.runs_one_by_one = single and admission is None
        self._queue = queue
        self._cutter = BatchCutter(policy, queue, hold_until=hold_until, concurrent=concurrent)
        self.recent = self._cutter.recent
        self._on_dropped = on_dropped
        self._order = OrderKeeper() if preserve_ordering else None
        self._loop = loop
        self._concurrent = concurrent
        self._admission = admission
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
        self._starts_several = queue.takes_any_number and not single

    def pending(self) -> int:
        """How many requests wait."""
        parts = self._cutter.given_back
        return len(self._queue) + (sum(map(len, parts)) if parts else 0)

    def waiting(self) -> Waiting:
        """What waits. Of a long queue, the rows are those of its first requests, extrapolated."""
        with self._lock:
            found = [
                *islice(self._queue, _MOST_READ),
                *chain.from_iterable(self._cutter.given_back),
            ]
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
        if not self._queue.may_refuse:
            return None
        with self._lock:
            return self._queue.refusal(rows, count, self._clock())

    def enqueue(self, request: Request) -> None:
        """Take `request` over. If this raises, the request is still the caller's to answer."""
        with self._lock:  # entered through the condition it costs thrice as much
            if self._closed:
                raise BatcherClosed(request.log_prefix() + "model is unloading")
            self._queue.push(request, self._clock())
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
            count = self._queue.push_all(requests, self._clock())
            if not count:
                return 0
            if count < len(requests):
                requests = requests[:count]
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
            self._cutter.instances += 1
            if self._admission is not None:
                self._admission.instances = self._cutter.instances

    def next_batch(self, puller: Puller) -> list[Request]:
        """Wait for a batch; an empty list tells `puller` to end."""
        while True:
            dropped: _Dropped = ()
            batch: list[Request] = []
            done = False
            with self._changed:
                while not dropped and not batch:
                    if puller.stopping or (self._closed and not self.pending()):
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
        cutter = self._cutter
        if cutter.given_back:
            return cutter.next_given_back(now_ns)
        if self._on_arrival is not None:
            self._changed.wait()  # the event loop has the queue
            return []
        batch, wait_ns = cutter.cut(now_ns, self._waiting)
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

    def ready_batch(self, puller: Puller) -> list[Request]:
        """As `next_batch`, without waiting: empty where no batch is ready."""
        with self._lock:
            if puller.stopping or self._on_arrival is not None:
                return []
            now_ns = self._clock()
            dropped = self._prune(now_ns)
            cutter = self._cutter
            if cutter.given_back:
                batch = cutter.next_given_back(now_ns)
            else:
                batch, _ = cutter.cut(now_ns, self._waiting)
            if batch and self._queue:  # what stays behind may be ready too
                self._changed.notify()
        self._drop(dropped)
        return batch

    def more(self, most: int) -> list[list[Request]]:
        """Further batches for an instance that has just got one, without waiting.

        None where batches grow while they wait: those are cut when they are run.
        """
        batches: list[list[Request]] = []
        if self._batches_grow:
            return batches
        with self._lock:
            now_ns = self._clock()
            dropped = self._prune(now_ns)
            while len(batches) < most and self._on_arrival is None:
                batch, _ = self._cutter.cut(now_ns)
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
            batch, wait_ns = self._cutter.cut(now_ns)
            if batch and self.runs_one_by_one and self._queue:
                batch += self._cutter.take_single(_MOST_ONE_BY_ONE - 1)
        self._drop(dropped)
        return batch, wait_ns

    def give_back(self, requests: Sequence[Request]) -> bool:
        """For the event loop: let instances execute requests that it has taken, each alone. False,
        with nothing done, if instances may have ended, or if they were one batch."""
        with self._changed:
            if self._closed or not self.runs_one_by_one:
                return False
            self._cutter.given_back += [[request] for request in requests]
            self._changed.notify_all()
        return True

    def start_alone(self, request: Request) -> bool:
        """For the event loop: take a request over as a batch, as if it had been queued and taken at
        once. False, with nothing done, if others wait, or if it might have to wait or be refused.

        What other threads change meanwhile, they might as well have changed a moment later. So this
        needs no lock, unless the policy is asked.
        """
        if (
            request.cancelled
            or self._on_arrival is None
            or self._queue.size
            or self._order is not None
        ):
            return False
        rows, count, cut = self._cutter.last_group
        if count != 1 or rows != request.rows:
            with self._lock:
                cut = self._cutter.group(request.rows, request.batch_key, 1)
        if cut is None:
            return False
        request.queued_ns = self._clock()
        request.state = EXECUTING
        self.recent.append(cut)
        return True

    def start_group(self, requests: Sequence[Request]) -> bool:
        """As `start_alone`, for several requests of one template that arrived together. False, too,
        if they would not be one batch."""
        if (
            not self._starts_several
            or self._on_arrival is None
            or self._queue.size
            or self._order is not None
        ):
            return False
        first, count = requests[0], len(requests)
        last_rows, last_count, cut = self._cutter.last_group
        if last_rows != first.rows or last_count != count:
            with self._lock:
                cut = self._cutter.group(first.rows, first.batch_key, count)
        if cut is None:
            return False
        for request in requests:
            if request.cancelled:
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
            cut = self._cutter.group(rows, key, count)
            if cut is None:
                return False
            self.recent.append(cut)
        return True

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
        return self._queue.prune(now_ns, cancelled=cancelled)

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
            self._closed = self._cutter.draining = True
            self._on_arrival = None
            self._changed.notify_all()
