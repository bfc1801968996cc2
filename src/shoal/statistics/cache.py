"""What is counted for the response cache: for each model that uses it, and for it as a whole."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounts:
    """One model's use of the cache. It has no lock: its owner has one."""

    hit_count: int = 0
    hit_ns: int = 0  # finding the answers
    miss_count: int = 0
    miss_ns: int = 0  # looking in vain, and keeping the answers


@dataclass(frozen=True, slots=True)
class CacheReading:
    """All counts since the start, as they were at one moment."""

    lookups: int
    hits: int
    lookup_ns: int
    insertions: int
    insertion_ns: int
    too_large: int  # answers that no room could be made for
    failures: int  # lookups and insertions that the cache could not do
    skipped: int  # those it was not asked for: it had failed, or too many were waiting for it
    # How full it is, where it knows; else None.
    entries: int | None = None
    evictions: int | None = None
    utilization: float | None = None  # 0 to 1

    @property
    def misses(self) -> int:
        """Lookups that found nothing."""
        return self.lookups - self.hits
