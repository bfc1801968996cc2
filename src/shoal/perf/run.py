"""One run of `shoal perf`, from its options to its reports.

    prepare --> profile --> text, table, export, report

Results go to `print_line` line by line as they are known; warnings go to `warn`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.perf import csv_table, export, findings, preparation, search, text
from shoal.perf.metrics import MetricsReader
from shoal.perf.model_facts import ModelFacts
from shoal.perf.options import PerfOptions
from shoal.perf.profiler import (
    LevelKind,
    LevelResult,
    MeasureOptions,
    Profile,
    ProfileListener,
    Profiler,
)
from shoal.perf.progress import ProgressLine
from shoal.perf.schedule import Schedule, constant, custom, poisson, read_intervals
from shoal.perf.search import Range
from shoal.perf.stability import Rule
from shoal.perf.summary import LoadSummary
from shoal.perf.worker_pool import WorkerPool

PrintLine = Callable[[str], None]
OK, UNSTABLE, INTERRUPTED = 0, 2, 130
_DEFAULT_WORKERS = 16
_STARVED = 0.05  # above this share of the time, the machine is too busy for good measurements


@dataclass(slots=True)
class PerfResult:
    """The result of a run."""

    options: PerfOptions
    facts: ModelFacts
    profile: Profile
    code: int = OK
    files: list[str] = field(default_factory=list)  # that were written


class _LevelPrinter(ProfileListener):
    """Prints levels and windows as they are measured."""

    def __init__(
        self, options: PerfOptions, facts: ModelFacts, print_line: PrintLine, progress: ProgressLine
    ) -> None:
        self._options = options
        self._facts = facts
        self._print_line = print_line
        self._progress = progress

    def level_begins(self, value: float) -> None:
        """Its title."""
        title = text.level_title(self._options, value)
        if title:
            self._progress.clear()
            self._print_line(title)
        self._progress.level(title or "custom intervals")

    def warming_up(self) -> None:
        """Shown only on terminals."""
        self._progress.note("warming up")

    def waiting(self, done: float) -> None:
        """Shown only on terminals."""
        self._progress.waiting(done)

    def window_ended(self, number: int, summary: LoadSummary) -> None:
        """Printed with -v."""
        percentile = self._options.only_percentile
        if self._options.verbose and not self._options.request_count:
            self._progress.clear()
            self._print_line(text.window_line(number, summary, percentile))
        self._progress.window(number, summary)

    def grew(self, workers: int) -> None:
        """Shown only on terminals."""
        self._progress.note(f"{workers} processes send")

    def level_ended(self, result: LevelResult) -> None:
        """Printed if it is part of the report."""
        self._progress.clear()
        if result.cut:
            count = len(result.windows)
            self._print_line(f"  Before the load ended ({count} window{'s' * (count > 1)}):")
        if result.ok or result.cut:
            for line in text.level_block(self._options, self._facts, result):
                self._print_line(line)


def run(
    options: PerfOptions, print_line: PrintLine, warn: PrintLine, progress: ProgressLine
) -> PerfResult:
    """Measure, print and write the reports. Raises ShoalError."""
    for sentence in options.warnings():
        warn(sentence)
    where = preparation.endpoint(options)
    server = preparation.MeasuredServer(where, options.headers())
    try:
        facts = server.facts(options)
        found = preparation.load_data(options, facts)
        if found.given:
            steps = sum(map(len, found.streams))
            print_line(
                f" Successfully read data for {len(found.streams)} stream/streams with {steps} "
                f"step/steps."
            )
        asynchronous = options.asynchronous_calls or (facts.sequences and not options.synchronous)
        if found.expected:
            preparation.check_responses(options, server, facts, found)
        _trace(options, server)
        levels, kind = _levels(options)
        for line in text.settings(options, facts, levels, asynchronous=asynchronous):
            print_line(line)
        printer = _LevelPrinter(options, facts, print_line, progress)
        with preparation.job(options, server, where, facts, found) as job:
            measure = measure_options(options, asynchronous=asynchronous)
            metrics = _metrics(options)
            pool = WorkerPool(job, options.workers or 1)
            try:
                profiler = Profiler(
                    pool,
                    measure,
                    kind,
                    functools.partial(server.snapshot, facts),
                    functools.partial(server.compare, facts),
                    printer,
                    metrics.between if metrics else lambda _begin, _end: {},
                )
                way = search.binary if options.binary_search else search.linear
                profile = profiler.run(way(levels))
            finally:
                progress.clear()
                pool.stop()
                if metrics is not None:
                    metrics.stop()
    finally:
        server.close()
    return _conclude(options, facts, profile, print_line, warn)


def measure_options(options: PerfOptions, *, asynchronous: bool) -> MeasureOptions:
    """The profiler's options."""
    counted = options.measurement_mode == "count_windows"
    return MeasureOptions(
        interval_secs=options.measurement_interval / 1000,
        count=options.measurement_request_count if counted else None,
        request_count=options.request_count or None,
        warmup=options.warmup_request_count,
        trials=options.max_trials,
        rule=Rule(
            options.stability_percentage,
            with_latency=not asynchronous,
            limit_us=options.latency_threshold * 1000,
        ),
        percentile=options.only_percentile,
        batch=options.batch_size,
        workers=options.workers,
        most_workers=options.max_threads or _DEFAULT_WORKERS,
    )


