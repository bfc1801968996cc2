"""Blocking sockets with a deadline, for both transports of `Client`."""

from __future__ import annotations

import select
import socket
import ssl
import time

from shoal.client.codec import SMALL_BYTES
from shoal.core.tensor import Buffer

RECEIVE_BYTES = 65_536
_MOST_PARTS = 512  # below the limit of one system call
_IDLE_SECS = 1.0  # connections idle for less than this are not checked before use


class SocketConnection:
    """One connection: a socket, and when it was last used."""

    __slots__ = ("_plain", "_timeout_secs", "socket", "used_secs")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.used_secs = time.monotonic()
        self._plain = hasattr(connection, "sendmsg") and not isinstance(connection, ssl.SSLSocket)
        self._timeout_secs = connection.gettimeout()

    def limit(self, timeout_secs: float | None) -> None:
        """Set the time-out of the next operations; the socket raises TimeoutError."""
        if timeout_secs != self._timeout_secs:  # setting it is a system call
            self.socket.settimeout(timeout_secs)
            self._timeout_secs = timeout_secs

    def send(self, parts: list[Buffer], size: int) -> None:
        """Send all of it. Raises OSError."""
        if size <= SMALL_BYTES or not self._plain:
            self.socket.sendall(parts[0] if len(parts) == 1 else b"".join(parts))
            return
        left = [memoryview(part).cast("B") for part in parts if len(part)]
        while left:
            sent = self.socket.sendmsg(left[:_MOST_PARTS])
            done = 0
            for part in left:
                if sent < len(part):
                    break
                sent -= len(part)
                done += 1
            del left[:done]
            if sent:
                left[0] = left[0][sent:]

    def stale(self) -> bool:
        """Whether the server seems to have closed it while it was idle."""
        if time.monotonic() - self.used_secs < _IDLE_SECS:
            return False
        poller = select.poll() if hasattr(select, "poll") else None
        if poller is None:
            readable, _, _ = select.select([self.socket], [], [], 0)
            return bool(readable)
        poller.register(self.socket, select.POLLIN)
        return bool(poller.poll(0))  # no data is expected, so this is the end of the connection

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def __del__(self) -> None:
        # No ResourceWarning for `Client(…).infer(…)` in one line.
        self.socket.close()


class Deadline:
    """The deadline of a call."""

    __slots__ = ("_end_secs", "limit_secs")

    def __init__(self, limit_secs: float | None) -> None:
        self.limit_secs = limit_secs
        self._end_secs = None if limit_secs is None else time.monotonic() + limit_secs

    def left(self) -> float | None:
        """Seconds left; None without a limit. Raises TimeoutError when there are none."""
        if self._end_secs is None:
            return None
        left = self._end_secs - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
