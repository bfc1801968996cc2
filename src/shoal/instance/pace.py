"""Whether a model is quick enough to run on the event loop: measured, never guessed.

Handing a 20 µs model to a thread costs more than running it. So a model whose executions are
short runs on the loop; one that is not, or stops being so, runs on its worker threads. A model
that was sent back to threads has to be quick for longer each time before it may return.
"""

from __future__ import annotations

import enum

QUICK_NS = 200_000  # a mean below this belongs on the loop
SLOW_NS = 400_000  # a mean above this does not
STALL_NS = 5_000_000  # one execution this long has already kept everybody waiting

_WEIGHT = 8  # the moving mean forgets with 1/8 per execution
_FIRST_STREAK = 8
_LONGEST_STREAK = 1 << 16


class Mode(enum.Enum):
    """Where executions happen."""

    LOOP = "loop"
    THREADS = "threads"


class Pace:
    """One model's measured speed and the mode that follows from it."""

    def __init__(self, *, allowed: bool = True, forced: Mode | None = None, why: str = "") -> None:
        """`allowed`: whether the backend may run on the loop at all; `why` explains if not."""
        self._forced = forced if allowed else Mode.THREADS
        if not allowed:
            self.reason = why or "the backend may block"
        elif forced is not None:
            self.reason = "set by the configuration"
        else:
            self.reason = "not measured yet"
        self.mode = self._forced or Mode.THREADS
        self.mean_ns = 0.0
        self._quick_in_a_row = 0
        self._needed_in_a_row = _FIRST_STREAK

    def observe(self, elapsed_ns: int) -> Mode:
        """Take the time of one execution into account; returns the mode for the next one."""
        mean = self.mean_ns
        mean = self.mean_ns = elapsed_ns if not mean else mean + (elapsed_ns - mean) / _WEIGHT
        if self._forced is not None:
            return self.mode
        if self.mode is Mode.LOOP:
            if mean > SLOW_NS or elapsed_ns > STALL_NS:
                self.mode = Mode.THREADS
                self.reason = f"an execution took {max(mean, elapsed_ns) / 1000:.0f} µs on the loop"
                self._quick_in_a_row = 0
                self._needed_in_a_row = min(self._needed_in_a_row * 4, _LONGEST_STREAK)
            return self.mode
        self._quick_in_a_row = self._quick_in_a_row + 1 if elapsed_ns < QUICK_NS else 0
        if self._quick_in_a_row >= self._needed_in_a_row and mean < QUICK_NS:
            self.mode = Mode.LOOP
            self.reason = f"executions take {mean / 1000:.0f} µs"
        elif self._quick_in_a_row == 0 and self.mean_ns >= QUICK_NS:
            self.reason = f"executions take {mean / 1000:.0f} µs"
        return self.mode
