"""Quantiles of durations over the last minute, as Prometheus summaries give them.

    add(value) --> the current slice --> [ slice | slice | slice | slice | slice ] --> quantiles

A slice counts values in buckets whose bounds grow by 2 %, so a quantile is accurate to 1 % of its
value, with no error in its rank. Slices are 12 seconds long; each new one replaces the oldest of
five. Sum and count are over all values since the start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SLICES = 5
SLICE_NS = 12_000_000_000

_ACCURACY = 0.01
_LOG_GROWTH = math.log((1 + _ACCURACY) / (1 - _ACCURACY))
_MIDDLE = 2 / (1 + math.exp(_LOG_GROWTH))  # of a bucket, as a share of its upper bound


@dataclass(frozen=True, slots=True)
class SummaryReading:
    """A copy of a summary."""

    counts: tuple[tuple[int, int], ...]  # of the last minute: bucket and count, rising
    count: int
    total: int

    def quantile(self, share: float) -> float:
        """The value that this share of the last minute's values does not exceed; NaN for none."""
        wanted = share * sum(count for _, count in self.counts)
        seen = 0
        for bucket, count in self.counts:
            seen += count
            if seen >= wanted:
                return _value(bucket)
        return math.nan


class DurationSummary:
    """Takes whole numbers of at least 0. It has no lock: its owner has one."""

    __slots__ = ("_count", "_slices", "_total")

    def __init__(self) -> None:
        self._count = 0
        self._total = 0
        # The number of each slice since the clock began, and its counts by bucket; newest last.
        self._slices: list[tuple[int, dict[int, int]]] = []

    def add(self, value: int, now_ns: int, times: int = 1) -> None:
        """Count `value`, `times` times, at the time `now_ns`."""
        self._count += times
        self._total += value * times
        counts = self._current(now_ns)
        bucket = _bucket(value)
        counts[bucket] = counts.get(bucket, 0) + times

    def add_spans(self, starts: Sequence[int], end: int, now_ns: int) -> None:
        """Count `end - start` for each of `starts`."""
        counts = self._current(now_ns)
        self._count += len(starts)
        self._total += len(starts) * end - sum(starts)
        for start in starts:
            bucket = _bucket(end - start)
            counts[bucket] = counts.get(bucket, 0) + 1

    def read(self, now_ns: int) -> SummaryReading:
        """A copy that no longer changes."""
        oldest = now_ns // SLICE_NS - SLICES
        together: dict[int, int] = {}
        for number, counts in self._slices:
            if number > oldest:
                for bucket, count in counts.items():
                    together[bucket] = together.get(bucket, 0) + count
        return SummaryReading(tuple(sorted(together.items())), self._count, self._total)

    def take(self) -> tuple[int, int, list[tuple[int, dict[int, int]]]]:
        """Count, sum and slices, of which nothing is left."""
        taken = self._count, self._total, self._slices
        self._count, self._total, self._slices = 0, 0, []
        return taken

    def add_taken(
        self, count: int, total: int, slices: Sequence[tuple[int, Mapping[int, int]]]
    ) -> None:
        """Add what `take` has returned; the clock of both is that of the machine."""
        self._count += count
        self._total += total
        together = dict(self._slices)
        for number, counts in slices:
            known = together.setdefault(number, {})
            for bucket, times in counts.items():
                known[bucket] = known.get(bucket, 0) + times
        self._slices = sorted(together.items(), key=lambda each: each[0])[-SLICES:]

    def _current(self, now_ns: int) -> dict[int, int]:
        number = now_ns // SLICE_NS
        if not self._slices or self._slices[-1][0] < number:
            self._slices = [*self._slices[1 - SLICES :], (number, {})]
        return self._slices[-1][1]


def _bucket(value: int) -> int:
    """The bucket a value is counted in; 0 has one of its own."""
    return math.ceil(math.log(value) / _LOG_GROWTH) if value > 0 else -1


def _value(bucket: int) -> float:
    """The value that represents a bucket: within 1 % of each value in it."""
    return math.exp(bucket * _LOG_GROWTH) * _MIDDLE if bucket >= 0 else 0.0
