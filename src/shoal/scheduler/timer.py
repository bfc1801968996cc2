"""One thread that runs callbacks at a given time: queue time-outs while all instances are busy.

Instances pull, so while all of them are busy none would drop expired requests. The timer does.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Timer:
    """Runs callbacks at monotonic times, on a daemon thread that starts with the first one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards _heap and _thread
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None

    def at(self, when_ns: int, callback: Callable[[], None]) -> None:
        """Call `callback` once `when_ns` has passed. It must be quick and must not raise."""
        with self._changed:
            heapq.heappush(self._heap, (when_ns, next(self._order), callback))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shoal-timer", daemon=True)
                self._thread.start()
            elif self._heap[0][2] is callback:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while True:
                    if not self._heap:
                        self._changed.wait()
                        continue
                    left_ns = self._heap[0][0] - time.monotonic_ns()
                    if left_ns <= 0:
                        _, _, callback = heapq.heappop(self._heap)
                        break
                    # A client may set any time-out; a lock has a maximum.
                    self._changed.wait(min(left_ns / 1e9, threading.TIMEOUT_MAX))
            try:
                callback()
            except Exception:  # an error in one model must not stop the timer for all
                logger.exception("a timer callback failed")


shared_timer = Timer()
