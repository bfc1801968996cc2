"""Levels that were never measured, for what formats them."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.perf.model_facts import ModelFacts, TensorFacts
from shoal.perf.profiler import LevelResult
from shoal.perf.server_side import ServerSide, Tally
from shoal.perf.summary import MeasurementWindow, summarise
from shoal.perf.worker_pool import LevelMeasurement

MILLISECOND_NS = 1_000_000


def make_harvest(latencies_us, *, begin_ms=0, duration_ms=1000, **more):
    """A window in which requests with these latencies were answered."""
    begin_ns = begin_ms * MILLISECOND_NS
    count = len(latencies_us)
    starts = np.linspace(begin_ns, begin_ns + duration_ms * MILLISECOND_NS * 0.9, count)
    starts = starts.astype(np.int64)
    ends = starts + (np.asarray(latencies_us) * 1000).astype(np.int64)
    more.setdefault("sent", count)
    more.setdefault("responses", count)
    more.setdefault("cpu_ns", (100 * MILLISECOND_NS,))
    return LevelMeasurement(
        begin_ns,
        begin_ns + duration_ms * MILLISECOND_NS,
        starts,
        ends,
        np.zeros(0, np.int64),
        **more,
    )


def make_tally(count, *, hits=0, misses=0):
    """What a server says of `count` requests of 100 µs each."""
    tally = Tally(count, count // 2, count, count * 100_000)
    computed = count - hits
    for part, each_ns in (
        ("queue", 20_000),
        ("compute_input", 5_000),
        ("compute_infer", 30_000),
        ("compute_output", 5_000),
    ):
        tally.counts[part] = computed
        tally.sums_ns[part] = computed * each_ns
    tally.counts["cache_hit"], tally.sums_ns["cache_hit"] = hits, hits * 4_000
    tally.counts["cache_miss"], tally.sums_ns["cache_miss"] = misses, misses * 8_000
    return tally


def make_result(value, latencies_us, *, server=True, composing=None, percentile=None, **more):
    """A level of one window."""
    measurement = make_harvest(latencies_us, **more)
    side = ServerSide(make_tally(len(latencies_us)), composing or {}) if server else None
    by_rate = isinstance(value, float)
    concurrency = 0 if by_rate else value
    summary = summarise([measurement], batch=1, percentile=percentile, concurrency=concurrency)
    return LevelResult(
        value,
        by_rate,
        summary,
        side,
        stable=True,
        over_limit=False,
        windows=[MeasurementWindow(measurement, side)],
    )


@pytest.fixture
def measurement():
    return make_harvest


@pytest.fixture
def tally():
    return make_tally


@pytest.fixture
def result():
    return make_result


@pytest.fixture
def facts():
    """A plain model; keywords change it."""

    def make(**changes):
        tensor = TensorFacts("A", "INT32", (16,))
        return ModelFacts("simple", "", 8, (tensor,), (tensor,), **changes)

    return make
