"""Quantiles of the last minute."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.statistics.summary import SLICE_NS, SLICES, DurationSummary

SHARES = (0.0, 0.5, 0.9, 0.999, 1.0)


def exact(values, share):
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=200))
def test_quantiles_are_right_to_one_percent(values):
    summary = DurationSummary()
    for value in values:
        summary.add(value, 0)
    reading = summary.read(0)
    assert (reading.count, reading.total) == (len(values), sum(values))
    for share in SHARES:
        assert reading.quantile(share) == pytest.approx(exact(values, share), rel=0.0101)


def test_nothing_has_no_quantile():
    reading = DurationSummary().read(0)
    assert math.isnan(reading.quantile(0.5))
    assert (reading.count, reading.total) == (0, 0)


def test_many_at_once():
    one, other = DurationSummary(), DurationSummary()
    one.add(700, 5, times=3)
    for _ in range(3):
        other.add(700, 5)
    assert one.read(5) == other.read(5)
    spans, values = DurationSummary(), DurationSummary()
    spans.add_spans([10, 20, 1000], 1000, 5)
    for value in (990, 980, 0):
        values.add(value, 5)
    assert spans.read(5) == values.read(5)


def test_what_is_older_than_a_minute_counts_no_more():
    summary = DurationSummary()
    summary.add(1000, 0)
    summary.add(9000, SLICE_NS)
    late = SLICES * SLICE_NS
    assert summary.read(late - 1).quantile(0) == pytest.approx(1000, rel=0.01)
    assert summary.read(late).quantile(0) == pytest.approx(9000, rel=0.01)
    assert math.isnan(summary.read(late + SLICE_NS).quantile(0))
    assert summary.read(late + SLICE_NS).count == 2


def test_memory_is_bounded():
    summary = DurationSummary()
    for number in range(100):
        summary.add(5, number * SLICE_NS)
    assert len(summary._slices) == SLICES


def test_a_clock_that_goes_back_a_little_is_no_harm():
    summary = DurationSummary()
    summary.add(5, SLICE_NS)
    summary.add(5, SLICE_NS - 1)
    assert summary.read(SLICE_NS).quantile(1) == pytest.approx(5, rel=0.01)
