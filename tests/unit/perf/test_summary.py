"""Windows to numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.perf.summary import summarise
from shoal.perf.worker_pool import LevelMeasurement


def test_one_window(measurement):
    found = summarise(
        [measurement([100] * 99 + [1100], send_ns=1_000_000, receive_ns=500_000)],
        batch=4,
        percentile=75,
        concurrency=1,
    )
    assert found.requests == 100
    assert found.per_second == 400
    assert found.average_us == 110
    assert found.deviation_us == pytest.approx(100)
    assert list(found.percentiles_us) == [50, 75, 90, 95, 99]
    assert found.percentiles_us[50] == 100
    assert found.latency_us(None) == 110
    assert found.latency_us(75) == 100
    assert (found.send_us, found.receive_us, found.wait_us) == (10, 5, 95)
    assert found.overhead_percent == pytest.approx(98.9)
    assert found.busiest == pytest.approx(0.1)


def test_windows_count_as_one(measurement):
    found = summarise(
        [measurement([100] * 10), measurement([300] * 30, begin_ms=1000, sequence_ends=3)], batch=1
    )
    assert found.per_second == 20
    assert found.average_us == 250
    assert found.sequences_per_second == 1.5


def test_nothing_was_answered(measurement):
    for windows in ([], [measurement([])]):
        found = summarise(windows, batch=1, percentile=80)
        assert found.per_second == 0
        assert found.latency_us(80) == 0
        assert found.histogram == ()


@given(st.lists(st.integers(1_000, 10**10), min_size=1, max_size=50))
def test_the_histogram_holds_every_request(latencies_ns):
    ends = np.array(latencies_ns, np.int64)
    window = LevelMeasurement(0, 10**9, np.zeros(len(ends), np.int64), ends, np.zeros(0, np.int64))
    histogram = summarise([window], batch=1).histogram
    assert sum(count for _, count in histogram) == len(latencies_ns)
    edges = [edge for edge, _ in histogram]
    assert edges == sorted(edges)
