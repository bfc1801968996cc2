"""Models that load at their first request, asked by Triton's own clients over both protocols."""

from __future__ import annotations

import queue
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS, HeldLoads
from tests.support.repositories import add_fake, add_onnx

NOT_LOADED = "not loaded: it loads at its first request"


@pytest.fixture(params=["native", "grpcio"])
def world(request, tmp_path):
    add_onnx(tmp_path, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    add_fake(tmp_path, "held")
    add_fake(tmp_path, "other")
    add_fake(tmp_path, "in_turns", "sequence_batching { }")
    fake = HeldLoads()
    with running_server(
        tmp_path,
        backends=fake.registry(),
        grpc_transport=request.param,
        model_control_mode="lazy",
    ) as running:
        yield SimpleNamespace(running=running, fake=fake)
        fake.load_gate.set()
        fake.gate.set()


@pytest.fixture
def grpc(world):
    with grpcclient.InferenceServerClient(world.running.grpc_address) as client:
        yield client


@pytest.fixture
def http(world):
    with httpclient.InferenceServerClient(world.running.http_address) as client:
        yield client


def pair(module):
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.full((1, 16), 3, np.int32))
        tensors.append(tensor)
    return tensors


def one(module, number):
    tensor = module.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[number]], np.int32))
    return [tensor]


def rows(client):
    """The index, whichever protocol it came by."""
    found = client.get_model_repository_index()
    if isinstance(found, list):
        return {row["name"]: (row.get("state"), row.get("reason", "")) for row in found}
    return {row.name: (row.state, row.reason) for row in found.models}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_first_inference_loads(world, request, protocol):
    client = request.getfixturevalue(protocol)
    module = httpclient if protocol == "http" else grpcclient
    assert client.is_server_ready()
    assert client.is_model_ready("sum")  # it can be asked
    assert rows(client)["sum"] == ("UNAVAILABLE", NOT_LOADED)
    result = client.infer("sum", pair(module))
    assert result.as_numpy("OUTPUT0")[0, 0] == 6
    state, reason = rows(client)["sum"]
    assert state == "READY"
    assert reason.startswith("holds about")
    with pytest.raises(InferenceServerException, match="'nobody' is not found"):
        client.infer("nobody", pair(module))
    client.unload_model("sum")
    assert rows(client)["sum"] == ("UNAVAILABLE", "unloaded; it loads again at its next request")
    client.load_model("sum")
    assert rows(client)["sum"][0] == "READY"
    statistics = client.get_inference_statistics("sum")
    if protocol == "http":
        assert statistics["model_stats"][0]["memory_usage"][0]["byte_size"] > 0
    else:
        assert statistics.model_stats[0].memory_usage[0].byte_size > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("question", ["get_model_metadata", "get_model_config"])
def test_reading_a_models_metadata_loads_it(request, protocol, question):
    client = request.getfixturevalue(protocol)
    assert "sum" in str(getattr(client, question)("sum"))
    assert rows(client)["sum"][0] == "READY"


def test_statistics_do_not(grpc):
    with pytest.raises(InferenceServerException, match=NOT_LOADED) as caught:
        grpc.get_inference_statistics("sum")
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    assert len(grpc.get_inference_statistics().model_stats) == 0


def test_a_load_that_fails(world, grpc, http):
    world.fake.failure = RuntimeError("torn")
    for client, module, status in (
        (grpc, grpcclient, "StatusCode.UNAVAILABLE"),
        (http, httpclient, "503"),
    ):
        with pytest.raises(InferenceServerException, match="RuntimeError: torn") as caught:
            client.infer("held", one(module, 1))
        assert caught.value.status() == status
    assert not grpc.is_model_ready("held")


def test_a_client_gives_up_before_the_model_is_there(world, grpc):
    world.fake.load_gate.clear()

    def held_before(secs):
        """Whether a request was there before its time was up."""
        ended = queue.Queue()
        grpc.async_infer(
            "held",
            one(grpcclient, 1),
            lambda result, error: ended.put(error),
            client_timeout=secs,
        )
        waiting = partial(world.running.metric, "shoal_on_demand_waiting", model="held")
        wait_until(lambda: waiting() or not ended.empty(), "the request is held, or late")
        held = ended.empty()
        error = ended.get(timeout=secs + WAIT_SECS)
        assert error.status() == "StatusCode.DEADLINE_EXCEEDED"
        return held

    # A busy machine may need longer to send a request than it has: then it gets more time.
    assert any(held_before(secs) for secs in (0.2, 2, 15))
    with pytest.raises(InferenceServerException) as caught:
        grpc.get_model_config("held", client_timeout=0.2)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    world.running.wait_for_held("held", 0)  # the server has noticed, too
    world.fake.load_gate.set()
    assert grpc.infer("held", one(grpcclient, 2)).as_numpy("OUTPUT0")[0, 0] == 2
    assert len(world.fake.batches) == 1  # what was given up did not run


