"""What all clients together may occupy: memory, and connections in all and from one address.

    connection made --admit--> "" or why not      connection lost --leave-->

Each connection uses a file descriptor. Without a limit, a client that opens connections until
there are none left would keep models from being loaded, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.core import buffers
from shoal.core.buffers import BufferPool
from shoal.frontends.memory_budget import MemoryBudget

_log = logging.getLogger(__name__)

_WARNING_SECS = 60.0  # between two of them
_MOST_REFUSED = 64  # connections at a time that are told why; others are cut
_RESERVED_FILES = 256  # for models, logs, processes of instances and the connections to them


class ConnectionLimits:
    """Counts connections. A limit of 0 is none. For the event loop's thread."""

    shared = False  # whether they hold for several processes

    def __init__(
        self,
        max_connections: int = 0,
        max_per_address: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._clock = clock
        self._warned = -_WARNING_SECS
        self._count = 0
        self.refused = 0  # so far
        self._by_address: dict[str, int] = {}  # only if that is limited

    @property
    def count(self) -> int:
        """How many connections there are."""
        return self._count

    @property
    def max_connections(self) -> int:
        """How many there may be; 0: no limit."""
        return self._max_connections

    def admit(self, address: str) -> str:
        """Count a connection from `address` (empty: a Unix socket); returns why it may not stay.

        It is counted in either case, until `leave`. The log has the first refusal of a minute.
        """
        refusal = self._refusal(address)
        if refusal:
            self.refused += 1
            if self._clock() - self._warned >= _WARNING_SECS:
                self._warned = self._clock()
                _log.warning("a connection was refused: %s", refusal)
        return refusal

    def _refusal(self, address: str) -> str:
        self._change(address, 1)
        if self._max_per_address and address and self._from(address) > self._max_per_address:
            return (
                f"{address} has more than {self._max_per_address} connections; use fewer, or "
                f"raise the limit with --max-connections-per-address"
            )
        if self._max_connections and self._total() > self._max_connections:
            return (
                f"the server has more than {self._max_connections} connections; try again later, "
                f"or raise the limit with --max-connections"
            )
        return ""

    def has_room(self, address: str, waiting: int, waiting_here: int) -> bool:
        """Whether one more connection could be admitted beside `waiting` that are not counted yet,
        `waiting_here` of them from this address."""
        if self._max_connections and self._total() + waiting >= self._max_connections:
            return False
        if not self._max_per_address or not address:
            return True
        return self._from(address) + waiting_here < self._max_per_address

    @property
    def crowded(self) -> bool:
        """Whether there are too many to tell another one that there are too many."""
        most = self._max_connections
        return bool(most) and self._total() > most + _MOST_REFUSED

    def leave(self, address: str) -> None:
        """A connection that was counted is lost."""
        self._change(address, -1)

    def opening(self, by: int) -> None:
        """`by` more connections are accepted and not counted yet; below zero: they are counted
        now, or have ended."""

    def lead(self) -> int:
        """How many more connections this process has than another one that accepts from its
        sockets; 0 where the difference is small."""
        return 0

    def not_accepted_elsewhere(self) -> None:
        """A connection was left to the others, and none has accepted it."""

    def _change(self, address: str, by: int) -> None:
        self._count += by
        if self._max_per_address and address:
            count = self._by_address.get(address, 0) + by
            if count:
                self._by_address[address] = count
            else:
                del self._by_address[address]

    def _total(self) -> int:
        """How many connections there are, to compare with the limit."""
        return self._count

    def _from(self, address: str) -> int:
        """How many there are from an address, where that is limited."""
        return self._by_address.get(address, 0)


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What the ports for inference share. The metrics and health ports do not: they must answer
    when these limits are reached."""

    memory: MemoryBudget
    connections: ConnectionLimits

    @classmethod
    def of(
        cls,
        max_buffered_bytes: int,
        max_connections: int = 0,
        max_per_address: int = 0,
        pool: BufferPool = buffers.pool,
    ) -> ClientLimits:
        """Limits with nothing counted yet. Large requests are received into memory of `pool`."""
        return cls(
            MemoryBudget(max_buffered_bytes, pool),
            ConnectionLimits(max_connections, max_per_address),
        )


def most_connections() -> int:
    """As many as the process may open files, less a reserve; 0 if there is no such limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 0
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return 0
    return max(files - _RESERVED_FILES, files // 2)
