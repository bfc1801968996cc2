"""What is wanted of a config, and which of two measurements is closer to it.

    Goal("throughput", limit_us=20_000, percentile=99).better(one, other)

Measurements differ by chance. A difference within `margin` is none, so that the search neither
wanders over a plateau nor prefers a config for its luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shoal.tune.space import Point

THROUGHPUT, LATENCY = "throughput", "latency"
OBJECTIVES = (THROUGHPUT, LATENCY)
MARGIN = 0.02
LADDER = (1, 8, 32)
FEW_CLIENTS = 4


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one config did for so many clients. Times are in microseconds."""

    point: Point
    clients: int
    per_second: float = 0.0  # rows
    latency_us: float = 0.0  # of the percentile that counts
    average_us: float = 0.0
    percentiles_us: dict[int, float] = field(default_factory=dict)
    mean_batch: float = 0.0  # rows in an execution; 0 where nobody counted
    peak_batch: int = 0  # the most rows in an execution; 0 where nobody counted
    queue_us: float = 0.0
    compute_us: float = 0.0
    client_bound: bool = False  # whoever sent the requests was the slower part
    careful: bool = False  # measured for longer, and until it was stable
    error: str = ""  # why there are no numbers: the config did not load, or requests failed


@dataclass(frozen=True, slots=True)
class Goal:
    """The objective and the limit."""

    objective: str = THROUGHPUT
    limit_us: float = 0.0  # 0 is none
    percentile: int = 99
    margin: float = MARGIN

    def levels(self) -> tuple[int, ...]:
        """How many clients to try with, where nobody said.

        Throughput is highest when many ask, so without a limit one level is enough; with a limit
        the question is how many may ask. Latency matters for services that few ask at a time.
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
        """The larger the better. Over the limit, latency is what must improve first."""
        if measurement.error:
            return -1, 0.0
        met = self.met(measurement)
        if self.objective == THROUGHPUT and met:
            return 1, measurement.per_second
        return int(met), -measurement.latency_us

    def better(self, one: Measurement, other: Measurement | None) -> bool:
        """Whether `one` beats `other` by more than chance."""
        if other is None:
            return True
        (kind, value), (other_kind, other_value) = self.rank(one), self.rank(other)
        if kind != other_kind:
            return kind > other_kind
        return value - other_value > self.margin * abs(other_value)

    def best(self, measurements: Sequence[Measurement]) -> Measurement:
        """The best; of those that differ by chance only, the one with the lower latency."""
        first = max(measurements, key=self.rank)
        alike = [each for each in measurements if not self.better(first, each)]
        close = replace(self, margin=self.margin / 2)
        alike = [each for each in alike if not close.better(first, each)]
        return min(alike, key=lambda each: each.latency_us)
