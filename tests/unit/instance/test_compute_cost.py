"""What a batch takes to compute, by its rows."""

from __future__ import annotations

import random

import pytest

from shoal.instance.compute_cost import ComputeCost

SECOND = 1_000_000_000


def cost_of(executions, now_ns=0):
    """An estimate from (rows, ns), one millisecond apart."""
    cost = ComputeCost()
    for number, (rows, ns) in enumerate(executions):
        cost.add(rows, ns, now_ns + number * 1_000_000)
    return cost


def test_nothing_is_known_at_first():
    assert ComputeCost().of(8) == 0
    assert ComputeCost().parts() == (0.0, 0.0)


def test_a_line_through_the_sizes():
    cost = cost_of([(1, 12_000), (64, 138_000)])
    assert cost.parts() == (pytest.approx(10_000), pytest.approx(2_000))
    assert cost.of(1) == 12_000
    assert cost.of(20) == pytest.approx(50_000)
    assert cost.of(512) == pytest.approx(10_000 + 2_000 * 512)


def test_one_size_is_taken_as_the_time_of_its_rows():
    cost = cost_of([(16, 160_000)])
    assert cost.of(1) == 10_000
    assert cost.of(64) == 640_000


def test_fewer_rows_never_take_longer():
    cost = cost_of([(1, 30_000), (8, 20_000)])
    assert cost.parts() == (20_000.0, 0.0)


def test_what_is_longer_now_and_then_does_not_count():
    rng = random.Random(3)
    executions = [
        (rows, rng.choice([1, 1, 1, 10]) * (10_000 + 1_000 * rows))
        for rows in (rng.choice([1, 2, 16, 64]) for _ in range(400))
    ]
    cost = cost_of([*executions, (1, 11_000), (64, 74_000)])
    assert cost.of(1) == 11_000
    assert cost.of(64) == 74_000


def test_what_has_become_slower_is_seen_after_some_executions():
    cost = cost_of([(4, 10_000)] * 50 + [(4, 1_000_000)] * 16)
    assert cost.of(4) > 850_000


def test_what_has_become_quicker_is_seen_at_once():
    assert cost_of([(4, 1_000_000)] * 50 + [(4, 10_000)]).of(4) == 10_000


def test_sizes_that_no_longer_come_are_forgotten():
    cost = cost_of([(64, 10_000_000)])
    cost.add(1, 10_000, 3 * SECOND)
    assert cost.of(1) == 10_000
    assert cost.of(64) == 640_000
    cost.add(64, 20_000, 3 * SECOND)
    assert cost.of(64) == 20_000


def test_the_last_measurement_stays_however_old_it_is():
    cost = cost_of([(8, 80_000)])
    assert cost.of(8) == 80_000


def test_very_large_batches_are_one_class():
    assert cost_of([(1 << 20, 5_000_000)]).of(1 << 22) == 5_000_000
