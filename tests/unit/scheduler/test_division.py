"""How batches are divided: tables, the best division by trying all, and properties."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.scheduler.division import Workload, efficient, portion, share

MS = 1_000_000


def linear(fixed_ms=0.0, row_ms=10.0, cores=8):
    """Executions that slow each other down once there are more than cores."""

    def cost(concurrency, work):
        return (fixed_ms + row_ms * work) * MS * max(1.0, concurrency / cores)

    return cost


def rows(*sizes, padded=False):
    return Workload([1] * len(sizes), list(sizes), padded=padded)


def lengths(ends):
    return [end - start for start, end in pairwise([0, *ends])]


@pytest.mark.parametrize(
    ("load", "fixed_work", "count"),
    [
        (rows(*[1] * 16), 0, 1),  # rows together gain nothing
        (rows(*[1] * 16), 0.1, 3),
        (rows(*[1] * 16), 1, 11),
        (rows(*[1] * 16), 2, 16),  # not 13
        (rows(*[1] * 16), 1000, 16),
        (rows(1, 4, 1, 1, padded=True), 0, 1),  # fillers cost as much as rows
        (rows(1, 4, 1, 1, padded=True), 100, 4),
        (rows(1, 1, 1, 9, padded=True), 3, 3),
        (rows(1, 1, 1, 9), 3, 4),
        (rows(9), 0, 1),
    ],
)
def test_the_fewest_requests_that_are_nearly_as_efficient_as_any(load, fixed_work, count):
    assert efficient(load, fixed_work) == count


@pytest.mark.parametrize(
    ("load", "max_rows", "parts", "count"),
    [
        (rows(*[1] * 10), 16, 2, 5),
        (rows(*[1] * 20), 16, 2, 10),  # more than a full batch
        (rows(*[1] * 5), 16, 2, 3),
        (rows(*[1] * 40), 16, 2, 16),
        (rows(*[1] * 16), 16, 1, 16),
        (rows(1), 16, 2, 1),
        (rows(9, 1, 1, 1, 9), 16, 2, 3),
        (rows(1, 1, 1, 9, 9, padded=True), 16, 2, 3),  # padding costs, too
        (Workload([4, 1, 1, 2], [1] * 4), 8, 2, 1),  # none is split
    ],
)
def test_share(load, max_rows, parts, count):
    assert share(load, max_rows, parts) == count


@pytest.mark.parametrize(
    ("count", "soonest_ms", "cost", "taken"),
    [
        (10, 0, linear(), 5),  # one that ends now takes half
        (10, 40, linear(), 7),
        (10, 95, linear(), 10),  # it ends too late to help
        (10, 500, linear(), 10),
        (10, 0, linear(50, 0), 10),
        (10, 0, linear(30, 5), 10),  # two executions cost too much more than one
        (10, 0, linear(cores=1), 5),  # the other runs in any case
        (1, 0, linear(), 1),
    ],
)
def test_portion(count, soonest_ms, cost, taken):
    assert portion(rows(*[1] * count), 1, soonest_ms * MS, cost) == taken


loads = st.builds(
    lambda pairs, padded: Workload([a for a, _ in pairs], [b for _, b in pairs], padded),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 50)), min_size=1, max_size=9),
    st.booleans(),
)
costs = st.builds(linear, st.floats(0, 40), st.floats(0.01, 5), st.integers(1, 4))


@given(loads, st.integers(4, 16), st.integers(1, 4))
def test_shares_one_after_another_are_close_to_the_best_division(load, max_rows, more):
    parts = len(load.pieces(load.work(0, len(load.rows)), max_rows)) + more - 1
    start, works = 0, []
    for left in range(parts, 0, -1):
        rest = Workload(load.rows[start:], load.sizes[start:], load.padded)
        if not rest.rows:
            break
        count = share(rest, max_rows, left)
        assert sum(rest.rows[:count]) <= max_rows
        works.append(rest.work(0, count))
        start += count
    assert start == len(load.rows)
    best = min(
        max(load.work(a, b) for a, b in pairwise([0, *found]))
        for number in range(1, parts + 1)
        for found in (
            (*inner, len(load.rows)) for inner in combinations(range(1, len(load.rows)), number - 1)
        )
        if all(sum(load.rows[a:b]) <= max_rows for a, b in pairwise([0, *found]))
    )
    assert max(works) <= best * 1.02 + 1e-9


@given(loads, st.floats(0, 100))
def test_an_efficient_batch_is_never_slower_than_one_after_another(load, fixed_work):
    count = efficient(load, fixed_work)
    apart = sum(fixed_work + a * b for a, b in zip(load.rows[:count], load.sizes, strict=False))
    assert fixed_work + load.work(0, count) <= apart * (1 + 1e-9)


@given(loads, st.integers(0, 200), costs)
def test_a_portion_never_ends_later_than_the_whole(load, soonest_ms, cost):
    count = len(load.rows)
    taken = portion(load, 1, soonest_ms * MS, cost)
    assert 1 <= taken <= count
    if taken < count:
        whole = cost(2, load.work(0, count))
        assert cost(2, load.work(0, taken)) < whole
        assert soonest_ms * MS + cost(2, load.work(taken, count)) < whole
