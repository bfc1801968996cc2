"""Measures level after level: starts a load and takes windows until they are stable.

    search --level--> load --> [window] [window] [window] --stable?--> LevelResult --> search

The pool decides what belongs to a window; `stability` and `summary` evaluate the windows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns

from shoal.errors import ShoalError
from shoal.perf import search as searching
from shoal.perf import server_side
from shoal.perf.connection import LoadError
from shoal.perf.schedule import Schedule
from shoal.perf.server_side import ServerSide, Snapshot
from shoal.perf.stability import WINDOWS, Rule, Verdict, WindowReading
from shoal.perf.summary import LoadSummary, MeasurementWindow, summarise
from shoal.perf.worker_pool import LevelMeasurement, LoadLevel, WorkerPool, pause

BUSY = 0.85  # above this share of a CPU, a worker may be the bottleneck
_GAIN = 1.05  # the throughput gain for which another worker is kept
_POLL_SECS = 0.01
_PROBE_SECS = 0.5  # to measure how busy the client is
_TICK_SECS = 0.25  # between two progress updates
_NO_RESPONSE_SECS = 120


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How to measure."""

    interval_secs: float = 5.0
    count: int | None = None  # requests per window; None makes windows of time
    request_count: int | None = None  # one window of exactly this many requests
    warmup: int = 0
    trials: int = 10
    rule: Rule = field(default_factory=Rule)
    percentile: int | None = None
    batch: int = 1
    workers: int = 0  # 0 adds workers as needed
    most_workers: int = 16


@dataclass(frozen=True, slots=True)
class LevelKind:
    """Whether levels are concurrencies or rates, and the schedule of a rate."""

    by_rate: bool = False
    schedule: Callable[[float], Schedule] | None = None

    def level(self, value: float, limit: int | None) -> LoadLevel:
        """The load of one level."""
        if self.schedule is not None:
            return LoadLevel(schedule=self.schedule(value), limit=limit)
        return LoadLevel(concurrency=int(value), limit=limit)


@dataclass(slots=True)
class LevelResult:
    """The result of one level."""

    value: float
    by_rate: bool
    summary: LoadSummary
    server: ServerSide | None
    stable: bool
    over_limit: bool
    windows: list[MeasurementWindow] = field(default_factory=list)
    client_bound: bool = False
    cut: bool = False  # the load ended before there were enough windows

    @property
    def ok(self) -> bool:
        """Whether it is part of the report."""
        return self.stable and not self.over_limit


class LevelCut(LoadError):
    """The load ended during a level."""

    def __init__(self, message: str, result: LevelResult) -> None:
        """`result` has the windows before that; it is not stable if more were needed."""
        super().__init__(message)
        self.result = result


class ProfileListener:
    """Receives the progress of a run; this base ignores it."""

    def level_begins(self, value: float) -> None:
        """A level begins."""

    def warming_up(self) -> None:
        """Warm-up requests are being sent."""

    def waiting(self, done: float) -> None:
        """This share of a window has passed."""

    def window_ended(self, number: int, summary: LoadSummary) -> None:
        """A window was measured."""

    def grew(self, workers: int) -> None:
        """The number of sending processes has changed."""

    def level_ended(self, result: LevelResult) -> None:
        """A level was measured, stable or not."""


@dataclass(slots=True)
class Profile:
    """A whole run."""

    results: list[LevelResult] = field(default_factory=list)  # in the order measured
    over: LevelResult | None = None  # the level that went over the limit first
    unstable: LevelResult | None = None  # the level that did not become stable
    interrupted: bool = False  # by Ctrl-C
    error: str = ""  # why the load ended before its end


