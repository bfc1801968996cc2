"""The work of the server between two snapshots of its statistics.

    Snapshot before, Snapshot after --difference--> ServerSide: counts, and where time went

An ensemble's own numbers are of little use; those of its composing models are kept, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Statistics = Mapping[str, Any]
Key = tuple[str, str]  # model and version
Snapshot = dict[Key, Statistics]
_PARTS = ("queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


@dataclass(slots=True)
class Tally:
    """One model's work between two snapshots. Sums in nanoseconds, by the server's names."""

    inferences: int = 0
    executions: int = 0
    successes: int = 0
    success_ns: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_PARTS, 0))
    sums_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_PARTS, 0))

    def add(self, other: Tally) -> None:
        """Add another window."""
        self.inferences += other.inferences
        self.executions += other.executions
        self.successes += other.successes
        self.success_ns += other.success_ns
        for part in _PARTS:
            self.counts[part] += other.counts[part]
            self.sums_ns[part] += other.sums_ns[part]

    @property
    def request_us(self) -> float:
        """Mean time of a request in the server."""
        return _mean_us(self.success_ns, self.successes)

    def part_us(self, part: str) -> float:
        """Mean time in one part, over all successful requests."""
        return _mean_us(self.sums_ns[part], self.successes)

    def each_us(self, part: str) -> float:
        """Mean time in one part, over the requests that had it."""
        return _mean_us(self.sums_ns[part], self.counts[part])

    @property
    def compute_us(self) -> float:
        """The sum of input, inference and output."""
        return sum(self.part_us(f"compute_{part}") for part in ("input", "infer", "output"))

    @property
    def cache_us(self) -> float:
        """The sum of hits and misses."""
        return self.part_us("cache_hit") + self.part_us("cache_miss")


@dataclass(slots=True)
class ServerSide:
    """The model under load and, for an ensemble, its composing models."""

    model: Tally
    composing: dict[Key, Tally] = field(default_factory=dict)

    def part_us(self, part: str) -> float:
        """A part's mean time per request; for an ensemble, the sum over its models."""
        if not self.composing:
            return self.model.part_us(part)
        return sum(_mean_us(t.sums_ns[part], self.model.successes) for t in self.composing.values())


def read(rows: Sequence[Statistics]) -> Snapshot:
    """A snapshot from `model_stats`."""
    return {(str(row["name"]), str(row["version"])): row for row in rows}


def difference(
    before: Snapshot, after: Snapshot, model: Key, composing: Sequence[Key] = ()
) -> ServerSide:
    """The difference of two snapshots. An empty version means all loaded versions."""
    return ServerSide(
        _tally(before, after, model),
        {
            key: _tally(before, after, key)
            for name in composing
            for key in sorted(_matching(after, name))
        },
    )


def merge(windows: Sequence[ServerSide | None]) -> ServerSide | None:
    """Several windows as one; None when the server has no statistics."""
    known = [window for window in windows if window is not None]
    if not known:
        return None
    whole = ServerSide(Tally())
    for window in known:
        whole.model.add(window.model)
        for key, tally in window.composing.items():
            whole.composing.setdefault(key, Tally()).add(tally)
    return whole


def _matching(snapshot: Snapshot, model: Key) -> list[Key]:
    name, version = model
    return [key for key in snapshot if key[0] == name and version in ("", key[1])]


def _tally(before: Snapshot, after: Snapshot, model: Key) -> Tally:
    total = Tally()
    for key in _matching(after, model):
        new, old = after[key], before.get(key, {})
        total.inferences += _gain(new, old, "inference_count")
        total.executions += _gain(new, old, "execution_count")
        new_times = new.get("inference_stats", {})
        old_times = old.get("inference_stats", {})
        success, success_before = new_times.get("success", {}), old_times.get("success", {})
        total.successes += _gain(success, success_before, "count")
        total.success_ns += _gain(success, success_before, "ns")
        for part in _PARTS:
            now, then = new_times.get(part, {}), old_times.get(part, {})
            total.counts[part] += _gain(now, then, "count")
            total.sums_ns[part] += _gain(now, then, "ns")
    return total


def _gain(new: Statistics, old: Statistics, name: str) -> int:
    """The increase of a counter; one that decreased was reset."""
    now, then = int(new.get(name, 0)), int(old.get(name, 0))
    return now - then if now >= then else now


def _mean_us(total_ns: int, count: int) -> float:
    return total_ns / count / 1000 if count else 0.0
