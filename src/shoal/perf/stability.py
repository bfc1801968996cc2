"""When a level has been measured long enough: when the last three windows are stable.

[WindowReading(per_second, latency_us), …] --verdict--> CONTINUE | STABLE | OVER_LIMIT
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

WINDOWS = 3


class WindowReading(NamedTuple):
    """The throughput of one window, and its mean latency or the configured percentile."""

    per_second: float
    latency_us: float


class Verdict(enum.Enum):
    """The conclusion from the windows so far."""

    CONTINUE = "continue"
    STABLE = "stable"
    OVER_LIMIT = "over the latency limit"


@dataclass(frozen=True, slots=True)
class Rule:
    """How close windows must be. Without latency, throughput alone decides."""

    percent: float = 10.0
    with_latency: bool = True
    limit_us: float = 0.0  # 0 is none

    def verdict(self, readings: Sequence[WindowReading]) -> Verdict:
        """The conclusion from the last three windows; fewer are never enough."""
        last = readings[-WINDOWS:]
        if len(last) < WINDOWS:
            return Verdict.CONTINUE
        if self.stable(last):
            return Verdict.STABLE
        if self.limit_us and any(reading.latency_us >= self.limit_us for reading in last):
            return Verdict.OVER_LIMIT  # no need to wait until it is stable
        return Verdict.CONTINUE

    def stable(self, readings: Sequence[WindowReading]) -> bool:
        """Whether none is empty, and the largest is within the percentage of the smallest."""
        rates = [reading.per_second for reading in readings]
        if min(rates) <= 0 or not self._close(rates):
            return False
        return not self.with_latency or self._close([reading.latency_us for reading in readings])

    def _close(self, values: Sequence[float]) -> bool:
        return max(values) <= min(values) * (1 + self.percent / 100)
