"""Requests of one template for an ensemble run as one request, and fail one by one."""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.core.dtypes import INT32
from shoal.core.planned import PlannedRequest, RequestTemplate
from shoal.errors import Cancelled
from shoal.scheduler.ensemble_group import JoinedRequest
from shoal.testing.server import running_server, wait_until
from tests.support.client import Infer, outputs
from tests.support.ensembles import chain
from tests.support.fakes import Collector
from tests.support.repositories import add_fake, add_model

BATCHING = "dynamic_batching { }\n"
pytestmark = pytest.mark.one_process


class Replies:
    """Answers the requests of a batch, each through its own reply."""

    reply_types = (Collector,)

    def __init__(self):
        self.batches = 0

    def send_all(self, responses, requests):
        self.batches += 1
        for index, request in enumerate(requests):
            request.reply.send(responses.response(index, request.id))


@pytest.fixture
def serve(repository, fake):
    """Start a server with two steps, "first" and "second", and the ensemble "both"."""
    with contextlib.ExitStack() as servers:

        def start(step=BATCHING, more="", **options):
            add_fake(repository, "first", step)
            add_fake(repository, "second", BATCHING)
            add_model(repository, "both", chain("first", "second", more=more))
            options.setdefault("backends", fake.registry())
            return servers.enter_context(running_server(repository, **options))

        yield start
        fake.gate.set()


def group(model, values, rows=1):
    """Requests of one template, with one value each in all rows."""
    replies = Replies()
    shape = (rows, 1)
    inputs = (("IN", INT32, shape),)
    fields = {"requested_outputs": (), "parameters": {}, "priority": 0, "timeout_us": 0}
    template = RequestTemplate(
        model.name, -1, inputs, rows=rows, batch_key=(), replies=replies, **fields
    )
    template.sizes, template.sent_shapes = (4 * rows,), (shape,)
    template.model = weakref.ref(model)
    now_ns = time.monotonic_ns()
    requests = [
        PlannedRequest(
            template,
            [np.full(shape, value, np.int32).tobytes()],
            (0,),
            f"number {value}",
            Collector(),
            model,
            now_ns,
        )
        for value in values
    ]
    return requests, replies


def answers(requests):
    found = {}
    for request in requests:
        response = request.reply.wait()
        assert request.reply.finals == 1
        assert response.request_id == request.id
        array = None if response.error else response.outputs[0].array
        found[request.id] = response.error or array.ravel().tolist()
    return found


def counts(running, name):
    found = running.statistics(name)
    stats = found["inference_stats"]
    numbers = stats["success"]["count"], stats["fail"]["count"]
    return (*numbers, found["inference_count"], found["execution_count"])


def test_they_run_as_one(serve, fake):
    running = serve()
    model = running.model("both")
    requests, replies = group(model, range(5))
    assert model.accept_group(requests) == 5
    assert answers(requests) == {f"number {value}": [value] for value in range(5)}
    assert [len(batch["INPUT0"]) for batch in fake.batches] == [5, 5]
    assert replies.batches == 1
    wait_until(lambda: counts(running, "both")[0] == 5)
    assert counts(running, "both") == (5, 0, 5, 5)  # Triton counts an execution for each
    assert counts(running, "first") == counts(running, "second") == (5, 0, 5, 1)
    assert model.in_flight() == 0


def test_their_memory_is_free_at_once(serve):
    """Reference cycles would keep the inputs until the next garbage collection."""
    model = serve().model("both")
    gc.collect()
    gc.disable()
    try:
        requests, _ = group(model, range(5))
        assert model.accept_group(requests) == 5
        answers(requests)
        wait_until(lambda: not any(isinstance(one, JoinedRequest) for one in gc.get_objects()))
    finally:
        gc.enable()


def test_the_batch_size_is_the_limit(serve, fake):
    model = serve().model("both")
    requests, _ = group(model, range(9), rows=2)
    assert model.accept_group(requests) == 9
    assert answers(requests) == {f"number {value}": [value] * 2 for value in range(9)}
    assert max(len(batch["INPUT0"]) for batch in fake.batches) == 8


