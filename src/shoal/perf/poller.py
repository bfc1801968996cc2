"""Waits for sockets: epoll where there is one, for it costs the least, else what the system has.

wait(timeout) --> [(file, mask), …]     mask == writable: only room to write
"""

from __future__ import annotations

import select
import selectors
import sys
from typing import Protocol


class Watched(Protocol):
    """Whom to call when something happens."""

    def on_readable(self) -> None:
        """There is something to read."""
        ...

    def on_writable(self) -> None:
        """There is room to write."""
        ...


class Poller:
    """What a worker waits on, by the file descriptors of sockets."""

    writable = selectors.EVENT_WRITE  # the bit of a mask that says there is room to write

    def __init__(self) -> None:
        self.watched: dict[int, Watched] = {}
        self._open()

    def watch(self, file: int, watched: Watched) -> None:
        """Begin to watch for data to read."""
        self.watched[file] = watched
        self._selector.register(file, selectors.EVENT_READ)

    def want_writing(self, file: int, wanted: bool) -> None:
        """Watch for room to write as well, or no longer."""
        more = selectors.EVENT_WRITE if wanted else 0
        self._selector.modify(file, selectors.EVENT_READ | more)

    def forget(self, file: int) -> None:
        """Stop watching."""
        del self.watched[file]
        self._selector.unregister(file)

    def wait(self, timeout_secs: float | None) -> list[tuple[int, int]]:
        """What is ready within the time; None waits for as long as it takes."""
        return [(key.fd, mask) for key, mask in self._selector.select(timeout_secs)]

    def close(self) -> None:
        """Give the system its handle back."""
        self._selector.close()

    def _open(self) -> None:
        self._selector = selectors.DefaultSelector()


if sys.platform == "linux":

    class _Epoll(Poller):
        writable = select.EPOLLOUT

        def watch(self, file: int, watched: Watched) -> None:
            self.watched[file] = watched
            self._epoll.register(file, select.EPOLLIN)

        def want_writing(self, file: int, wanted: bool) -> None:
            self._epoll.modify(file, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)

        def forget(self, file: int) -> None:
            del self.watched[file]
            self._epoll.unregister(file)

        def wait(self, timeout_secs: float | None) -> list[tuple[int, int]]:
            if timeout_secs:
                # epoll counts in milliseconds; select waits as exactly as the system can, and
                # an epoll object may be waited for like any other file.
                select.select(self._itself, (), (), timeout_secs)
                timeout_secs = 0
            return self._epoll.poll(timeout_secs)

        def close(self) -> None:
            self._epoll.close()

        def _open(self) -> None:
            self._epoll = select.epoll()
            self._itself = [self._epoll.fileno()]


def make() -> Poller:
    """The best one here."""
    return _Epoll() if sys.platform == "linux" else Poller()
