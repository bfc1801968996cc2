"""The queue between frontends and instances, with real threads and no sleeping."""

from __future__ import annotations

import threading

import pytest

from shoal.core.request import State
from shoal.errors import Cancelled, QueueRejected
from shoal.scheduler.admission import AdmissionControl
from shoal.scheduler.admission_queue import AdmissionQueue
from shoal.scheduler.base import BatcherClosed
from shoal.scheduler.batcher import Batcher
from shoal.scheduler.policy import BatchPolicy, SingleRequestPolicy
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from shoal.scheduler.timer import Timer
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS, FakeClock, make_request

MINUTE_NS = 60 * 10**9


class Puller:
    def __init__(self):
        self.stopping = False


class Pulling:
    """A thread that waits in next_batch; `result` joins it."""

    def __init__(self, batcher, puller=None):
        self.batch = None
        self._thread = threading.Thread(target=self._run, args=(batcher, puller or Puller()))
        self._thread.start()

    def _run(self, batcher, puller):
        self.batch = batcher.next_batch(puller)

    def result(self):
        self._thread.join(WAIT_SECS)
        assert not self._thread.is_alive()
        return self.batch


def batcher(policy=None, queue_policy=None, admission=None, **options):
    dropped = []
    queue_policy = queue_policy or QueuePolicy()
    queue = AdmissionQueue(admission, queue_policy) if admission else RequestQueue(queue_policy)
    made = Batcher(
        policy or BatchPolicy(4, frozenset({4}), MINUTE_NS),
        queue,
        on_dropped=lambda request, error: dropped.append((request, error)),
        **options,
    )
    return made, dropped


def test_a_full_batch_goes_to_a_waiting_instance():
    line, _ = batcher()
    pulling = Pulling(line)
    requests = [make_request(rows=2)[0] for _ in range(2)]
    for request in requests:
        line.enqueue(request)
    assert pulling.result() == requests
    assert [r.state for r in requests] == [State.EXECUTING] * 2
    assert line.pending() == 0


def test_what_stays_behind_may_be_ready_too():
    """One arrival can make two batches ready; nobody may wait for a third."""
    line, _ = batcher(BatchPolicy(4, frozenset({2}), MINUTE_NS))
    first = make_request(rows=1)[0]
    line.enqueue(first)
    one, two = Pulling(line), Pulling(line)
    line.enqueue(make_request(rows=4)[0])  # closes the batch of one and is a batch itself
    batches = sorted(len(x.result()) for x in (one, two))
    assert batches == [1, 1]


class Loop:
    """An event loop in the hands of the test; `turn` ends what it does just now."""

    def __init__(self):
        self.thread = threading.get_ident()
        self.callbacks = []

    def here(self):
        return threading.get_ident() == self.thread

    def call_soon(self, callback):
        self.callbacks.append(callback)
        return True

    def turn(self):
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


def test_what_one_turn_of_the_loop_brings_is_one_batch():
    loop = Loop()
    line, _ = batcher(BatchPolicy(8), loop=loop)
    pulling = Pulling(line)
    wait_until(lambda: line._waiting, "the instance waits")
    requests = [make_request(rows=1)[0] for _ in range(3)]
    for request in requests:
        line.enqueue(request)
    assert len(loop.callbacks) == 1
    assert line.pending() == 3
    loop.turn()
    assert pulling.result() == requests


def test_other_threads_wake_at_once():
    loop = Loop()
    line, _ = batcher(BatchPolicy(8), loop=loop)
    pulling = Pulling(line)
    wait_until(lambda: line._waiting, "the instance waits")
    request, _ = make_request(rows=1)
    line.enqueue(make_request(rows=1)[0])  # on the loop: somebody will be woken
    other = threading.Thread(target=line.enqueue, args=(request,))
    other.start()
    other.join(WAIT_SECS)
    assert pulling.result()[-1] is request
    loop.turn()  # finds nothing left to wake anybody for


def test_all_instances_are_woken_for_all_there_is():
    loop = Loop()
    line, _ = batcher(SingleRequestPolicy(), loop=loop)
    pulling = [Pulling(line) for _ in range(3)]
    wait_until(lambda: line._waiting == 3, "the instances wait")
    for _ in range(3):
        line.enqueue(make_request(rows=1)[0])
    loop.turn()
    assert [len(one.result()) for one in pulling] == [1, 1, 1]