def test_only_the_request_at_fault_fails(serve, fake):
    def compute(inputs, names):
        if (inputs["INPUT0"] < 0).any():
            raise ValueError("below zero")
        return [inputs["INPUT0"] for _ in names]

    fake.compute = compute
    running = serve()
    model = running.model("both")
    requests, _ = group(model, [1, -2, 3])
    assert model.accept_group(requests) == 3
    found = answers(requests)
    assert "below zero" in str(found.pop("number -2"))
    assert found == {"number 1": [1], "number 3": [3]}
    wait_until(lambda: model.in_flight() == 0)
    assert counts(running, "both")[:3] == (2, 1, 2)
    assert counts(running, "first")[:3] == (2, 1, 2)
    assert counts(running, "second")[:3] == (2, 0, 2)


@pytest.mark.parametrize(
    "step",
    [
        "",  # without batching
        "dynamic_batching { preferred_batch_size: [ 4 ] }\n",
        "dynamic_batching { default_queue_policy { max_queue_size: 9 } }\n",
        BATCHING + "response_cache { enable: true }\n",
    ],
)
def test_steps_whose_requests_must_be_of_their_own(serve, step):
    model = serve(step, cache_config=(("local", "size", "1048576"),)).model("both")
    requests, _ = group(model, range(3))
    assert model.accept_group(requests) == 0
    assert model.accept_rest(requests) == []
    assert answers(requests) == {f"number {value}": [value] for value in range(3)}


def test_ensembles_that_limit_their_steps(serve):
    model = serve(more="max_inflight_requests: 4").model("both")
    assert model.accept_group(group(model, range(3))[0]) == 0


def test_each_instance_gets_a_part(serve):
    model = serve(BATCHING + "instance_group { count: 2 kind: KIND_CPU }\n").model("both")
    requests, replies = group(model, range(6))
    assert model.accept_group(requests) == 6
    assert answers(requests) == {f"number {value}": [value] for value in range(6)}
    assert replies.batches == 2


def test_cancelled_requests_do_not_disturb_the_others(serve, fake):
    model = serve().model("both")
    fake.gate.clear()
    requests, _ = group(model, range(3))
    model.accept_group(requests)
    requests[1].cancel()
    fake.gate.set()
    found = answers(requests)
    assert (found["number 0"], found["number 2"]) == ([0], [2])


def test_all_are_cancelled(serve, fake):
    model = serve().model("both")
    fake.gate.clear()
    requests, _ = group(model, range(3))
    model.accept_group(requests)
    assert fake.started.acquire(timeout=10)
    for request in requests:
        request.cancel()
    fake.gate.set()
    assert all(isinstance(error, Cancelled) for error in answers(requests).values())
    wait_until(lambda: model.in_flight() == 0)


def test_an_unload_waits_for_them(serve, fake):
    running = serve(model_control_mode="explicit", load_model=("both",))
    model = running.model("both")
    fake.gate.clear()
    requests, _ = group(model, range(3))
    model.accept_group(requests)
    assert fake.started.acquire(timeout=10)
    with ThreadPoolExecutor(1) as pool:
        unloaded = pool.submit(running.unload, "both")
        wait_until(lambda: running.states("both").get("1") != "READY")
        assert model.accept_group(group(model, range(3))[0]) in (0, 3)
        fake.gate.set()
        assert unloaded.result(10).status == 200
    assert answers(requests) == {f"number {value}": [value] for value in range(3)}


def test_clients_over_http(serve, fake):
    running = serve()

    def ask(value):
        request = Infer().add("IN", np.array([[value]], np.int32), binary=True)
        return outputs(request.want("OUT", binary_data=True).send(running, "both"))["OUT"].item()

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(200))) == list(range(200))
    assert max(len(batch["INPUT0"]) for batch in fake.batches) > 1


def test_all_that_wait_are_counted(serve, fake):
    running = serve()
    fake.gate.clear()
    alone, _ = group(running.model("both"), [0])
    running.model("both").accept_rest(alone)
    assert fake.started.acquire(timeout=10)  # the others wait behind it
    requests, _ = group(running.model("both"), range(1, 4))
    running.model("both").accept_group(requests)
    name = "nv_inference_pending_request_count"
    assert running.metric(name, model="first", version="1") == 3
    fake.gate.set()
    answers([*alone, *requests])
