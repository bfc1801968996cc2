"""tritonclient.grpc, unchanged: everything it can ask, one call at a time and many at once."""

from __future__ import annotations

import json
import queue
import threading

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from shoal.core.dtypes import ALL, BF16, BOOL, BYTES
from shoal.testing.server import wait_until
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS


@pytest.fixture
def client(address):
    with grpcclient.InferenceServerClient(address) as made:
        yield made


def make_input(name, array, datatype="INT32"):
    tensor = grpcclient.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def numbers(first=1, second=2):
    return [
        make_input("INPUT0", np.full((1, 16), first, np.int32)),
        make_input("INPUT1", np.full((1, 16), second, np.int32)),
    ]


def held_input(value):
    return [make_input("INPUT0", np.array([[value]], np.int32))]


def values(datatype):
    if datatype is BYTES:
        return np.array([["", "größer", "nul\0inside"]], object)
    if datatype is BOOL:
        return np.array([[True, False, True]])
    if datatype is BF16:
        return np.array([[1.5, -2.0, 0.25]], ml_dtypes.bfloat16)
    return np.array([[1, 0, 100]], datatype.numpy)


# ---- asking about


def test_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("sum")
    assert client.is_model_ready("sum", "3")
    assert not client.is_model_ready("sum", "2")
    assert not client.is_model_ready("nope")


def test_metadata(client):
    server = client.get_server_metadata(as_json=True)
    assert server["name"] == "triton"
    assert "classification" in server["extensions"]
    model = client.get_model_metadata("sum")
    assert (model.name, list(model.versions)) == ("sum", ["1", "3"])
    assert model.platform == "onnxruntime_onnx"
    assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [
        ("INPUT0", "INT32", [-1, 16]),
        ("INPUT1", "INT32", [-1, 16]),
    ]


def test_config(client):
    config = client.get_model_config("scores").config
    assert config.max_batch_size == 4
    assert config.output[0].label_filename == "labels.txt"
    assert client.get_model_config("scores", as_json=True)["config"]["input"][0]["dims"] == ["4"]


def test_statistics(client, world):
    before = client.get_inference_statistics("sum", "3").model_stats[0].inference_count
    client.infer("sum", numbers())
    (counted,) = client.get_inference_statistics("sum", "3").model_stats
    assert counted.inference_count == before + 1
    assert counted.inference_stats.success.count == counted.inference_stats.compute_infer.count
    everything = client.get_inference_statistics().model_stats
    assert {"sum", "scores", "held"} <= {entry.name for entry in everything}
    assert world.running.statistics("sum", 3)["inference_count"] == before + 1


def test_repository(client):
    rows = {row.name: row for row in client.get_model_repository_index().models}
    assert rows["held"].state == "READY"
    client.unload_model("echo_INT8")
    rows = {row.name: row for row in client.get_model_repository_index().models}
    assert (rows["echo_INT8"].state, rows["echo_INT8"].reason) == ("UNAVAILABLE", "unloaded")
    assert not client.is_model_ready("echo_INT8")
    with pytest.raises(InferenceServerException, match="has no available versions"):
        client.get_model_metadata("echo_INT8")
    client.load_model("echo_INT8")
    assert client.is_model_ready("echo_INT8")


def test_load_with_a_config_and_a_file(client):
    content = onnx_models.identity("INT16").SerializeToString()
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 2})
    client.load_model("echo_INT16", config=config, files={"file:9/model.onnx": content})
    assert list(client.get_model_metadata("echo_INT16").versions) == ["9"]
    assert client.get_model_config("echo_INT16").config.max_batch_size == 2
    client.load_model("echo_INT16")
    assert list(client.get_model_metadata("echo_INT16").versions) == ["1"]
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("nope")
    assert caught.value.status() == "StatusCode.INTERNAL"
    text = "failed to load 'nope', failed to poll from model repository"
    assert caught.value.message().startswith(text)


# ---- inference


@pytest.mark.parametrize("datatype", ALL, ids=str)
def test_every_datatype(client, datatype):
    array = values(datatype)
    result = client.infer(
        f"echo_{datatype.name}", [make_input("INPUT0", array, datatype.name)], request_id="7"
    )
    got = result.as_numpy("OUTPUT0")
    if datatype is BYTES:
        array = np.array([[text.encode() for text in array[0]]], object)
    np.testing.assert_array_equal(got, array)
    response = result.get_response()
    assert (response.id, response.model_version) == ("7", "1")
    assert response.outputs[0].datatype == datatype.name


def test_outputs_and_versions(client):
    result = client.infer(
        "sum",
        numbers(5, 3),
        model_version="1",
        outputs=[grpcclient.InferRequestedOutput("OUTPUT1")],
    )
    assert result.as_numpy("OUTPUT0") is None
    assert result.as_numpy("OUTPUT1").tolist() == [[2] * 16]
    assert result.get_response().model_version == "1"


