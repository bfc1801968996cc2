"""The server's one cache as models use it: counted, kept off the event loop, and never in the way.

    CacheDoor --lookup / keep--> CacheStore --> ResponseCache, here or on threads of its own

Whatever goes wrong with the cache (it is down, it is slow, it raises) turns into lookups that find
nothing and answers that are not kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shoal.cache.base import ResponseCache
from shoal.cache.entry import CachedResponse
from shoal.cache.key import content_identity, new_identity
from shoal.cache.outage import Outage
from shoal.config.model import ModelConfig
from shoal.statistics.cache import CacheReading

logger = logging.getLogger(__name__)

# More than that waiting for the cache means that it is slower than the models it should spare.
_MOST_WAITING = 256


class CacheStore:
    """A cache with its counters and its threads. Any thread may call any method."""

    def __init__(
        self,
        name: str,
        cache: ResponseCache,
        *,
        most_waiting: int = _MOST_WAITING,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Takes `cache` over: `close` closes it."""
        self.name = name
        self._cache = cache
        self._most_waiting = most_waiting
        self._clock = clock
        self._threads = ThreadPoolExecutor(max(1, cache.threads), "shoal-cache")
        self._lock = threading.Lock()  # guards everything below
        self._outage = Outage()
        self._waiting = 0
        self._lookups = self._hits = self._lookup_ns = 0
        self._insertions = self._insertion_ns = 0
        self._too_large = self._failures = self._skipped = 0
        self._closed = False

    @property
    def waits(self) -> bool:
        """Whether a lookup may take a while, so that it must not happen on the event loop."""
        return self._cache.waits

    def identity(
        self, version: int, config: ModelConfig, folder: Path, version_folder: Path | None = None
    ) -> bytes:
        """What stands in keys for a version that is being loaded. Reads its files, if need be."""
        if not self._cache.shared:
            return new_identity()
        return content_identity(version, config, folder, version_folder)

    def check(self) -> None:
        """Say in the log whether the cache can be used. May block; never raises."""
        try:
            self._cache.check()
        except Exception as error:  # noqa: BLE001 - it may come up later
            self._note_failure("cannot be used now", error)
        else:
            logger.info("answers are kept in the response cache '%s'", self.name)

    # ---- a request's way

    def worth_asking(self) -> bool:
        """Whether a lookup makes sense now: the cache did not fail lately."""
        if not self._outage.active:
            return True
        with self._lock:
            paused = self._outage.pauses(self._clock())
            self._skipped += paused
            return not paused

    def _may_ask(self) -> bool:
        """Whether to go ahead. While the cache fails, one at a time finds out whether it still
        does, however many were waiting when it began to."""
        if not self._outage.active:
            return True
        with self._lock:
            allowed = self._outage.allows(self._clock())
            self._skipped += not allowed
            return allowed

    def submit(self, work: Callable[[], None]) -> bool:
        """Have a thread of the cache's do `work`; false, and nothing happens, if too many wait."""
        with self._lock:
            if self._closed or self._waiting >= self._most_waiting:
                self._skipped += 1
                return False
            self._waiting += 1

        def run() -> None:
            with self._lock:
                self._waiting -= 1
            work()

        self._threads.submit(run)
        return True

    def lookup(self, key: bytes) -> CachedResponse | None:
        """What is kept under `key`, or None. Never raises."""
        if not self._may_ask():
            return None
        start_ns = self._clock()
        entry: CachedResponse | None = None
        try:
            entry = self._cache.lookup(key)
        except Exception as error:  # noqa: BLE001 - a request does without its cache
            self._note_failure("cannot be asked", error)
        else:
            self._note_success()
        with self._lock:
            self._lookups += 1
            self._hits += entry is not None
            self._lookup_ns += self._clock() - start_ns
        return entry

    def insert(self, key: bytes, entry: CachedResponse) -> None:
        """Keep `entry`, if the cache takes it. Never raises."""
        if not self._may_ask():
            return
        start_ns = self._clock()
        try:
            kept = self._cache.insert(key, entry)
        except Exception as error:  # noqa: BLE001 - as above
            self._note_failure("keeps nothing", error)
            return
        self._note_success()
        with self._lock:
            if kept:
                self._insertions += 1
                self._insertion_ns += self._clock() - start_ns
            else:
                self._too_large += 1

    def _note_failure(self, what: str, error: Exception) -> None:
        with self._lock:
            self._failures += 1
            time_to_say = self._outage.failed(self._clock())
        if time_to_say:
            logger.warning(
                "the response cache '%s' %s (%s: %s); models compute every answer meanwhile",
                self.name,
                what,
                type(error).__name__,
                error,
            )

    def _note_success(self) -> None:
        if not self._outage.active:
            return
        with self._lock:
            over = self._outage.succeeded()
        if over:
            logger.info("the response cache '%s' answers again", self.name)

    # ---- for those who look

    def read(self) -> CacheReading:
        """A copy of all counts."""
        usage = self._cache.usage()
        with self._lock:
            return CacheReading(
                lookups=self._lookups,
                hits=self._hits,
                lookup_ns=self._lookup_ns,
                insertions=self._insertions,
                insertion_ns=self._insertion_ns,
                too_large=self._too_large,
                failures=self._failures,
                skipped=self._skipped,
                entries=None if usage is None else usage.entries,
                evictions=None if usage is None else usage.evictions,
                utilization=None if usage is None else usage.used_bytes / usage.size_bytes,
            )

    def close(self) -> None:
        """Finish what waits, then give everything back. Blocks."""
        with self._lock:
            self._closed = True
        self._threads.shutdown()
        try:
            self._cache.close()
        except Exception as error:  # noqa: BLE001 - the server is going anyway
            logger.warning("the response cache '%s' did not close: %s", self.name, error)
