"""A pool of connections; the last one returned is reused first.

An idle connection is taken from a list, which needs no lock; only waiting needs one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from shoal.client.errors import ClientError, Timeout


class Closable(Protocol):
    """A connection."""

    def close(self) -> None:
        """Close it. May be called repeatedly."""


C = TypeVar("C", bound=Closable)


class Pool(Generic[C]):
    """At most `limit` connections. Thread-safe."""

    def __init__(self, connect: Callable[[], C], limit: int) -> None:
        self._connect = connect
        self._limit = limit
        self._idle: list[C] = []
        self._changed = threading.Condition()  # guards _count and _waiting
        self._count = 0
        self._waiting = 0
        self._closed = False

    def take(self, timeout_secs: float | None) -> tuple[C, bool]:
        """A connection, and whether it was used before. Raises Timeout when all stay busy."""
        try:
            return self._idle.pop(), True
        except IndexError:
            return self._other(timeout_secs)

    def fresh(self) -> C:
        """A new connection that replaces one that was dropped."""
        with self._changed:
            self._count += 1
        return self._made()

    def give_back(self, connection: C) -> None:
        """Return a connection to the pool."""
        self._idle.append(connection)
        # A waiter increments _waiting before its last look at _idle, so no wake-up is lost.
        if self._waiting or self._closed:
            self._wake()

    def drop(self, connection: C) -> None:
        """Close a connection that cannot be used again."""
        connection.close()
        with self._changed:
            self._count -= 1
            self._changed.notify()

    def close(self) -> None:
        """Close idle connections now and busy ones when they are returned."""
        self._closed = True
        self._wake()

    def _other(self, timeout_secs: float | None) -> tuple[C, bool]:
        if self._closed:
            raise ClientError("this client is closed")
        end_secs = None if timeout_secs is None else time.monotonic() + timeout_secs
        with self._changed:
            self._waiting += 1
            try:
                while self._count >= self._limit:
                    if self._closed:
                        raise ClientError("this client is closed")
                    if self._idle:
                        return self._idle.pop(), True
                    left = None if end_secs is None else end_secs - time.monotonic()
                    if left is not None and left <= 0:
                        raise Timeout(
                            f"all {self._limit} connections stayed busy for {timeout_secs:g} s; "
                            f"allow more with connections="
                        )
                    self._changed.wait(left)
                self._count += 1
            finally:
                self._waiting -= 1
        return self._made(), False

    def _made(self) -> C:
        try:
            return self._connect()
        except BaseException:
            with self._changed:
                self._count -= 1
                self._changed.notify()
            raise

    def _wake(self) -> None:
        with self._changed:
            while self._closed and self._idle:
                self._idle.pop().close()
                self._count -= 1
            if self._closed:
                self._changed.notify_all()
            else:
                self._changed.notify()
