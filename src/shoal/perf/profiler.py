"""Measures level after level: starts a load, takes windows until they agree, tells the search.

    search --level--> load --> [window] [window] [window] --stable?--> LevelResult --> search

What a window contains is decided by the fleet; what they mean by `stability` and `summary`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Protocol

from shoal.perf import search as searching
from shoal.perf import server_side
from shoal.perf.connection import LoadFailed
from shoal.perf.fleet import Fleet, Harvest, Level, pause
from shoal.perf.schedule import Schedule
from shoal.perf.server_side import ServerSide, Snapshot
from shoal.perf.stability import WINDOWS, Reading, Rule, Verdict
from shoal.perf.summary import Summary, Window, summarise

BUSY = 0.85  # from this part of a processor on, a worker may hold the server back
_GAIN = 1.05  # what a further worker must bring to stay
_LOOK_SECS = 0.01
_PROBE_SECS = 0.5  # to see how busy the client is
_TICK_SECS = 0.25  # between two looks at how far a window is
_PATIENCE_SECS = 120


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How to measure."""

    interval_secs: float = 5.0
    count: int | None = None  # requests per window; None makes windows of time
    request_count: int | None = None  # one window of exactly so many, whatever they say
    warmup: int = 0
    trials: int = 10
    rule: Rule = field(default_factory=Rule)
    percentile: int | None = None
    batch: int = 1
    workers: int = 0  # 0 takes as many as it needs
    most_workers: int = 16


@dataclass(frozen=True, slots=True)
class LevelKind:
    """Whether levels are concurrency or rates, and what a rate is made of."""

    by_rate: bool = False
    schedule: Callable[[float], Schedule] | None = None

    def level(self, value: float, limit: int | None) -> Level:
        """The load of one level."""
        if self.schedule is not None:
            return Level(schedule=self.schedule(value), limit=limit)
        return Level(concurrency=int(value), limit=limit)


@dataclass(slots=True)
class LevelResult:
    """What one level came to."""

    value: float
    by_rate: bool
    summary: Summary
    server: ServerSide | None
    stable: bool
    over_limit: bool
    windows: list[Window] = field(default_factory=list)
    client_bound: bool = False

    @property
    def ok(self) -> bool:
        """Whether it belongs in the report."""
        return self.stable and not self.over_limit


class Watcher(Protocol):
    """Who is told how far things are."""

    def level_begins(self, value: float) -> None:
        """A level is about to be measured."""

    def warming_up(self) -> None:
        """Requests are sent that do not count."""

    def waiting(self, done: float) -> None:
        """This part of a window has passed."""

    def window_ended(self, number: int, summary: Summary) -> None:
        """A window was measured."""

    def grew(self, workers: int) -> None:
        """So many processes send now."""

    def level_ended(self, result: LevelResult) -> None:
        """A level was measured, well or not."""


@dataclass(slots=True)
class Profile:
    """A whole run."""

    results: list[LevelResult] = field(default_factory=list)  # in the order measured
    over: LevelResult | None = None  # the level that went over the limit first
    unstable: LevelResult | None = None  # the level that never settled
    interrupted: bool = False  # somebody pressed Ctrl-C


