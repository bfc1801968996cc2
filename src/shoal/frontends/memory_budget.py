"""How much memory all clients together may occupy with what they send and do not read.

a large request arrives --> unfinished --> held until it is answered and freed
a response that its client does not read --> queued
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np

from shoal.core.buffers import BufferPool


class MemoryBudget:
    """What the requests and responses of all connections may occupy, in both directions.

    Small ones do not count: their number is bounded by that of connections and streams. For the
    event loop's thread.
    """

    def __init__(self, max_bytes: int, pool: BufferPool) -> None:
        self.max_bytes = max_bytes
        self.pool = pool
        self.unfinished_bytes = 0  # of large requests that are still arriving
        self.queued_bytes = 0  # of responses that clients do not take
        self._held_bytes = 0  # of large requests that are still in use
        # Buffers are freed on any thread: their sizes are subtracted on the loop's.
        self._freed: deque[int] = deque()
        self._holds: dict[int, _Hold] = {}

    @property
    def held_bytes(self) -> int:
        """What large requests occupy that have arrived and are still in use."""
        freed = self._freed
        while freed:
            self._held_bytes -= freed.popleft()
        return self._held_bytes

    def used_bytes(self) -> int:
        """What all of them occupy, for metrics: any thread may call it, and nothing changes."""
        freed = sum(self._freed.copy())
        return max(0, self.unfinished_bytes + self.queued_bytes + self._held_bytes - freed)

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes more may be buffered."""
        used = self.unfinished_bytes + self.queued_bytes + self.held_bytes
        return used + size <= self.max_bytes

    def hold(self, request: memoryview) -> None:
        """Count a request, whose memory is that of an array, until nothing refers to it."""
        size = request.nbytes
        hold = _Hold(request.obj, self._free)  # type: ignore[arg-type]
        hold.size = size
        self._holds[id(hold)] = hold
        self._held_bytes += size

    def _free(self, hold: weakref.ref[np.ndarray]) -> None:
        assert isinstance(hold, _Hold)
        del self._holds[id(hold)]
        self._freed.append(hold.size)

    @property
    def refusal(self) -> str:
        """The error for a client for which there is no room."""
        return (
            f"the server has buffered as much as it may for all clients, {self.max_bytes} bytes; "
            f"try again later, or raise the limit with --max-buffered-bytes"
        )


class _Hold(weakref.ref[np.ndarray]):
    """Counts a request as freed when its memory is."""

    __slots__ = ("size",)

    size: int
