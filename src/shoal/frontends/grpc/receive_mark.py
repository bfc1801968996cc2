"""Waking up once for a large message: when the rest of it has arrived, or after a few milliseconds.

    message of known size --expect(missing)--> SO_RCVLOWAT --it is there, or time is up--> read

A client that writes a large message in pieces would wake the server for each of them. Until the
mark is reached, the kernel also acknowledges by itself what arrives: otherwise a client whose
congestion window is smaller than its message waits until the server has read the first part.

What stands between the parts of a message (a ping, a cancellation, a call of another stream) waits
with it. So a mark is removed after some milliseconds, and a client whose messages take longer gets
none for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time

LEAST_BYTES = 32 << 10  # of a message that are missing: below it, one read more costs less
MOST_BYTES = 1 << 20  # for which to wait; more is read in parts
TICK_SECS = 0.004  # a mark stays for one to two of these
_SHORTEST_PAUSE_SECS = 0.1
_LONGEST_PAUSE_SECS = 10.0
_SUPPORTED = sys.platform == "linux"  # elsewhere the receive buffer may be smaller than the mark


class ReceiveMarks:
    """The marks of one event loop's connections, and the timer that removes them."""

    def __init__(self) -> None:
        self._recent: set[ReceiveMark] = set()  # set since the last tick
        self._older: set[ReceiveMark] = set()
        self._timer: asyncio.TimerHandle | None = None

    def of(self, transport: asyncio.BaseTransport | None) -> ReceiveMark:
        """The mark of a connection; without effect for TLS, whose records are not read as they
        arrive, for Unix sockets, and where the system has no such mark."""
        found = None if transport is None else transport.get_extra_info("socket")
        if (
            not _SUPPORTED
            or found is None
            or found.family not in (socket.AF_INET, socket.AF_INET6)
            or transport is None
            or transport.get_extra_info("sslcontext") is not None
        ):
            return ReceiveMark(self, None)
        # That of uvloop makes such an object for each call.
        own = socket.socket(found.family, found.type, found.proto, fileno=found.fileno())
        return ReceiveMark(self, own)

    def add(self, mark: ReceiveMark) -> None:
        """Remove `mark` in a while."""
        self._recent.add(mark)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECS, self._tick)

    def discard(self, mark: ReceiveMark) -> None:
        """`mark` is not set any more."""
        self._recent.discard(mark)
        self._older.discard(mark)

    def _tick(self) -> None:
        late, self._older, self._recent = self._older, self._recent, set()
        self._timer = None
        if self._older:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECS, self._tick)
        for mark in late:
            mark.expire()


class ReceiveMark:
    """How much has to arrive on one connection before the event loop reads it."""

    __slots__ = ("_marks", "_not_before", "_pause_secs", "_socket", "size")

    def __init__(self, marks: ReceiveMarks, own: socket.socket | None) -> None:
        """`own` is closed by the caller; None: there is no mark."""
        self.size = 0  # 0: everything is read as it arrives
        self._marks = marks
        self._socket = own
        self._pause_secs = 0.0
        self._not_before = 0.0

    def expect(self, missing: int) -> None:
        """At least `missing` bytes have to arrive before anything can be done with them; few or
        none: read as they arrive."""
        if missing < LEAST_BYTES:
            if self.size:
                self._pause_secs /= 2
                self._remove()
            return
        size = min(missing, MOST_BYTES)
        if size == self.size or self._socket is None:
            return
        if self._pause_secs and not self.size and time.monotonic() < self._not_before:
            return
        self._set(size)
        self.size = size
        self._marks.add(self)

    def expire(self) -> None:
        """The message did not arrive in time: read what there is."""
        self._pause_secs = min(max(2 * self._pause_secs, _SHORTEST_PAUSE_SECS), _LONGEST_PAUSE_SECS)
        self._not_before = time.monotonic() + self._pause_secs
        self._remove()

    def close(self) -> None:
        """The connection is about to be closed."""
        self._marks.discard(self)
        own, self._socket = self._socket, None
        if own is not None:
            own.detach()

    def _remove(self) -> None:
        self._marks.discard(self)
        self.size = 0
        self._set(1)

    def _set(self, size: int) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the client has left
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
