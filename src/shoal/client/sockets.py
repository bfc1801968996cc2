"""Blocking sockets with a deadline, as both transports of `Client` use them."""

from __future__ import annotations

import select
import socket
import ssl
import time

from shoal.client.codec import SMALL_BYTES
from shoal.core.tensor import Buffer

RECEIVE_BYTES = 65_536
_MOST_PARTS = 512  # below what one system call takes
_IDLE_SECS = 1.0  # a connection that was idle for less is not checked before it is used


class SocketConnection:
    """One connection: a socket, and when it was last used."""

    __slots__ = ("_plain", "_timeout_secs", "socket", "used_secs")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.used_secs = time.monotonic()
        self._plain = hasattr(connection, "sendmsg") and not isinstance(connection, ssl.SSLSocket)
        self._timeout_secs = connection.gettimeout()

    def limit(self, timeout_secs: float | None) -> None:
        """How long the next operations may take; raising TimeoutError is the socket's part."""
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
        """Whether the server has closed it while it was idle, as far as one can see."""
        if time.monotonic() - self.used_secs < _IDLE_SECS:
            return False
        poller = select.poll() if hasattr(select, "poll") else None
        if poller is None:
            readable, _, _ = select.select([self.socket], [], [], 0)
            return bool(readable)
        poller.register(self.socket, select.POLLIN)
        return bool(poller.poll(0))  # nobody owes us anything, so this is the end

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def __del__(self) -> None:
        # `Client(…).infer(…)` in one line is a fine thing to write: no warning for it.
        self.socket.close()


class Deadline:
    """The end of a call's time, and how much of it is left."""

    __slots__ = ("_end_secs", "limit_secs")

    def __init__(self, limit_secs: float | None) -> None:
        self.limit_secs = limit_secs
        self._end_secs = None if limit_secs is None else time.monotonic() + limit_secs

    def left(self) -> float | None:
        """Seconds left; None: as many as it takes. Raises TimeoutError when there are none."""
        if self._end_secs is None:
            return None
        left = self._end_secs - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
