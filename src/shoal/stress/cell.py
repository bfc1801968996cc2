"""One cell of the table: the latencies for a number of clients and a number of sessions."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.perf.profiler import BUSY

DISTURBED = 0.05  # above this share of the CPUs, other programs affect the numbers


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """A row of the table. None stands for what a running server did not report."""

    sessions: int | None
    batching: bool | None


@dataclass(slots=True)
class Cell:
    """One measurement. Latencies are those of answered questions."""

    setup: ServerSetup
    clients: int
    latencies_ms: Sequence[float] = ()
    failures: Counter[str] = field(default_factory=Counter)  # by reason
    duration_secs: float = 0.0
    # Until the first client had asked all its questions: then the load decreases.
    loaded_secs: float = 0.0
    answered_under_load: float = 0.0
    busy: float = 0.0  # CPU time of the clients as a share of the duration
    starved: float = 0.0  # time that they waited for a CPU, likewise
    mean_batch: float | None = None  # rows per execution, where the server reports it
    others: float | None = None  # share of all CPUs that other programs used
    partial: bool = False  # interrupted before all questions were sent

    @property
    def answered(self) -> int:
        """How many questions were answered."""
        return len(self.latencies_ms)

    @property
    def failed(self) -> int:
        """How many were not answered."""
        return self.failures.total()

    @property
    def mean_ms(self) -> float:
        """Mean latency; NaN without answers."""
        return statistics.fmean(self.latencies_ms) if self.latencies_ms else math.nan

    @property
    def deviation_ms(self) -> float:
        """The standard deviation of the latencies."""
        return statistics.pstdev(self.latencies_ms) if self.latencies_ms else math.nan

    @property
    def per_second(self) -> float:
        """Answers a second, while all clients asked."""
        if self.loaded_secs and self.answered_under_load:
            return self.answered_under_load / self.loaded_secs
        return self.answered / self.duration_secs if self.duration_secs else 0.0

    @property
    def client_bound(self) -> bool:
        """Whether the clients may have been the bottleneck."""
        return self.busy + self.starved >= BUSY

    def percentile_ms(self, percent: float) -> float:
        """The latency that this percentage of the answers did not exceed."""
        if not self.latencies_ms:
            return math.nan
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, math.ceil(len(ordered) * percent / 100) - 1)]
