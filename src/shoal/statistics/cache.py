"""Counts of the response cache: for each model that uses it, and as a whole."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounts:
    """One model's use of the cache. It has no lock: its owner has one."""

    hit_count: int = 0
    hit_ns: int = 0
    miss_count: int = 0
    miss_ns: int = 0  # lookups without success, and insertions


@dataclass(frozen=True, slots=True)
class CacheReading:
    """All counts since the start, as they were at one moment."""

    lookups: int
    hits: int
    lookup_ns: int
    insertions: int
    insertion_ns: int
    too_large: int  # responses that do not fit
    failures: int  # lookups and insertions that failed
    skipped: int  # those not tried: the cache had failed, or too many were waiting for it
    # How full it is; None if the cache does not know.
    entries: int | None = None
    evictions: int | None = None
    utilization: float | None = None  # 0 to 1

    @property
    def misses(self) -> int:
        """Lookups without success."""
        return self.lookups - self.hits
