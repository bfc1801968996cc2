"""The decision of `shoal plan`: the capacity of one replica, and how many of them a load needs.

    levels, p99 target --capacity--> rate of one replica --plan--> replicas

Levels are never extrapolated. They are read pessimistically: at a rate, p99 is the highest that was
measured at that rate or below. Between two levels p99 is taken as a straight line; a latency curve
bends upwards, so that the line is above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import InvalidArgument

_ROUNDING = 1e-9  # 5000 / 625 is 8 replicas, not 9


@dataclass(frozen=True, slots=True)
class Level:
    """One measured load on one replica."""

    name: str  # "concurrency 4"
    rate: float  # inferences that were completed in a second
    p99_ms: float
    requests: int | None = None  # that were measured, where the report tells


@dataclass(frozen=True, slots=True)
class Demand:
    """What the replicas together must do, and what they keep in reserve."""

    rate: float  # inferences a second
    p99_ms: float
    peak_factor: float = 1.0  # the highest rate of a day, divided by `rate`
    headroom: float = 0.3  # share of a replica's capacity that is left unused
    failures: int = 1  # replicas that may be missing: failed, or being updated


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate at which one replica meets the target."""

    rate: float
    met: Level  # the highest level that meets it
    missed: Level | None  # the next level, which does not; None if all levels meet the target


@dataclass(frozen=True, slots=True)
class Plan:
    """The replicas for a demand."""

    demand: Demand
    capacity: Capacity
    serving: int  # replicas that the load needs
    p99_ms: float  # the most to expect when `failures` replicas are missing

    @property
    def replicas(self) -> int:
        """All replicas, with those that may be missing."""
        return self.serving + self.demand.failures

    @property
    def peak_rate(self) -> float:
        """The rate to plan for."""
        return self.demand.rate * self.demand.peak_factor

    @property
    def planned_rate(self) -> float:
        """The highest rate that a replica is given."""
        return self.capacity.rate * (1 - self.demand.headroom)


class TargetMissed(InvalidArgument):
    """Even the lowest measured load misses the target."""


def capacity(levels: Sequence[Level], p99_ms: float) -> Capacity:
    """The capacity of the replica that `levels` were measured on. Raises TargetMissed."""
    met: Level | None = None
    highest_ms = 0.0
    for level in _ordered(levels):
        if level.p99_ms <= p99_ms:
            met, highest_ms = level, max(highest_ms, level.p99_ms)
            continue
        if met is None:
            raise TargetMissed(_missed(levels, level, p99_ms))
        share = (p99_ms - highest_ms) / (level.p99_ms - highest_ms)
        return Capacity(met.rate + share * (level.rate - met.rate), met, level)
    if met is None:
        raise InvalidArgument("there is no measured level to plan with")
    return Capacity(met.rate, met, None)


def plan(levels: Sequence[Level], demand: Demand) -> Plan:
    """The replicas for `demand`. Raises TargetMissed."""
    one = capacity(levels, demand.p99_ms)
    wanted = demand.rate * demand.peak_factor
    usable = one.rate * (1 - demand.headroom)
    serving = max(1, math.ceil(wanted / usable - _ROUNDING))
    return Plan(demand, one, serving, _p99_ms(levels, wanted / serving))


def per_second(rate: float, unit: str = "") -> str:
    """A rate for people: 9.87/s, 12,345 inferences/s."""
    return f"{rate:,.0f}{unit}/s" if rate >= 1000 else f"{rate:.3g}{unit}/s"


def _p99_ms(levels: Sequence[Level], rate: float) -> float:
    """The highest p99 to expect at a rate that is within the measured ones."""
    highest_ms, below = 0.0, 0.0
    for level in _ordered(levels):
        if level.rate >= rate:
            if level.p99_ms <= highest_ms or not below:
                return max(highest_ms, level.p99_ms)
            share = (rate - below) / (level.rate - below)
            return highest_ms + share * (level.p99_ms - highest_ms)
        highest_ms, below = max(highest_ms, level.p99_ms), level.rate
    return highest_ms


def _ordered(levels: Sequence[Level]) -> list[Level]:
    return sorted(levels, key=lambda level: (level.rate, -level.p99_ms))


def _missed(levels: Sequence[Level], lowest: Level, p99_ms: float) -> str:
    text = (
        f"p99 is {lowest.p99_ms:.4g} ms at the lowest measured rate ({lowest.name}: "
        f"{per_second(lowest.rate)}), above the target of {p99_ms:g} ms"
    )
    others = [level.name for level in _ordered(levels) if level.p99_ms <= p99_ms]
    if others:
        return (
            f"{text}, although it is within the target at {', '.join(others)}; measure again with "
            f"longer windows (shoal perf -p), without other load on the machine"
        )
    return (
        f"{text}: more replicas do not help; raise --p99-ms, measure a lower load, or make the "
        f"model faster (shoal tune)"
    )
