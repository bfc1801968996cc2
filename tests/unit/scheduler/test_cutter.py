"""Which requests of a queue become a batch: no thread, no lock, no clock."""

from __future__ import annotations

import pytest

from shoal.core.request import State
from shoal.scheduler.concurrency import ConcurrentExecutions
from shoal.scheduler.cutter import BatchCutter
from shoal.scheduler.policy import BatchPolicy, Reason, SingleRequestPolicy
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from tests.support.fakes import make_request
from tests.support.instances import MS, teach


class Stage:
    """A cutter, and its queue with requests of one row that came at the time 0."""

    def __init__(self, policy, waiting=0, **options):
        self.queue = RequestQueue(QueuePolicy())
        self.cutter = BatchCutter(policy, self.queue, **options)
        self.requests = self.add(waiting)

    def add(self, count):
        requests = [make_request(rows=1)[0] for _ in range(count)]
        for request in requests:
            self.queue.push(request, 0)
        return requests


def test_it_takes_what_the_policy_decides():
    stage = Stage(BatchPolicy(4), 6)
    batch, wait_ns = stage.cutter.cut(0)
    assert (batch, wait_ns) == (stage.requests[:4], None)
    assert {request.state for request in batch} == {State.EXECUTING}
    assert len(stage.queue) == 2
    assert list(stage.cutter.recent) == [(Reason.PREFERRED, 4)]


def test_it_says_when_to_ask_again():
    stage = Stage(BatchPolicy(4, max_delay_ns=MS), 2)
    assert stage.cutter.cut(MS // 4) == ([], MS * 3 // 4)
    assert stage.cutter.cut(MS)[0] == stage.requests


def test_of_an_empty_queue_there_is_nothing_to_wait_for():
    assert Stage(BatchPolicy(4)).cutter.cut(0) == ([], None)


@pytest.mark.parametrize(
    "options", [{"policy": BatchPolicy(4, max_delay_ns=MS)}, {"hold_until": 3}]
)
def test_when_no_more_requests_come_nothing_waits(options):
    stage = Stage(options.pop("policy", BatchPolicy(4)), 2, **options)
    assert stage.cutter.cut(0)[0] == []
    stage.cutter.draining = True
    assert stage.cutter.cut(0)[0] == stage.requests


@pytest.mark.parametrize(
    ("instances", "waiting", "parts"),
    [
        (2, 1, [3, 3]),
        (3, 2, [2, 2, 2]),
        (2, None, [6]),  # it is to be left whole
        (1, 1, [6]),
    ],
)
def test_what_is_ready_is_divided_among_instances_that_wait(instances, waiting, parts):
    concurrent = ConcurrentExecutions()
    teach(concurrent, instances)
    stage = Stage(BatchPolicy(16), 6, concurrent=concurrent)
    stage.cutter.instances = instances
    taken = []
    for _ in parts:
        taken.append(stage.cutter.cut(0, waiting)[0])
        waiting = waiting and waiting - 1
    assert [len(part) for part in taken] == parts
    assert [request for part in taken for request in part] == stage.requests


def test_batches_that_were_given_back_go_first():
    stage = Stage(BatchPolicy(16), 2)
    given_back = [make_request(rows=1)[0] for _ in range(2)]
    stage.cutter.given_back += [[request] for request in given_back]
    assert [stage.cutter.next_given_back(0) for _ in range(2)] == [[one] for one in given_back]
    assert not stage.cutter.given_back


def test_a_group_that_would_be_one_batch():
    cutter = Stage(BatchPolicy(4)).cutter
    assert cutter.group(1, (), 4) == (Reason.PREFERRED, 4)
    assert cutter.last_group == (1, 4, (Reason.PREFERRED, 4))
    assert cutter.group(1, (), 5) is None
    assert Stage(BatchPolicy(4, max_delay_ns=MS)).cutter.group(1, (), 4) is None
    assert Stage(BatchPolicy(4), hold_until=2).cutter.group(1, (), 4) is None


def test_single_requests_are_each_a_batch():
    stage = Stage(SingleRequestPolicy(), 5)
    assert stage.cutter.take_single(3) == stage.requests[:3]
    assert stage.cutter.take_single(3) == stage.requests[3:]
    assert list(stage.cutter.recent) == [(Reason.SINGLE, 1)] * 5
