"""A link whose end is on an event loop: messages of one iteration are sent together.

send, on the loop --> held --> one system call at the end of the iteration
send, on a thread ---------> at once, with what is held
readable --> each message to the handler of its kind, on the loop
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import threading
from collections.abc import Callable, Mapping
from typing import Any

from shoal.link.channel import ChannelClosed
from shoal.link.link import Link

logger = logging.getLogger(__name__)


class LoopLink:
    """One end, for the loop of the thread that makes it. Any thread may send."""

    def __init__(
        self,
        link: Link,
        after_batches: Callable[[Callable[[], None]], object],
        handlers: Mapping[str, Callable[..., None]],
        ended: Callable[[], None],
    ) -> None:
        """`after_batches` has the loop call its argument at the end of an iteration. Handlers get
        the body of a message of their kind; what they raise is logged. `ended` is called when the
        other side is gone: it calls `close`."""
        self.link = link
        self._after_batches = after_batches
        self._handlers = {"hello": lambda _version: None, **handlers}
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._flush_due = False
        self.closed = False
        self._loop.add_reader(link.fileno(), self._read)

    @property
    def here(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self._thread

    def send(self, kind: str, *body: Any) -> None:
        """Send a message. ChannelClosed if the other side is gone."""
        if threading.get_ident() != self._thread:
            self.link.send(kind, *body)
            return
        self.link.send(kind, *body, more=True)
        if not self._flush_due:
            self._flush_due = True
            self._after_batches(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        with contextlib.suppress(ChannelClosed):  # `_read` is about to see the end, too
            self.link.flush()

    def _read(self) -> None:
        try:
            received = self.link.receive()
        except ChannelClosed:
            self._ended()
            return
        for kind, body in received:
            try:
                self._handlers[kind](*body)
            except Exception:
                logger.exception("a message of another process could not be handled")

    def poll(self) -> None:
        """Handle what has arrived, if anything has. On the loop's thread."""
        arrived = select.poll()
        arrived.register(self.link.fileno(), select.POLLIN)
        while not self.closed and arrived.poll(0):
            self._read()

    def close(self) -> bool:
        """End it; false if it has been ended before. On the loop's thread."""
        if self.closed:
            return False
        self.closed = True
        self._loop.remove_reader(self.link.fileno())
        self.link.close()
        return True