def test_a_loop_that_is_gone_wakes_nobody_so_we_do():
    loop = Loop()
    loop.call_soon = lambda callback: False
    line, _ = batcher(BatchPolicy(8), loop=loop)
    pulling = Pulling(line)
    wait_until(lambda: line._waiting, "the instance waits")
    line.enqueue(make_request(rows=1)[0])
    assert len(pulling.result()) == 1


def test_the_delay_runs_from_the_oldest_request():
    clock = FakeClock()
    line, _ = batcher(BatchPolicy(4, frozenset({4}), 1000), clock=clock)
    line.enqueue(make_request(rows=1)[0])
    clock.advance(1000)
    assert len(Pulling(line).result()) == 1


def test_closing_serves_what_is_queued_then_ends():
    line, _ = batcher()
    line.enqueue(make_request(rows=1)[0])
    line.close()
    assert len(Pulling(line).result()) == 1
    assert Pulling(line).result() == []
    with pytest.raises(BatcherClosed):
        line.enqueue(make_request(rows=1)[0])


def test_one_instance_can_be_told_to_stop():
    line, _ = batcher()
    puller = Puller()
    pulling = Pulling(line, puller)
    puller.stopping = True
    line.wake()
    assert pulling.result() == []


def test_a_cancelled_request_never_runs_and_is_answered_at_once():
    line, dropped = batcher(BatchPolicy(2, frozenset({2}), MINUTE_NS))
    gone, _ = make_request(rows=1)
    line.enqueue(gone)
    gone.cancel()
    ((request, error),) = dropped
    assert request is gone
    assert isinstance(error, Cancelled)
    assert gone.state is State.DONE
    pulling = Pulling(line)
    kept = [make_request(rows=1)[0] for _ in range(2)]
    for request in kept:
        line.enqueue(request)
    assert pulling.result() == kept


def test_cancelling_before_the_queue_counts_too():
    line, dropped = batcher()
    gone, _ = make_request(rows=1)
    gone.cancel()
    line.enqueue(gone)
    assert [request for request, _ in dropped] == [gone]
    assert line.pending() == 0


def test_expired_requests_are_answered_while_every_instance_is_busy():
    expired = threading.Event()
    line = Batcher(
        SingleRequestPolicy(),
        RequestQueue(QueuePolicy(default_timeout_ns=1_000_000)),
        on_dropped=lambda request, error: (
            expired.set() if isinstance(error, QueueRejected) else None
        ),
        timer=Timer(),
    )
    line.enqueue(make_request(rows=1)[0])
    assert expired.wait(WAIT_SECS)  # nobody pulled
    assert line.pending() == 0


def test_a_full_queue_refuses_and_keeps_the_rest():
    line, _ = batcher(queue_policy=QueuePolicy(max_size=1))
    line.enqueue(make_request(rows=1)[0])
    late, _ = make_request(rows=1)
    with pytest.raises(QueueRejected):
        line.enqueue(late)
    assert late.state is State.NEW
    assert line.pending() == 1


def test_holding_the_queue_until_enough_wait():
    line, _ = batcher(BatchPolicy(8, frozenset({8}), 0), hold_until=3)
    pulling = Pulling(line)
    for _ in range(3):
        line.enqueue(make_request(rows=1)[0])
    assert len(pulling.result()) == 3
    line.enqueue(make_request(rows=1)[0])  # only the first batch is held
    assert len(Pulling(line).result()) == 1


def test_order_is_kept_when_asked_for():
    line, _ = batcher(SingleRequestPolicy(), preserve_ordering=True)
    requests, collectors = zip(*[make_request(rows=1, id=str(n)) for n in range(3)], strict=True)
    for request in requests:
        line.enqueue(request)
    from shoal.core.response import Response

    def answer(index):
        requests[index].reply.send(Response("m", 1, str(index)))

    answer(2)
    answer(1)
    assert not any(c.answered for c in collectors)
    answer(0)
    assert all(c.answered for c in collectors)
    assert all(c.finals == 1 for c in collectors)


def test_a_refused_request_takes_no_place_in_the_order():
    line, _ = batcher(SingleRequestPolicy(), QueuePolicy(max_size=1), preserve_ordering=True)
    first, collector = make_request(rows=1)
    line.enqueue(first)
    with pytest.raises(QueueRejected):
        line.enqueue(make_request(rows=1)[0])
    from shoal.core.response import Response

    first.reply.send(Response("m", 1))
    assert collector.answered


