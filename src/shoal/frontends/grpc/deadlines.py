"""The deadlines of all open calls: one heap and one timer, however many calls there are.

A call that ends early leaves its entry in the heap until it is the first; when such entries are the
majority, the heap is built anew without them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

_REBUILD_FROM = 1_024


class Expiring(Protocol):
    """Something that has a deadline."""

    @property
    def deadline_pending(self) -> bool:
        """Whether it still waits for its deadline."""

    def expire(self) -> None:
        """The deadline has passed."""


class Deadlines:
    """`earlier` is called with the next deadline, in ns, whenever that becomes earlier."""

    def __init__(self, earlier: Callable[[int], None]) -> None:
        self._earlier = earlier
        self._heap: list[tuple[int, int, Expiring]] = []
        self._added = 0  # breaks ties
        self._stale = 0

    def __len__(self) -> int:
        """How many deadlines are pending."""
        return len(self._heap) - self._stale

    def add(self, deadline_ns: int, call: Expiring) -> None:
        """Call `expire` once `deadline_ns` has passed, unless it is no longer pending then."""
        heap = self._heap
        earliest = not heap or deadline_ns < heap[0][0]
        self._added += 1
        heapq.heappush(heap, (deadline_ns, self._added, call))
        if earliest:
            self._earlier(deadline_ns)

    def met(self) -> None:
        """Some call that was added has ended before its deadline."""
        self._stale += 1
        self._drop_stale_heads()
        if self._stale > _REBUILD_FROM and self._stale * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].deadline_pending]
            heapq.heapify(self._heap)
            self._stale = 0

    def expire(self, now_ns: int) -> int | None:
        """Expire what is due; returns the next deadline."""
        due: list[Expiring] = []
        self._drop_stale_heads()
        while self._heap and self._heap[0][0] <= now_ns:
            due.append(heapq.heappop(self._heap)[2])
            self._drop_stale_heads()
        for call in due:
            if call.deadline_pending:
                call.expire()
            else:  # one of the others ended it, and `met` took it for one in the heap
                self._stale -= 1
        return self._heap[0][0] if self._heap else None

    def _drop_stale_heads(self) -> None:
        heap = self._heap
        while heap and not heap[0][2].deadline_pending:
            heapq.heappop(heap)
            self._stale -= 1
