"""The server's cache as models use it: with counters, threads, and back-off after errors.

    CachingScheduler --lookup / insert--> CacheStore --> ResponseCache, here or on its threads

Any problem with the cache (it is down, slow, or raises) becomes a miss, or a response that is not
stored. After an error the cache is not used for 1 s, then for one request; if that fails, too, for
2 s, 4 s, ... 30 s.
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
from shoal.config.model import ModelConfig
from shoal.statistics.cache import CacheReading

logger = logging.getLogger(__name__)

# With more requests waiting for it, the cache is slower than the models.
_MOST_WAITING = 256

_SECOND_NS = 1_000_000_000
FIRST_PAUSE_NS = 1 * _SECOND_NS
LONGEST_PAUSE_NS = 30 * _SECOND_NS
WARN_EVERY_NS = 30 * _SECOND_NS  # at most one warning in this time


class Backoff:
    """Exponential back-off. It reads no clock and takes no lock: its owner has both."""

    __slots__ = ("_next_pause_ns", "_next_warning_ns", "_retry_at_ns")

    def __init__(self) -> None:
        self._next_pause_ns = 2 * FIRST_PAUSE_NS
        self._retry_at_ns: int | None = None  # None: no error lately
        self._next_warning_ns = 0

    @property
    def active(self) -> bool:
        """Whether the last call failed."""
        return self._retry_at_ns is not None

    def pauses(self, now_ns: int) -> bool:
        """Whether a call would not be allowed now. Changes nothing."""
        return self._retry_at_ns is not None and now_ns < self._retry_at_ns

    def allows(self, now_ns: int) -> bool:
        """Whether to call now. After an error one call is allowed after each pause."""
        if self._retry_at_ns is None:
            return True
        if now_ns < self._retry_at_ns:
            return False
        # Other calls wait for the result of this one, or for the end of the next pause.
        self._retry_at_ns = now_ns + self._next_pause_ns
        self._next_pause_ns = min(2 * self._next_pause_ns, LONGEST_PAUSE_NS)
        return True

    def failed(self, now_ns: int) -> bool:
        """Record a failed call; true when it is time for a warning."""
        if self._retry_at_ns is None:  # else it began before, or was the one allowed
            self._retry_at_ns = now_ns + FIRST_PAUSE_NS
            self._next_pause_ns = 2 * FIRST_PAUSE_NS
        if now_ns < self._next_warning_ns:
            return False
        self._next_warning_ns = now_ns + WARN_EVERY_NS
        return True

    def succeeded(self) -> bool:
        """Record a successful call; true when it is the first after an error."""
        if self._retry_at_ns is None:
            return False
        self._retry_at_ns = None
        return True


class CacheStore:
    """A cache with its counters and threads. Any thread may call any method."""

    def __init__(
        self,
        name: str,
        cache: ResponseCache,
        *,
        most_waiting: int = _MOST_WAITING,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Owns `cache`: `close` closes it."""
        self.name = name
        self._cache = cache
        self._most_waiting = most_waiting
        self._clock = clock
        self._threads = ThreadPoolExecutor(max(1, cache.threads), "shoal-cache")
        self._lock = threading.Lock()  # guards everything below
        self._backoff = Backoff()
        self._waiting = 0
        self._lookups = self._hits = self._lookup_ns = 0
        self._insertions = self._insertion_ns = 0
        self._too_large = self._failures = self._skipped = 0
        self._closed = False

    @property
    def waits(self) -> bool:
        """Whether a lookup may block, so that it must not happen on the event loop."""
        return self._cache.waits

    def identity(
        self, version: int, config: ModelConfig, folder: Path, version_folder: Path | None = None
    ) -> bytes:
        """The identity in keys of a version that is being loaded. May read its files."""
        if not self._cache.shared:
            return new_identity()
        return content_identity(version, config, folder, version_folder)

    def check(self) -> None:
        """Log whether the cache can be used. May block; never raises."""
        try:
            self._cache.check()
        except Exception as error:  # noqa: BLE001 - it may become available later
            self._note_failure("cannot be used now", error)
        else:
            logger.info("responses are stored in the response cache '%s'", self.name)

    # ---- for requests

    def is_available(self) -> bool:
        """Whether a lookup may succeed now: the cache did not fail lately."""
        if not self._backoff.active:
            return True
        with self._lock:
            paused = self._backoff.pauses(self._clock())
            self._skipped += paused
            return not paused

    def _may_use(self) -> bool:
        """Whether to use the cache now. While it fails, only one request at a time tries it,
        however many were waiting before."""
        if not self._backoff.active:
            return True
        with self._lock:
            allowed = self._backoff.allows(self._clock())
            self._skipped += not allowed
            return allowed

    def submit(self, work: Callable[[], None]) -> bool:
        """Have a thread of the cache do `work`; false, and nothing happens, if too many wait."""
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
        """The response stored under `key`, or None. Never raises."""
        if not self._may_use():
            return None
        start_ns = self._clock()
        entry: CachedResponse | None = None
        try:
            entry = self._cache.lookup(key)
        except Exception as error:  # noqa: BLE001 - a request works without the cache
            self._note_failure("cannot be read", error)
        else:
            self._note_success()
        with self._lock:
            self._lookups += 1
            self._hits += entry is not None
            self._lookup_ns += self._clock() - start_ns
        return entry

    def insert(self, key: bytes, entry: CachedResponse) -> None:
        """Store `entry`, if the cache takes it. Never raises."""
        if not self._may_use():
            return
        start_ns = self._clock()
        try:
            stored = self._cache.insert(key, entry)
        except Exception as error:  # noqa: BLE001 - as above
            self._note_failure("cannot be written to", error)
            return
        self._note_success()
        with self._lock:
            if stored:
                self._insertions += 1
                self._insertion_ns += self._clock() - start_ns
            else:
                self._too_large += 1

    def _note_failure(self, what: str, error: Exception) -> None:
        with self._lock:
            self._failures += 1
            warn = self._backoff.failed(self._clock())
        if warn:
            logger.warning(
                "the response cache '%s' %s (%s: %s); models compute every response meanwhile",
                self.name,
                what,
                type(error).__name__,
                error,
            )

    def _note_success(self) -> None:
        if not self._backoff.active:
            return
        with self._lock:
            over = self._backoff.succeeded()
        if over:
            logger.info("the response cache '%s' is available again", self.name)

    # ---- for statistics

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
        """Finish waiting work, then release everything. Blocks."""
        with self._lock:
            self._closed = True
        self._threads.shutdown()
        try:
            self._cache.close()
        except Exception as error:  # noqa: BLE001 - the server is exiting anyway
            logger.warning("the response cache '%s' did not close: %s", self.name, error)
