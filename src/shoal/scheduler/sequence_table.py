"""Who is where: which sequence has which slot of which instance, and who waits for one.

    START --> a free slot, or the end of the backlog      slot given back --> head of the backlog

No lock and no clock: the batcher guards the table and tells it what happened.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Iterator

from shoal.core.request import Request
from shoal.scheduler.sequence_state import SequenceStates

CorrelationId = int | str


class SequenceRun:
    """One sequence from its START on: what waits, and where it runs."""

    __slots__ = (
        "correlation_id",
        "executing",
        "expires_ns",
        "lane",
        "slot",
        "states",
        "waiting",
    )

    def __init__(self, correlation_id: CorrelationId) -> None:
        self.correlation_id = correlation_id
        self.waiting: deque[Request] = deque()
        self.lane: Lane | None = None  # None: in the backlog, or over
        self.slot = -1
        self.executing = False
        self.states: SequenceStates | None = None
        self.expires_ns: int | None = None  # in the backlog: when it gives up


class Lane:
    """One instance's slots."""

    __slots__ = ("busy", "changed", "order", "ready", "retiring", "slots")

    def __init__(self, slots: int, changed: threading.Condition) -> None:
        """`changed` is told when there may be something to run."""
        self.slots: list[SequenceRun | None] = [None] * slots
        # Sequences whose next request may run, with the time from when on: longest first.
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
    """Every sequence of one model that is not over."""

    def __init__(self, slots_per_lane: int) -> None:
        self._slots_per_lane = slots_per_lane
        self._open: dict[CorrelationId, SequenceRun] = {}  # those whose END has not come
        self._free: list[tuple[int, int, Lane]] = []  # a heap: low slots of all lanes first
        self._backlog: dict[SequenceRun, None] = {}  # in the order they came
        self._lanes_made = 0

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
            slot, _, lane = heapq.heappop(self._free)
            _seat(run, lane, slot)
        else:
            self._backlog[run] = None
        return run

    def end(self, run: SequenceRun) -> None:
        """No further request joins `run`: its id may begin another sequence at once."""
        if self._open.get(run.correlation_id) is run:
            del self._open[run.correlation_id]

    def remove(self, run: SequenceRun) -> SequenceRun | None:
        """Take `run` out for good; returns the sequence that gets its slot, if one was waiting.

        What still waits in `run` is the caller's to answer.
        """
        self.end(run)
        self._backlog.pop(run, None)
        lane, slot = run.lane, run.slot
        run.lane = None
        if lane is None:
            return None
        lane.slots[slot] = None
        lane.ready.pop(run, None)
        return None if lane.retiring else self._fill(lane, slot)

    def add_lane(self, lane: Lane) -> list[SequenceRun]:
        """Offer a new instance's slots; returns the waiting sequences that got one."""
        lane.order = self._lanes_made
        self._lanes_made += 1
        seated = [self._fill(lane, slot) for slot in range(self._slots_per_lane)]
        return [run for run in seated if run is not None]

    def retire(self, lane: Lane) -> None:
        """Give no more slots of `lane` away; those that are taken stay so until they are free."""
        lane.retiring = True
        self._free = [entry for entry in self._free if entry[2] is not lane]
        heapq.heapify(self._free)

    def _fill(self, lane: Lane, slot: int) -> SequenceRun | None:
        """Seat the head of the backlog in a free slot, or remember that the slot is free."""
        run = next(iter(self._backlog), None)
        if run is None:
            heapq.heappush(self._free, (slot, lane.order, lane))
            return None
        del self._backlog[run]
        _seat(run, lane, slot)
        return run


def _seat(run: SequenceRun, lane: Lane, slot: int) -> None:
    run.lane, run.slot, run.expires_ns = lane, slot, None
    lane.slots[slot] = run
