"""One cell of the table: so many clients ask so many sessions, and how long they wait."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.perf.profiler import BUSY

DISTURBED = 0.05  # from this part of the machine on, other programs have a share in the numbers


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured: a row of the table. None stands for what a running server did not say."""

    sessions: int | None
    batching: bool | None


@dataclass(slots=True)
class Cell:
    """What was measured. Latencies are those of questions that were answered."""

    setup: Setup
    clients: int
    latencies_ms: Sequence[float] = ()
    failures: Counter[str] = field(default_factory=Counter)  # by what went wrong
    duration_secs: float = 0.0
    busy: float = 0.0  # the part of a processor that the clients took
    starved: float = 0.0  # the part of the time that they waited for one
    mean_batch: float | None = None  # rows per execution, as far as the server says
    others: float | None = None  # the part of the machine that other programs took
    partial: bool = False  # interrupted before all questions were asked

    @property
    def answered(self) -> int:
        """How many questions were answered."""
        return len(self.latencies_ms)

    @property
    def failed(self) -> int:
        """How many were not."""
        return self.failures.total()

    @property
    def mean_ms(self) -> float:
        """Mean latency; not a number where nothing was answered."""
        return statistics.fmean(self.latencies_ms) if self.latencies_ms else math.nan

    @property
    def deviation_ms(self) -> float:
        """The standard deviation of the latencies."""
        return statistics.pstdev(self.latencies_ms) if self.latencies_ms else math.nan

    @property
    def per_second(self) -> float:
        """Answers a second."""
        return self.answered / self.duration_secs if self.duration_secs else 0.0

    @property
    def client_bound(self) -> bool:
        """Whether the clients may have held the server back, at work or waiting for their turn."""
        return self.busy + self.starved >= BUSY

    def percentile_ms(self, percent: float) -> float:
        """The latency that this part of the answers did not exceed."""
        if not self.latencies_ms:
            return math.nan
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, math.ceil(len(ordered) * percent / 100) - 1)]