def test_classification(client):
    scores = make_input("INPUT0", np.array([[1, 3, 2, 0]], np.float32), "FP32")
    wanted = grpcclient.InferRequestedOutput("OUTPUT0", class_count=2)
    result = client.infer("scores", [scores], outputs=[wanted])
    assert result.as_numpy("OUTPUT0").tolist() == [[b"3.000000:1:whale", b"2.000000:2:eel"]]


def test_large_tensors(client):
    array = np.arange(3_000_000, dtype=np.int32).reshape(1, -1)
    result = client.infer("echo_INT32", [make_input("INPUT0", array)])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(client, algorithm):
    array = np.zeros((1, 100_000), np.int32)
    result = client.infer(
        "echo_INT32", [make_input("INPUT0", array)], compression_algorithm=algorithm
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize(
    ("ask", "status", "text"),
    [
        (
            lambda client: client.infer("nope", numbers()),
            "NOT_FOUND",
            "Request for unknown model: 'nope' is not found",
        ),
        (
            lambda client: client.infer("sum", numbers(), model_version="2"),
            "NOT_FOUND",
            "Request for unknown model: 'sum' version 2 is not found",
        ),
        (
            lambda client: client.infer("sum", numbers(), model_version="two"),
            "INVALID_ARGUMENT",
            "failed to get model version from specified version string 'two'",
        ),
        (
            lambda client: client.infer("sum", numbers()[:1]),
            "INVALID_ARGUMENT",
            "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'sum'",
        ),
        (
            lambda client: client.infer("echo_INT32", numbers()[:1], sequence_id=0, priority=1),
            None,
            "",
        ),
    ],
)
def test_responses_and_errors(client, ask, status, text):
    if status is None:
        ask(client)
        return
    with pytest.raises(InferenceServerException) as caught:
        ask(client)
    assert caught.value.status() == f"StatusCode.{status}"
    assert caught.value.message().startswith(text)


def test_async_infer(client):
    results = queue.Queue()
    for number in range(50):
        client.async_infer(
            "sum",
            numbers(number, 1),
            lambda result, error: results.put((result, error)),
            request_id=str(number),
        )
    for _ in range(50):
        result, error = results.get(timeout=WAIT_SECS)
        assert error is None
        number = int(result.get_response().id)
        assert result.as_numpy("OUTPUT0")[0, 0] == number + 1


def test_many_threads(address):
    failures = []

    def work(number):
        try:
            with grpcclient.InferenceServerClient(address) as mine:
                for step in range(20):
                    got = mine.infer("sum", numbers(number, step)).as_numpy("OUTPUT0")
                    assert got[0, 0] == number + step
        except Exception as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---- deadlines and cancellation


@pytest.fixture
def held(world):
    """The model "held", one request of which is executing while the gate is shut."""
    fake = world.fake
    fake.batches.clear()
    while fake.started.acquire(blocking=False):
        pass
    fake.gate.clear()
    yield fake
    fake.gate.set()


def test_a_deadline_reaches_the_queue(client, world, held):
    done = queue.Queue()
    client.async_infer("held", held_input(1), lambda result, error: done.put((result, error)))
    assert held.started.acquire(timeout=WAIT_SECS)
    pending = world.running.model("held").statistics.pending

    def queued_before(secs):
        """Whether a request was in the queue before its time was up."""
        ended = queue.Queue()
        client.async_infer(
            "held", held_input(2), lambda result, error: ended.put(error), client_timeout=secs
        )
        wait_until(lambda: pending() or not ended.empty(), "the request is queued, or late")
        queued = ended.empty()
        error = ended.get(timeout=secs + WAIT_SECS)
        assert error.status() == "StatusCode.DEADLINE_EXCEEDED"
        return queued

    # A busy machine may need longer to send a request than it has: then it gets more time.
    assert any(queued_before(secs) for secs in (0.2, 2, 15))
    world.running.wait_for_pending("held", 0)
    held.gate.set()
    result, error = done.get(timeout=WAIT_SECS)
    assert error is None
    assert result.as_numpy("OUTPUT0").tolist() == [[1]]
    assert [batch["INPUT0"].tolist() for batch in held.batches] == [[[1]]]


def test_a_cancelled_request_never_runs(client, world, held):
    done = queue.Queue()
    client.async_infer("held", held_input(1), lambda result, error: done.put((result, error)))
    assert held.started.acquire(timeout=WAIT_SECS)
    cancelled = queue.Queue()
    call = client.async_infer(
        "held", held_input(2), lambda result, error: cancelled.put((result, error))
    )
    world.running.wait_for_pending("held", 1)
    call.cancel()
    world.running.wait_for_pending("held", 0)
    _, error = cancelled.get(timeout=WAIT_SECS)
    assert error.status() == "StatusCode.CANCELLED"
    held.gate.set()
    assert done.get(timeout=WAIT_SECS)[1] is None
    assert len(held.batches) == 1
