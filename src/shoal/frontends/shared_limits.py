"""Limits of connections and memory that hold for all front-end processes together.

As those of one process; in addition, each process shows the others what its clients occupy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from shoal.core.buffers import BufferPool
from shoal.frontends.client_limits import ClientLimits, ConnectionLimits
from shoal.frontends.memory_budget import MemoryBudget
from shoal.link.counters import COUNT, ServerCounter, SharedCounters, SharedRow

# Fields of the server's counters.
CONNECTIONS, BUFFERED_BYTES, READ_AHEAD_BYTES, ACCEPTED = range(4)
_SHOW_SECS = 0.02  # between two looks at what was freed
_TOLERATED_PART = 8  # of a process's connections: a lead of this part does not matter
_RECENT_SECS = 0.02  # connections that end so quickly need not be spread
_MOST_LEAD = 16  # over a process that accepts connections at all


class Spread:
    """Compares this process's connections with those of the others. For the loop's thread."""

    def __init__(self, counter: ServerCounter, clock: Callable[[], float] = time.monotonic) -> None:
        self._counter = counter
        self._clock = clock
        self._own = 0
        self._ended = 0  # connections since `_since`
        self._since = 0.0
        self._stopped: dict[int, float] = {}  # processes that do not accept, with their connections

    def set(self, own: int) -> None:
        """`own` is the number of this process's connections, open or being opened."""
        self._own = own
        self._counter.set(own)

    def ended(self) -> None:
        """A connection that was open has ended."""
        past_secs = self._clock() - self._since
        if past_secs > _RECENT_SECS:
            self._since += past_secs
            self._ended = self._ended // 2 if past_secs < 2 * _RECENT_SECS else 0
        self._ended += 1

    def lead(self) -> int:
        """How many more it has than the process with the fewest, beyond what does not matter: an
        eighth, and as many as have just ended."""
        own = self._own - self._own // _TOLERATED_PART
        if self._ended and self._clock() - self._since <= _RECENT_SECS:
            own -= self._ended
        most = 0
        for process, count in enumerate(self._counter.others()):
            if process in self._stopped:
                if self._stopped[process] == count:
                    continue
                del self._stopped[process]
            most = max(most, own - int(count))
        return min(most, _MOST_LEAD)

    def not_accepted_elsewhere(self) -> None:
        """A connection was left to those that have fewer, and is still there: wait no more for
        those that have the fewest, until their number changes."""
        own = self._own - self._own // _TOLERATED_PART
        for process, count in enumerate(self._counter.others()):
            if own - count >= _MOST_LEAD:
                self._stopped[process] = count


class SharedConnectionLimits(ConnectionLimits):
    """Counts the connections of all processes. For the event loop's thread."""

    shared = True

    def __init__(
        self,
        counters: SharedCounters,
        max_connections: int,
        max_per_address: int,
        most_here: int,
    ) -> None:
        """This process cannot have more than `most_here` connections; 0 is no limit."""
        if not max_connections:
            max_connections = most_here * counters.processes
        super().__init__(max_connections, max_per_address)
        self._counters = counters
        self._all = counters.of_server(CONNECTIONS)
        self._spread = Spread(counters.of_server(ACCEPTED))
        self._opening = 0
        # Connections elsewhere that have the same effect as the limit of this process.
        self._least_elsewhere = max_connections - most_here if most_here else 0
        self._rows: dict[str, SharedRow] = {}  # of addresses that are connected here

    def opening(self, by: int) -> None:
        """See `ConnectionLimits`."""
        self._opening += by
        self._spread.set(self._count + self._opening)

    def lead(self) -> int:
        """See `ConnectionLimits`."""
        return self._spread.lead()

    def not_accepted_elsewhere(self) -> None:
        """See `ConnectionLimits`."""
        self._spread.not_accepted_elsewhere()

    def _total(self) -> int:
        return max(self._all.total(), self._count + self._least_elsewhere)

    def _from(self, address: str) -> int:
        row = self._rows.get(address) or SharedRow(self._counters, f"address {address}")
        return int(sum(row.read()[: self._counters.processes]))

    def _change(self, address: str, by: int) -> None:
        super()._change(address, by)
        self._all.set(self._count)
        self._spread.set(self._count + self._opening)
        if by < 0:
            self._spread.ended()
        if self._max_per_address and address:
            row = self._rows.get(address)
            if row is None:
                row = self._rows[address] = SharedRow(self._counters, f"address {address}")
            row.read()
            row.add(COUNT, by)
            if address not in self._by_address:
                del self._rows[address]


class SharedMemoryBudget(MemoryBudget):
    """Bounds the memory of all processes' clients. For the event loop's thread."""

    def __init__(self, max_bytes: int, pool: BufferPool, counter: ServerCounter) -> None:
        super().__init__(max_bytes, pool)
        self._counter = counter
        self._shows_later = False

    def has_room(self, size: int) -> bool:
        """See `MemoryBudget`."""
        self._show()
        return self._counter.total() + size <= self.max_bytes

    def _show(self) -> None:
        """Show the others what is in use, also when that is freed."""
        used = self.unfinished_bytes + self.queued_bytes + self.held_bytes
        self._counter.set(used)
        if used and not self._shows_later:
            self._shows_later = True
            asyncio.get_running_loop().call_later(_SHOW_SECS, self._show_again)

    def _show_again(self) -> None:
        self._shows_later = False
        self._show()


def shared_client_limits(
    counters: SharedCounters,
    *,
    max_buffered_bytes: int,
    max_connections: int,
    max_per_address: int,
    most_here: int,
    pool: BufferPool,
) -> ClientLimits:
    """The limits of one process of several."""
    return ClientLimits(
        SharedMemoryBudget(max_buffered_bytes, pool, counters.of_server(BUFFERED_BYTES)),
        SharedConnectionLimits(counters, max_connections, max_per_address, most_here),
    )
