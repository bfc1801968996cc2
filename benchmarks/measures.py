"""The arithmetic of a measurement; starts nothing.

    a load's output --loads.*.parse--> Load
    start and duration of each request --steady_rate--> requests per second, without start and end
    measurements of all rounds --summarise--> one row per cell, ratios within rounds

A cell is what two peers can be compared in: workload, load generator, protocol and concurrency.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

CELL = ("workload", "tool", "protocol", "concurrency")
FIGURES = (
    "per_second",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "late_share",
    "settle_secs",
    "of_steady",
    "cpu_us",
    "memory_mb",
    "resident_mb",
    "ready_secs",
    "others_cores",
    "load_cores",
)
ATTEMPTS = 4
PAUSE_SECS = 3.0  # for others to finish
SAME_INSTANT_SECS = 0.02  # answers of one batch leave together


@dataclass
class Load:
    """What a load generator reports."""

    requests: int
    seconds: float
    per_second: float
    p50_us: float
    p99_us: float
    errors: dict[str, int] = field(default_factory=dict)
    p999_us: float | None = None
    max_us: float | None = None
    late_share: float | None = None  # of requests, sent too late by the load generator's fault

    def note(self, kind: str, count: int) -> None:
        """Count errors of one kind, if there were any."""
        if count:
            self.errors[kind] = self.errors.get(kind, 0) + count


@dataclass
class Measurement:
    """One run of one load on one endpoint."""

    workload: str
    peer: str
    tool: str
    protocol: str
    concurrency: int
    turn: int
    requests: int
    per_second: float
    p50_us: float | None
    p99_us: float | None
    cpu_us: float | None  # user and system time of all the server's processes, per request
    memory_mb: float | None = None  # shared pages counted once
    resident_mb: float | None = None  # plain sum of resident pages
    ready_secs: float | None = None  # from starting the process to the first right answer
    load_cores: float | None = None  # cores the load generator kept busy
    others_cores: float | None = None  # cores that everybody else on the machine kept busy
    errors: dict[str, int] = field(default_factory=dict)
    note: str = ""
    p999_us: float | None = None
    max_us: float | None = None
    late_share: float | None = None  # of requests, sent too late by the load generator's fault
    settle_secs: float | None = None  # after a change of the load, until the rate is steady
    of_steady: float | None = None  # the rate after a change, as a share of the steady one

    def record(self) -> dict[str, Any]:
        """The measurement for the JSON file of results."""
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


class Disturbed(Protocol):
    """A measurement with the CPU use of other processes."""

    others_cores: float | None


D = TypeVar("D", bound=Disturbed)


def quietest(
    measure: Callable[[], D], quiet_cores: float, pause: Callable[[float], None] = time.sleep
) -> D:
    """Measure, repeatedly while other processes use more than `quiet_cores`; the attempt with the
    least interference. With 0 the first one counts."""
    best = measure()
    for _ in range(ATTEMPTS - 1):
        if not quiet_cores or (best.others_cores or 0.0) <= quiet_cores:
            break
        pause(PAUSE_SECS)
        again = measure()
        if (again.others_cores or 0.0) < (best.others_cores or 0.0):
            best = again
    return best


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed; 0 if there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def steady_rate(starts: Sequence[float], durations: Sequence[float]) -> float:
    """Requests a second while all clients were busy, from each request's start and duration in
    seconds.

    Counting starts with the first responses and ends when the last request was sent: outside,
    some clients are idle. Responses at one instant count as one batch, so a server that responds
    to eight at a time is not credited with its first eight. Falls back to the plain rate if that
    window is empty.
    """
    if not starts:
        return 0.0
    ends = sorted(start + took for start, took in zip(starts, durations, strict=True))
    first, last_start = ends[0], max(starts)
    inside = [end for end in ends if end > first + SAME_INSTANT_SECS and end <= last_start + 1e-3]
    if inside and last_start > first + SAME_INSTANT_SECS:
        return len(inside) / (last_start - first)
    whole = ends[-1] - min(starts)
    return len(ends) / whole if whole > 0 else 0.0


def summarise(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per cell and peer: the median of each figure over the turns, errors added up, and
    how the per-turn throughput spread."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((*(record[name] for name in CELL), record["peer"]), []).append(record)
    rows = []
    for key, group in groups.items():
        row = dict(zip((*CELL, "peer"), key, strict=True))
        for figure in FIGURES:
            values = [one[figure] for one in group if one.get(figure) is not None]
            row[figure] = statistics.median(values) if values else None
        rates = [one["per_second"] for one in group]
        row["turns"] = len(group)
        row["lowest_per_second"], row["highest_per_second"] = min(rates), max(rates)
        row["requests"] = sum(one["requests"] for one in group)
        row["errors"] = sum(sum(one["errors"].values()) for one in group)
        row["note"] = next((one["note"] for one in group if one.get("note")), "")
        rows.append(row)
    return rows


def ratio(
    records: Iterable[dict[str, Any]],
    cell: tuple[Any, ...],
    ours: str,
    theirs: str,
    figure: str = "per_second",
) -> float | None:
    """The median over turns of our figure divided by theirs in the same turn; None if no round
    has both. `cell` holds values in the order of CELL."""
    by_turn: dict[int, dict[str, float]] = {}
    for record in records:
        if tuple(record[name] for name in CELL) == cell and record.get(figure) is not None:
            by_turn.setdefault(record["turn"], {})[record["peer"]] = record[figure]
    ratios = [
        pair[ours] / pair[theirs] for pair in by_turn.values() if ours in pair and pair.get(theirs)
    ]
    return statistics.median(ratios) if ratios else None
