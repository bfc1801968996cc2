"""Priority levels, limits and time-outs of the queue."""

from __future__ import annotations

import pytest

from shoal.errors import Cancelled, QueueRejected
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from tests.support.fakes import make_request


def request(name="", **options):
    return make_request(id=name, rows=1, **options)[0]


def names(requests):
    return [r.id for r in requests]


def test_first_come_first_served():
    queue = RequestQueue(QueuePolicy())
    for name in "abc":
        queue.push(request(name), 0)
    assert names(queue.take(2)) == ["a", "b"]
    assert names(queue) == ["c"]
    assert len(queue) == 1


def test_lower_numbers_run_first_and_odd_ones_get_the_default_level():
    queue = RequestQueue(QueuePolicy(), levels=3, default_level=2)
    for name, priority in [("low", 3), ("none", 0), ("high", 1), ("beyond", 9), ("mid", 2)]:
        queue.push(request(name, priority=priority), 0)
    assert names(queue.take(9)) == ["high", "none", "beyond", "mid", "low"]


def test_the_limit_is_exact_and_counts_one_level_only():
    queue = RequestQueue(QueuePolicy(max_size=2), levels=2, default_level=1)
    queue.push(request(priority=1), 0)
    queue.push(request(priority=1), 0)
    with pytest.raises(QueueRejected, match=r"\[request id: x\] Exceeds maximum queue size"):
        queue.push(request("x", priority=1), 0)
    queue.push(request(priority=2), 0)
    assert len(queue) == 3


def test_level_policies_override_the_default():
    queue = RequestQueue(
        QueuePolicy(max_size=1), levels=2, level_policies={2: QueuePolicy(max_size=2)}
    )
    queue.push(request(priority=2), 0)
    queue.push(request(priority=2), 0)
    with pytest.raises(QueueRejected):
        queue.push(request(priority=2), 0)


def test_expired_requests_are_rejected():
    queue = RequestQueue(QueuePolicy(default_timeout_ns=100))
    queue.push(request("old"), 0)
    queue.push(request("new"), 50)
    assert queue.prune(99, cancelled=False) == []
    ((dropped, error),) = queue.prune(100, cancelled=False)
    assert dropped.id == "old"
    assert isinstance(error, QueueRejected)
    assert "Request timeout expired" in error.message
    assert names(queue) == ["new"]
    assert queue.next_deadline_ns == 150


def test_delayed_requests_run_after_those_in_time():
    queue = RequestQueue(QueuePolicy(default_timeout_ns=100, delay_expired=True))
    queue.push(request("late"), 0)
    queue.push(request("fresh"), 90)
    assert queue.prune(120, cancelled=False) == []
    assert names(queue) == ["fresh", "late"]


@pytest.mark.parametrize(
    ("policy", "timeout_us", "deadline"),
    [
        (QueuePolicy(), 5, None),  # no default, no override: the request's wish is not heard
        (QueuePolicy(default_timeout_ns=9000), 5, 9000),
        (QueuePolicy(default_timeout_ns=9000, allow_override=True), 5, 5000),
        (QueuePolicy(default_timeout_ns=9000, allow_override=True), 50, 9000),  # never longer
        (QueuePolicy(default_timeout_ns=9000, allow_override=True), 0, 9000),
        (QueuePolicy(allow_override=True), 5, None),
        (QueuePolicy(timeout_from_request=True), 5, 5000),
        (QueuePolicy(timeout_from_request=True, default_timeout_ns=9000), 50, 9000),
    ],
)
def test_deadlines(policy, timeout_us, deadline):
    assert policy.deadline(request(timeout_us=timeout_us), 0) == deadline


def test_cancelled_requests_leave_wherever_they_are():
    queue = RequestQueue(QueuePolicy(default_timeout_ns=10, delay_expired=True))
    late, kept, gone = request("late"), request("kept"), request("gone")
    queue.push(late, 0)
    queue.prune(20, cancelled=False)  # `late` is in the second line now
    queue.push(kept, 15)
    queue.push(gone, 15)
    late.cancelled = gone.cancelled = True
    dropped = queue.prune(20, cancelled=True)
    assert {r.id for r, _ in dropped} == {"late", "gone"}
    assert all(isinstance(error, Cancelled) for _, error in dropped)
    assert names(queue) == ["kept"]
    assert len(queue) == 1


