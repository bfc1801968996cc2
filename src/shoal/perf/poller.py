"""Waits for sockets: epoll where available, because it costs the least, else `selectors`.

wait(timeout) --> [(file, mask), …]     mask == writable: only writable, not readable
"""

from __future__ import annotations

import select
import selectors
import sys
from typing import Protocol


class Watched(Protocol):
    """The object to call on an event."""

    def on_readable(self) -> None:
        """The file is readable."""
        ...

    def on_writable(self) -> None:
        """The file is writable."""
        ...


class SocketPoller:
    """The sockets a worker waits for, by file descriptor."""

    writable = selectors.EVENT_WRITE  # the bit of a mask for writable

    def __init__(self) -> None:
        self.watched: dict[int, Watched] = {}
        self._open()

    def watch(self, file: int, watched: Watched) -> None:
        """Watch for readable."""
        self.watched[file] = watched
        self._selector.register(file, selectors.EVENT_READ)

    def watch_writable(self, file: int, enabled: bool) -> None:
        """Also watch for writable, or stop doing so."""
        more = selectors.EVENT_WRITE if enabled else 0
        self._selector.modify(file, selectors.EVENT_READ | more)

    def unwatch(self, file: int) -> None:
        """Stop watching."""
        del self.watched[file]
        self._selector.unregister(file)

    def wait(self, timeout_secs: float | None) -> list[tuple[int, int]]:
        """The events within the time-out; None waits without a limit."""
        return [(key.fd, mask) for key, mask in self._selector.select(timeout_secs)]

    def close(self) -> None:
        """Close the system's handle."""
        self._selector.close()

    def _open(self) -> None:
        self._selector = selectors.DefaultSelector()


if sys.platform == "linux":

    class _Epoll(SocketPoller):
        writable = select.EPOLLOUT

        def watch(self, file: int, watched: Watched) -> None:
            self.watched[file] = watched
            self._epoll.register(file, select.EPOLLIN)

        def watch_writable(self, file: int, enabled: bool) -> None:
            self._epoll.modify(
                file, select.EPOLLIN | select.EPOLLOUT if enabled else select.EPOLLIN
            )

        def unwatch(self, file: int) -> None:
            del self.watched[file]
            self._epoll.unregister(file)

        def wait(self, timeout_secs: float | None) -> list[tuple[int, int]]:
            if timeout_secs:
                # epoll has a resolution of milliseconds. select has a finer one, and can wait for
                # an epoll object like for any other file.
                select.select(self._itself, (), (), timeout_secs)
                timeout_secs = 0
            return self._epoll.poll(timeout_secs)

        def close(self) -> None:
            self._epoll.close()

        def _open(self) -> None:
            self._epoll = select.epoll()
            self._itself = [self._epoll.fileno()]


def make() -> SocketPoller:
    """The most efficient one of this platform."""
    return _Epoll() if sys.platform == "linux" else SocketPoller()
