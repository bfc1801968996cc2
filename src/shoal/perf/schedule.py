"""When requests are due, for loads that follow a schedule rather than the responses.

Schedule("constant", 100).offsets() --> 0, 10_000_000, 20_000_000, …  nanoseconds
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import InvalidArgument

CONSTANT, POISSON, CUSTOM = "constant", "poisson", "custom"
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """A rate, its kind, and which of the requests are included: every `shares`-th one."""

    kind: str
    rate: float  # requests a second; for custom intervals, their mean
    intervals_ns: tuple[int, ...] = ()
    seed: int = 0
    share: int = 0
    shares: int = 1

    def part(self, share: int, shares: int) -> Schedule:
        """The part of one of `shares` workers; together they send all requests."""
        return replace(self, share=share, shares=shares)

    def offsets(self) -> Iterator[int]:
        """The times from the start on, without end."""
        return itertools.islice(self._all(), self.share, None, self.shares)

    def _all(self) -> Iterator[int]:
        if self.kind == CONSTANT:
            for count in itertools.count():
                yield round(count * _SECOND_NS / self.rate)
        elif self.kind == POISSON:
            # The same seed in every worker: they split the same schedule.
            chance = random.Random(self.seed)  # noqa: S311 - load, not secrets
            moment = 0.0
            while True:
                yield round(moment * _SECOND_NS)
                moment += chance.expovariate(self.rate)
        else:
            at = 0
            for interval in itertools.cycle(self.intervals_ns):
                yield at
                at += interval


def constant(rate: float) -> Schedule:
    """`rate` requests a second, evenly."""
    return Schedule(CONSTANT, rate)


def poisson(rate: float, seed: int = 0) -> Schedule:
    """`rate` requests a second on average, as independent users would send them."""
    return Schedule(POISSON, rate, seed=seed)


def custom(intervals_us: Sequence[int]) -> Schedule:
    """These intervals between requests, repeated."""
    total = sum(intervals_us)
    intervals_ns = tuple(interval * 1000 for interval in intervals_us)
    return Schedule(CUSTOM, len(intervals_us) * 1e6 / total, intervals_ns)


def read_intervals(path: str) -> list[int]:
    """The intervals in a file, in microseconds, one per line. Raises InvalidArgument."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--request-intervals={path} cannot be read: {error}") from None
    intervals = []
    for number, line in enumerate(lines, 1):
        if not (line.isascii() and line.isdigit()):
            raise InvalidArgument(
                f"--request-intervals={path}, line {number}: {line!r} is not a whole number of "
                f"microseconds"
            )
        intervals.append(int(line))
    if not sum(intervals):
        raise InvalidArgument(
            f"--request-intervals={path} contains no interval above 0; write one number of "
            f"microseconds per line"
        )
    return intervals
