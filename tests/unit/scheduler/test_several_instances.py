"""What waits is divided among instances, by the real batcher with costs that it knows."""

from __future__ import annotations

import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.request import EXECUTING
from shoal.scheduler.look_ahead import LookAhead
from shoal.scheduler.policy import BatchPolicy, Reason, SingleRequestPolicy
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS, make_request
from tests.support.instances import MS, Instance, Instances

BATCH = BatchPolicy(16)


def sizes(batches):
    return [len(batch) for batch in batches]


def shared(running):
    """Executions that share the cores and gain nothing."""
    return float(running)


def two_cores(running):
    return max(1.0, running / 2)


@pytest.mark.parametrize(
    ("instances", "cost", "policy", "waiting", "expected"),
    [
        (2, {}, BATCH, 5, [3, 2]),
        (3, {}, BATCH, 6, [2, 2, 2]),
        (2, {}, BATCH, 16, [8, 8]),  # a full batch
        (2, {}, BATCH, 20, [10, 10]),  # and more than that
        (2, {}, BATCH, 40, [16, 16]),
        (4, {"slowdown": two_cores}, BATCH, 16, [8, 8]),  # as many as there are cores
        (2, {"slowdown": shared}, BATCH, 16, [16]),  # they would only share a core
        (2, {}, LookAhead(BATCH), 20, [10, 10]),
        (2, {}, BatchPolicy(16, max_delay_ns=MS), 16, [8, 8]),
        (2, {}, BatchPolicy(16, frozenset({16})), 20, [10, 10]),  # the default, written out
        (2, {}, BatchPolicy(16, frozenset({1, 4, 8, 16})), 16, [16]),  # sizes are a promise
        (2, {"row_ms": 0}, BATCH, 10, [10]),  # a batch costs what one row costs
        (2, {"row_ms": 0}, BATCH, 20, [10, 10]),  # two batches in any case
        (2, {"fixed_ms": 0}, BATCH, 10, [1, 1]),  # rows together gain nothing
        (2, {"fixed_ms": 0, "row_ms": 0.05}, BATCH, 5, [5]),  # too quick to be worth it
        (2, {"fixed_ms": 0, "row_ms": 0.05}, BATCH, 20, [16, 4]),
        (1, {}, BATCH, 5, [5]),
    ],
)
def test_idle_instances_divide_what_waits(instances, cost, policy, waiting, expected):
    many = Instances(policy, instances)
    many.teach(**cost)
    requests = [many.enqueue() for _ in range(waiting)]
    batches = many.pull_all()
    assert sizes(batches) == expected
    assert [request for batch in batches for request in batch] == requests[: sum(expected)]
    assert all(request.state is EXECUTING for batch in batches for request in batch)


def test_without_batching_every_request_runs_alone():
    many = Instances(SingleRequestPolicy(), 2)
    many.teach()
    for _ in range(3):
        many.enqueue()
    assert sizes(many.pull_all()) == [1, 1]


def test_the_first_batch_is_not_divided_before_costs_are_known():
    many = Instances(BATCH, 2)
    for _ in range(6):
        many.enqueue()
    assert sizes(many.pull_all()) == [6]


def test_much_larger_batches_than_before_are_tried_step_by_step():
    many = Instances(BATCH, 2)
    taken = []
    many.enqueue()
    for _ in range(3):
        batch = many.pull()
        taken.append(len(batch))
        many.clock.advance(100 * MS)
        many.finish(batch, 100 * MS)
        while many.line.pending() < 40:
            many.enqueue()
    assert taken == [1, 4, 16]  # four times as large, until it is known how the time grows


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
    assert [reason for reason, _ in many.line.recent] == [Reason.SHARED, Reason.DELAY]


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


@pytest.mark.parametrize(("fixed_ms", "taken"), [(0, 1), (100, 4)])
def test_fillers_are_computed_only_where_the_batch_gains_more(fixed_ms, taken):
    many = Instances(BATCH, 1, padded=True)
    many.teach(fixed_ms=fixed_ms)
    for size in (1, 4, 1, 4):
        many.enqueue(size)
    assert len(many.pull()) == taken


def test_ragged_requests_count_by_their_elements():
    many = Instances(BATCH, 2, ragged=True)
    many.teach(size=10)
    for size in (40, 10, 10, 10, 10):
        many.enqueue(size)
    assert sizes(many.pull_all()) == [1, 4]


def test_requests_of_another_shape_go_to_another_instance():
    many = Instances(LookAhead(BATCH), 3)
    many.teach()
    for key in "aabaaaa":
        many.enqueue(key=key)
    batches = many.pull_all()
    assert [[request.batch_key for request in batch] for batch in batches] == [
        ["a"] * 3,
        ["b"],
        ["a"] * 3,
    ]


