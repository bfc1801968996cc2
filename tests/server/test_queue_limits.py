"""Requests that do not get to run: queues that are full, time-outs, clients that have left.

A model of the fake backend holds its first request while the others queue up behind it.
"""

import pytest

from shoal.scheduler.batcher import Batcher
from shoal.scheduler.timer import Timer
from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.held_model import ask, check, failures, hold, numbers, queue, seen
from tests.support.repositories import EXECUTION_MODES, add_onnx, execution, parameter

# ---- limits

FULL = "[request id: %d] Exceeds maximum queue size"
LIMITED = {
    "dynamic": "dynamic_batching { default_queue_policy { max_queue_size: 2 } }",
    "default": parameter("max_queue_size", "2"),
}


@pytest.mark.parametrize("scheduler", LIMITED)
def test_a_full_queue_refuses_requests(serve_held, fake, scheduler):
    with serve_held(LIMITED[scheduler]) as running:
        first = hold(running, fake)
        waiting = queue(running, *(lambda n=n: ask(running, n) for n in (1, 2)))
        for number in (3, 4):
            answer = ask(running, number).response()
            assert (answer.status, answer.error) == (503, FULL % number)
        fake.gate.set()
        for number, call in enumerate([first, *waiting]):
            check(call, number)
        check(ask(running, 5), 5)
        assert 3 not in seen(fake)
        assert failures(running, "REJECTED") == 2
        assert failures(running, "OTHER") == 0
        assert running.statistics("held")["inference_stats"]["fail"]["count"] == 2


def test_each_level_has_its_own_limit(serve_held, fake):
    policy = (
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 "
        "default_queue_policy { max_queue_size: 2 } "
        "priority_queue_policy { key: 2 value: { max_queue_size: 1 } } }"
    )
    with serve_held(policy) as running:
        first = hold(running, fake)
        waiting = queue(
            running,
            lambda: ask(running, 1, priority=1),
            lambda: ask(running, 2, priority=2),
            lambda: ask(running, 3, priority=1),
        )
        assert ask(running, 4, priority=2).response().status == 503
        assert ask(running, 5, priority=1).response().status == 503
        fake.gate.set()
        for number, call in enumerate([first, *waiting]):
            check(call, number)


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_a_full_queue_of_an_onnx_model(tmp_path, mode):
    config = (
        "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 60000000 "
        "default_queue_policy { max_queue_size: 2 } }"
    )
    add_onnx(tmp_path, "echo", onnx_models.identity("INT32", dims=(1,)), config + execution(mode))
    with running_server(tmp_path) as running:
        waiting = [ask(running, n, model="echo") for n in (1, 2)]
        running.wait_for_pending("echo", 2)
        answer = ask(running, 3, model="echo").response()
        assert (answer.status, answer.error) == (503, FULL % 3)
        for call in waiting:
            call.disconnect()
        running.wait_for_pending("echo", 0)


# ---- time-outs

EXPIRED = "Request timeout expired"


def levels(*defaults_us):
    """Priority levels, the first of them without a time-out and the next ones with these."""
    policies = "".join(
        f"priority_queue_policy {{ key: {level} value: {{ timeout_action: REJECT "
        f"default_timeout_microseconds: {default_us} allow_timeout_override: true }} }} "
        for level, default_us in enumerate(defaults_us, 2)
    )
    count = len(defaults_us) + 1
    return f"dynamic_batching {{ priority_levels: {count} default_priority_level: 1 {policies}}}"


def timeouts(action="REJECT", default_us=0, override=False):
    return (
        f"dynamic_batching {{ default_queue_policy {{ timeout_action: {action} "
        f"default_timeout_microseconds: {default_us} "
        f"allow_timeout_override: {str(override).lower()} }} }}"
    )


def test_a_request_that_waits_too_long_is_rejected(serve_held, fake):
    """While the only instance is busy: only the timer can notice it."""
    with serve_held(levels(100_000)) as running:
        first = hold(running, fake)  # it may wait as long as it likes
        answer = ask(running, 1, priority=2).response()
        assert (answer.status, answer.error) == (503, EXPIRED)
        fake.gate.set()
        check(first, 0)
        assert numbers(fake) == [[0]]
        assert failures(running, "REJECTED") == 1


def test_a_request_may_shorten_its_time_and_not_extend_it(serve_held, fake):
    with serve_held(levels(60_000_000, 100_000)) as running:
        first = hold(running, fake)
        short = ask(running, 1, priority=2, timeout=100_000)
        long = ask(running, 2, priority=3, timeout=60_000_000)
        assert short.response().error == EXPIRED
        assert long.response().error == EXPIRED
        fake.gate.set()
        check(first, 0)


def test_a_time_of_its_own_needs_permission(serve_held, fake):
    with serve_held(timeouts(default_us=60_000_000, override=False)) as running:
        first = hold(running, fake)
        (waiting,) = queue(running, lambda: ask(running, 1, timeout=1))
        fake.gate.set()
        check(first, 0)
        check(waiting, 1)


def test_late_requests_may_go_behind_the_others(serve_held, fake):
    with serve_held(timeouts("DELAY", 60_000_000, override=True), max_batch_size=1) as running:
        first = hold(running, fake)
        waiting = queue(
            running,
            lambda: ask(running, 1, timeout=1),
            lambda: ask(running, 2),
            lambda: ask(running, 3, timeout=1),
            lambda: ask(running, 4),
        )
        fake.gate.set()
        for number, call in enumerate([first, *waiting]):
            check(call, number)
        assert numbers(fake) == [[0], [2], [4], [1], [3]]


