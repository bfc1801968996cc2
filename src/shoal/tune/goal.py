"""The goal of the search, and which of two measurements is better.

    Goal("throughput", limit_us=20_000, percentile=99).better(one, other)

Measurements vary randomly. A difference within `margin` counts as none, so that the search neither
wanders over a plateau nor prefers a config by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shoal.tune.space import ConfigPoint

THROUGHPUT, LATENCY = "throughput", "latency"
MARGIN = 0.02
LADDER = (1, 8, 32)
FEW_CLIENTS = 4


@dataclass(frozen=True, slots=True)
class Measurement:
    """The performance of one config with a number of clients. Times are in microseconds."""

    point: ConfigPoint
    clients: int
    per_second: float = 0.0  # rows
    latency_us: float = 0.0  # at the configured percentile
    average_us: float = 0.0
    percentiles_us: dict[int, float] = field(default_factory=dict)
    mean_batch: float = 0.0  # rows per execution; 0 if unknown
    peak_batch: int = 0  # the most rows in an execution; 0 if unknown
    queue_us: float = 0.0
    compute_us: float = 0.0
    client_bound: bool = False  # the client was the bottleneck
    careful: bool = False  # measured for longer, until stable
    error: str = ""  # why there are no numbers: loading or requests failed


@dataclass(frozen=True, slots=True)
class Goal:
    """The objective and the limit."""

    objective: str = THROUGHPUT
    limit_us: float = 0.0  # 0 is none
    percentile: int = 99
    margin: float = MARGIN

    def levels(self) -> tuple[int, ...]:
        """The default numbers of clients to try.

        Throughput is highest with many clients, so without a limit one level is enough; with a
        limit the number of clients is searched, too. For latency, few clients are assumed.
        """
        if self.objective == LATENCY:
            return (FEW_CLIENTS,)
        return LADDER if self.limit_us else LADDER[-1:]

    def met(self, measurement: Measurement) -> bool:
        """Whether it is within the limit."""
        if measurement.error:
            return False
        return not self.limit_us or measurement.latency_us <= self.limit_us

    def rank(self, measurement: Measurement) -> tuple[int, float]:
        """A sort key, larger is better. Over the limit, lower latency ranks higher."""
        if measurement.error:
            return -1, 0.0
        met = self.met(measurement)
        if self.objective == THROUGHPUT and met:
            return 1, measurement.per_second
        return int(met), -measurement.latency_us

    def better(self, one: Measurement, other: Measurement | None) -> bool:
        """Whether `one` is better than `other` by more than the margin."""
        if other is None:
            return True
        (kind, value), (other_kind, other_value) = self.rank(one), self.rank(other)
        if kind != other_kind:
            return kind > other_kind
        return value - other_value > self.margin * abs(other_value)

    def best(self, measurements: Sequence[Measurement]) -> Measurement:
        """The best; of those within the margin, the one with the lowest latency."""
        first = max(measurements, key=self.rank)
        alike = [each for each in measurements if not self.better(first, each)]
        close = replace(self, margin=self.margin / 2)
        alike = [each for each in alike if not close.better(first, each)]
        return min(alike, key=lambda each: each.latency_us)
