"""Which of two measurements is better."""

from __future__ import annotations

import pytest

from shoal.tune.goal import LATENCY, Goal, Measurement
from shoal.tune.space import ConfigPoint


def made(per_second=100.0, latency_us=1000.0, error=""):
    return Measurement(ConfigPoint(1, 0, 1, 1), 8, per_second, latency_us, error=error)


@pytest.mark.parametrize(
    ("goal", "one", "other", "better"),
    [
        (Goal(), made(110), made(100), True),
        (Goal(), made(101), made(100), False),  # by chance
        (Goal(), made(90), made(100), False),
        (Goal(), made(1), made(error="no"), True),
        (Goal(), made(error="no"), made(1), False),
        (Goal(LATENCY), made(10, 900), made(100, 1000), True),
        (Goal(LATENCY), made(10, 990), made(100, 1000), False),
        (Goal(limit_us=950), made(10, 900), made(100, 1000), True),  # within the limit
        (Goal(limit_us=950), made(200, 1000), made(10, 900), False),
        (Goal(limit_us=500), made(10, 900), made(100, 1000), True),  # both over: nearer
        (Goal(limit_us=5000), made(100, 900), made(120, 4000), False),
    ],
)
def test_better(goal, one, other, better):
    assert goal.better(one, other) is better
    assert goal.better(one, None)


def test_of_those_alike_the_quicker_is_best():
    slow, quick = made(1005, 9000), made(1000, 2000)
    assert Goal().best([slow, quick]) is quick
    assert Goal().best([made(1100, 9000), quick]).per_second == 1100


@pytest.mark.parametrize(
    ("goal", "levels"),
    [(Goal(), (32,)), (Goal(limit_us=10), (1, 8, 32)), (Goal(LATENCY), (4,))],
)
def test_levels(goal, levels):
    assert goal.levels() == levels
