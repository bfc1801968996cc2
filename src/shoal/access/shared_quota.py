"""Quotas that hold for all front-end processes together.

    SharedCaller.admit --> what all processes have used --> Caller.admit --> what this one has used

What the others use at the same moment is not seen, so a quota may be exceeded by one request for
each of them. That is counted, too: over any longer time the quota holds exactly.
"""

from __future__ import annotations

import math
from typing import Any

from shoal.access.caller import Caller, Quota
from shoal.link.counters import (
    BYTES_SINCE,
    BYTES_SPENT,
    COUNT,
    SINCE,
    SPENT,
    SharedCounters,
    SharedRow,
)


class SharedQuota(Quota):
    """A quota whose use is counted in shared memory, under a name."""

    __slots__ = ("_bytes_since_ns", "_processes", "_row", "_since_ns")

    def __init__(self, counters: SharedCounters, name: str, *limits: Any) -> None:
        """`limits` are those of `Quota`."""
        super().__init__(*limits)
        self._processes = counters.processes
        self._row = SharedRow(counters, name)
        self._since_ns = 0.0
        self._bytes_since_ns = 0.0

    def load(self, now_ns: int) -> None:
        """Set the fields of `Quota` to what all processes have used."""
        row, count = self._row.read(), self._processes
        if self.interval_ns:
            spent_ns = sum(row[SPENT * count : SINCE * count])
            latest_ns = max(row[SINCE * count : (SINCE + 1) * count])
            since_ns = self._since_ns = max(latest_ns, now_ns - spent_ns)
            self.due_ns = since_ns + spent_ns
        if self.byte_ns:
            spent_ns = sum(row[BYTES_SPENT * count : BYTES_SINCE * count])
            latest_ns = max(row[BYTES_SINCE * count :])
            since_ns = self._bytes_since_ns = max(latest_ns, now_ns - spent_ns)
            self.bytes_due_ns = since_ns + spent_ns
        self.in_flight = int(sum(row[:count]))

    def take(self, size: int) -> None:
        """Count a request that was admitted; after `load`."""
        row = self._row
        if self.interval_ns:
            row.put(SINCE, self._since_ns)
            row.add(SPENT, self.interval_ns)
        if self.byte_ns:
            row.put(BYTES_SINCE, self._bytes_since_ns)
            row.add(BYTES_SPENT, size * self.byte_ns)
        if self.most_in_flight < math.inf:
            row.add(COUNT, 1)

    def spend_bytes(self, size: int) -> None:
        """Count bytes of a response."""
        if self.byte_ns:
            if not self._row.is_current:
                self._row.read()
            self._row.add(BYTES_SPENT, size * self.byte_ns)

    def release(self) -> None:
        """A request that was admitted has its response."""
        if self.most_in_flight < math.inf:
            self._row.add(COUNT, -1)


class SharedCaller(Caller):
    """A client with such a quota."""

    __slots__ = ("_shared",)

    def __init__(self, name: str, *, quota: SharedQuota, **settings: Any) -> None:
        super().__init__(name, quota=quota, **settings)
        self._shared = quota

    def admit(self, size: int, now_ns: int) -> bool:
        """See `Caller`."""
        self._shared.load(now_ns)
        if not super().admit(size, now_ns):
            return False
        self._shared.take(size)
        return True

    def sent(self, size: int) -> None:
        """See `Caller`."""
        super().sent(size)
        self._shared.spend_bytes(size)

    def end(self) -> None:
        """See `Caller`."""
        super().end()
        self._shared.release()

    def finish(self, size: int) -> None:
        """See `Caller`."""
        super().finish(size)
        self._shared.spend_bytes(size)
        self._shared.release()