def test_the_window_of_a_look_ahead_may_be_larger_than_the_default():
    many = Instances(LookAhead(BatchPolicy(4, max_delay_ns=MS), window=1000), 2)
    many.teach()
    for number in range(400):
        many.enqueue(key=number)
    for _ in range(4):
        many.enqueue(key="last")  # a full batch, behind those that wait for others
    assert {request.batch_key for request in many.pull()} == {"last"}


def test_some_is_left_to_an_instance_that_ends_soon():
    many = Instances(BATCH, 2)
    many.teach(fixed_ms=20)
    for _ in range(4):
        many.enqueue()
    longer, shorter = many.pull_all()
    many.clock.advance(35 * MS)
    many.finish(shorter, 35 * MS)
    for _ in range(16):
        many.enqueue()
    assert len(many.pull()) == 9  # the other has 10 ms left
    many.clock.advance(10 * MS)
    many.finish(longer, 45 * MS)
    assert len(many.pull()) == 7


@pytest.mark.parametrize(
    ("slowdown", "held"), [(lambda running: 1.0, False), (two_cores, False), (shared, True)]
)
def test_an_execution_that_would_only_delay_another_waits(slowdown, held):
    many = Instances(BATCH, 2)
    many.teach(slowdown=slowdown)
    for _ in range(4):
        many.enqueue()
    first = many.line._cutter.cut(many.clock(), 0)[0]
    many.idle -= 1
    for _ in range(4):
        many.enqueue()
    assert bool(many.pull()) is not held
    if held:
        many.clock.advance(150 * MS)
        many.finish(first, 150 * MS)
        assert len(many.pull()) == 4


def test_a_third_execution_waits_for_one_of_two_cores():
    many = Instances(BATCH, 4)
    many.teach(slowdown=two_cores)
    for _ in range(4):
        many.enqueue()
    assert sizes(many.pull_all()) == [2, 2]
    many.enqueue()
    assert many.pull() == []


def test_a_short_execution_does_not_wait_for_a_long_one():
    many = Instances(BATCH, 2)
    many.teach(slowdown=shared)
    many.enqueue(size=100)
    assert sizes([many.pull()]) == [1]
    many.enqueue()
    assert sizes([many.pull()]) == [1]


def test_nothing_waits_for_an_instance_that_hangs():
    many = Instances(BATCH, 2)
    many.teach(slowdown=shared)
    for _ in range(4):
        many.enqueue()
    assert sizes([many.pull()]) == [4]
    for _ in range(4):
        many.enqueue()
    assert many.pull() == []
    many.clock.advance(301 * MS)  # more than twice as long as expected
    assert sizes([many.pull()]) == [4]


def test_a_ready_batch_waits_for_the_cores_and_not_for_its_delay():
    many = Instances(BatchPolicy(16, max_delay_ns=MS), 2)
    many.teach(slowdown=shared)
    many.enqueue()
    many.clock.advance(MS)
    first = many.pull()
    many.enqueue()
    many.clock.advance(MS)
    assert many.pull() == []
    many.clock.advance(110 * MS)
    many.finish(first, 111 * MS)
    assert sizes([many.pull()]) == [1]


def test_a_closed_batcher_holds_nothing_back():
    many = Instances(BATCH, 2)
    many.teach(slowdown=shared)
    for _ in range(2):
        many.enqueue()
    many.line._cutter.cut(many.clock(), 0)
    many.enqueue()
    many.line.close()
    assert len(many.line.next_batch(Instance())) == 1
    assert many.line.next_batch(Instance()) == []


def test_one_instance_is_not_divided_nor_measured():
    many = Instances(BATCH, 1)
    many.enqueue()
    many.finish(many.pull(), 50 * MS)
    assert many.expected.executions == 0


def test_the_backend_knows_how_many_run():
    many = Instances(BATCH, 2)
    many.teach()
    for _ in range(6):
        many.enqueue()
    first = many.pull()
    assert many.expected.executions == 2  # the other part runs in a moment
    second = many.pull()
    assert many.expected.executions == 2
    many.clock.advance(140 * MS)
    for batch in (first, second):
        many.finish(batch, 140 * MS)
    many.enqueue()
    assert many.pull()
    assert many.expected.executions == 1
    many.line.hand_to_loop(lambda: None)
    assert many.expected.executions == 0


def test_batches_that_end_while_the_loop_has_the_queue_are_forgotten():
    many = Instances(BATCH, 2)
    many.teach()
    many.enqueue()
    batch = many.pull()
    many.line.hand_to_loop(lambda: None)
    many.clock.advance(50 * MS)
    many.finish(batch, 50 * MS)
    assert many.concurrent.busy == 0


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


def test_batches_that_cost_what_one_row_costs_stay_whole():
    many = Instances(BATCH, 2)
    many.teach(row_ms=0)
    for _ in range(50):
        for _ in range(10):
            many.enqueue()
        batch = many.pull()
        many.clock.advance(100 * MS)
        many.finish(batch, 100 * MS)
    assert Reason.SHARED not in {reason for reason, _ in many.line.recent}
