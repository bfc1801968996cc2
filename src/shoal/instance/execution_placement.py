"""Whether a model runs on the event loop or on its worker threads: decided by measurement.

Handing a 20 µs model to a thread costs more than running it. So a model with short executions
runs on the loop; all others run on worker threads. A model that had to leave the loop must be
quick for longer each time before it may return.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

QUICK_NS = 200_000  # executions below this belong on the loop
SLOW_NS = 500_000  # executions above this do not
STALL_NS = 20_000_000  # one execution this long has delayed every connection already

# A busy machine makes any execution slow now and then: a model leaves the loop only after several
# of the last executions were slow, or when they took too long in total.
_RECENT = 8
_MOST_SLOW = 2
_FIRST_STREAK = 8
_LONGEST_STREAK = 1 << 16
_GOOD_WHILE_NS = 60_000_000_000  # after this long on the loop, earlier stalls no longer count


class ExecutionMode(enum.Enum):
    """Where executions happen."""

    LOOP = "loop"
    THREADS = "threads"


# For the hot path: on Python 3.11 each access to a member of an enum runs Python code.
LOOP = ExecutionMode.LOOP
THREADS = ExecutionMode.THREADS


class ExecutionPlacement:
    """Where one model's executions happen, from how long they take."""

    def __init__(
        self,
        *,
        allowed: bool = True,
        forced: ExecutionMode | None = None,
        why: str = "",
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`allowed`: whether it may run on the loop at all; `why` is the reason if not."""
        self._clock = clock
        self._on_loop_since_ns = 0
        self._forced = forced if allowed else ExecutionMode.THREADS
        if not allowed:
            self.reason = why or "the backend may wait for something"
        elif forced is not None:
            self.reason = "set by the configuration"
        else:
            self.reason = "not measured yet"
        self.mode = self._forced or ExecutionMode.THREADS
        self._quick_lately = 0
        self._needed = _FIRST_STREAK
        self._slow_among_recent = 0  # one bit per execution, the latest lowest
        self._debt_ns = 0  # by how much executions took longer than SLOW_NS each

    def on_loop(self) -> bool:
        """Whether executions happen on the event loop now."""
        return self.mode is ExecutionMode.LOOP

    def report(self) -> dict[str, str]:
        """The mode and its reason, for statistics."""
        return {"mode": self.mode.value, "reason": self.reason}

    def observe(self, elapsed_ns: int) -> ExecutionMode:
        """Record the time of one execution, without time lost to other threads; returns the
        mode for the next one."""
        if self._forced is not None:
            return self.mode
        if self.mode is LOOP:
            if elapsed_ns > SLOW_NS or self._slow_among_recent or self._debt_ns:
                self._observe_on_loop(elapsed_ns)
            return self.mode
        if elapsed_ns >= QUICK_NS:
            self._quick_lately //= 2  # the machine may have been busy
            self.reason = f"the last execution took {elapsed_ns // 1000} µs"
            return self.mode
        self._quick_lately += 1
        if self._quick_lately >= self._needed:
            self.mode = ExecutionMode.LOOP
            self._on_loop_since_ns = self._clock()
            self.reason = f"the last executions took under {QUICK_NS // 1000} µs each"
        return self.mode

    def _observe_on_loop(self, elapsed_ns: int) -> None:
        recent = (self._slow_among_recent << 1 | (elapsed_ns > SLOW_NS)) & ((1 << _RECENT) - 1)
        self._slow_among_recent = recent
        self._debt_ns = max(0, self._debt_ns + elapsed_ns - SLOW_NS)
        if max(elapsed_ns, self._debt_ns) <= STALL_NS and recent.bit_count() <= _MOST_SLOW:
            return
        self.mode = ExecutionMode.THREADS
        self.reason = f"an execution on the loop took {elapsed_ns // 1000} µs"
        self._slow_among_recent = 0
        self._debt_ns = 0
        self._quick_lately = 0
        if self._clock() - self._on_loop_since_ns > _GOOD_WHILE_NS:
            self._needed = _FIRST_STREAK
        self._needed = min(self._needed * 4, _LONGEST_STREAK)
