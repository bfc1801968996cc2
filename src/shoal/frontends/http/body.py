"""The memory a request body is received into: aligned, and never far ahead of what arrived.

    socket --recv_into--> room() --filled--> view() --> the tensor, without another copy

A body of known length gets one buffer of that length, so nothing is copied; only what goes
beyond `_EAGER_BYTES` has to arrive before memory for more is made.
"""

from __future__ import annotations

from shoal.core.buffers import ALIGNMENT, pool
from shoal.frontends.http.message import HttpFault

__all__ = ["ALIGNMENT", "SMALL_BYTES", "BodyBuffer"]

SMALL_BYTES = 32 * 1024  # up to here a copy costs less than an aligned buffer
_EAGER_BYTES = 32 << 20  # allocated before any of the announced bytes arrive
_GROWTH = 4  # how far memory may run ahead of a long body


class BodyBuffer:
    """A growing buffer in which byte `aligned_at` lies on a 64-byte boundary.

    What makes memory raises HttpFault if there is none.
    """

    __slots__ = ("_aligned_at", "_expected", "_view", "filled")

    def __init__(self, aligned_at: int, expected: int | None) -> None:
        """Make room for `expected` bytes, or for a first few when the length is unknown."""
        self._aligned_at = aligned_at
        self._expected = expected
        self._view = self._aligned(SMALL_BYTES if expected is None else min(expected, _EAGER_BYTES))
        self.filled = 0

    @property
    def capacity(self) -> int:
        """How many bytes fit without making more memory."""
        return len(self._view)

    @property
    def complete(self) -> bool:
        """Whether all expected bytes have arrived."""
        return self.filled == self._expected

    def room(self) -> memoryview:
        """Where the next bytes go, at least one of them; grows when full. Not after `complete`."""
        if self.filled == len(self._view):
            self._grow(self.filled + 1)
        return self._view[self.filled :]

    def advance(self, count: int) -> None:
        """Count in what was written to `room`."""
        self.filled += count

    def append(self, data: bytes | memoryview) -> None:
        """Copy `data` to the end."""
        end = self.filled + len(data)
        if end > len(self._view):
            self._grow(end)
        self._view[self.filled : end] = data
        self.filled = end

    def take(self) -> bytes | memoryview:
        """What arrived: bytes when it is little, otherwise the buffer itself."""
        if self.filled <= SMALL_BYTES:
            return bytes(self._view[: self.filled])
        return self._view[: self.filled]

    def _grow(self, needed: int) -> None:
        capacity = max(needed, len(self._view) * _GROWTH)
        if self._expected is not None:
            capacity = min(capacity, self._expected)
        larger = self._aligned(capacity)
        larger[: self.filled] = self._view[: self.filled]
        self._view = larger

    def _aligned(self, size: int) -> memoryview:
        try:
            return pool.take(size, self._aligned_at)
        except MemoryError:
            raise HttpFault(
                503, f"no memory for {size} bytes of the body; send less at once, or retry later"
            ) from None
