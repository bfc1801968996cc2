from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.statistics.histogram import Histogram


@pytest.mark.parametrize(
    ("values", "cumulative"),
    [
        ([], (0, 0, 0, 0)),
        ([0], (1, 1, 1, 1)),
        ([10], (1, 1, 1, 1)),  # an edge belongs to its bucket, as Prometheus' `le` says
        ([11], (0, 1, 1, 1)),
        ([1000], (0, 0, 1, 1)),
        ([1001, 5], (1, 1, 1, 2)),  # beyond the last edge only the count knows it
    ],
)
def test_buckets_are_cumulative(values, cumulative):
    histogram = Histogram([10, 100, 1000])
    for value in values:
        histogram.add(value)
    reading = histogram.read()
    assert reading.cumulative == cumulative
    assert reading.count == len(values)
    assert reading.total == sum(values)


def test_add_counts_several_times_at_once():
    histogram = Histogram([10, 100])
    histogram.add(50, times=7)
    assert histogram.read().cumulative == (0, 7, 7)
    assert histogram.read().total == 350


def test_a_reading_does_not_change_afterwards():
    histogram = Histogram([10])
    before = histogram.read()
    histogram.add(3)
    assert before.cumulative == (0, 0)
    assert before.total == 0


edges = st.lists(st.integers(1, 10_000), min_size=1, max_size=12, unique=True).map(sorted)
spans = st.lists(st.integers(0, 20_000), min_size=1, max_size=70)


@given(edges=edges, spans=spans)
def test_spans_count_like_single_values(edges, spans):
    one_by_one, together = Histogram(edges), Histogram(edges)
    for span in spans:
        one_by_one.add(span)
    end = 1_000_000
    together.add_spans(sorted(end - span for span in spans), end, sum(spans))
    assert together.read() == one_by_one.read()
    assert together.read().cumulative == (
        *(sum(span <= edge for span in spans) for edge in edges),
        len(spans),
    )
