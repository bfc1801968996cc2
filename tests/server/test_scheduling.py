"""What waits, for how long, and with whom: queues and batches of a running server.

A model of the fake backend holds its first request while the others queue up behind it, so that
what happens next is known. Where the event loop itself runs the model nothing can be held; there
a long queue delay keeps requests waiting.
"""

import select
import threading

import numpy as np
import pytest

from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer
from tests.support.fakes import WAIT_SECS, echo
from tests.support.held_model import ask, check, failures, hold, numbers, queue, seen
from tests.support.repositories import EXECUTION_MODES, add_onnx, execution

TWO = "instance_group { count: 2 kind: KIND_CPU }\n"


# ---- batches


def test_what_waits_becomes_one_batch(serve_held, fake):
    with serve_held("dynamic_batching { }") as running:
        first = hold(running, fake)
        waiting = queue(running, *(lambda n=n: ask(running, n) for n in range(1, 6)))
        fake.gate.set()
        check(first, 0)
        for number, call in enumerate(waiting, 1):
            check(call, number)
        assert numbers(fake) == [[0], [1, 2, 3, 4, 5]]


def test_rows_count_and_requests_are_never_split(serve_held, fake):
    with serve_held("dynamic_batching { }") as running:
        first = hold(running, fake)
        waiting = queue(running, *(lambda n=n: ask(running, n, rows=3) for n in (1, 2, 3, 4)))
        fake.gate.set()
        check(first, 0)
        for number, call in enumerate(waiting, 1):
            check(call, number, rows=3)
        assert [len(batch) for batch in numbers(fake)] == [1, 6, 6]


def test_different_shapes_never_share_a_batch(serve_held, fake):
    shapes = [(1, 2), (1, 2), (1, 3), (1, 2)]
    with serve_held("dynamic_batching { }", dims="-1") as running:
        first = hold(running, fake)
        infers = [Infer().add("INPUT0", np.zeros(shape, np.int32)) for shape in shapes]
        waiting = queue(running, *(lambda i=i: i.call(running, "held") for i in infers))
        fake.gate.set()
        assert [call.response().status for call in [first, *waiting]] == [200] * 5
        assert [batch["INPUT0"].shape for batch in fake.batches[1:]] == [(2, 2), (1, 3), (1, 2)]


def test_different_inputs_never_share_a_batch(serve_held, fake):
    optional = 'input { name: "INPUT1" data_type: TYPE_INT32 dims: [ 1 ] optional: true }\n'
    with serve_held("dynamic_batching { }" + optional) as running:
        first = hold(running, fake)
        array = np.zeros((1, 1), np.int32)
        without, with_it = Infer().add("INPUT0", array), Infer().add("INPUT0", array)
        with_it.add("INPUT1", array)
        waiting = queue(
            running,
            *(lambda i=i: i.call(running, "held") for i in (without, without, with_it, with_it)),
        )
        fake.gate.set()
        assert [call.response().status for call in [first, *waiting]] == [200] * 5
        assert [sorted(batch) for batch in fake.batches[1:]] == [["INPUT0"], ["INPUT0", "INPUT1"]]
        assert [len(batch["INPUT0"]) for batch in fake.batches[1:]] == [2, 2]


def test_without_a_batcher_requests_run_one_by_one(serve_held, fake):
    with serve_held("") as running:
        first = hold(running, fake)
        waiting = queue(running, *(lambda n=n: ask(running, n) for n in (1, 2, 3)))
        fake.gate.set()
        for number, call in enumerate([first, *waiting]):
            check(call, number)
        assert numbers(fake) == [[0], [1], [2], [3]]


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_a_batch_of_a_preferred_size_runs_at_once(tmp_path, mode):
    """Four requests come together long before the delay is over."""
    config = (
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4 ] "
        "max_queue_delay_microseconds: 60000000 }"
    )
    add_onnx(tmp_path, "echo", onnx_models.identity("INT32", dims=(1,)), config + execution(mode))
    with running_server(tmp_path) as running:
        calls = [ask(running, n, model="echo") for n in range(8)]
        for number, call in enumerate(calls):
            check(call, number)
        (batch,) = running.statistics("echo")["batch_stats"]
        assert (batch["batch_size"], batch["compute_infer"]["count"]) == (4, 2)


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_the_delay_is_waited_for_and_not_longer(tmp_path, mode):
    config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 60000 }"
    add_onnx(tmp_path, "echo", onnx_models.identity("INT32", dims=(1,)), config + execution(mode))
    with running_server(tmp_path) as running:
        for call in [ask(running, 1, model="echo"), ask(running, 1, model="echo")]:
            check(call, 1)
        counted = running.statistics("echo")
        assert counted["inference_stats"]["queue"]["ns"] >= 60_000_000
        assert counted["inference_count"] == 2
        assert counted["execution_count"] <= 2


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_a_queue_that_is_held_back_for_tests(tmp_path, monkeypatch, mode):
    """TRITONSERVER_DELAY_SCHEDULER=N: nothing runs before N requests wait."""
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "6")
    config = "max_batch_size: 8 dynamic_batching { }"
    add_onnx(tmp_path, "echo", onnx_models.identity("INT32", dims=(1,)), config + execution(mode))
    with running_server(tmp_path) as running:
        calls = [ask(running, n, model="echo") for n in range(5)]
        running.wait_for_pending("echo", 5)
        calls.append(ask(running, 5, model="echo"))
        for number, call in enumerate(calls):
            check(call, number)
        (batch,) = running.statistics("echo")["batch_stats"]
        assert batch["batch_size"] == 6
        check(ask(running, 6, model="echo"), 6)  # only the first batch is held


