"""From any thread to the event loop: responses, many to a wake-up.

worker thread --send--> LoopInbox --one wake-up per batch--> event loop --> frontend
event loop    --send--> LoopInbox --at once--------------------------> frontend

A model that streams faster than the loop sends neither keeps the loop from its other work nor fills
the memory: the loop takes a part in each iteration, and the model's thread is slowed down.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from shoal.core.response import Response

Answer = TypeVar("Answer")

_MOST_DELIVERED = 512  # in one loop iteration, some milliseconds
_MOST_WAITING = 8192  # beyond it, threads that send are slowed down
_SLOW_DOWN_SECS = 0.001


class LoopInbox:
    """Carries responses from any thread to one event loop, waking it once for many of them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        after_reading: Callable[[Callable[[], None]], object] | None = None,
        after_batches: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Make it on the thread that runs `loop`.

        The others are for frontends that coalesce requests: the loop calls their arguments once all
        sockets of an iteration have been read, just before batches run, and just after that.
        """
        self._loop = loop
        self.after_reading = after_reading or loop.call_soon
        self.after_batches = after_batches or loop.call_soon
        self._loop_thread = threading.get_ident()
        self._waiting: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._wake_pending = False

    def here(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self._loop_thread

    def post(self, deliver: Callable[[Answer], None], response: Answer) -> None:
        """Have the loop call `deliver(response)`: soon, or at once when this is its thread.

        After the loop has closed the response is dropped.
        """
        waiting = self._waiting
        if threading.get_ident() == self._loop_thread and not waiting:
            deliver(response)
            return
        waiting.append((deliver, response))
        if not self._wake_pending:  # a lost race costs one spare wake-up, never a lost response
            self._wake_pending = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed: no client is left
                waiting.clear()
        if len(waiting) > _MOST_WAITING and threading.get_ident() != self._loop_thread:
            time.sleep(_SLOW_DOWN_SECS)  # and no longer: the sender may hold what the loop needs

    def _drain(self) -> None:
        self._wake_pending = False  # before the queue is emptied: a later post wakes the loop again
        waiting = self._waiting
        for _ in range(min(len(waiting), _MOST_DELIVERED)):
            deliver, response = waiting.popleft()
            deliver(response)
        if waiting and not self._wake_pending:
            self._wake_pending = True
            self._loop.call_soon(self._drain)


class LoopReply:
    """A reply that calls `deliver` on the event loop."""

    __slots__ = ("_deliver", "_inbox")

    def __init__(self, inbox: LoopInbox, deliver: Callable[[Response], None]) -> None:
        self._inbox = inbox
        self._deliver = deliver

    def send(self, response: Response) -> None:
        """Hand the response to the loop."""
        self._inbox.post(self._deliver, response)