def _levels(options: PerfOptions) -> tuple[Range, LevelKind]:
    if options.request_intervals:
        schedule = custom(read_intervals(options.request_intervals))
        rate = schedule.rate
        return Range(rate, rate, 1), LevelKind(by_rate=True, schedule=lambda _rate: schedule)
    made: Callable[[float], Schedule] | None = None
    if options.by_rate:
        made = poisson if options.request_distribution == "poisson" else constant
    return options.levels(), LevelKind(by_rate=options.by_rate, schedule=made)


def _metrics(options: PerfOptions) -> MetricsReader | None:
    if not options.collect_metrics:
        return None
    reader = MetricsReader(options.metrics_url, options.metrics_interval / 1000)
    reader.start()
    return reader


def _trace(options: PerfOptions, server: preparation.MeasuredServer) -> None:
    if not options.trace_level:
        return
    server.client.trace_settings(
        {
            "trace_level": list(options.trace_level),
            "trace_rate": str(options.trace_rate),
            "trace_count": str(options.trace_count),
            "log_frequency": str(options.log_frequency),
        },
        model=options.model_name,
    )


def _conclude(
    options: PerfOptions,
    facts: ModelFacts,
    profile: Profile,
    print_line: PrintLine,
    warn: PrintLine,
) -> PerfResult:
    """Print and write everything after the last measurement."""
    outcome = PerfResult(options, facts, profile)
    if profile.interrupted:
        outcome.code = INTERRUPTED
        warn("interrupted; the results so far follow")
    if profile.unstable is not None:
        outcome.code = UNSTABLE
        label = "request rate" if options.by_rate else "concurrency"
        warn(
            f"Failed to obtain stable measurement within {options.max_trials} measurement windows "
            f"for {label} {text.number(profile.unstable.value)}. Please try to increase the "
            f"--measurement-interval."
        )
        starved = profile.unstable.summary.starved
        if starved > _STARVED:
            warn(
                f"the client waited for a CPU {starved:.0%} of the time: other programs keep this "
                f"machine busy"
            )
        if not profile.results:
            return outcome
    limit = f"{options.latency_threshold:g}"
    if profile.over is not None:
        warn(f"Measured latency went over the set limit of {limit} msec. ")
    if not profile.results:
        if profile.over is not None:
            warn(_never_met(options, profile.over))
        return outcome
    for line in text.final_table(options, profile.results):
        print_line(line)
    _write(outcome)
    for result in profile.results:
        if result.client_bound:
            warn(findings.client_bound(result))
    return outcome


def _write(outcome: PerfResult) -> None:
    options, results = outcome.options, outcome.profile.results
    if options.csv:
        outcome.files += csv_table.write(options.csv, options, outcome.facts, results)
    if options.profile_export_file:
        export.write(options.profile_export_file, results)
        outcome.files.append(options.profile_export_file)
    if options.report:
        from shoal.perf import report

        for path in options.report:
            report.write(path, outcome.options, outcome.facts, outcome.profile)
            outcome.files.append(path)


def _never_met(options: PerfOptions, lowest: LevelResult) -> str:
    latency_ms = lowest.summary.latency_us(options.only_percentile) / 1000
    label = "a request rate" if options.by_rate else "a concurrency"
    advice = "raise -l" if lowest.value <= 1 else "raise -l, or start lower"
    return (
        f"no level met the limit: at {label} of {text.number(lowest.value)}, the lowest of the "
        f"range, latency was {latency_ms:.3g} msec already; {advice}"
    )
