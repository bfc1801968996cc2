"""When a rate has followed a change of the load."""

from __future__ import annotations

import pytest
from benchmarks.changing import PHASE_SECS, rates, settled_after


def samples(*steps):
    """Samples every tenth of a second from moment 10 on, at the given rates."""
    found, count = [(10.0, 0)], 0
    for place, rate in enumerate(steps, 1):
        count += rate // 10
        found.append((10 + place / 10, count))
    return found


def test_rates_are_taken_over_windows_after_the_change():
    windows = rates(samples(*[100] * 5, *[400] * 5), begin=10.5)
    assert [start for start, _ in windows] == pytest.approx([0, 0.1, 0.2], abs=1e-6)
    assert [rate for _, rate in windows] == pytest.approx([400, 400, 400])


@pytest.mark.parametrize(
    ("steps", "after"),
    [
        ([1000] * 20, 0.0),
        ([100] * 5 + [1000] * 15, 0.5),
        ([100] * 20, PHASE_SECS),  # it never followed
    ],
)
def test_the_time_until_the_rate_is_steady(steps, after):
    found = settled_after(rates(samples(*steps), 10.0), steady=1000)
    assert found == pytest.approx(after, abs=0.11)