@pytest.mark.parametrize("by_request", [True, False])
def test_time_outs_without_a_batcher(serve_held, fake, by_request):
    """Beyond Triton: the default scheduler honours them too."""
    config = "" if by_request else parameter("default_timeout_microseconds", "2000000")
    with serve_held(config) as running:
        first = hold(running, fake)  # which is taken well within the time
        answer = ask(running, 1, **({"timeout": 100_000} if by_request else {})).response()
        assert (answer.status, answer.error) == (503, EXPIRED)
        fake.gate.set()
        check(first, 0)
        assert numbers(fake) == [[0]]


@pytest.mark.parametrize("timeout", [2**53, 2**63 - 1, 2**64 - 1])
def test_a_time_out_beyond_the_clocks_range_affects_no_other_request(
    serve_held, fake, monkeypatch, timeout
):
    """One timer serves all models: no request may break it."""
    monkeypatch.setattr(Batcher.__init__, "__kwdefaults__", _with_own_alarm())
    with serve_held("") as running:
        first = hold(running, fake)
        (patient,) = queue(running, lambda: ask(running, 1, timeout=timeout))
        answer = ask(running, 2, timeout=100_000).response()
        assert (answer.status, answer.error) == (503, EXPIRED)
        fake.gate.set()
        check(first, 0)
        check(patient, 1)


def _with_own_alarm():
    """The batcher's defaults with a timer that no other test has set before."""
    return Batcher.__init__.__kwdefaults__ | {"timer": Timer()}


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_a_delay_beyond_all_clocks(tmp_path, mode):
    config = f"max_batch_size: 2 dynamic_batching {{ max_queue_delay_microseconds: {2**64 - 1} }}"
    add_onnx(tmp_path, "echo", onnx_models.identity("INT32", dims=(1,)), config + execution(mode))
    with running_server(tmp_path) as running:
        calls = [ask(running, 1, model="echo")]
        running.wait_for_pending("echo", 1)
        calls.append(ask(running, 2, model="echo"))  # the batch is full
        check(calls[0], 1)
        check(calls[1], 2)


@pytest.mark.parametrize("action", ["REJECT", "DELAY"])
@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_time_outs_while_a_batch_fills(tmp_path, mode, action):
    """The queue delay is longer than the time-out: rejected on time, or run when it is over."""
    delay_us = 60_000_000 if action == "REJECT" else 100_000
    config = (
        f"max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: {delay_us} "
        f"default_queue_policy {{ timeout_action: {action} "
        "default_timeout_microseconds: 20000 } }"
    )
    add_onnx(tmp_path, "echo", onnx_models.identity("INT32", dims=(1,)), config + execution(mode))
    with running_server(tmp_path) as running:
        call = ask(running, 1, model="echo")
        if action == "DELAY":
            check(call, 1)
        else:
            answer = call.response()
            assert (answer.status, answer.error) == (503, EXPIRED)
            assert running.statistics("echo")["execution_count"] == 0


# ---- clients that go away


@pytest.mark.parametrize("batcher", ["dynamic_batching { }", ""])
def test_a_request_whose_client_disconnected_never_runs(serve_held, fake, batcher):
    with serve_held(batcher) as running:
        first = hold(running, fake)
        leaves, stays = queue(running, lambda: ask(running, 1), lambda: ask(running, 2))
        leaves.disconnect()
        running.wait_for_pending("held", 1)
        fake.gate.set()
        check(first, 0)
        check(stays, 2)
        assert numbers(fake) == [[0], [2]]
        assert failures(running, "CANCELED") == 1
        counted = running.statistics("held")["inference_stats"]
        assert (counted["success"]["count"], counted["fail"]["count"]) == (2, 1)


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_a_request_whose_client_disconnected_while_a_batch_fills(tmp_path, mode):
    config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 60000000 }"
    add_onnx(tmp_path, "echo", onnx_models.identity("INT32", dims=(1,)), config + execution(mode))
    with running_server(tmp_path) as running:
        call = ask(running, 1, model="echo")
        running.wait_for_pending("echo", 1)
        call.disconnect()
        running.wait_for_pending("echo", 0)
        wait_until(lambda: running.statistics("echo")["inference_stats"]["fail"]["count"] == 1)
        assert running.statistics("echo")["execution_count"] == 0


def test_a_client_that_disconnects_while_its_request_runs(serve_held, fake):
    with serve_held("dynamic_batching { }") as running:
        first = hold(running, fake)
        first.disconnect()
        wait_until(lambda: not running.server.ports.http.in_flight, "the connection is gone")
        fake.gate.set()
        check(ask(running, 1), 1)
        assert running.statistics("held")["inference_stats"]["success"]["count"] == 2


def test_many_clients_disconnect(serve_held, fake):
    with serve_held("dynamic_batching { }") as running:
        first = hold(running, fake)
        crowd = queue(running, *(lambda n=n: ask(running, n) for n in range(1, 30)))
        for call in crowd[::2]:
            call.disconnect()
        running.wait_for_pending("held", len(crowd[1::2]))
        fake.gate.set()
        check(first, 0)
        for number, call in list(enumerate(crowd, 1))[1::2]:
            check(call, number)
        assert sorted(seen(fake)) == [0, *range(2, 30, 2)]
