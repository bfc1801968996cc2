"""A fleet's windows: what belongs to which one, without a load."""

from __future__ import annotations

from array import array

import pytest

from shoal.perf.fleet import Fleet
from shoal.perf.worker import Cut, CutOrder


class Member:
    """A worker that hands over prepared cuts."""

    def __init__(self, *cuts):
        self._cuts = list(cuts)

    def tell(self, order):
        assert isinstance(order, CutOrder)

    def hear(self, kind):
        return self._cuts.pop(0)


@pytest.fixture
def fleet_of(monkeypatch):
    def make(*members):
        left = list(members)
        monkeypatch.setattr("shoal.perf.fleet._Member", lambda _job, process: left.pop(0))
        return Fleet(None, len(members))

    return make


def answered(*ends, responses=()):
    starts = array("q", [end - 5 for end in ends])
    return Cut(starts, array("q", ends), responses=array("q", responses))


def test_what_came_after_the_end_of_a_window_belongs_to_the_next(fleet_of):
    fleet = fleet_of(Member(answered(10, 20, 30), answered(40)), Member(answered(15, 25), Cut()))
    first, second = fleet.cut(end_ns=20), fleet.cut(end_ns=50)
    assert (sorted(first.ends), first.responses) == ([10, 15, 20], 3)
    assert (sorted(second.ends), second.responses) == ([25, 30, 40], 3)


def test_responses_go_with_their_requests(fleet_of):
    """However late the worker hands over: a stall there is no burst of responses."""
    late = answered(10, 20, 30, 40, responses=(3, 1, 0, 7))
    fleet = fleet_of(Member(late, answered(50, responses=(2,))))
    first, second = fleet.cut(end_ns=20), fleet.cut(end_ns=60)
    assert (len(first.ends), first.responses) == (2, 4)
    assert (len(second.ends), second.responses) == (3, 9)