def test_oldest_is_the_longest_wait_over_all_levels():
    queue = RequestQueue(QueuePolicy(), levels=2)
    queue.push(request(priority=2), 5)
    queue.push(request(priority=1), 7)
    assert queue.oldest_ns() == 5


@pytest.mark.parametrize(
    "policy", [QueuePolicy(), QueuePolicy(allow_override=True), QueuePolicy(delay_expired=True)]
)
def test_many_at_once_are_queued_like_one_by_one(policy):
    queue = RequestQueue(policy)
    queue.push(request("a"), 1)
    assert queue.push_all([request("b", timeout_us=5), request("c")], 7)
    assert names(queue) == ["a", "b", "c"]
    assert [r.queued_ns for r in queue] == [1, 7, 7]
    assert [r.deadline_ns for r in queue] == [None] * 3
    assert (len(queue), queue.next_deadline_ns) == (3, None)


@pytest.mark.parametrize(
    ("policy", "levels"),
    [
        (QueuePolicy(default_timeout_ns=1), 1),
        (QueuePolicy(timeout_from_request=True), 1),
        (QueuePolicy(), 2),
    ],
)
def test_those_who_may_be_refused_are_not_queued_at_once(policy, levels):
    queue = RequestQueue(policy, levels=levels)
    assert not queue.push_all([request(), request(timeout_us=5)], 7)
    assert len(queue) == 0
    if policy.timeout_from_request:
        assert queue.push_all([request(), request()], 7)


@pytest.mark.parametrize(("waiting", "taken"), [(0, 3), (1, 2), (3, 0), (4, 0)])
def test_many_at_once_are_queued_up_to_the_limit(waiting, taken):
    queue = RequestQueue(QueuePolicy(max_size=max(3, waiting)))
    for _ in range(waiting):
        queue.push(request("before"), 1)
    several = [request(name) for name in "abcd"]
    assert queue.push_all(several, 7) == taken
    assert names(queue) == ["before"] * waiting + list("abcd")[:taken]
    assert [each.queued_ns for each in several] == [7] * taken + [0] * (4 - taken)


def test_taking_stops_inside_a_level():
    queue = RequestQueue(QueuePolicy(), levels=2)
    for name, priority in [("a", 1), ("b", 2), ("c", 1), ("d", 2), ("e", 2)]:
        queue.push(request(name, priority=priority), 0)
    assert names(queue.take(4)) == ["a", "c", "b", "d"]
    assert names(queue) == ["e"]
    assert names(queue.take(0)) == []
    assert names(queue.take(1)) == ["e"]


def test_a_level_takes_memory_only_while_it_is_in_use():
    queue = RequestQueue(QueuePolicy(), levels=2**64 - 1, default_level=2**63)
    for priority in range(1, 1000):
        queue.push(request(str(priority), priority=priority * 10**9), 0)
        assert names(queue.take(1)) == [str(priority)]
    assert len(queue._levels) <= 64
    for name, priority in [("low", 2**64 - 1), ("none", 0), ("high", 1), ("mid", 10**9)]:
        queue.push(request(name, priority=priority), 0)
    assert queue.leading() == 1
    assert names(queue) == ["high", "mid", "none", "low"]
    assert names(queue.take_at([1, 2])) == ["mid", "none"]
    assert names(queue.take(9)) == ["high", "low"]


def test_levels_in_which_requests_wait_are_kept():
    queue = RequestQueue(QueuePolicy(), levels=10**6)
    for priority in reversed(range(1, 500)):
        queue.push(request(str(priority), priority=priority), 0)
    assert len(queue) == 499
    assert names(queue.take(499)) == [str(priority) for priority in range(1, 500)]
