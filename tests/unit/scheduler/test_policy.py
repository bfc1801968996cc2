"""The batch decision as a table: what waits, and what goes."""

from __future__ import annotations

import pytest

from shoal.scheduler.policy import BatchCut, BatchPolicy, Reason, SingleRequestPolicy

A, B = "shape a", "shape b"
LATE = 10**12


def waiting(*rows):
    return [(r, A) if isinstance(r, int) else r for r in rows]


@pytest.mark.parametrize(
    ("rows", "preferred", "delay", "waited", "expected"),
    [
        # no preferred sizes in the config: the largest batch is the preferred one
        ([], {8}, 0, 0, BatchCut(0, Reason.WAITING)),
        ([1, 1], {8}, 0, 0, BatchCut(2, Reason.NO_DELAY)),
        ([4, 4], {8}, 0, 0, BatchCut(2, Reason.PREFERRED)),
        ([4, 3, 2], {8}, 0, 0, BatchCut(2, Reason.PREFERRED)),
        ([8, 1], {8}, 0, 0, BatchCut(1, Reason.PREFERRED)),
        ([1] * 20, {8}, 0, 0, BatchCut(8, Reason.PREFERRED)),
        # a delay: wait for more, but not for ever
        ([1, 1], {8}, 100, 0, BatchCut(0, Reason.WAITING)),
        ([1, 1], {8}, 100, 99, BatchCut(0, Reason.WAITING)),
        ([1, 1], {8}, 100, 100, BatchCut(2, Reason.DELAY)),
        # preferred sizes: the largest that can be reached, at once
        ([1, 1, 1], {2, 6}, 100, 0, BatchCut(2, Reason.PREFERRED)),
        ([1] * 7, {2, 6}, 100, 0, BatchCut(6, Reason.PREFERRED)),
        ([1], {2, 6}, 100, 0, BatchCut(0, Reason.WAITING)),
        ([1] * 5, {4, 6}, 0, 0, BatchCut(4, Reason.PREFERRED)),
        ([1] * 3, {4, 6}, 0, 0, BatchCut(3, Reason.NO_DELAY)),
        # beyond every preferred size: what is before the next one goes
        ([3, 4], {2, 6}, 100, 0, BatchCut(1, Reason.PREFERRED)),
        ([7], {2, 6}, 100, 0, BatchCut(1, Reason.PREFERRED)),
        # the delay is over: take as much as fits, preferred or not
        ([1] * 7, {2, 6}, 100, LATE, BatchCut(7, Reason.PREFERRED)),
        ([1] * 3, {2, 6}, 100, LATE, BatchCut(3, Reason.DELAY)),
        ([3, 4, 4], {2, 6}, 100, LATE, BatchCut(2, Reason.FULL)),
        # shapes are never mixed, and nobody overtakes
        ([1, (1, B), 1], {8}, 0, 0, BatchCut(1, Reason.SHAPE)),
        ([1, 1, (1, B)], {8}, 100, 0, BatchCut(2, Reason.SHAPE)),
        ([(1, B), 1], {8}, 100, LATE, BatchCut(1, Reason.SHAPE)),
        # a single request larger than preferred is fine
        ([8], {4}, 100, 0, BatchCut(1, Reason.PREFERRED)),
    ],
)
def test_cut(rows, preferred, delay, waited, expected):
    policy = BatchPolicy(8, frozenset(preferred), delay)
    assert policy.cut(waiting(*rows), waited) == expected


def test_cut_stops_looking_once_the_batch_is_full():
    looked = []

    def endless():
        while True:
            looked.append(1)
            yield (1, A)

    assert BatchPolicy(4, frozenset({4})).cut(endless(), 0).count == 4
    assert len(looked) == 4


def test_without_batching_requests_run_alone():
    assert SingleRequestPolicy().cut(waiting(3, 3), 0) == BatchCut(1, Reason.SINGLE)
    assert SingleRequestPolicy().cut([], 0).count == 0
