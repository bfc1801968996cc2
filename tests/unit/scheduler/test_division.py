"""How batches are divided: tables, the best division by trying all, and properties."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.scheduler.division import WORTHWHILE_NS, Workload, divide, portion

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
    ("load", "max_rows", "idle", "busy", "cost", "expected"),
    [
        (rows(*[1] * 10), 16, 2, 0, linear(), [5, 5]),
        (rows(*[1] * 20), 16, 2, 0, linear(), [10, 10]),  # more than a full batch
        (rows(*[1] * 5), 16, 2, 0, linear(), [3, 2]),
        (rows(*[1] * 6), 16, 4, 0, linear(), [2, 2, 2]),  # a fourth would end as late
        (rows(*[1] * 16), 16, 1, 0, linear(), [16]),
        (rows(1), 16, 2, 0, linear(), [1]),
        (rows(*[1] * 10), 16, 2, 0, linear(row_ms=0.1), [10]),  # nothing worth mentioning
        (rows(*[1] * 10), 16, 2, 0, linear(50, 0), [10]),  # a batch costs what one row costs
        (rows(*[1] * 10), 16, 2, 0, linear(cores=1), [10]),  # they would only share a core
        (rows(*[1] * 20), 16, 2, 0, linear(50, 0), [10, 10]),  # two batches in any case
        (rows(*[1] * 8), 16, 4, 0, linear(cores=2), [4, 4]),  # as many as there are cores
        (rows(*[1] * 8), 16, 2, 2, linear(cores=2), [4, 4]),  # two shares of the cores
        (rows(9, 1, 1, 1, 9), 16, 2, 0, linear(), [3, 2]),
        (rows(1, 1, 1, 9, 9, padded=True), 16, 2, 0, linear(), [3, 2]),  # padding costs, too
        (Workload([4, 1, 1, 2], [1] * 4), 8, 2, 0, linear(), [1, 3]),  # none is split
        (rows(*[1] * 10), 16, 2, 0, lambda concurrency, work: None, [10]),  # nothing is known
        (rows(*[1] * 20), 16, 2, 0, lambda concurrency, work: None, [16, 4]),
    ],
)
def test_divide(load, max_rows, idle, busy, cost, expected):
    assert lengths(divide(load, max_rows, idle, busy, cost)) == expected


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


def makespan(load, ends, busy, cost):
    parts = list(pairwise([0, *ends]))
    return max(cost(busy + len(parts), load.work(*part)) for part in parts)


@given(loads, st.integers(4, 16), st.integers(1, 4), st.integers(0, 2), costs)
def test_every_division_is_whole_in_order_and_close_to_the_best(load, max_rows, more, busy, cost):
    fewest = len(load.pieces(load.work(0, len(load.rows)), max_rows))
    idle = fewest + more - 1
    ends = divide(load, max_rows, idle, busy, cost)
    assert ends[-1] == len(load.rows)
    assert all(a < b for a, b in pairwise([0, *ends]))
    assert len(ends) <= idle
    assert all(sum(load.rows[a:b]) <= max_rows for a, b in pairwise([0, *ends]))
    allowed = [
        (*inner, len(load.rows))
        for parts in range(1, idle + 1)
        for inner in combinations(range(1, len(load.rows)), parts - 1)
    ]
    best = min(
        makespan(load, found, busy, cost)
        for found in allowed
        if all(sum(load.rows[a:b]) <= max_rows for a, b in pairwise([0, *found]))
    )
    found = makespan(load, ends, busy, cost)
    # A step that gains less than a tenth is not taken, and the work is balanced to 2 %.
    assert found <= max(best / 0.9 * 1.02, best * 1.02 + WORTHWHILE_NS) * (1 + 1e-9)


@given(loads, st.integers(0, 200), costs)
def test_a_portion_never_ends_later_than_the_whole(load, soonest_ms, cost):
    count = len(load.rows)
    taken = portion(load, 1, soonest_ms * MS, cost)
    assert 1 <= taken <= count
    if taken < count:
        whole = cost(2, load.work(0, count))
        assert cost(2, load.work(0, taken)) < whole
        assert soonest_ms * MS + cost(2, load.work(taken, count)) < whole
