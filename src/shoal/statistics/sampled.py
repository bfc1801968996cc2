"""A reading that is cached for an interval.

    scrape --value()--> [ cached reading ] --when older than the interval--> read()

Nothing runs in the background: without scrapes, nothing is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Reading = TypeVar("Reading")


class Sampled(Generic[Reading]):
    """Caches the result of `read` for `interval_ns`. Any thread may call it."""

    def __init__(
        self,
        read: Callable[[], Reading],
        interval_ns: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._read = read
        self._interval_ns = interval_ns
        self._clock = clock
        self._lock = threading.Lock()  # guards _kept; held while reading, so that one thread reads
        self._kept: tuple[int, Reading] | None = None

    def value(self) -> Reading:
        """The current reading. If `read` raises, so does this, and the next call tries again."""
        with self._lock:
            now_ns = self._clock()
            if self._kept is None or now_ns - self._kept[0] >= self._interval_ns:
                self._kept = (now_ns, self._read())
            return self._kept[1]
