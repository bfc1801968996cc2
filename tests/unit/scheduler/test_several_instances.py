"""What waits is divided among instances: the real batcher, and a simulation of a busy server."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from itertools import cycle, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.concurrency import ExpectedConcurrency
from shoal.core.request import EXECUTING
from shoal.core.tensor import Tensor
from shoal.scheduler.batcher import Batcher
from shoal.scheduler.concurrency import ConcurrentExecutions
from shoal.scheduler.look_ahead import LookAhead
from shoal.scheduler.policy import BatchPolicy, Reason, SingleRequestPolicy
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS, FakeClock, make_request

MS = 1_000_000
BATCH = BatchPolicy(16)


class Instance:
    stopping = False


class Instances:
    """A batcher and its instances without threads: those that wait are counted by hand."""

    def __init__(self, policy, count, **options):
        self.clock = FakeClock()
        self.expected = ExpectedConcurrency()
        self.dropped = []
        self.line = Batcher(
            policy,
            RequestQueue(QueuePolicy()),
            on_dropped=lambda request, error: self.dropped.append(request),
            concurrent=ConcurrentExecutions(self.expected, **options),
            clock=self.clock,
        )
        self.max_delay_ns = policy.max_delay_ns
        self.idle = count
        for _ in range(count):
            self.line.attach(Instance())

    def enqueue(self, size=1, rows=1, key=()):
        data = np.zeros((rows, size), np.int8)
        request, _ = make_request(Tensor.from_array("x", data), rows=rows)
        request.batch_key = key
        self.line.enqueue(request)
        return request

    def pull(self):
        """The batch of the next idle instance, while the other idle ones wait."""
        self.line._waiting = self.idle - 1
        batch = self.line.ready_batch(Instance())
        if batch:
            self.idle -= 1
        self.line._waiting = self.idle
        return batch

    def pull_all(self):
        batches = []
        while self.idle and (batch := self.pull()):
            batches.append(batch)
        return batches

    def finish(self, batch, took_ns):
        now = self.clock()
        for request in batch:
            request.moments = (now - took_ns, now - took_ns, now, now)
        self.line.finished(batch)
        self.idle += 1
        self.line._waiting = self.idle

    def teach(self, row_ms=12.5, sizes=(1, 4, 16), **more):
        """One instance executes batches alone, so that costs are known."""
        for rows in sizes:
            for _ in range(rows):
                self.enqueue(**more)
            self.clock.advance(self.max_delay_ns)
            idle, self.idle = self.idle, 1
            batch = self.pull()
            self.clock.advance(int(row_ms * rows * MS))
            self.idle = idle - 1
            self.finish(batch, int(row_ms * rows * MS))
            assert len(batch) == rows


def sizes(batches):
    return [len(batch) for batch in batches]


@pytest.mark.parametrize(
    ("instances", "row_ms", "policy", "waiting", "expected"),
    [
        (2, 12.5, BATCH, 5, [3, 2]),
        (3, 12.5, BATCH, 6, [2, 2, 2]),
        (2, 12.5, BATCH, 16, [8, 8]),  # a full batch
        (2, 12.5, BATCH, 20, [10, 10]),  # and more than that
        (2, 12.5, BATCH, 40, [16, 16]),
        (2, 12.5, LookAhead(BATCH), 20, [10, 10]),
        (2, 12.5, BatchPolicy(16, max_delay_ns=MS), 16, [8, 8]),
        (2, 12.5, BatchPolicy(16, frozenset({16})), 20, [10, 10]),  # the default, written out
        (2, 12.5, BatchPolicy(16, frozenset({1, 4, 8, 16})), 16, [16]),  # sizes are a promise
        (2, 0.05, BATCH, 5, [5]),  # too quick to be worth it
        (2, 0.05, BATCH, 20, [16, 4]),
        (1, 12.5, BATCH, 5, [5]),
    ],
)
def test_idle_instances_divide_what_waits(instances, row_ms, policy, waiting, expected):
    many = Instances(policy, instances)
    many.teach(row_ms)
    requests = [many.enqueue() for _ in range(waiting)]
    batches = many.pull_all()
    assert sizes(batches) == expected
    assert [request for batch in batches for request in batch] == requests[: sum(expected)]
    assert all(request.state is EXECUTING for batch in batches for request in batch)


def test_without_batching_every_request_runs_alone():
    many = Instances(SingleRequestPolicy(), 2)
    many.teach(sizes=(1,))
    for _ in range(3):
        many.enqueue()
    assert sizes(many.pull_all()) == [1, 1]


def test_the_first_batch_is_not_divided_before_costs_are_known():
    many = Instances(BATCH, 2)
    for _ in range(6):
        many.enqueue()
    assert sizes(many.pull_all()) == [6]


def test_threads_that_wait_get_their_parts():
    many = Instances(BATCH, 2)
    many.teach()
    line, taken = many.line, []
    line._waiting = 0
    threads = [
        threading.Thread(target=lambda: taken.append(line.next_batch(Instance()))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: line._waiting == 2, "both instances wait")
    requests = [make_request(rows=1)[0] for _ in range(6)]
    assert line.enqueue_group(requests)
    for thread in threads:
        thread.join(WAIT_SECS)
    assert sizes(taken) == [3, 3]
    assert {id(request) for batch in taken for request in batch} == set(map(id, requests))


def test_the_loop_divides_nothing():
    many = Instances(BATCH, 2)
    many.teach()
    many.line.hand_to_loop(lambda: None)
    requests = [many.enqueue() for _ in range(6)]
    assert many.line.take_now() == (requests, None)


def test_parts_do_not_wait_for_the_delay_a_second_time():
    many = Instances(BatchPolicy(16, max_delay_ns=5 * MS), 2)
    many.teach()
    for _ in range(6):
        many.enqueue()
        many.clock.advance(MS)  # each is a little younger than the one before
    assert sizes(many.pull_all()) == [3, 3]
    assert [reason for reason, _ in many.line.recent][-2:] == [Reason.SHARED] * 2


def test_before_the_delay_is_over_nothing_is_divided():
    many = Instances(BatchPolicy(16, max_delay_ns=5 * MS), 2)
    many.teach()
    for _ in range(6):
        many.enqueue()
    assert many.pull_all() == []


def test_padded_lengths_count():
    many = Instances(BATCH, 2, padded=True)
    many.teach(size=10)
    for size in (10, 10, 10, 10, 10, 50):
        many.enqueue(size)
    assert sizes(many.pull_all()) == [5, 1]  # rows of 10, and of 50


def test_ragged_requests_count_by_their_elements():
    many = Instances(BATCH, 2, ragged=True)
    many.teach(size=10)
    for size in (40, 10, 10, 10, 10):
        many.enqueue(size)
    assert sizes(many.pull_all()) == [1, 4]


def test_requests_of_another_shape_go_to_another_instance():
    many = Instances(LookAhead(BATCH), 3)
    many.teach(key="a")
    for key in "aabaaaa":
        many.enqueue(key=key)
    batches = many.pull_all()
    assert [[request.batch_key for request in batch] for batch in batches] == [
        ["a"] * 3,
        ["a"] * 3,
        ["b"],
    ]


def test_some_is_left_to_an_instance_that_ends_soon():
    many = Instances(BATCH, 2)
    many.teach()
    for _ in range(5):
        many.enqueue()
    longer, shorter = many.pull_all()
    many.clock.advance(25 * MS)
    many.finish(shorter, 25 * MS)
    for _ in range(8):
        many.enqueue()
    assert len(many.pull()) == 5  # the other has 12.5 ms left
    many.clock.advance(int(12.5 * MS))
    many.finish(longer, int(37.5 * MS))
    assert len(many.pull()) == 3


def slow_together(many, slowdown):
    """Two executions at the same time take longer than one."""
    for _ in range(16):
        many.enqueue()
    batches = many.pull_all()
    assert sizes(batches) == [8, 8]
    many.clock.advance(int(100 * slowdown * MS))
    for batch in batches:
        many.finish(batch, int(100 * slowdown * MS))


@pytest.mark.parametrize(("slowdown", "held"), [(1.0, False), (1.4, False), (2.0, True)])
def test_an_execution_that_would_only_delay_another_waits(slowdown, held):
    many = Instances(BATCH, 2)
    many.teach()
    slow_together(many, slowdown)
    for _ in range(4):
        many.enqueue()
    many.line._waiting = 0
    first = many.line._cutter.cut(many.clock(), 0)[0][:]
    many.idle -= 1
    for _ in range(4):
        many.enqueue()
    batch = many.pull()
    assert bool(batch) is not held
    if held:
        many.clock.advance(50 * MS)
        many.finish(first, 50 * MS)
        assert len(many.pull()) == 4


def test_a_short_execution_does_not_wait_for_a_long_one():
    many = Instances(BATCH, 2)
    many.teach()
    slow_together(many, 2.0)
    for _ in range(16):
        many.enqueue()
    assert sizes([many.pull()]) == [16]
    many.enqueue()
    assert sizes([many.pull()]) == [1]


def test_nothing_waits_for_an_instance_that_hangs():
    many = Instances(BATCH, 2)
    many.teach()
    slow_together(many, 2.0)
    for _ in range(4):
        many.enqueue()
    assert sizes([many.pull()]) == [4]
    for _ in range(4):
        many.enqueue()
    assert many.pull() == []
    many.clock.advance(100 * MS)  # twice as long as expected
    assert sizes([many.pull()]) == [4]


def test_a_configured_delay_is_kept_beside_a_running_batch():
    many = Instances(BatchPolicy(16, max_delay_ns=MS), 2)
    many.teach()
    slow_together(many, 2.0)
    for _ in range(2):
        many.enqueue()
        many.clock.advance(MS)
        assert sizes([many.pull()]) == [1]


def test_one_instance_is_not_divided_nor_measured():
    many = Instances(BATCH, 1)
    many.teach()
    assert many.expected.executions == 0


def test_the_backend_knows_how_many_run():
    many = Instances(BATCH, 2)
    many.teach()
    assert many.expected.executions == 1
    for _ in range(6):
        many.enqueue()
    assert many.pull()
    assert many.expected.executions == 2  # the other part runs in a moment
    assert many.pull()
    assert many.expected.executions == 2
    many.line.hand_to_loop(lambda: None)
    assert many.expected.executions == 0


def test_a_closed_batcher_serves_parts_first():
    many = Instances(BATCH, 2)
    many.teach()
    for _ in range(6):
        many.enqueue()
    assert len(many.pull()) == 3
    many.line.close()
    assert many.line.pending() == 3
    assert len(many.line.next_batch(Instance())) == 3
    assert many.line.next_batch(Instance()) == []


def test_batches_that_end_while_the_loop_has_the_queue_are_forgotten():
    many = Instances(BATCH, 2)
    many.teach()
    many.enqueue()
    batch = many.pull()
    many.line.hand_to_loop(lambda: None)
    many.clock.advance(50 * MS)
    many.finish(batch, 50 * MS)
    assert many.line._concurrent.busy == 0


POLICIES = [
    BatchPolicy(6),
    BatchPolicy(6, max_delay_ns=3 * MS),
    BatchPolicy(6, frozenset({3, 6})),
    LookAhead(BatchPolicy(6)),
    LookAhead(BatchPolicy(6, max_delay_ns=3 * MS)),
    SingleRequestPolicy(),
]
steps = st.one_of(
    st.tuples(st.just("enqueue"), st.integers(1, 40), st.integers(1, 3), st.sampled_from("ab")),
    st.tuples(st.just("pull")),
    st.tuples(st.just("finish"), st.integers(0, 3), st.integers(1, 80)),
    st.tuples(st.just("wait"), st.integers(1, 10)),
)


@given(st.sampled_from(POLICIES), st.integers(1, 4), st.booleans(), st.lists(steps, max_size=60))
def test_nothing_is_lost_and_no_request_of_its_kind_is_overtaken(policy, count, padded, script):
    many = Instances(policy, count, padded=padded)
    waiting, running, started = [], deque(), []

    def pull():
        batch = many.pull()
        if batch:
            running.append(batch)
            started.extend(batch)
            if isinstance(policy, SingleRequestPolicy):
                assert len(batch) == 1
            else:
                assert sum(request.rows for request in batch) <= 6
                assert len({request.batch_key for request in batch}) == 1
        return batch

    def finish(number, took_ms):
        batch = running[number % len(running)]
        running.remove(batch)
        many.clock.advance(took_ms * MS)
        many.finish(batch, took_ms * MS)

    for step in script:
        if step[0] == "enqueue":
            waiting.append(many.enqueue(*step[1:]))
        elif step[0] == "pull" and many.idle:
            pull()
        elif step[0] == "finish" and running:
            finish(*step[1:])
        elif step[0] == "wait":
            many.clock.advance(step[1] * MS)
    many.line.close()
    while running or many.line.pending():
        while many.idle and pull():
            pass
        if running:
            finish(0, 5)
    assert len(started) == len(waiting)
    assert set(map(id, started)) == set(map(id, waiting))
    ahead = isinstance(policy, LookAhead)
    for key in "ab" if ahead else [None]:
        kind = [request for request in waiting if key is None or request.batch_key == key]
        order = {id(request): number for number, request in enumerate(kind)}
        taken = [order[id(request)] for request in started if id(request) in order]
        if key is not None or not ahead:
            assert sorted(taken) == list(range(len(kind)))
        if count == 1 or isinstance(policy, SingleRequestPolicy):
            assert taken == sorted(taken)
    assert not many.dropped


class Server:
    """A closed loop: clients ask again as soon as they are answered; time is simulated.

    Executions make progress at a speed that depends on how many run. With `lengths`, requests have
    these in turn, and `padded` batches cost what their longest request costs for each; with
    `by_shape`, only requests of one length share a batch.
    """

    def __init__(
        self,
        instances,
        clients,
        *,
        fixed_ms,
        row_ms,
        slowdown,
        policy=BATCH,
        lengths=(1,),
        padded=False,
        by_shape=False,
    ):
        self.many = Instances(policy, instances, padded=padded)
        self.clients = clients
        self.slowdown = slowdown
        self.requests = (
            {"size": length, "key": length if by_shape else ()} for length in cycle(lengths)
        )

        def full_ns(batch):
            each = [request.inputs["x"].shape[1] for request in batch]
            work = len(each) * max(each) if padded else sum(each)
            return (fixed_ms + row_ms * work) * MS

        self.full_ns = full_ns
        self.running = []  # [work left in ns, batch, start]
        self.executions = 0

    def run(self, answers):
        """The answers per second after a while."""
        many = self.many
        arrivals = [(n * 10_000 + 1, n) for n in range(self.clients)]
        heapq.heapify(arrivals)
        origin = many.clock()
        answered, warm, begin = 0, answers // 4, 0
        while answered < answers + warm:
            now = many.clock()
            while arrivals and origin + arrivals[0][0] <= now:
                heapq.heappop(arrivals)
                many.enqueue(**next(self.requests))
            while many.idle and (batch := many.pull()):
                self.running.append([self.full_ns(batch), batch, now])
                self.executions += 1
            slow = self.slowdown(len(self.running)) if self.running else 1.0
            steps = [item[0] * slow for item in self.running]
            if arrivals:
                steps.append(origin + arrivals[0][0] - now)
            if many.line.pending() and many.max_delay_ns:
                steps.append(many.max_delay_ns / 4)
            step = max(1, int(min(steps)))
            many.clock.advance(step)
            for item in list(self.running):
                item[0] -= step / slow
                if item[0] <= 1:
                    self.running.remove(item)
                    batch, start = item[1:]
                    many.finish(batch, many.clock() - start)
                    for number in range(len(batch)):
                        at = many.clock() - origin + 20_000 * (number + 1)
                        heapq.heappush(arrivals, (at, number))
                    answered += len(batch)
                    if answered >= warm and not begin:
                        begin, answered = many.clock(), warm
        return (answered - warm) / ((many.clock() - begin) / 1e9)


def two_cores(running):
    return max(1.0, running / 2)


def all_cores(running):
    """Each execution uses all cores by itself."""
    return running * (1.05 if running > 1 else 1.0)


@pytest.mark.parametrize("clients", [1, 5, 20, 50])
@pytest.mark.parametrize("instances", [2, 4])
@pytest.mark.parametrize(
    ("fixed_ms", "row_ms", "slowdown"),
    [
        (0, 37, two_cores),  # question answering on one thread per instance
        (5, 5, two_cores),
        (30, 1, two_cores),  # mostly a fixed cost
        (3, 20, all_cores),
        (30, 1, all_cores),
        (20, 0, lambda running: 1.0),  # waits for something else
    ],
)
def test_several_instances_are_never_slower_than_one(
    clients, instances, fixed_ms, row_ms, slowdown
):
    load = {"fixed_ms": fixed_ms, "row_ms": row_ms, "slowdown": slowdown}
    one = Server(1, clients, **load).run(40 * clients)
    several = Server(instances, clients, **load).run(40 * clients)
    assert several >= 0.9 * one


@pytest.mark.parametrize("clients", [5, 20, 50])
def test_two_cores_are_used_by_two_instances(clients):
    load = {"fixed_ms": 0, "row_ms": 37, "slowdown": two_cores}
    assert Server(2, clients, **load).run(40 * clients) >= 0.95 * 2 * 1000 / 37


LENGTHS = (1, 3, 1, 1, 2, 4, 1, 2)
BY_SHAPE = {"lengths": LENGTHS, "by_shape": True, "policy": LookAhead(BATCH)}
KINDS = {
    "plain": {},
    "a delay": {"policy": BatchPolicy(16, max_delay_ns=2 * MS)},
    "small batches, always full": {"policy": BatchPolicy(4)},
    "padding": {"lengths": LENGTHS, "padded": True},
    "padding in buckets": {**BY_SHAPE, "padded": True},
    "batch_by_shape": BY_SHAPE,
    "no batching": {"policy": SingleRequestPolicy()},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fixed_ms", "row_ms"), [(0, 20), (15, 2)])
def test_the_table_of_sessions_by_clients_does_not_fall(kind, fixed_ms, row_ms):
    """As `shoal stress` prints it: more clients, or more sessions, never mean fewer answers."""
    load = {"fixed_ms": fixed_ms, "row_ms": row_ms, "slowdown": two_cores, **KINDS[kind]}
    clients = (1, 5, 20, 50)
    table = {
        sessions: [Server(sessions, count, **load).run(max(80, 12 * count)) for count in clients]
        for sessions in (1, 2, 4)
    }
    if kind != "padding":  # the more requests in a batch, the longer its longest one
        for row in table.values():
            for fewer, more in pairwise(row):
                assert more >= 0.9 * fewer, table
    for sessions, fewer, least in ((2, 1, 0.9), (4, 1, 0.9), (4, 2, 0.75)):
        for more, less in zip(table[sessions], table[fewer], strict=True):
            assert more >= least * less, table


@pytest.mark.parametrize("clients", [1, 5, 20, 50])
@pytest.mark.parametrize("instances", [1, 2, 4])
def test_batching_is_never_slower_than_none(instances, clients):
    load = {"fixed_ms": 2, "row_ms": 20, "slowdown": two_cores}
    alone = Server(instances, clients, policy=SingleRequestPolicy(), **load).run(12 * clients + 80)
    assert Server(instances, clients, **load).run(12 * clients + 80) >= 0.9 * alone


def test_batches_that_cost_what_one_row_costs_stay_whole():
    load = {"fixed_ms": 20, "row_ms": 0, "slowdown": lambda running: 1.0}
    server = Server(2, 16, **load)
    server.run(2000)
    assert Reason.SHARED not in {reason for reason, _ in server.many.line.recent}
