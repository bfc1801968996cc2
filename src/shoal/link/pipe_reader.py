"""Which thread reads from a pipe: one of those that wait for something from it.

    wait_for(answered)    no thread reads: read until it has arrived, with everything before it
                          one does: wait until notified

A thread that waits for a reply reads it itself, so a reply wakes one thread and not two. A watcher
thread reads what arrives while no thread waits. While there is traffic the watcher pauses, unless
it must read at once.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable

from shoal.link.channel import ChannelClosed

_PAUSE_SECS = 0.02  # how long traffic must have stopped before the watcher polls again


class PipeReader:
    """The readers of one pipe. `receive` reads once and handles the messages."""

    def __init__(
        self,
        connection: socket.socket,
        receive: Callable[[], None],
        hung_up: Callable[[], None],
        finished: Callable[[], None],
        *,
        name: str,
        always_watch: bool,
    ) -> None:
        """`hung_up` is called once, by the thread that finds it closed; `finished` once no thread
        reads or will read.

        With `always_watch` the watcher does all the reading: for pipes with more unsolicited
        messages than replies.
        """
        self._connection = connection
        self._receive = receive
        self._hung_up = hung_up
        self._finished = finished
        self._always_watch = always_watch
        self._lock = threading.Lock()  # guards the five below
        self._changed = threading.Condition(self._lock)
        self._reading = always_watch
        self._followers = 0
        self._reads = 0  # how often a thread has begun to read
        self._ending = False
        self._closed = False
        self._attention = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name=name, daemon=True)
        self._watcher.start()

    def wait_for(self, answered: Callable[[], bool]) -> None:
        """Return once `answered()` is true, or the pipe is closed."""
        with self._lock:
            if self._reading:
                self._followers += 1
                while self._reading and not self._closed and not answered():
                    self._changed.wait()
                self._followers -= 1
            if self._closed or answered():
                return
            self._reading = True
            self._reads += 1
        try:
            while not answered():
                self._receive()
        except ChannelClosed:
            self._close()
        finally:
            self._step_back()

    def follow(self, answered: Callable[[], bool], timeout_secs: float) -> None:
        """As `wait_for`, but let other threads read, and give up after a time-out."""
        self.attend()
        with self._changed:
            self._followers += 1
            self._changed.wait_for(lambda: self._closed or answered(), timeout_secs)
            self._followers -= 1

    def tell(self) -> None:
        """Notify waiting threads of a response. Called by the reading thread."""
        if self._followers:
            with self._changed:
                self._changed.notify_all()

    def attend(self) -> None:
        """Let the watcher read at once: something will arrive that no thread waits for."""
        self._attention.set()

    def join(self) -> None:
        """Wait until it is finished; one side must have closed the pipe."""
        self._watcher.join()

    def _step_back(self) -> None:
        with self._lock:
            self._reading = False
            if self._followers or self._closed:
                self._changed.notify_all()

    def _watch(self) -> None:
        with contextlib.suppress(ChannelClosed):
            if self._always_watch:
                while True:
                    self._receive()
            while not self._closed:
                self._watch_once()
        self._close()
        with self._changed:
            if self._always_watch:
                self._reading = False
            self._changed.wait_for(lambda: not self._reading)
        self._finished()

    def _watch_once(self) -> None:
        """Wait for something to read, and read it if no other thread does; else pause."""
        reads = self._reads
        _wait_readable(self._connection)
        with self._lock:
            mine = not self._reading and not self._closed
            self._reading = self._reading or mine
        if mine:
            try:
                self._receive()
            finally:
                self._step_back()
            return
        while not self._closed and (self._reading or reads != self._reads):
            reads = self._reads
            if self._attention.wait(_PAUSE_SECS):
                self._attention.clear()
                if not self._reading:
                    return

    def _close(self) -> None:
        """Handle the end, or wait until another thread has. Waiting threads return after that."""
        with self._changed:
            if self._ending:
                self._changed.wait_for(lambda: self._closed)
                return
            self._ending = True
        try:
            self._hung_up()
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()


def _wait_readable(connection: socket.socket) -> None:
    """Wait until there is something to read, or the end of it."""
    try:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            poll.poll()
        else:
            select.select([connection], [], [])
    except (OSError, ValueError):  # closed under our hands
        raise ChannelClosed from None
