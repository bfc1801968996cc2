"""The capacity of one replica and the replicas for a load, as tables and as properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.plan.capacity import Demand, Level, TargetMissed, capacity, plan


def levels(*pairs):
    return [Level(f"level {rate}", rate, p99_ms) for rate, p99_ms in pairs]


MEASURED = levels((200, 9), (400, 16), (600, 40), (800, 140))


@pytest.mark.parametrize(
    ("measured", "p99_ms", "rate"),
    [
        (MEASURED, 16, 400),  # exactly a level
        (MEASURED, 28, 500),  # half way to the next one
        (MEASURED, 140, 800),  # the highest one: never more than was measured
        (MEASURED, 9000, 800),
        (levels((500, 5), (500, 50)), 50, 500),
    ],
)
def test_capacity_is_interpolated_within_the_levels(measured, p99_ms, rate):
    assert capacity(measured, p99_ms).rate == pytest.approx(rate)


def test_a_level_beyond_one_that_misses_does_not_count():
    found = capacity(levels((200, 10), (400, 30), (600, 10)), 20)
    assert (found.rate, found.met.rate, found.missed.rate) == (300, 200, 400)


def test_of_two_levels_with_one_rate_the_slower_counts():
    assert capacity(levels((100, 10), (500, 12), (500, 60)), 35).rate == 300


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        (MEASURED, "p99 is 9 ms at the lowest measured rate (level 200: 200/s), above the target"),
        (levels((1, 9), (2, 4)), "although it is within the target at level 2; measure again"),
    ],
)
def test_a_target_that_the_lowest_load_misses(measured, text):
    with pytest.raises(TargetMissed) as raised:
        capacity(measured, 5)
    assert text in raised.value.message


@pytest.mark.parametrize(
    ("changes", "serving", "replicas"),
    [
        ({}, 8, 9),
        ({"headroom": 0.5}, 10, 11),
        ({"failures": 0}, 8, 8),
        ({"failures": 2}, 8, 10),
        ({"peak_factor": 2.0}, 16, 17),
        ({"rate": 0.001}, 1, 2),
        ({"rate": 4000.1}, 9, 10),
    ],
)
def test_replicas(changes, serving, replicas):
    demand = replace(Demand(rate=4000, p99_ms=140, headroom=0.375), **changes)
    found = plan(MEASURED, demand)
    assert (found.serving, found.replicas) == (serving, replicas)


numbers = st.floats(0.1, 1e6)
some_levels = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8).map(
    lambda pairs: levels(*pairs)
)
demands = st.builds(
    Demand,
    rate=numbers,
    p99_ms=numbers,
    peak_factor=st.floats(1, 10),
    headroom=st.floats(0, 0.95),
    failures=st.integers(0, 3),
)


def replicas(measured, demand):
    """Infinitely many where the target cannot be met."""
    try:
        return plan(measured, demand).replicas
    except TargetMissed:
        return float("inf")


@given(some_levels, demands, st.floats(1, 5))
def test_a_harder_demand_never_needs_fewer_replicas(measured, demand, factor):
    base = replicas(measured, demand)
    harder = (
        replace(demand, rate=demand.rate * factor),
        replace(demand, p99_ms=demand.p99_ms / factor),
        replace(demand, peak_factor=demand.peak_factor * factor),
        replace(demand, headroom=max(demand.headroom, 0.95 - 0.95 / factor)),
        replace(demand, failures=demand.failures + 1),
    )
    assert all(replicas(measured, each) >= base for each in harder)


@given(some_levels, demands)
def test_a_plan_keeps_its_promises(measured, demand):
    try:
        found = plan(measured, demand)
    except TargetMissed:
        lowest = min(measured, key=lambda level: (level.rate, -level.p99_ms))
        assert lowest.p99_ms > demand.p99_ms
        return
    assert found.capacity.rate <= max(level.rate for level in measured)
    assert found.serving * found.planned_rate >= found.peak_rate * (1 - 1e-6)
    assert found.p99_ms <= demand.p99_ms * (1 + 1e-6)


@given(some_levels, demands, st.data())
def test_a_slower_level_never_makes_the_plan_smaller(measured, demand, data):
    index = data.draw(st.integers(0, len(measured) - 1))
    slower = replace(measured[index], p99_ms=measured[index].p99_ms * data.draw(st.floats(1, 50)))
    changed = [*measured[:index], slower, *measured[index + 1 :]]
    assert replicas(changed, demand) >= replicas(measured, demand)
