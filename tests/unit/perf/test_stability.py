"""The stability rule: three windows, and what ends a level early."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.perf.stability import WINDOWS, Rule, Verdict, WindowReading

CONTINUE, STABLE, OVER_LIMIT = Verdict.CONTINUE, Verdict.STABLE, Verdict.OVER_LIMIT


@pytest.mark.parametrize(
    ("rates", "latencies", "rule", "verdict"),
    [
        ([100, 100], [5, 5], Rule(), CONTINUE),  # two windows never suffice
        ([100, 105, 110], [5, 5, 5], Rule(), STABLE),  # exactly 10 %
        ([100, 105, 111], [5, 5, 5], Rule(), CONTINUE),
        ([100, 100, 100], [5, 5, 5.6], Rule(), CONTINUE),  # latency counts too
        ([100, 100, 100], [5, 5, 50], Rule(with_latency=False), STABLE),  # unless left out
        ([1, 100, 100, 100], [99, 5, 5, 5], Rule(), STABLE),  # only the last three count
        ([0, 0, 0], [0, 0, 0], Rule(), CONTINUE),  # nothing was answered
        ([100, 0, 100], [5, 0, 5], Rule(percent=1000), CONTINUE),
        ([100, 150, 100], [5, 6, 9], Rule(limit_us=9), OVER_LIMIT),  # one over is enough
        ([100, 150, 100], [5, 6, 8.9], Rule(limit_us=9), CONTINUE),
        ([100, 100, 100], [9, 9, 9], Rule(limit_us=9), STABLE),  # the profiler compares the mean
        ([100, 150], [50, 50], Rule(limit_us=9), CONTINUE),
    ],
)
def test_verdict(rates, latencies, rule, verdict):
    assert (
        rule.verdict([WindowReading(*both) for both in zip(rates, latencies, strict=True)])
        is verdict
    )


@given(
    st.lists(st.floats(1, 1e6), min_size=WINDOWS, max_size=WINDOWS),
    st.floats(0, 500),
    st.floats(0.001, 1000),
)
def test_a_common_factor_changes_nothing(rates, percent, factor):
    readings = [WindowReading(rate, 1.0) for rate in rates]
    scaled = [WindowReading(rate * factor, 1.0) for rate in rates]
    wide, narrow = Rule(percent + 1e-6), Rule(max(0, percent - 1e-6))
    if Rule(percent).stable(readings):
        assert wide.stable(scaled)
    else:
        assert not narrow.stable(scaled)
