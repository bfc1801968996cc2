"""The child's side of a link: from the start of its process to its end.

    serve_link(socket, run) --> run(link) --> the process ends

A child ends with its parent, however that ends, and leaves signals of the terminal and of service
managers to it.
"""

from __future__ import annotations

import atexit
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from shoal.link import VERSION
from shoal.link.channel import ChannelClosed
from shoal.link.link import Link

IGNORED_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    IGNORED_SIGNALS.append(signal.SIGHUP)
_LAST_SECS = 2.0  # for an idle process to end by itself once its parent is gone


def serve_link(connection: str, run: Callable[[Link], None]) -> NoReturn:
    """Call `run` with the link on `connection`, and end the process when it returns."""
    _ignore_signals()
    opened = _open(connection)
    _end_with_parent(opened)
    link = Link(opened)
    link.send("hello", VERSION)
    status = 0
    try:
        run(link)
    except ChannelClosed:
        status = 1
    except SystemExit:
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads that are left must not keep the process alive


def _open(connection: str) -> socket.socket:
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    opened = socket.socket(fileno=int(connection))
    opened.set_inheritable(False)
    if hasattr(os, "register_at_fork"):  # or the parent would not notice our end
        os.register_at_fork(after_in_child=opened.close)
    return opened


def _end_with_parent(connection: socket.socket) -> None:
    """End this process once its parent is gone, whatever it is doing."""
    if not hasattr(select, "poll"):
        return
    poll = select.poll()
    poll.register(connection, 0)  # nothing to read: only the end

    def wait() -> None:
        poll.poll()
        time.sleep(_LAST_SECS)
        os._exit(1)

    threading.Thread(target=wait, name="shoal-end", daemon=True).start()


def _ignore_signals() -> None:
    """Ctrl-C, the end of the terminal and a service manager's stop are for the parent, which then
    stops this process, or has it read files again.

    A handler, not SIG_IGN: programs that the child starts would inherit that. Processes that it
    forks are back to normal before a signal can reach them.
    """
    kinds = IGNORED_SIGNALS
    for kind in kinds:
        signal.signal(kind, lambda *_: None)
    if sys.platform == "win32":
        return
    signal.pthread_sigmask(signal.SIG_UNBLOCK, kinds)  # the parent has blocked them

    def hold() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, kinds)

    def go_on() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, kinds)

    def begin_anew() -> None:
        for kind in kinds:
            signal.signal(kind, signal.SIG_DFL)
        go_on()

    os.register_at_fork(before=hold, after_in_parent=go_on, after_in_child=begin_anew)


class WorkReader:
    """The messages of a link for a main thread that works on some of them, one after the other.

    Handlers put work into a queue. While there is none, the main thread reads the link itself, so
    that a message wakes one thread and not two. After `listen` another thread reads, also while the
    main thread works.
    """

    def __init__(self, link: Link, handlers: Mapping[str, Callable[..., None]]) -> None:
        """Each message is passed to the handler of its kind, by the thread that reads."""
        self._link = link
        self._handlers = handlers
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reading = threading.Lock()  # held by the reading thread
        self._reader: threading.Thread | None = None
        self._starting = threading.Lock()  # guards _reader

    def put(self, work: Any) -> None:
        """Queue work for the main thread."""
        self._work.put(work)

    @property
    def has_more(self) -> bool:
        """Whether there is work in the queue."""
        return not self._work.empty()

    def next(self) -> Any:
        """The next work. Reads itself while no other thread does."""
        while self._reader is None and self._work.empty():
            if not self._reading.acquire(blocking=False):
                break  # another thread reads now
            try:
                if self._reader is None:
                    self._receive()
            finally:
                self._reading.release()
        return self._work.get()

    def listen(self) -> None:
        """Read messages also while the main thread works, from now on."""
        if self._reader is None:
            with self._starting:
                if self._reader is None:
                    self._reader = threading.Thread(
                        target=self._read, name="shoal-reader", daemon=True
                    )
                    self._reader.start()

    def _read(self) -> None:
        """Read messages until the end. If the link is closed, end the process."""
        with self._reading:
            try:
                while True:
                    self._receive()
            except ChannelClosed:
                os._exit(1)

    def _receive(self) -> None:
        for kind, body in self._link.receive():
            self._handlers[kind](*body)
