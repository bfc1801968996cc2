"""Levels measured on a pool that only pretends: no socket, no clock."""

from __future__ import annotations

import pytest

from shoal.perf import profiler as profiling
from shoal.perf import search, server_side
from shoal.perf.connection import LoadError
from shoal.perf.profiler import LevelKind, MeasureOptions, Profiler
from shoal.perf.schedule import constant
from shoal.perf.search import Range
from shoal.perf.stability import Rule


class PretendFleet:
    """Answers each cut with the next window of a script, by level."""

    def __init__(self, script, workers=1):
        self.script = script
        self.workers = workers
        self.events = []
        self.level = None

    def start(self, level):
        self.level = level
        self.events.append(("start", level.concurrency or level.schedule.rate, level.limit))

    def count(self):
        return 10**9, False

    def end_window(self):
        return self.script(self.level, self.workers)

    def resize(self, workers):
        self.workers = workers
        self.events.append(("resize", workers))

    def drain(self):
        self.events.append(("drain",))


class Silence:
    def level_begins(self, value): ...
    def warming_up(self): ...
    def waiting(self, done): ...
    def window_ended(self, number, summary): ...
    def grew(self, workers): ...
    def level_ended(self, result): ...


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(profiling, "pause", lambda _secs: None)
    monkeypatch.setattr(profiling.os, "cpu_count", lambda: 4)


def run(pool, levels, way=search.linear, kind=None, snapshot=lambda: None, **options):
    made = MeasureOptions(interval_secs=0.001, **options)
    compare = lambda before, after: server_side.difference(before, after, ("m", ""))  # noqa: E731
    profiler = Profiler(pool, made, kind or LevelKind(), snapshot, compare, Silence())
    return profiler.run(way(levels))


def test_stable_levels(measurement):
    pool = PretendFleet(lambda level, _: measurement([100] * 10 * level.concurrency))
    profile = run(pool, Range(1, 3, 1, end_given=True))
    assert [result.value for result in profile.results] == [1, 2, 3]
    assert [round(result.summary.per_second) for result in profile.results] == [10, 20, 30]
    assert [result.summary.requests for result in profile.results] == [30, 60, 90]
    assert profile.over is None
    assert profile.unstable is None
    assert pool.events.count(("drain",)) == 3


def test_a_level_that_never_settles_ends_the_run(measurement):
    sizes = iter([10, 100] * 50)
    pool = PretendFleet(lambda _level, _: measurement([100] * next(sizes)))
    profile = run(pool, Range(1, 3, 1, end_given=True), trials=5)
    assert profile.results == []
    assert profile.unstable.value == 1


def test_the_limit_ends_a_linear_search(measurement):
    pool = PretendFleet(lambda level, _: measurement([100 * level.concurrency] * 50))
    profile = run(pool, Range(1, 0, 1, end_given=True), rule=Rule(limit_us=350))
    assert [result.value for result in profile.results] == [1, 2, 3]
    assert profile.over.value == 4


def test_the_limit_guides_a_binary_search(measurement):
    pool = PretendFleet(lambda level, _: measurement([100 * level.concurrency] * 50))
    profile = run(pool, Range(1, 64, 1, end_given=True), search.binary, rule=Rule(limit_us=1050))
    assert max(result.value for result in profile.results) == 10


def test_an_unstable_level_over_the_limit_is_not_waited_for(measurement):
    latencies = iter([100, 5000] * 20)
    pool = PretendFleet(lambda _level, _: measurement([next(latencies)] * 50))
    profile = run(pool, Range(1, 1, 1), rule=Rule(limit_us=1000), trials=10)
    assert profile.results == []
    assert profile.over.value == 1
    assert len(profile.over.windows) == 3


def test_nothing_is_answered(measurement):
    pool = PretendFleet(lambda _level, _: measurement([]))
    with pytest.raises(LoadError, match="no request was answered within a window of 1 ms"):
        run(pool, Range(1, 1, 1), trials=3)


def test_a_fixed_number_of_requests(measurement):
    pool = PretendFleet(lambda _level, _: measurement([100] * 30, duration_ms=500))
    profile = run(pool, Range(2, 2, 1), request_count=30)
    assert ("start", 2, 30) in pool.events
    (result,) = profile.results
    assert result.summary.requests == 30
    assert result.summary.duration_secs < 0.5  # up to the last answer


def test_rates(measurement):
    pool = PretendFleet(lambda level, _: measurement([100] * int(level.schedule.rate)))
    kind = LevelKind(by_rate=True, schedule=constant)
    profile = run(pool, Range(10, 30, 10, end_given=True), kind=kind)
    assert [(result.value, result.by_rate) for result in profile.results] == [
        (10, True),
        (20, True),
        (30, True),
    ]


