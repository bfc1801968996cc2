"""Whether a model is quick enough to run on the event loop: measured, never guessed.

Handing a 20 µs model to a thread costs more than running it. So a model whose executions are
short runs on the loop; one that is not, or stops being so, runs on its worker threads. A model
that is sent back to threads again and again has to be quick for longer each time before it may
return.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

QUICK_NS = 200_000  # executions below this belong on the loop
SLOW_NS = 500_000  # executions above this do not
STALL_NS = 20_000_000  # one this long has already kept everybody waiting

# A busy machine makes any execution slow now and then: only several of the last ones count, or
# so much time that the others do not make up for it.
_RECENT = 8
_MOST_SLOW = 2
_FIRST_STREAK = 8
_LONGEST_STREAK = 1 << 16
_GOOD_WHILE_NS = 60_000_000_000  # on the loop, after which nothing is held against a model


class Mode(enum.Enum):
    """Where executions happen."""

    LOOP = "loop"
    THREADS = "threads"


# For the path of every batch: on Python 3.11 each look at a member of an enum runs Python code.
LOOP = Mode.LOOP
THREADS = Mode.THREADS


class Pace:
    """One model's measured speed and the mode that follows from it."""

    def __init__(
        self,
        *,
        allowed: bool = True,
        forced: Mode | None = None,
        why: str = "",
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`allowed`: whether the backend may run on the loop at all; `why` explains if not."""
        self._clock = clock
        self._on_loop_since_ns = 0
        self._forced = forced if allowed else Mode.THREADS
        if not allowed:
            self.reason = why or "the backend may wait for something"
        elif forced is not None:
            self.reason = "set by the configuration"
        else:
            self.reason = "not measured yet"
        self.mode = self._forced or Mode.THREADS
        self._quick_lately = 0
        self._needed = _FIRST_STREAK
        self._slow_among_recent = 0  # one bit per execution, the latest lowest
        self._debt_ns = 0  # by how much executions took longer than SLOW_NS each

    def on_loop(self) -> bool:
        """Whether executions happen on the event loop now."""
        return self.mode is Mode.LOOP

    def observe(self, elapsed_ns: int) -> Mode:
        """Take the time of one execution into account, as far as it is the model's own; returns
        the mode for the next one."""
        if self._forced is not None:
            return self.mode
        if self.mode is LOOP:
            if elapsed_ns > SLOW_NS or self._slow_among_recent or self._debt_ns:
                self._observe_on_loop(elapsed_ns)
            return self.mode
        if elapsed_ns >= QUICK_NS:
            self._quick_lately //= 2  # it may have been the machine
            self.reason = f"the last execution took {elapsed_ns // 1000} µs"
            return self.mode
        self._quick_lately += 1
        if self._quick_lately >= self._needed:
            self.mode = Mode.LOOP
            self._on_loop_since_ns = self._clock()
            self.reason = f"the last executions took under {QUICK_NS // 1000} µs each"
        return self.mode

    def _observe_on_loop(self, elapsed_ns: int) -> None:
        recent = (self._slow_among_recent << 1 | (elapsed_ns > SLOW_NS)) & ((1 << _RECENT) - 1)
        self._slow_among_recent = recent
        self._debt_ns = max(0, self._debt_ns + elapsed_ns - SLOW_NS)
        if max(elapsed_ns, self._debt_ns) <= STALL_NS and recent.bit_count() <= _MOST_SLOW:
            return
        self.mode = Mode.THREADS
        self.reason = f"an execution on the loop took {elapsed_ns // 1000} µs"
        self._slow_among_recent = 0
        self._debt_ns = 0
        self._quick_lately = 0
        if self._clock() - self._on_loop_since_ns > _GOOD_WHILE_NS:
            self._needed = _FIRST_STREAK
        self._needed = min(self._needed * 4, _LONGEST_STREAK)