def test_many_threads_lose_nothing():
    line, _ = batcher(BatchPolicy(8, frozenset({8}), 0))
    seen, lock = [], threading.Lock()

    def work():
        puller = Puller()
        while batch := line.next_batch(puller):
            with lock:
                seen.extend(r.id for r in batch)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()

    def send(start):
        for n in range(start, start + 500):
            line.enqueue(make_request(rows=1, id=str(n))[0])

    senders = [threading.Thread(target=send, args=(k * 500,)) for k in range(4)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    line.close()
    for worker in workers:
        worker.join(WAIT_SECS)
    assert sorted(map(int, seen)) == list(range(2000))


def test_requests_that_arrived_together():
    line, _ = batcher()
    pulling = Pulling(line)
    requests = [make_request(rows=2)[0] for _ in range(2)]
    assert line.enqueue_group(requests)
    assert pulling.result() == requests


def test_the_loop_hears_once_of_requests_that_arrived_together():
    line, _ = batcher(BatchPolicy(4))
    heard = []
    line.hand_to_loop(lambda: heard.append(line.pending()))
    requests = [make_request(rows=1)[0] for _ in range(3)]
    assert line.enqueue_group(requests)
    assert heard == [3]
    assert [request.state for request in requests] == [State.QUEUED] * 3
    assert line.take_now() == (requests, None)


@pytest.mark.parametrize(
    ("policy", "reasons"),
    [
        (BatchPolicy(4), ["NO_DELAY", "NO_DELAY", "PREFERRED", "PREFERRED", "NO_DELAY"]),
        (BatchPolicy(4, frozenset({1})), ["PREFERRED"] * 5),
        (SingleRequestPolicy(), ["SINGLE"] * 5),
    ],
)
def test_lone_requests_on_the_loop_go_as_the_policy_decides(policy, reasons):
    line, _ = batcher(policy)
    line.hand_to_loop(lambda: None)
    for rows in (1, 1, 4, 4, 1):
        request = make_request(rows=rows)[0]
        assert line.start_alone(request)
        assert (request.state, request.on_cancel) == (State.EXECUTING, None)
    assert [(reason.name, rows) for reason, rows in line.recent] == [
        *zip(reasons, (1, 1, 4, 4, 1), strict=True)
    ]


def test_the_loop_takes_several_requests_that_run_one_by_one():
    line, _ = batcher(SingleRequestPolicy())
    assert line.runs_one_by_one
    line.hand_to_loop(lambda: None)
    requests = [make_request(rows=1)[0] for _ in range(20)]
    assert line.enqueue_group(requests) == 20
    taken = [line.take_now()[0] for _ in range(3)]
    assert [len(some) for some in taken] == [16, 4, 0]
    assert [request for some in taken for request in some] == requests
    assert {request.state for request in requests} == {State.EXECUTING}
    assert [(reason.name, rows) for reason, rows in line.recent] == [("SINGLE", 1)] * 20
    assert line.pending() == 0


def test_what_the_loop_gives_back_is_taken_before_the_queue():
    line, _ = batcher(SingleRequestPolicy())
    line.hand_to_loop(lambda: None)
    requests = [make_request(rows=1)[0] for _ in range(4)]
    line.enqueue_group(requests[:3])
    taken, _ = line.take_now()
    line.enqueue(requests[3])
    assert line.give_back(taken[1:])
    line.hand_to_instances()
    assert line.pending() == 3
    assert [line.next_batch(Puller()) for _ in range(3)] == [[request] for request in requests[1:]]


def test_the_loop_keeps_what_no_instance_may_take():
    line, _ = batcher(SingleRequestPolicy())
    requests = [make_request(rows=1)[0]]
    line.close()
    assert not line.give_back(requests)
    batches, _ = batcher(BatchPolicy(4))
    assert not batches.give_back(requests)  # a batch stays one


def test_a_group_on_the_loop_is_a_batch_if_the_policy_takes_all_of_it():
    line, _ = batcher(BatchPolicy(4))
    line.hand_to_loop(lambda: None)
    for _ in range(2):  # what the policy decides is kept
        for count in (2, 4):
            requests = [make_request(rows=1)[0] for _ in range(count)]
            assert line.start_group(requests)
            assert {request.state for request in requests} == {State.EXECUTING}
            assert {request.on_cancel for request in requests} == {None}
        assert not line.start_group([make_request(rows=1)[0] for _ in range(5)])
    assert [(reason.name, rows) for reason, rows in line.recent] == [
        ("NO_DELAY", 2),
        ("PREFERRED", 4),
    ] * 2


@pytest.mark.parametrize(
    ("policy", "queue", "options"),
    [
        (SingleRequestPolicy(), QueuePolicy(), {}),
        (BatchPolicy(4), QueuePolicy(max_size=8), {}),  # some of the next group may be refused
        (BatchPolicy(4), QueuePolicy(default_timeout_ns=1), {}),
        (BatchPolicy(4), QueuePolicy(), {"admission": AdmissionControl(1000, 1)}),
        (BatchPolicy(4, max_delay_ns=1000), QueuePolicy(), {}),
        (BatchPolicy(4), QueuePolicy(), {"hold_until": 3}),
        (BatchPolicy(4), QueuePolicy(), {"preserve_ordering": True}),
    ],
)
def test_groups_that_are_queued(policy, queue, options):
    line, _ = batcher(policy, queue, **options)
    line.hand_to_loop(lambda: None)
    requests = [make_request(rows=1)[0] for _ in range(2)]
    assert not line.start_group(requests)
    assert {request.state for request in requests} == {State.NEW}


def test_a_group_with_a_cancelled_request_is_queued():
    line, _ = batcher(BatchPolicy(4))
    line.hand_to_loop(lambda: None)
    requests = [make_request(rows=1)[0] for _ in range(3)]
    requests[1].cancel()
    assert not line.start_group(requests)
    assert {request.state for request in requests} == {State.NEW}


@pytest.mark.parametrize("why", ["queue", "instances", "closed", "order", "cancelled"])
def test_a_lone_request_does_not_overtake(why):
    line, _ = batcher(BatchPolicy(4), preserve_ordering=why == "order")
    line.hand_to_loop(lambda: None)
    line.enqueue(make_request(rows=1)[0])
    line.take_now()
    request = make_request(rows=1)[0]
    if why == "queue":
        line.enqueue(make_request(rows=1)[0])
    elif why == "instances":
        line.hand_to_instances()
    elif why == "closed":
        line.close()
    elif why == "cancelled":
        request.cancel()
    assert not line.start_alone(request)
    assert request.state is State.NEW
    assert request.queued_ns == 0


def test_a_lone_request_waits_where_a_delay_is_configured():
    line, _ = batcher(BatchPolicy(4, max_delay_ns=MINUTE_NS))
    line.hand_to_loop(lambda: None)
    full = make_request(rows=4)[0]
    line.enqueue(full)
    assert line.take_now() == ([full], None)
    assert not line.start_alone(make_request(rows=4)[0])
    line.enqueue(make_request(rows=1)[0])
    batch, wait_ns = line.take_now()
    assert batch == []
    assert 0 < wait_ns <= MINUTE_NS


def test_each_of_them_can_be_withdrawn():
    line, dropped = batcher(BatchPolicy(4))
    line.hand_to_loop(lambda: None)
    requests = [make_request(rows=1)[0] for _ in range(3)]
    assert line.enqueue_group(requests)
    requests[1].cancel()
    assert [(request, type(error)) for request, error in dropped] == [(requests[1], Cancelled)]
    assert line.take_now()[0] == [requests[0], requests[2]]


@pytest.mark.parametrize("on_loop", [True, False])
def test_requests_cancelled_before_they_are_queued_are_dropped(on_loop):
    line, dropped = batcher(BatchPolicy(4))
    pulling = None if on_loop else Pulling(line)
    if on_loop:
        line.hand_to_loop(lambda: None)
    requests = [make_request(rows=1)[0] for _ in range(3)]
    requests[1].cancel()
    assert line.enqueue_group(requests)
    taken = line.take_now()[0] if pulling is None else pulling.result()
    assert taken == [requests[0], requests[2]]
    assert [(request, type(error)) for request, error in dropped] == [(requests[1], Cancelled)]


@pytest.mark.parametrize("why", ["closed", "ordered", "timed"])
def test_requests_that_have_to_be_queued_one_by_one(why):
    limit = QueuePolicy(default_timeout_ns=MINUTE_NS) if why == "timed" else None
    line, _ = batcher(queue_policy=limit, preserve_ordering=why == "ordered")
    if why == "closed":
        line.close()
    requests = [make_request(rows=1)[0] for _ in range(2)]
    assert not line.enqueue_group(requests)
    assert line.pending() == 0
    assert [(r.state, r.on_cancel) for r in requests] == [(State.NEW, None)] * 2


def test_a_group_fills_the_queue_up_to_its_limit():
    line, _ = batcher(BatchPolicy(8), QueuePolicy(max_size=2))
    line.hand_to_loop(lambda: None)
    requests = [make_request(rows=1)[0] for _ in range(3)]
    assert line.enqueue_group(requests) == 2
    assert [request.state for request in requests] == [State.QUEUED, State.QUEUED, State.NEW]
    with pytest.raises(QueueRejected):
        line.enqueue(requests[2])
    assert line.enqueue_group(requests[2:]) == 0
    assert line.take_now()[0] == requests[:2]


# ---- admission control


class Controlled:
    """A batcher with a target of 40 ms, whose batches take 10 ms, at a time that the test sets."""

    def __init__(self, policy=None, **options):
        self.clock = FakeClock()
        self.control = AdmissionControl(40_000_000, 1)
        self.line, self.dropped = batcher(
            policy or BatchPolicy(1), clock=self.clock, admission=self.control, **options
        )
        self.line.hand_to_loop(lambda: None)
        for _ in range(10):  # it learns the cost
            self.line.enqueue(make_request(rows=1)[0])
            self.run()

    def take(self):
        return self.line.take_now()[0]

    def run(self):
        batch = self.take()
        self.clock.advance(10_000_000)
        self.line.finished(batch)
        return batch

    def group(self, count):
        return [make_request(rows=1)[0] for _ in range(count)]


def test_each_execution_is_measured_where_requests_run_one_by_one():
    stage = Controlled(SingleRequestPolicy())
    assert not stage.line.runs_one_by_one
    stage.line.enqueue_group(stage.group(2))
    assert len(stage.run()) == len(stage.run()) == 1


def test_requests_that_would_be_late_are_refused():
    world = Controlled()
    requests = world.group(8)
    taken = world.line.enqueue_group(requests)
    assert taken == 3  # of 40 ms, one fifth is for errors of the estimates
    with pytest.raises(QueueRejected, match="target latency of 40 ms"):
        world.line.enqueue(requests[taken])
    refused, expected_ns = world.line.admission()
    assert refused == 1
    assert expected_ns == pytest.approx(40_000_000, rel=0.01)
    assert world.run() == requests[:1]
    world.line.enqueue(requests[3])
    assert [world.run() for _ in range(3)] == [[r] for r in requests[1:4]]
    assert world.line.admission().expected_ns == pytest.approx(10_000_000, rel=0.01)


def test_a_part_of_an_admitted_request_is_not_refused():
    world = Controlled()
    for request in world.group(8):
        request.admitted = True
        world.line.enqueue(request)
    assert not world.line.expectation(make_request(rows=1)[0]).in_time


def test_requests_that_leave_the_queue_make_room():
    world = Controlled()
    requests = world.group(3)
    assert world.line.enqueue_group(requests) == 3
    assert not world.line.expectation(make_request(rows=1)[0]).in_time
    requests[0].cancel()
    assert [request for request, _ in world.dropped] == requests[:1]
    assert world.line.expectation(make_request(rows=1)[0]).in_time


def test_requests_that_expire_make_room():
    world = Controlled(queue_policy=QueuePolicy(default_timeout_ns=MINUTE_NS), timer=Timer())
    requests = world.group(3)
    for request in requests:
        world.line.enqueue(request)
    world.clock.advance(MINUTE_NS)
    world.line.expire()
    assert [request for request, _ in world.dropped] == requests
    assert world.line.expectation(make_request(rows=1)[0]).in_time
    assert world.line.enqueue_group(world.group(2)) == 0  # one by one: they could expire


def test_a_client_that_gives_up_earlier_is_refused_earlier():
    world = Controlled()
    world.line.enqueue(make_request(rows=1)[0])
    hurried = make_request(rows=1)[0]
    hurried.answer_by_ns = world.clock() + 15_000_000
    assert world.line.enqueue_group([hurried]) == 0
    with pytest.raises(QueueRejected, match="the time that the request allows"):
        world.line.enqueue(hurried)
