"""Sequences and slots: which sequence has which slot, which ones wait, and when they expire.

    START --> a free slot, or the end of the backlog      freed slot --> head of the backlog

No lock and no clock: the batcher guards all of this and passes the time.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from shoal.core.request import Request
from shoal.scheduler.sequence_state import SequenceStates

CorrelationId = int | str


class SequenceRun:
    """One sequence from its START on: its waiting requests, and where it runs."""

    __slots__ = (
        "correlation_id",
        "executing",
        "expires_ns",
        "instance",
        "slot",
        "states",
        "waiting",
    )

    def __init__(self, correlation_id: CorrelationId) -> None:
        self.correlation_id = correlation_id
        self.waiting: deque[Request] = deque()
        self.instance: InstanceSlots | None = None  # None: in the backlog, or ended
        self.slot = -1
        self.executing = False
        self.states: SequenceStates | None = None
        self.expires_ns: int | None = None  # in the backlog: when it times out


class InstanceSlots:
    """One instance's slots."""

    __slots__ = ("busy", "changed", "order", "ready", "retiring", "slots")

    def __init__(self, slots: int, changed: threading.Condition) -> None:
        """`changed` is notified when there may be something to run."""
        self.slots: list[SequenceRun | None] = [None] * slots
        # Sequences whose next request may run, with the time since when: oldest first.
        self.ready: dict[SequenceRun, int] = {}
        self.busy = False  # executing a batch
        self.retiring = False  # keeps its sequences until they end, and takes no new ones
        self.order = 0
        self.changed = changed

    @property
    def occupied(self) -> bool:
        """Whether any sequence has a slot here."""
        return any(run is not None for run in self.slots)

    def runs(self) -> Iterator[SequenceRun]:
        """The sequences that have a slot here, by slot."""
        return (run for run in self.slots if run is not None)


class SequenceTable:
    """Every sequence of one model that has not ended."""

    def __init__(self, slots_per_instance: int) -> None:
        self._slots_per_instance = slots_per_instance
        self._open: dict[CorrelationId, SequenceRun] = {}  # those that have not got their END
        self._free: list[
            tuple[int, int, InstanceSlots]
        ] = []  # a heap: low slots of all instances first
        self._backlog: dict[SequenceRun, None] = {}  # in the order of arrival
        self._instances_made = 0

    @property
    def backlog(self) -> list[SequenceRun]:
        """The sequences that wait for a slot, oldest first."""
        return list(self._backlog)

    @property
    def has_backlog(self) -> bool:
        """Whether any sequence waits for a slot."""
        return bool(self._backlog)

    def find(self, correlation_id: CorrelationId) -> SequenceRun | None:
        """The sequence that a request with this id would continue."""
        return self._open.get(correlation_id)

    def start(self, correlation_id: CorrelationId) -> SequenceRun:
        """A new sequence, in the lowest free slot or else in the backlog.

        One that has the same id and is still open must have been ended before.
        """
        run = SequenceRun(correlation_id)
        self._open[correlation_id] = run
        if self._free:
            slot, _, instance = heapq.heappop(self._free)
            _seat(run, instance, slot)
        else:
            self._backlog[run] = None
        return run

    def end(self, run: SequenceRun) -> None:
        """No further request joins `run`: its id may begin another sequence at once."""
        if self._open.get(run.correlation_id) is run:
            del self._open[run.correlation_id]

    def remove(self, run: SequenceRun) -> SequenceRun | None:
        """Remove `run`; returns the sequence that gets its slot, if one was waiting.

        Requests that still wait in `run` are the caller's to answer.
        """
        self.end(run)
        self._backlog.pop(run, None)
        instance, slot = run.instance, run.slot
        run.instance = None
        if instance is None:
            return None
        instance.slots[slot] = None
        instance.ready.pop(run, None)
        return None if instance.retiring else self._fill(instance, slot)

    def add_instance(self, instance: InstanceSlots) -> list[SequenceRun]:
        """Offer a new instance's slots; returns the waiting sequences that got one."""
        instance.order = self._instances_made
        self._instances_made += 1
        seated = [self._fill(instance, slot) for slot in range(self._slots_per_instance)]
        return [run for run in seated if run is not None]

    def retire(self, instance: InstanceSlots) -> None:
        """Assign no more slots of `instance`; its sequences keep theirs until they end."""
        instance.retiring = True
        self._free = [entry for entry in self._free if entry[2] is not instance]
        heapq.heapify(self._free)

    def _fill(self, instance: InstanceSlots, slot: int) -> SequenceRun | None:
        """Give a free slot to the head of the backlog, or record that the slot is free."""
        run = next(iter(self._backlog), None)
        if run is None:
            heapq.heappush(self._free, (slot, instance.order, instance))
            return None
        del self._backlog[run]
        _seat(run, instance, slot)
        return run


def _seat(run: SequenceRun, instance: InstanceSlots, slot: int) -> None:
    run.instance, run.slot, run.expires_ns = instance, slot, None
    instance.slots[slot] = run


class IdleSequences:
    """Sequences with nothing waiting and nothing running, those idle longest first."""

    def __init__(self, max_idle_ns: int) -> None:
        self._max_idle_ns = max_idle_ns
        self._since: dict[SequenceRun, int] = {}  # the time allowed is the same for all

    def rest(self, run: SequenceRun, now_ns: int) -> None:
        """`run` is idle from now on."""
        self._since[run] = now_ns

    def stir(self, run: SequenceRun) -> None:
        """`run` is no longer idle, or has ended."""
        self._since.pop(run, None)

    def resting(self) -> list[SequenceRun]:
        """All of them."""
        return list(self._since)

    def over(self, now_ns: int) -> list[SequenceRun]:
        """Those that have been idle for too long."""
        found = []
        for run, since_ns in self._since.items():
            if since_ns + self._max_idle_ns > now_ns:
                break
            found.append(run)
        return found

    def next_ns(self) -> int | None:
        """When the first of them will have been idle for too long."""
        since_ns = next(iter(self._since.values()), None)
        return None if since_ns is None else since_ns + self._max_idle_ns


def limit_wait(run: SequenceRun, request: Request) -> int | None:
    """A request's own time-out ends its whole sequence's wait for a slot; returns when.

    The earliest of a sequence's time-outs decides. None where the request changes nothing.
    """
    if not request.timeout_us:
        return None
    expires_ns = request.queued_ns + request.timeout_us * 1000
    if run.expires_ns is not None and run.expires_ns <= expires_ns:
        return None
    run.expires_ns = expires_ns
    return expires_ns


def expired(backlog: Sequence[SequenceRun], now_ns: int) -> list[SequenceRun]:
    """The sequences of the backlog that have timed out."""
    return [run for run in backlog if run.expires_ns is not None and run.expires_ns <= now_ns]


def next_expiry_ns(backlog: Sequence[SequenceRun]) -> int | None:
    """When the next sequence of the backlog times out."""
    return min((run.expires_ns for run in backlog if run.expires_ns is not None), default=None)