def test_the_server_side_of_the_last_three_windows(measurement):
    looks = iter(range(0, 1000, 10))

    def snapshot():
        count = next(looks)
        times = {"success": {"count": count, "ns": count * 1000}}
        row = {"name": "m", "version": "1", "inference_count": count, "inference_stats": times}
        return server_side.read([row])

    pool = PretendFleet(lambda _level, _: measurement([100] * 10))
    (result,) = run(pool, Range(1, 1, 1), snapshot=snapshot).results
    assert result.server.model.inferences == 30


def test_more_workers_when_one_is_busy(measurement):
    def script(_level, workers):
        busy = 950_000_000 if workers < 4 else 500_000_000
        return measurement([100] * 100 * workers, cpu_ns=(busy,) * workers)

    pool = PretendFleet(script)
    profile = run(pool, Range(8, 8, 1))
    assert pool.workers == 4
    assert profile.results[0].summary.workers == 4
    assert not profile.results[0].client_bound


def test_more_workers_are_given_up_when_they_bring_nothing(measurement):
    pool = PretendFleet(
        lambda _level, workers: measurement([100] * 100, cpu_ns=(950_000_000,) * workers)
    )
    profile = run(pool, Range(8, 16, 8, end_given=True))
    assert pool.workers == 1
    assert [event for event in pool.events if event[0] == "resize"] == [
        ("resize", 2),
        ("resize", 1),
    ]
    assert all(result.client_bound for result in profile.results)


def test_one_request_at_a_time_needs_one_worker(measurement):
    pool = PretendFleet(lambda _level, _: measurement([100] * 100, cpu_ns=(990_000_000,)))
    run(pool, Range(1, 1, 1))
    assert pool.workers == 1


def test_ctrl_c_keeps_what_was_measured(measurement):
    def script(level, _):
        if level.concurrency == 2:
            raise KeyboardInterrupt
        return measurement([100] * 10)

    profile = run(PretendFleet(script), Range(1, 4, 1, end_given=True))
    assert profile.interrupted
    assert [result.value for result in profile.results] == [1]


def failing(measurement, level, windows):
    """Windows of ten requests; so many in a level before the server stops answering."""
    begun = {}

    def script(current, _):
        begun[current.concurrency] = begun.get(current.concurrency, -1) + 1  # the first: warm-up
        if current.concurrency == level and begun[level] > windows:
            raise LoadError("the server closed the connection")
        return measurement([100] * 10)

    return PretendFleet(script)


@pytest.mark.parametrize("windows", [0, 2])
def test_an_error_keeps_the_levels_before_it(measurement, windows):
    profile = run(failing(measurement, 3, windows), Range(1, 4, 1, end_given=True), workers=1)
    assert [result.value for result in profile.results] == [1, 2]
    assert profile.error == "the server closed the connection"


def test_an_error_keeps_the_finished_windows_of_its_level(measurement, monkeypatch):
    seen = []
    monkeypatch.setattr(Silence, "level_ended", lambda _, result: seen.append(result))
    profile = run(failing(measurement, 1, 2), Range(1, 1, 1), workers=1)
    assert profile.error == "the server closed the connection"
    assert profile.results == []
    (result,) = seen
    assert result.cut
    assert result.summary.requests == 20
    assert len(result.windows) == 2


def test_a_level_that_was_complete_counts_whatever_follows(measurement):
    pool = PretendFleet(lambda _level, _: measurement([100] * 10))

    def drain():
        raise LoadError("a worker of the load did not answer within 60 seconds")

    pool.drain = drain
    profile = run(pool, Range(1, 2, 1, end_given=True))
    (result,) = profile.results
    assert result.ok
    assert not result.cut
    assert "did not answer" in profile.error


def test_windows_without_a_response_are_not_part_of_a_level_that_was_cut(measurement):
    counts = iter([10, 10, 10, 0, 0, 0])
    pool = PretendFleet(lambda _level, _: measurement([100] * next(counts)))
    pool.drain = lambda: (_ for _ in ()).throw(LoadError("no answer"))
    profiler = Profiler(
        pool,
        MeasureOptions(interval_secs=0.001, trials=5, workers=1, rule=Rule(percent=-1)),
        LevelKind(),
        lambda: None,
        lambda before, after: None,
        Silence(),
    )
    with pytest.raises(profiling.LevelCut) as cut:
        profiler.measure(1)
    assert len(cut.value.result.windows) == 2
    assert cut.value.result.summary.requests == 20


def test_an_error_before_the_first_window_is_raised(measurement):
    with pytest.raises(LoadError, match="closed the connection"):
        run(failing(measurement, 1, 0), Range(1, 1, 1), workers=1)
