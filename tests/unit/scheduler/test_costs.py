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
        costs.observe({concurrency: took_ns}, work)
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


times = st.dictionaries(st.integers(1, 5), st.integers(0, 10**11), min_size=1)


@given(
    st.lists(st.tuples(times, st.integers(1, 10**6)), max_size=40),
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
    assert 1 <= costs.best_concurrency(2 * work, work, 4) <= 4


def test_nothing_is_known_at_first():
    costs = ExecutionCosts()
    assert costs.estimate(1, 4) is None
    assert not costs.is_known(1)
    assert not costs.knows_growth
    assert not costs.usual_work
    assert costs.best_concurrency(4, 4, 3) == 3


def test_executions_at_the_same_time_are_estimated_separately():
    costs = observed([(4, 10 * MS)])
    observed([(4, 18 * MS)], concurrency=2, costs=costs)
    assert costs.estimate(1, 4) == pytest.approx(10 * MS)
    assert costs.estimate(2, 4) == pytest.approx(18 * MS)
    assert costs.slowdown(1, 4) == pytest.approx(1.8)


def test_a_level_is_learnt_from_executions_that_had_it_for_a_part_of_their_time():
    costs = observed([(4, 10 * MS)], repeat=10)
    for _ in range(30):  # half of the work alone, the other half beside another
        costs.observe({1: 5 * MS, 2: 10 * MS}, 4)
    assert costs.estimate(1, 4) == pytest.approx(10 * MS, rel=0.15)
    assert costs.estimate(2, 4) == pytest.approx(20 * MS, rel=0.15)


def test_a_moment_beside_another_tells_nothing():
    costs = ExecutionCosts()
    costs.observe({1: 100, 2: 10 * MS}, 4)
    assert not costs.is_known(1)
    assert costs.estimate(1, 4) == pytest.approx(10 * MS)


def test_a_machine_that_becomes_slower_is_so_for_all_numbers_of_executions():
    costs = observed([(4, 10 * MS)], repeat=20)
    observed([(4, 15 * MS)], repeat=20, concurrency=2, costs=costs)
    observed([(4, 20 * MS)], repeat=60, costs=costs)
    assert costs.slowdown(1, 4) > 1.0  # not 0.75


def test_how_time_grows_with_work_is_learnt_once_for_all():
    costs = observed([(1, 31 * MS), (11, 41 * MS)], repeat=10)
    observed([(1, 62 * MS)], concurrency=2, costs=costs)
    assert costs.estimate(2, 11) == pytest.approx(82 * MS, rel=0.1)


@pytest.mark.parametrize(("concurrency", "ms"), [(1, 18), (2, 18), (3, 18), (4, 40), (9, 40)])
def test_unknown_concurrency_is_taken_from_the_nearest_lower_one(concurrency, ms):
    costs = observed([(4, 18 * MS)], concurrency=2)
    observed([(4, 40 * MS)], concurrency=4, costs=costs)
    assert costs.estimate(concurrency, 4) == pytest.approx(ms * MS)


@pytest.mark.parametrize(
    ("pairs", "known"),
    [([(4, 10 * MS)], False), ([(1, 5 * MS), (4, 10 * MS)], True)],
)
def test_growth_is_known_from_executions_of_different_work(pairs, known):
    costs = observed(pairs, repeat=4)
    assert costs.knows_growth is known
    observed(pairs[:1], repeat=2000, costs=costs)
    assert not costs.knows_growth  # for long, all were alike


def levels(slowdown, *, fixed=0.0, limit=4):
    """Each number of executions was observed, with the time of `fixed` + work at that slowdown."""
    costs = ExecutionCosts()
    for concurrency in range(1, limit + 1):
        pairs = [(work, (fixed + work) * MS * slowdown(concurrency)) for work in (1, 8, 4)]
        observed(pairs, repeat=4, concurrency=concurrency, costs=costs)
    return costs


@pytest.mark.parametrize(
    ("slowdown", "fixed", "total", "most", "best"),
    [
        (lambda running: 1.0, 0, 8, 16, 4),  # each has a core of its own
        (lambda running: 1.0, 1000, 8, 16, 1),  # one batch costs what a part of it costs
        (lambda running: 1.0, 1000, 64, 16, 4),  # but there are four batches
        (lambda running: max(1, running / 2), 0, 8, 16, 2),  # on two cores
        (lambda running: max(1, running / 2.1), 0, 8, 16, 2),  # the same, measured badly
        (lambda running: max(1, running / 2), 8, 8, 16, 2),
        (lambda running: max(1, running / 2), 1000, 8, 16, 1),
        (lambda running: max(1, running / 2), 1000, 64, 16, 2),
        (lambda running: running, 0, 8, 16, 1),  # one lock, or all cores for each
        (lambda running: running, 8, 64, 16, 1),
    ],
)
def test_the_best_number_of_executions_at_the_same_time(slowdown, fixed, total, most, best):
    costs = levels(slowdown, fixed=fixed)
    assert costs.best_concurrency(total, most, 4) == best
    assert costs.best_concurrency(total, most, 1) == 1


def test_one_more_is_tried_after_those_below_are_known():
    costs = observed([(4, 29 * MS)], repeat=3, concurrency=3)
    assert costs.best_concurrency(8, 16, 4) == 1
    observed([(4, 10 * MS)], repeat=3, costs=costs)
    assert costs.best_concurrency(8, 16, 4) == 2
    observed([(4, 19 * MS)], repeat=3, concurrency=2, costs=costs)
    assert costs.best_concurrency(8, 16, 4) == 1


def test_neighbours_that_were_not_seen_for_long_are_tried_again():
    costs = levels(lambda running: max(1, running / 2))
    seen = []
    for _ in range(600):
        best = costs.best_concurrency(8, 16, 4)
        seen.append(best)
        costs.observe({best: 4 * MS * max(1, best / 2)}, 4)
    assert set(seen) == {1, 2, 3}
    assert seen.count(2) > 570


@pytest.mark.parametrize(
    ("slowdown", "hindered"),
    [
        (lambda running: 1.0, [False, False, False]),
        (lambda running: max(1, running / 2), [False, True, True]),
        (lambda running: running, [True, True, True]),
    ],
)
def test_whether_one_more_hinders_the_others(slowdown, hindered):
    costs = levels(slowdown)
    assert [costs.hinders(running, 4) for running in (1, 2, 3)] == hindered


def test_one_more_is_taken_to_hinder_as_the_last_one_did():
    costs = levels(lambda running: 1.0, limit=2)
    assert not costs.hinders(2, 4)
    assert costs.hinders(3, 4)  # nothing is known about three