def test_both_protocols_share_a_load(world, grpc, http):
    world.fake.load_gate.clear()
    answers = queue.Queue()
    for number in range(10):
        grpc.async_infer(
            "held", one(grpcclient, number), lambda result, error: answers.put((result, error))
        )
    late = http.async_infer("held", one(httpclient, 50))
    assert world.fake.loading.acquire(timeout=WAIT_SECS)
    world.fake.load_gate.set()
    seen = set()
    for _ in range(10):
        result, error = answers.get(timeout=WAIT_SECS)
        assert error is None
        seen.add(int(result.as_numpy("OUTPUT0")[0, 0]))
    assert seen == set(range(10))
    assert late.get_result().as_numpy("OUTPUT0")[0, 0] == 50
    assert len(world.fake.loads) == 1


class TestStreams:
    @pytest.fixture
    def answers(self):
        return queue.Queue()

    @pytest.fixture
    def stream(self, grpc, answers):
        grpc.start_stream(lambda result, error: answers.put((result, error)))
        yield grpc
        grpc.stop_stream(cancel_requests=True)

    def take(self, answers, count):
        return [answers.get(timeout=WAIT_SECS) for _ in range(count)]

    def test_responses_stay_in_order(self, world, stream, answers):
        world.fake.load_gate.clear()
        models = ("held", "other", "held", "nobody", "other")
        for number, model in enumerate(models):
            stream.async_stream_infer(model, one(grpcclient, number), request_id=str(number))
        assert world.fake.loading.acquire(timeout=WAIT_SECS)
        world.fake.load_gate.set()
        for number, (result, error) in enumerate(self.take(answers, 5)):
            if number == 3:
                assert "'nobody' is not found" in error.message()
            else:
                assert error is None
                assert result.get_response().id == str(number)
                assert result.as_numpy("OUTPUT0")[0, 0] == number

    def test_a_sequence_waits_in_its_order(self, world, stream, answers):
        world.fake.load_gate.clear()
        for number in range(6):
            stream.async_stream_infer(
                "in_turns",
                one(grpcclient, number),
                sequence_id=7,
                sequence_start=number == 0,
                sequence_end=number == 5,
            )
        assert world.fake.loading.acquire(timeout=WAIT_SECS)
        world.fake.load_gate.set()
        found = self.take(answers, 6)
        assert [error for _, error in found] == [None] * 6
        ran = [int(batch["INPUT0"].flat[0]) for batch in world.fake.batches]
        assert ran == list(range(6))

    def test_a_load_that_fails_is_reported_to_each(self, world, stream, answers):
        world.fake.failure = RuntimeError("torn")
        for number in range(3):
            stream.async_stream_infer("held", one(grpcclient, number))
        for _, error in self.take(answers, 3):
            assert "RuntimeError: torn" in error.message()
        world.fake.failure = None
        stream.load_model("held")
        stream.async_stream_infer("held", one(grpcclient, 9))
        ((result, error),) = self.take(answers, 1)
        assert error is None
        assert result.as_numpy("OUTPUT0")[0, 0] == 9

    def test_a_client_that_half_closes_gets_its_responses(self, world, grpc, answers):
        world.fake.load_gate.clear()
        grpc.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(3):
            grpc.async_stream_infer("held", one(grpcclient, number))
        assert world.fake.loading.acquire(timeout=WAIT_SECS)
        threading.Timer(0.1, world.fake.load_gate.set).start()
        grpc.stop_stream()  # waits for them
        assert [error for _, error in self.take(answers, 3)] == [None] * 3

    def test_a_client_that_disconnects(self, world, grpc, answers):
        world.fake.load_gate.clear()
        grpc.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(3):
            grpc.async_stream_infer("held", one(grpcclient, number))
        world.running.wait_for_held("held", 1)  # the others of a stream wait behind the first
        grpc.stop_stream(cancel_requests=True)
        world.running.wait_for_held("held", 0)  # the server has heard of it
        world.fake.load_gate.set()
        wait_until(lambda: rows(grpc)["held"][0] == "READY")
        assert grpc.infer("held", one(grpcclient, 9)).as_numpy("OUTPUT0")[0, 0] == 9
        assert [int(batch["INPUT0"].flat[0]) for batch in world.fake.batches] == [9]
