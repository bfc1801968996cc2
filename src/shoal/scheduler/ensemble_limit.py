"""Backpressure: how many requests one step of an ensemble may have in flight at a time.

    submit --> [ waiting ] --> start --> release --> the next one starts

The limit is shared by all requests for the ensemble. `submit` does not block: a call above the
limit is started by the `release` of another. Only a decoupled step that continues to produce has
to `wait`, so that it cannot run ahead of the steps after it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import Protocol

logger = logging.getLogger(__name__)

# Longer than any step should take. If two steps should wait for each other, continuing is better
# than a deadlock.
_LONGEST_WAIT_SECS = 300.0


class LimitedCall(Protocol):
    """One execution of a step."""

    def start(self) -> None:
        """Begin. Must not block; may already be over on return."""


class StepLimit:
    """The limit of one step."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[LimitedCall] = deque()
        self._changed = threading.Condition()  # guards everything here
        self._starting = False  # a thread is in `_start_waiting`

    def submit(self, call: LimitedCall) -> None:
        """Start the call as soon as the limit allows: now, or from another thread's `release`."""
        with self._changed:
            self._waiting.append(call)
        self._start_waiting()

    def release(self) -> None:
        """A call that was started has ended."""
        with self._changed:
            self._free += 1
        self._start_waiting()

    def discard(self, call: LimitedCall) -> bool:
        """Remove a call that waits; false if it has been started, or was never submitted."""
        with self._changed:
            try:
                self._waiting.remove(call)
            except ValueError:
                return False
            self._changed.notify_all()
            return True

    def wait(self, call: LimitedCall, timeout_secs: float = _LONGEST_WAIT_SECS) -> None:
        """Block until the call has been started or discarded. Returns at once on an event loop."""
        if _on_event_loop():
            return
        with self._changed:
            if not self._changed.wait_for(lambda: call not in self._waiting, timeout_secs):
                logger.error(
                    "a step of an ensemble has been at its limit for %d s; the step before it "
                    "continues",
                    timeout_secs,
                )

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    def _start_waiting(self) -> None:
        """Start calls up to the limit.

        One thread at a time, in a loop: a call that fails at once gets here again through
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