class Profiler:
    """Runs a search over levels with one worker pool."""

    def __init__(
        self,
        pool: WorkerPool,
        options: MeasureOptions,
        kind: LevelKind,
        snapshot: Callable[[], Snapshot | None],
        compare: Callable[[Snapshot, Snapshot], ServerSide],
        listener: ProfileListener,
        devices: Callable[[int, int], dict[str, dict[str, float]]] = lambda _begin, _end: {},
    ) -> None:
        """`snapshot` reads the server's statistics, `devices` the GPU metrics of a window."""
        self._pool = pool
        self._options = options
        self._kind = kind
        self._snapshot = snapshot
        self._compare = compare
        self._listener = listener
        self._devices = devices
        self._enough = False  # more workers were tried without a gain

    def run(self, search: searching.Search) -> Profile:
        """Measure the levels of the search; Ctrl-C ends it early, and so does an error.

        Raises LoadError if there is nothing to report.
        """
        profile = Profile()
        try:
            value = next(search)
            while True:
                self._listener.level_begins(value)
                result = self.measure(value)
                self._listener.level_ended(result)
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
        except LevelCut as error:
            self._listener.level_ended(error.result)
            if error.result.ok:
                profile.results.append(error.result)
            profile.error = error.message
            return profile
        except ShoalError as error:
            if not profile.results:
                raise
            profile.error = error.message
            return profile

    def measure(self, value: float) -> LevelResult:
        """Measure one level. Raises LoadError when requests fail or none is answered; LevelCut if
        that is after the first windows."""
        if self._options.request_count:
            return self._counted(value, self._options.request_count)
        level = self._kind.level(value, None)
        self._begin(level)
        if self._options.workers == 0:
            self._grow(level)
        result: LevelResult | None = None
        windows: list[MeasurementWindow] = []
        try:
            result = self._settled(value, windows)
            self._pool.drain()
        except ShoalError as error:
            finished = [window for window in windows if len(window.measurement.ends)]
            if not finished:
                raise
            if result is None or not result.ok:
                result = self._result(value, finished[-WINDOWS:], stable=False)
                result.cut = True
            raise LevelCut(error.message, result) from None
        return result

    # ---- measuring

    def _settled(self, value: float, windows: list[MeasurementWindow]) -> LevelResult:
        """Take windows until three are stable, or up to the maximum number; `windows` gets them."""
        rule = self._options.rule
        readings: list[WindowReading] = []
        before = self._snapshot()
        verdict = Verdict.CONTINUE
        while verdict is Verdict.CONTINUE and len(windows) < self._options.trials:
            self._wait_for_window()
            measurement = self._pool.end_window()
            after = self._snapshot()
            windows.append(self._window(measurement, before, after))
            before = after
            summary = self._summary([measurement], value)
            latency_us = summary.latency_us(self._options.percentile)
            readings.append(WindowReading(summary.per_second, latency_us))
            self._listener.window_ended(len(windows), summary)
            verdict = rule.verdict(readings)
        if not any(len(window.measurement.ends) for window in windows):
            raise LoadError(
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
            self._pool.drain()
        before = self._snapshot()
        self._pool.start(self._kind.level(value, count))
        self._wait_until(lambda answered, idle: answered >= count or (idle and answered > 0))
        measurement = self._pool.end_window()
        if len(measurement.ends):
            measurement.end_ns = int(measurement.ends.max())  # nothing was sent after that
        after = self._snapshot()
        window = self._window(measurement, before, after)
        self._pool.drain()
        summary = self._summary([measurement], value)
        self._listener.window_ended(1, summary)
        return self._result(value, [window], stable=True)

    def _begin(self, level: LoadLevel) -> None:
        """Start a load and wait until it has warmed up."""
        self._pool.start(level)
        enough = self._options.warmup or level.concurrency or 1
        if self._options.warmup:
            self._listener.warming_up()
        self._wait_until(lambda answered, _idle: answered >= enough)
        self._pool.end_window()

    def _grow(self, level: LoadLevel) -> None:
        """Add workers while that raises the throughput."""
        most = min(self._options.most_workers, os.cpu_count() or 1)
        if level.schedule is None:
            most = min(most, level.concurrency)
        self._enough = self._enough or self._pool.workers >= most
        while not self._enough and self._pool.workers < most:
            self._wait_for_window(_PROBE_SECS)
            first = self._pool.end_window()
            if first.busiest < BUSY:
                return
            workers = self._pool.workers
            self._resize(min(most, workers * 2), level)
            self._wait_for_window(_PROBE_SECS)
            second = self._pool.end_window()
            if _rate(second) < _rate(first) * _GAIN:
                self._enough = True
                self._resize(workers, level)

    def _resize(self, workers: int, level: LoadLevel) -> None:
        self._pool.drain()
        self._pool.resize(workers)
        self._listener.grew(workers)
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
            self._listener.waiting(passed_ns / length_ns)
            pause(min(_TICK_SECS, (length_ns - passed_ns) / 1e9))

    def _wait_until(self, enough: Callable[[int, bool], bool]) -> None:
        """Poll until `enough` holds. Raises LoadError when no response arrives for a long time."""
        last, since_ns = -1, perf_counter_ns()
        while True:
            answered, idle = self._pool.count()
            if enough(answered, idle):
                return
            if answered != last:
                last, since_ns = answered, perf_counter_ns()
            elif perf_counter_ns() - since_ns > _NO_RESPONSE_SECS * 1e9:
                raise LoadError(f"the server sent no response for {_NO_RESPONSE_SECS} seconds")
            pause(_POLL_SECS)

    # ---- results

    def _window(
        self, measurement: LevelMeasurement, before: Snapshot | None, after: Snapshot | None
    ) -> MeasurementWindow:
        server = None
        if before is not None and after is not None:
            server = self._compare(before, after)
        return MeasurementWindow(
            measurement, server, self._devices(measurement.begin_ns, measurement.end_ns)
        )

    def _summary(self, measurements: list[LevelMeasurement], value: float) -> LoadSummary:
        return summarise(
            measurements,
            batch=self._options.batch,
            percentile=self._options.percentile,
            concurrency=0 if self._kind.by_rate else int(value),
        )

    def _result(self, value: float, windows: list[MeasurementWindow], stable: bool) -> LevelResult:
        summary = self._summary([window.measurement for window in windows], value)
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


def _rate(measurement: LevelMeasurement) -> float:
    return len(measurement.ends) / max(1, measurement.duration_ns)
