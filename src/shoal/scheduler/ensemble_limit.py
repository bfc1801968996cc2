"""Backpressure: how many requests one step of an ensemble may have in flight at a time.

    submit --> [ waiting ] --> start --> release --> the next one starts

The limit is shared by all requests for the ensemble. Nobody waits in `submit`: a call that finds
no room is started by whoever makes room. Only a decoupled step that goes on producing is made to
`wait`, so that it cannot run ahead of what the steps behind it can take.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import Protocol

logger = logging.getLogger(__name__)

# Longer than any step should take. Going on is better than standing still for ever, should two
# steps turn out to wait for one another.
_LONGEST_WAIT_SECS = 300.0


class Call(Protocol):
    """One run of a step."""

    def start(self) -> None:
        """Begin. Must not block; may already be over on return."""


class StepLimit:
    """The room of one step."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[Call] = deque()
        self._changed = threading.Condition()  # guards everything here
        self._starting = False  # a thread is in `_start_waiting`

    def submit(self, call: Call) -> None:
        """Start the call as soon as there is room: now, or from another thread's `release`."""
        with self._changed:
            self._waiting.append(call)
        self._start_waiting()

    def release(self) -> None:
        """A call that was started is over."""
        with self._changed:
            self._free += 1
        self._start_waiting()

    def discard(self, call: Call) -> bool:
        """Forget a call that waits; false if it has been started, or was never submitted."""
        with self._changed:
            try:
                self._waiting.remove(call)
            except ValueError:
                return False
            self._changed.notify_all()
            return True

    def wait(self, call: Call, timeout_secs: float = _LONGEST_WAIT_SECS) -> None:
        """Block until the call has been started or discarded. Returns at once on an event loop."""
        if _on_event_loop():
            return
        with self._changed:
            if not self._changed.wait_for(lambda: call not in self._waiting, timeout_secs):
                logger.error(
                    "a step of an ensemble has been full for %d s; the step before it goes on",
                    timeout_secs,
                )

    @property
    def waiting(self) -> int:
        """How many calls wait for room."""
        return len(self._waiting)

    def _start_waiting(self) -> None:
        """Start what there is room for.

        One thread at a time, in a loop: a call that fails at once comes back here through
        `release`, and must not make the stack grow.
        """
        with self._changed:
            if self._starting:
                return
            self._starting = True
        while True:
            with self._changed:
                if not self._free or not self._waiting:
                    self._starting = False
                    return
                self._free -= 1
                call = self._waiting.popleft()
                self._changed.notify_all()
            call.start()


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