# ---- priorities


LEVELS = "dynamic_batching { priority_levels: 3 default_priority_level: 2 }"


def test_the_highest_priority_runs_first(serve_held, fake):
    with serve_held(LEVELS, max_batch_size=1) as running:
        first = hold(running, fake)
        asked = [(1, 3), (2, 2), (3, 1), (4, 0), (5, 99), (6, 1)]  # 0 and 99 mean the default
        waiting = queue(running, *(lambda n=n, p=p: ask(running, n, priority=p) for n, p in asked))
        fake.gate.set()
        for number, call in enumerate([first, *waiting]):
            check(call, number)
        assert numbers(fake) == [[0], [3], [6], [2], [4], [5], [1]]


# ---- order


def readable(call, secs):
    return bool(select.select([call.socket], [], [], secs)[0])


@pytest.mark.parametrize("preserve", [True, False])
def test_responses_in_the_order_of_the_requests(serve_held, fake, preserve):
    """Two instances: the second request is computed long before the first."""
    slow = threading.Event()
    quick_done = threading.Event()

    def compute(inputs, wanted):
        if 1 in inputs["INPUT0"]:
            assert slow.wait(WAIT_SECS)
        else:
            quick_done.set()
        return echo(inputs, wanted)

    fake.compute = compute
    config = f"dynamic_batching {{ preserve_ordering: {str(preserve).lower()} }}"
    with serve_held(config, TWO) as running:
        first = ask(running, 1)
        assert fake.started.acquire(timeout=WAIT_SECS)
        second = ask(running, 2)
        assert quick_done.wait(WAIT_SECS)
        wait_until(lambda: running.statistics("held")["inference_count"] == 1)
        assert readable(second, 0.05 if preserve else WAIT_SECS) is not preserve
        slow.set()
        check(first, 1)
        check(second, 2)


def test_order_is_kept_when_requests_fail_or_are_cancelled(serve_held, fake):
    with serve_held("dynamic_batching { preserve_ordering: true }", TWO) as running:
        fake.gate.clear()
        first = ask(running, 1)
        assert fake.started.acquire(timeout=WAIT_SECS)
        second = ask(running, 2)
        assert fake.started.acquire(timeout=WAIT_SECS)
        third, fourth = queue(running, lambda: ask(running, 3), lambda: ask(running, 4))
        third.disconnect()
        running.wait_for_pending("held", 1)
        first.disconnect()
        fake.gate.set()
        check(second, 2)
        check(fourth, 4)
        assert 3 not in seen(fake)


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_ordered_responses_on_one_connection(tmp_path, mode):
    """Pipelined requests: the answer to one lets the next one in."""
    config = "max_batch_size: 8 dynamic_batching { preserve_ordering: true }" + execution(mode)
    add_onnx(tmp_path, "echo", onnx_models.identity("INT32", dims=(1,)), config)
    with running_server(tmp_path) as running:
        call = ask(running, 1, model="echo")
        sent = b""
        for number in range(2, 30):
            body, _ = Infer().add("INPUT0", np.array([[number]], np.int32)).body()
            sent += b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n"
            sent += b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        call.socket.sendall(sent)
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 29 or b'"data":[29]' not in received:
            piece = call.socket.recv(1 << 16)
            assert piece, received
            received += piece
        places = [received.index(b'"data":[%d]' % number) for number in range(1, 30)]
        assert places == sorted(places)
        call.disconnect()


# ---- models that fail


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, MemoryError])
def test_a_model_that_raises(serve_held, fake, error):
    """Whatever it is: the request is answered and the instance goes on."""

    def compute(inputs, wanted):
        raise error("the model is out of sorts")

    fake.compute = compute
    with serve_held("dynamic_batching { }") as running:
        answer = ask(running, 1).response()
        assert answer.status == 500
        assert "the model is out of sorts" in answer.error
        assert "Traceback" not in answer.error
        fake.compute = echo
        check(ask(running, 2), 2)
        assert failures(running, "BACKEND") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda array: np.zeros((array.shape[0] + 1, 1), np.int32),
        lambda array: np.zeros((), np.int32),
    ],
)
def test_a_model_that_returns_another_number_of_rows(serve_held, fake, wrong):
    fake.compute = lambda inputs, wanted: [wrong(inputs["INPUT0"])]
    with serve_held("dynamic_batching { }") as running:
        answer = ask(running, 1).response()
        assert answer.status == 500
        assert "'OUTPUT0'" in answer.error
