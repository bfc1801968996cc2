"""A histogram of whole numbers that counts a whole batch of requests at a time.

    sorted start moments + one end moment --> a handful of bisections, whatever the batch's size

The requests of a batch end together, so their durations differ only in their start times. Once
these are sorted, one bisection per bucket counts all values in it; no duration is computed for a
single request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class HistogramReading:
    """A copy of a histogram, in Prometheus' cumulative form."""

    edges: tuple[float, ...]  # upper bounds, each inside its bucket
    cumulative: tuple[int, ...]  # one per edge, then the count of everything
    total: int  # the sum of all values

    @property
    def count(self) -> int:
        """How many values there were."""
        return self.cumulative[-1]


class Histogram:
    """Counts per bucket and the sum of the values. It has no lock: its owner has one."""

    __slots__ = ("_counts", "_edges", "_total")

    def __init__(self, edges: Sequence[float]) -> None:
        """`edges` are the buckets' upper bounds, rising; a last bucket without bound is added."""
        self._edges = tuple(edges)
        self._counts = [0] * (len(self._edges) + 1)
        self._total = 0

    def add(self, value: int, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self._counts[bisect_left(self._edges, value)] += times
        self._total += value * times

    def add_all(self, values: Sequence[int]) -> None:
        """Count each of `values`."""
        edges, counts = self._edges, self._counts
        for value in values:
            counts[bisect_left(edges, value)] += 1
        self._total += sum(values)

    def add_spans(self, starts: Sequence[int], end: int, total: int) -> None:
        """Count `end - start` for each of `starts`, which is sorted and not empty.

        `total` is the sum of those differences; callers have it already.
        """
        edges, counts = self._edges, self._counts
        self._total += total
        bucket = bisect_left(edges, end - starts[-1])  # the shortest span
        last = bisect_left(edges, end - starts[0])
        left = len(starts)  # starts[:left] are in no bucket yet: the longer spans
        while bucket < last:
            longer = bisect_left(starts, end - edges[bucket], 0, left)
            counts[bucket] += left - longer
            left = longer
            bucket += 1
        counts[bucket] += left

    def take(self) -> tuple[list[int], int]:
        """The counts of the buckets and the sum of the values, which are zero from then on."""
        taken = self._counts, self._total
        self._counts, self._total = [0] * len(self._counts), 0
        return taken

    def add_taken(self, counts: Sequence[int], total: int, times: int = 1) -> None:
        """Add what `take` has returned, of a histogram with the same edges, `times` times."""
        self._counts = [own + times * more for own, more in zip(self._counts, counts, strict=True)]
        self._total += times * total

    def read(self) -> HistogramReading:
        """A copy that no longer changes."""
        return HistogramReading(self._edges, tuple(accumulate(self._counts)), self._total)
