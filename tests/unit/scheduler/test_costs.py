"""Estimates of what an execution costs, from executions that came before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.scheduler.costs import ExecutionCosts

MS = 1_000_000


def observed(pairs, repeat=1, concurrency=1, costs=None):
    costs = costs or ExecutionCosts()
    for work, took_ns in list(pairs) * repeat:
        costs.observe(concurrency, work, took_ns)
    return costs


def test_at_first_all_time_grows_with_the_work():
    assert observed([(4, 40 * MS)]).estimate(1, 2) == pytest.approx(20 * MS)


@pytest.mark.parametrize("fixed_ms", [0, 5, 50])
@pytest.mark.parametrize("row_ms", [0.5, 3])
def test_the_fixed_part_is_found(fixed_ms, row_ms):
    pairs = [(work, (fixed_ms + row_ms * work) * MS) for work in (1, 8, 3, 16)]
    costs = observed(pairs, repeat=4)
    for work in (1, 5, 16):
        assert costs.estimate(1, work) == pytest.approx((fixed_ms + row_ms * work) * MS, rel=0.1)


def test_a_batch_may_cost_what_one_row_costs():
    costs = observed([(1, 5 * MS), (16, 5 * MS)], repeat=4)
    assert costs.estimate(1, 2) == pytest.approx(5 * MS, rel=0.02)


def test_equal_batches_do_not_erase_what_is_known():
    costs = observed([(1, 5 * MS), (16, 5 * MS)], repeat=4)
    observed([(16, 5 * MS)], repeat=500, costs=costs)
    assert costs.estimate(1, 8) == pytest.approx(5 * MS, rel=0.1)


def test_a_model_that_becomes_slower_is_followed():
    costs = observed([(4, 10 * MS)], repeat=50)
    observed([(4, 20 * MS)], repeat=50, costs=costs)
    assert costs.estimate(1, 4) == pytest.approx(20 * MS, rel=0.05)


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(1, 10**6), st.integers(1, 10**11)), max_size=40
    ),
    st.integers(1, 5),
    st.integers(1, 10**6),
)
def test_estimates_are_positive_and_grow_with_the_work(observations, concurrency, work):
    costs = ExecutionCosts()
    for one in observations:
        costs.observe(*one)
    smaller, larger = (costs.estimate(concurrency, size) for size in (work, 2 * work))
    assert (smaller is None) == (larger is None)
    if smaller is not None:
        assert 0 < smaller <= larger


def test_nothing_is_known_at_first():
    costs = ExecutionCosts()
    assert costs.estimate(1, 4) is None
    assert not costs.knows(1, 4)
    assert costs.is_worth_another(1, 4)


def test_executions_at_the_same_time_are_estimated_separately():
    costs = observed([(4, 10 * MS)])
    observed([(4, 18 * MS)], concurrency=2.1, costs=costs)
    assert costs.estimate(1, 4) == pytest.approx(10 * MS)
    assert costs.estimate(2, 4) == pytest.approx(18 * MS)
    assert costs.slowdown(1, 4) == pytest.approx(1.8)


def test_how_time_grows_with_work_is_learnt_once_for_all():
    costs = observed([(1, 31 * MS), (11, 41 * MS)], repeat=10)
    observed([(1, 62 * MS)], concurrency=2, costs=costs)
    assert costs.estimate(2, 11) == pytest.approx(82 * MS, rel=0.1)


@pytest.mark.parametrize(("concurrency", "ms"), [(1, 18), (2, 18), (3, 18), (4, 40), (9, 40)])
def test_unknown_concurrency_is_taken_from_the_nearest_lower_one(concurrency, ms):
    costs = observed([(4, 18 * MS)], concurrency=2)
    observed([(4, 40 * MS)], concurrency=4, costs=costs)
    assert costs.estimate(concurrency, 4) == pytest.approx(ms * MS)


def test_an_execution_beside_a_changing_number_of_others_does_not_count():
    assert observed([(4, 10 * MS)], concurrency=1.5).estimate(1, 4) is None


@pytest.mark.parametrize(("work", "known"), [(1, False), (2, True), (8, True), (9, False)])
def test_far_more_or_less_work_than_ever_is_not_known(work, known):
    assert observed([(4, 10 * MS)]).knows(1, work) is known


def test_what_was_not_seen_for_long_is_not_known():
    costs = observed([(4, 10 * MS)])
    observed([(4, 10 * MS)], repeat=300, concurrency=2, costs=costs)
    assert not costs.knows(1, 4)
    assert costs.knows(2, 4)


@pytest.mark.parametrize(
    ("alone_ms", "beside_ms", "worth"),
    [(10, 10, True), (10, 15, True), (10, 20, False), (10, 25, False)],
)
def test_another_execution_must_raise_the_throughput(alone_ms, beside_ms, worth):
    costs = observed([(4, alone_ms * MS)])
    assert costs.is_worth_another(1, 4)  # to find out
    observed([(4, beside_ms * MS)], concurrency=2, costs=costs)
    assert costs.is_worth_another(1, 4) is worth


@pytest.mark.parametrize(
    ("concurrency", "slowdown", "worth"),
    [
        (2, 1.5, False),  # on two cores
        (2, 1.4, False),  # the same, measured badly
        (2, 1.3, True),
        (12, 1.0, True),  # each has a core of its own
        (40, 1.0, True),
        (40, 1.025, False),
    ],
)
def test_one_more_beside_several(concurrency, slowdown, worth):
    costs = ExecutionCosts()
    costs.observe(concurrency, 4, 10_000_000)
    costs.observe(concurrency + 1, 4, 10_000_000 * slowdown)
    assert costs.is_worth_another(concurrency, 4) is worth