class Profiler:
    """Runs a search over levels on one fleet."""

    def __init__(
        self,
        fleet: Fleet,
        options: MeasureOptions,
        kind: LevelKind,
        snapshot: Callable[[], Snapshot | None],
        compare: Callable[[Snapshot, Snapshot], ServerSide],
        watcher: Watcher,
        devices: Callable[[int, int], dict[str, dict[str, float]]] = lambda _begin, _end: {},
    ) -> None:
        """`snapshot` asks for the server's statistics, `devices` for metrics of a window."""
        self._fleet = fleet
        self._options = options
        self._kind = kind
        self._snapshot = snapshot
        self._compare = compare
        self._watcher = watcher
        self._devices = devices
        self._enough = False  # more workers have been tried and brought nothing

    def run(self, search: searching.Search) -> Profile:
        """Measure what the search asks for; Ctrl-C ends it early. Raises LoadFailed."""
        profile = Profile()
        try:
            value = next(search)
            while True:
                self._watcher.level_begins(value)
                result = self.measure(value)
                self._watcher.level_ended(result)
                if result.over_limit:
                    profile.over = profile.over or result
                elif not result.stable:
                    profile.unstable = result
                    return profile
                else:
                    profile.results.append(result)
                value = search.send(not result.over_limit)
        except StopIteration:
            return profile
        except KeyboardInterrupt:
            profile.interrupted = True
            return profile

    def measure(self, value: float) -> LevelResult:
        """One level. Raises LoadFailed when requests fail, or none is ever answered."""
        if self._options.request_count:
            return self._counted(value, self._options.request_count)
        level = self._kind.level(value, None)
        self._begin(level)
        if self._options.workers == 0:
            self._grow(level)
        result = self._settled(value)
        self._fleet.drain()
        return result

    # ---- ways to measure

    def _settled(self, value: float) -> LevelResult:
        """Windows until three agree, or until there were enough."""
        rule = self._options.rule
        readings: list[Reading] = []
        windows: list[Window] = []
        before = self._snapshot()
        verdict = Verdict.GO_ON
        while verdict is Verdict.GO_ON and len(windows) < self._options.trials:
            self._wait_for_window()
            harvest = self._fleet.cut()
            after = self._snapshot()
            windows.append(self._window(harvest, before, after))
            before = after
            summary = self._summary([harvest], value)
            latency_us = summary.latency_us(self._options.percentile)
            readings.append(Reading(summary.per_second, latency_us))
            self._watcher.window_ended(len(windows), summary)
            verdict = rule.verdict(readings)
        if not any(len(window.harvest.ends) for window in windows):
            raise LoadFailed(
                f"no request was answered within a window of "
                f"{self._options.interval_secs * 1000:g} ms; use a longer --measurement-interval, "
                f"or --measurement-mode=count_windows"
            )
        result = self._result(value, windows[-WINDOWS:], verdict is Verdict.STABLE)
        if verdict is Verdict.OVER_LIMIT:
            result.over_limit = True
        return result

    def _counted(self, value: float, count: int) -> LevelResult:
        """One window with exactly `count` requests."""
        level = self._kind.level(value, None)
        if self._options.warmup:
            self._begin(level)
            self._fleet.drain()
        before = self._snapshot()
        self._fleet.start(self._kind.level(value, count))
        self._wait_until(lambda answered, idle: answered >= count or (idle and answered > 0))
        harvest = self._fleet.cut()
        if len(harvest.ends):
            harvest.end_ns = int(harvest.ends.max())  # nothing was sent after that
        after = self._snapshot()
        window = self._window(harvest, before, after)
        self._fleet.drain()
        summary = self._summary([harvest], value)
        self._watcher.window_ended(1, summary)
        return self._result(value, [window], stable=True)

    def _begin(self, level: Level) -> None:
        """Start a load and let it come up to speed."""
        self._fleet.start(level)
        enough = self._options.warmup or level.concurrency or 1
        if self._options.warmup:
            self._watcher.warming_up()
        self._wait_until(lambda answered, _idle: answered >= enough)
        self._fleet.cut()

    def _grow(self, level: Level) -> None:
        """Add workers while that makes a difference."""
        most = min(self._options.most_workers, os.cpu_count() or 1)
        if level.schedule is None:
            most = min(most, level.concurrency)
        self._enough = self._enough or self._fleet.workers >= most
        while not self._enough and self._fleet.workers < most:
            self._wait_for_window(_PROBE_SECS)
            first = self._fleet.cut()
            if first.busiest < BUSY:
                return
            workers = self._fleet.workers
            self._resize(min(most, workers * 2), level)
            self._wait_for_window(_PROBE_SECS)
            second = self._fleet.cut()
            if _rate(second) < _rate(first) * _GAIN:
                self._enough = True
                self._resize(workers, level)

    def _resize(self, workers: int, level: Level) -> None:
        self._fleet.drain()
        self._fleet.resize(workers)
        self._watcher.grew(workers)
        self._begin(level)

    # ---- waiting

    def _wait_for_window(self, at_most_secs: float = math.inf) -> None:
        count = self._options.count
        if count is not None:
            self._wait_until(lambda answered, _idle: answered >= count)
            return
        begin_ns, length_ns = perf_counter_ns(), self._options.interval_secs * 1e9
        length_ns = min(length_ns, at_most_secs * 1e9)
        while (passed_ns := perf_counter_ns() - begin_ns) < length_ns:
            self._watcher.waiting(passed_ns / length_ns)
            pause(min(_TICK_SECS, (length_ns - passed_ns) / 1e9))

    def _wait_until(self, enough: Callable[[int, bool], bool]) -> None:
        """Ask until it is. Raises LoadFailed when nothing happens for a long time."""
        last, since_ns = -1, perf_counter_ns()
        while True:
            answered, idle = self._fleet.count()
            if enough(answered, idle):
                return
            if answered != last:
                last, since_ns = answered, perf_counter_ns()
            elif perf_counter_ns() - since_ns > _PATIENCE_SECS * 1e9:
                raise LoadFailed(f"the server answered nothing for {_PATIENCE_SECS} seconds")
            pause(_LOOK_SECS)

    # ---- results

    def _window(self, harvest: Harvest, before: Snapshot | None, after: Snapshot | None) -> Window:
        server = None
        if before is not None and after is not None:
            server = self._compare(before, after)
        return Window(harvest, server, self._devices(harvest.begin_ns, harvest.end_ns))

    def _summary(self, harvests: list[Harvest], value: float) -> Summary:
        return summarise(
            harvests,
            batch=self._options.batch,
            percentile=self._options.percentile,
            concurrency=0 if self._kind.by_rate else int(value),
        )

    def _result(self, value: float, windows: list[Window], stable: bool) -> LevelResult:
        summary = self._summary([window.harvest for window in windows], value)
        limit_us = self._options.rule.limit_us
        slow = bool(limit_us) and summary.latency_us(self._options.percentile) >= limit_us
        return LevelResult(
            value=value,
            by_rate=self._kind.by_rate,
            summary=summary,
            server=server_side.merge([window.server for window in windows]),
            stable=stable,
            over_limit=stable and slow,
            windows=windows,
            client_bound=summary.busiest >= BUSY,
        )


def _rate(harvest: Harvest) -> float:
    return len(harvest.ends) / max(1, harvest.duration_ns)
