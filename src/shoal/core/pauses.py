"""Long work on a thread that leaves the event loop its turn."""

from __future__ import annotations

import time

_WORK_NS = 500_000
_PAUSE_SECS = 50e-6


class Pauses:
    """Sleeps for a moment after each half millisecond of work, so that the event loop gets the GIL.

    Without it, the loop would wait for the interpreter's switch interval of 5 ms, again and again.
    Call it between pieces of the work, never on the loop itself.
    """

    def __init__(self) -> None:
        self._since_ns = time.perf_counter_ns()

    def __call__(self) -> None:
        """Sleep, if it is time."""
        if time.perf_counter_ns() - self._since_ns > _WORK_NS:
            time.sleep(_PAUSE_SECS)
            self._since_ns = time.perf_counter_ns()
