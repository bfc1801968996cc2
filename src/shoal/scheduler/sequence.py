"""Sequence batching: requests with one correlation id go to one instance, one after the other.

    frontend --enqueue--> [ sequences, in slots or in the backlog ] --next_batch--> instance

Every instance has slots, each for one sequence at a time; a sequence without a free slot waits in
the backlog. An instance runs one batch at a time, so a sequence never has two requests running.
`SequenceTable` assigns slots and a policy decides on batches, and both can be called on their own;
the batcher waits, and ends sequences.

A sequence ends with its END request, when a request of it is cancelled, or when nothing of it has
waited or run for the idle time. A request after that has to START again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice

from shoal.core.request import Request, State
from shoal.core.tensor import Tensor
from shoal.errors import Cancelled, QueueRejected, ShoalError
from shoal.scheduler.admission import AdmissionReading, Expectation, late
from shoal.scheduler.base import RECENT_CUTS, BatcherClosed, OnDropped, Puller
from shoal.scheduler.drain import Waiting
from shoal.scheduler.order import OrderKeeper
from shoal.scheduler.policy import BatchPolicy, Reason
from shoal.scheduler.sequence_admission import SequenceAdmission, check
from shoal.scheduler.sequence_policy import DirectPolicy
from shoal.scheduler.sequence_table import (
    IdleSequences,
    InstanceSlots,
    SequenceRun,
    SequenceTable,
    expired,
    limit_wait,
    next_expiry_ns,
)
from shoal.scheduler.sequence_turn import (
    SequenceSetup,
    SequenceTurn,
    choose,
    lone_inputs,
    take,
)
from shoal.scheduler.timer import Timer, shared_timer

Dropped = list[tuple[Request, ShoalError]]


class SequenceBatcher:
    """One model's sequences. What it accepts is served, or answered through `on_dropped`."""

    instances_linger = True  # one that is stopped keeps its sequences until they end
    measures_executions = True
    runs_one_by_one = False

    def __init__(
        self,
        setup: SequenceSetup,
        policy: DirectPolicy | BatchPolicy,
        *,
        on_dropped: OnDropped,
        preserve_ordering: bool = False,
        hold_until: int = 0,
        hold_backlog_until: int = 0,
        target_ns: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
        timer: Timer = shared_timer,
    ) -> None:
        """`policy` is a DirectPolicy where sequences keep their slots.

        `on_dropped` answers requests that expired or were cancelled; no lock is held then.
        `hold_until` delays the first batch until that many requests wait in slots, and
        `hold_backlog_until` until that many wait in the backlog (for tests). No sequence begins
        while a request has waited for longer than `target_ns`, if that is set.
        """
        self._setup = setup
        self._policy = policy
        self._on_dropped = on_dropped
        self._preserve_ordering = preserve_ordering
        self._hold_until = hold_until
        self._hold_backlog_until = hold_backlog_until
        self._target_ns = target_ns
        self._refused = 0
        self._clock = clock
        self._timer = timer
        self._lock = threading.Lock()  # guards everything below and every run and instance
        self._table = SequenceTable(setup.slots)
        self._admission = SequenceAdmission(setup, self._table)
        self._instances: dict[Puller, InstanceSlots] = {}
        self._orders: dict[InstanceSlots, OrderKeeper] = {}
        self._idle = IdleSequences(setup.max_idle_ns)
        self._waiting = 0
        self._timer_at_ns: int | None = None
        self._closed = False
        self._on_arrival: Callable[[], None] | None = None  # set while the event loop pulls
        self.recent: deque[tuple[Reason, int]] = deque(maxlen=RECENT_CUTS)

    def pending(self) -> int:
        """How many requests wait, in slots and in the backlog."""
        return self._waiting

    def waiting(self) -> Waiting:
        """What waits: each request has one row, and those of a sequence run one by one."""
        with self._lock:
            runs = [run for instance in self._instances.values() for run in instance.runs()]
            longest = max([len(run.waiting) for run in (*runs, *self._table.backlog)], default=0)
            return Waiting(self._waiting, self._waiting, longest)

    def drain_ns(self) -> float | None:
        """None: how long sequences last is not known here."""
        return None

    def under_way(self) -> int:
        """How many sequences have not ended, whether or not they have waiting requests."""
        with self._lock:
            seated = sum(len(list(instance.runs())) for instance in self._instances.values())
            return seated + len(self._table.backlog)

    def lone_inputs(self) -> dict[str, Tensor]:
        """The inputs that the server adds to a request that is a sequence by itself."""
        return lone_inputs(self._setup)

    # ---- in

    def enqueue(self, request: Request) -> None:
        """Take `request` over. If this raises, the request is still the caller's to answer."""
        check(request, self._setup)
        with self._lock:
            if self._closed:
                raise BatcherClosed(request.log_prefix() + "model is unloading")
            if self._target_ns and not request.admitted:
                expected = self._expectation(request)
                if not expected.in_time:
                    self._refused += 1
                    raise late(request, self._target_ns, expected.latency_ns, self._clock())
            run = self._admission.admit(request)
            self._append(run, request)
            if request.flags & Request.SEQUENCE_END:
                self._table.end(run)
            if run.instance is None:
                self._set_timer(limit_wait(run, request))
            if self._hold_until or self._hold_backlog_until:
                self._notify_all()  # it may complete what is held for
            on_arrival = self._on_arrival
        if on_arrival is not None:
            on_arrival()
        if request.cancelled:  # before `on_cancel` was set
            self._cut_off(run)

    def refusal(self, rows: int, count: int) -> QueueRejected | None:  # noqa: ARG002 - the contract
        """None: a request may be of a sequence that has begun."""
        return None

    def enqueue_group(self, requests: Sequence[Request]) -> int:  # noqa: ARG002 - the contract
        """Takes none of them: `enqueue` them one by one."""
        return 0

    def expectation(self, request: Request) -> Expectation:
        """Whether such a request would be admitted, and for how long others have waited."""
        with self._lock:
            return self._expectation(request) if self._target_ns else Expectation()

    def admission(self) -> AdmissionReading | None:
        """The state of the admission control, for metrics; None without a target latency."""
        if not self._target_ns:
            return None
        with self._lock:
            return AdmissionReading(self._refused, self._longest_wait_ns())

    def _expectation(self, request: Request) -> Expectation:
        """How long sequences last is not known, so a new one is judged by those before it; one
        that has begun always continues. The lock is held."""
        begins = not request.correlation_id or request.flags & Request.SEQUENCE_START
        wait_ns = self._longest_wait_ns()
        return Expectation(wait_ns, not begins or wait_ns <= self._target_ns)

    def _longest_wait_ns(self) -> int:
        """For how long the oldest request has waited: for a slot, or in one. The lock is held."""
        since = [
            next(iter(instance.ready.values()))
            for instance in self._instances.values()
            if instance.ready
        ]
        since += [run.waiting[0].queued_ns for run in islice(self._table.backlog, 1) if run.waiting]
        return self._clock() - min(since) if since else 0

    def _append(self, run: SequenceRun, request: Request) -> None:
        now_ns = self._clock()
        request.queued_ns = now_ns
        request.state = State.QUEUED
        request.on_cancel = partial(self._cut_off, run)
        run.waiting.append(request)
        self._waiting += 1
        self._idle.stir(run)
        self._make_ready(run, now_ns)

    def _make_ready(self, run: SequenceRun, now_ns: int) -> None:
        """Offer the next request of `run` to its instance, if it has one. The lock is held."""
        instance = run.instance
        if instance is not None and run.waiting and not run.executing:
            instance.ready.setdefault(run, now_ns)
            instance.changed.notify()

    # ---- out

    def attach(self, puller: Puller) -> None:
        """Offer the slots of an instance that is about to pull."""
        instance = InstanceSlots(self._setup.slots, threading.Condition(self._lock))
        with self._lock:
            self._instances[puller] = instance
            now_ns = self._clock()
            for run in self._table.add_instance(instance):
                self._make_ready(run, now_ns)

    def next_batch(self, puller: Puller) -> list[Request]:
        """Wait for a batch; an empty list tells `puller` to end."""
        with self._lock:
            instance = self._instances[puller]
            while True:
                if self._has_ended(puller, instance):
                    del self._instances[puller]
                    self._orders.pop(instance, None)
                    return []
                if self._on_arrival is not None:
                    instance.changed.wait()  # the event loop has the queue
                    continue
                batch, wait_ns = self._cut(instance)
                if batch:
                    break
                instance.changed.wait(None if wait_ns is None else wait_ns / 1e9)
        return self._in_order(batch)

    def _has_ended(self, puller: Puller, instance: InstanceSlots) -> bool:
        """Whether there is nothing left for this instance to do. The lock is held."""
        if instance.busy or instance.ready or not (puller.stopping or self._closed):
            return False
        if any(run.waiting for run in instance.runs()):  # for an earlier request's response
            return False
        if puller.stopping:
            if not instance.retiring:
                self._table.retire(instance)
            return not instance.occupied
        return not self._table.has_backlog

    def ready_batch(self, puller: Puller) -> list[Request]:
        """As `next_batch`, without waiting: empty where no batch is ready."""
        with self._lock:
            instance = self._instances[puller]
            batch = [] if self._on_arrival is not None else self._cut(instance)[0]
        return self._in_order(batch)

    def more(self, most: int) -> list[list[Request]]:
        """None: a sequence's next request waits until the one before has been executed."""
        del most
        return []

    def take_now(self) -> tuple[list[Request], int | None]:
        """For the event loop: a batch of any instance if one is ready, without waiting.

        Otherwise an empty list, and how many nanoseconds later to ask again (None: at the next
        arrival). Always empty while instances pull.
        """
        batch: list[Request] = []
        soonest_ns: int | None = None
        with self._lock:
            if self._on_arrival is None:
                return [], None
            # The one that has waited longest first: no instance's sequences starve the others'.
            instances = [
                instance
                for instance in self._instances.values()
                if instance.ready and not instance.busy
            ]
            for instance in sorted(
                instances, key=lambda instance: next(iter(instance.ready.values()))
            ):
                batch, wait_ns = self._cut(instance)
                if batch:
                    break
                if wait_ns is not None and (soonest_ns is None or wait_ns < soonest_ns):
                    soonest_ns = wait_ns
        return self._in_order(batch), soonest_ns

    def start_block(self, rows: int, key: object, count: int) -> bool:  # noqa: ARG002 - likewise
        """Each request has its own place in a sequence."""
        return False

    def give_back(self, requests: Sequence[Request]) -> bool:  # noqa: ARG002 - as the batcher's
        """Never: requests of sequences have their places."""
        return False

    def start_alone(self, request: Request) -> bool:  # noqa: ARG002 - as the batcher's
        """Never: requests of sequences have their places."""
        return False

    def start_group(self, requests: Sequence[Request]) -> bool:  # noqa: ARG002 - as the batcher's
        """Never: requests of sequences have their places."""
        return False

    def hand_to_loop(self, on_arrival: Callable[[], None]) -> None:
        """From now on the event loop takes the batches; `on_arrival` is called for each request.

        `on_arrival` must not block. A closed batcher stays with its instances.
        """
        with self._lock:
            if self._closed:
                return
            self._on_arrival = on_arrival
            waiting = self._waiting > 0
        if waiting:
            on_arrival()

    def hand_to_instances(self) -> None:
        """From now on the instances pull again."""
        with self._lock:
            self._on_arrival = None
            self._notify_all()

    def _cut(self, instance: InstanceSlots) -> tuple[list[Request], int | None]:
        """A batch if one is ready, otherwise how long until time alone makes one ready."""
        if instance.busy or not instance.ready or self._is_held():
            return [], None
        now_ns = None if self._closed else self._clock()
        chosen = choose(instance, self._policy, self._setup, now_ns)
        if not chosen.runs:
            return [], chosen.wait_ns
        self.recent.append((chosen.reason, sum([run is not None for run in chosen.runs])))
        return self._take(instance, chosen.runs), None

    def _is_held(self) -> bool:
        """Whether a test waits for more requests first. The lock is held."""
        if (self._hold_until or self._hold_backlog_until) and not self._closed:
            behind = sum(len(run.waiting) for run in self._table.backlog)
            if self._waiting - behind < self._hold_until or behind < self._hold_backlog_until:
                return True
            self._hold_until = self._hold_backlog_until = 0
            self._notify_all()
        return False

    def _take(self, instance: InstanceSlots, runs: Sequence[SequenceRun | None]) -> list[Request]:
        """Make a batch of the next requests of `runs`. The lock is held."""
        batch = take(instance, runs, self._setup)
        for request in batch:
            run: SequenceRun | None = request.turn.run
            if run is not None:
                self._waiting -= 1
                request.turn.on_answer = self._answered
                if request.flags & Request.SEQUENCE_END:
                    self._remove(run)  # the slot is free for the batch after this one
        return batch

    def _in_order(self, batch: list[Request]) -> list[Request]:
        """With `preserve_ordering`, have responses sent in the order the requests are run.

        Without the lock, which must not be held while replies are sent; the instance is busy with
        this batch, so no other can come between.
        """
        if batch and self._preserve_ordering:
            order = self._orders.setdefault(batch[0].turn.instance, OrderKeeper())
            for request in batch:
                if not request.turn.is_filler and not request.turn.repeated:
                    order.join(request)
        return batch

    def finished(self, batch: Sequence[Request]) -> None:
        """An instance has executed `batch`; the next requests of its sequences may run."""
        dropped: Dropped = []
        with self._lock:
            instance: InstanceSlots = batch[0].turn.instance
            instance.busy = False
            now_ns = self._clock()
            for request in batch:
                turn: SequenceTurn = request.turn
                run = turn.run
                if run is None:
                    continue
                if self._setup.waits_for_answers and not turn.again:
                    turn.left_open = request.state is not State.DONE
                    if turn.left_open:
                        continue  # `_answered` continues
                run.executing = False
                if turn.again:
                    dropped += self._repeat(run, request)
                if run.instance is not None:
                    self._rest(run, now_ns)
            instance.changed.notify()
            on_arrival = self._on_arrival if self._waiting else None
        self._drop(dropped)
        if on_arrival is not None:
            on_arrival()

    def _answered(self, request: Request) -> None:
        """A response that came after its execution is complete."""
        with self._lock:
            turn: SequenceTurn = request.turn
            run = turn.run
            if run is None or not turn.left_open:
                return
            turn.left_open = run.executing = False
            if run.instance is not None:
                self._rest(run, self._clock())
            on_arrival = self._on_arrival if self._waiting else None
        if on_arrival is not None:
            on_arrival()

    def _repeat(self, run: SequenceRun, request: Request) -> Dropped:
        """Queue a request again, ahead of later ones. The lock is held."""
        if run.instance is None or request.cancelled:
            return [(request, _cancelled(request)), *self._empty(run)]
        request.flags = 0
        request.queued_ns = self._clock()
        request.state = State.QUEUED
        request.on_cancel = partial(self._cut_off, run)
        run.waiting.appendleft(request)
        self._waiting += 1
        return []

    def _rest(self, run: SequenceRun, now_ns: int) -> None:
        """A request of `run`, which has a slot, is done: offer the next one, or be idle."""
        if run.waiting:
            self._make_ready(run, now_ns)
        elif self._closed or self._setup.iterative:
            self._remove(run)
        else:
            self._idle.rest(run, now_ns)
            self._set_timer(self._idle.next_ns())

    # ---- the ends of sequences

    def _remove(self, run: SequenceRun) -> None:
        """End `run`, which has nothing waiting, and reassign its slot. The lock is held."""
        self._idle.stir(run)
        instance = run.instance
        promoted = self._table.remove(run)
        if promoted is not None:
            self._make_ready(promoted, self._clock())
        if instance is not None and (instance.retiring or self._closed):
            instance.changed.notify()  # this may have been the last sequence

    def _empty(self, run: SequenceRun) -> Dropped:
        """End `run` at once; returns its waiting requests with errors. The lock is held."""
        dropped: Dropped = [(request, _cancelled(request)) for request in run.waiting]
        self._waiting -= len(run.waiting)
        run.waiting.clear()
        self._remove(run)
        return dropped

    def _cut_off(self, run: SequenceRun) -> None:
        """A waiting request was cancelled: the rest of its sequence is cancelled, too."""
        with self._lock:
            dropped = self._empty(run) if run.waiting else []
            on_arrival = self._on_arrival if self._waiting else None
        self._drop(dropped)
        if on_arrival is not None:
            on_arrival()

    def _set_timer(self, when_ns: int | None) -> None:
        if when_ns is not None and (self._timer_at_ns is None or when_ns < self._timer_at_ns):
            self._timer_at_ns = when_ns
            self._timer.at(when_ns, self.expire)

    def expire(self) -> None:
        """End sequences that have been idle, or have waited for a slot, for too long."""
        dropped: Dropped = []
        text = "timeout of the corresponding sequence has been expired"
        with self._lock:
            self._timer_at_ns = None
            now_ns = self._clock()
            for run in self._idle.over(now_ns):
                self._remove(run)
            for run in expired(self._table.backlog, now_ns):
                dropped += [(request, QueueRejected(text)) for request, _ in self._empty(run)]
            self._set_timer(self._idle.next_ns())
            self._set_timer(next_expiry_ns(self._table.backlog))
            on_arrival = self._on_arrival if self._waiting else None
        self._drop(dropped)
        if on_arrival is not None:
            on_arrival()

    def _drop(self, dropped: Iterable[tuple[Request, ShoalError]]) -> None:
        for request, error in dropped:
            request.state = State.DONE
            request.on_cancel = None
            self._on_dropped(request, error)

    # ---- the end of the model

    def wake(self) -> None:
        """Make every waiting instance check again whether to stop."""
        with self._lock:
            for puller, instance in self._instances.items():
                if puller.stopping and not instance.retiring:
                    self._table.retire(instance)
            self._notify_all()

    def refuse_new(self) -> None:
        """Take no new sequences; those that have begun may continue."""
        with self._lock:
            self._admission.refuses_new = True

    def close(self) -> None:
        """Refuse new requests. Those already queued are served first, then instances stop."""
        with self._lock:
            self._closed = True
            self._on_arrival = None
            for run in self._idle.resting():  # they get no more requests
                self._remove(run)
            self._notify_all()

    def _notify_all(self) -> None:
        for instance in self._instances.values():
            instance.changed.notify_all()


def _cancelled(request: Request) -> Cancelled:
    return Cancelled(request.log_prefix() + "Request cancelled")
