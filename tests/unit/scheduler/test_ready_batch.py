"""An instance with more to do asks for a batch that is ready now, and never waits for one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shoal.scheduler.batcher import Batcher
from shoal.scheduler.policy import BatchPolicy, SingleRequestPolicy
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from tests.support.fakes import FakeClock, make_request

GOING = SimpleNamespace(stopping=False)


@pytest.fixture
def dropped():
    return []


@pytest.fixture
def make(dropped):
    def batcher(policy, clock=None):
        def drop(request, error):
            dropped.append((request, error))

        return Batcher(
            policy, RequestQueue(QueuePolicy()), on_dropped=drop, clock=clock or FakeClock()
        )

    return batcher


def put(batcher, count):
    requests = [make_request(rows=1)[0] for _ in range(count)]
    for request in requests:
        batcher.enqueue(request)
    return requests


def test_nothing_waits(make):
    assert make(SingleRequestPolicy()).ready_batch(GOING) == []


def test_what_is_ready_is_handed_over(make):
    batcher = make(BatchPolicy(2))
    requests = put(batcher, 3)
    assert batcher.ready_batch(GOING) == requests[:2]
    assert batcher.ready_batch(GOING) == requests[2:]
    assert batcher.ready_batch(GOING) == []


def test_what_may_still_grow_is_left_to_grow(make):
    clock = FakeClock()
    batcher = make(BatchPolicy(4, max_delay_ns=100), clock)
    requests = put(batcher, 1)
    assert batcher.ready_batch(GOING) == []
    clock.advance(100)
    assert batcher.ready_batch(GOING) == requests


def test_who_is_to_stop_gets_none(make):
    batcher = make(SingleRequestPolicy())
    put(batcher, 1)
    assert batcher.ready_batch(SimpleNamespace(stopping=True)) == []
    assert batcher.pending() == 1


def test_not_while_the_event_loop_has_the_queue(make):
    batcher = make(SingleRequestPolicy())
    put(batcher, 1)
    batcher.hand_to_loop(lambda: None)
    assert batcher.ready_batch(GOING) == []


def test_what_was_withdrawn_is_dropped_first(make, dropped):
    batcher = make(SingleRequestPolicy())
    first, second = put(batcher, 2)
    first.cancelled = True  # unnoticed so far
    batcher._any_cancelled = True
    assert batcher.ready_batch(GOING) == [second]
    assert [request for request, _ in dropped] == [first]
