"""Functions as models, through real clients: batching, streams, errors, reloading."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

import shoal
from shoal.server import ModelsFailed
from shoal.testing.server import running_server, wait_until
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_model, touch

Floats = npt.NDArray[np.float32]
Row = Annotated[Floats, (4,)]

batches = []
gate = threading.Event()
first_in = threading.Event()


class Sums(NamedTuple):
    sum: Row
    difference: Row


@shoal.model(batch=8)
def add_sub(a: Row, b: Row) -> Sums:
    return Sums(a + b, a - b)


@shoal.model(batch=8)
def held(x: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    batches.append(x.shape[0])
    first_in.set()
    assert gate.wait(WAIT_SECS)
    if (x < 0).any():
        raise ValueError("x must not be negative")
    return x


@shoal.model
def greet(name: str, greeting: str = "Hello") -> str:
    if not name:
        raise shoal.InvalidArgument("name is empty")
    return f"{greeting} {name}!"


@shoal.model(batch=8)
def lengths(text: list[str]) -> list[int]:
    return [len(line) for line in text]


@shoal.model
def words(text: str, fail_at: int = -1) -> Iterator[str]:
    for number, word in enumerate(text.split()):
        if number == fail_at:
            raise RuntimeError("lost for words")
        yield word


@shoal.model
async def words_later(text: str) -> AsyncIterator[str]:
    for word in text.split():
        await asyncio.sleep(0)
        yield word


meeting = []
both = asyncio.Event()


@shoal.model
async def meet(name: str) -> int:
    """Returns once two calls are there at the same time."""
    meeting.append(name)
    if len(meeting) == 2:
        both.set()
    await both.wait()
    return len(meeting)


@shoal.model(batch=4, outputs={"total": "FP64"})
class Total:
    def __init__(self):
        self.total = 0.0

    def predict(self, x: list[float]) -> dict:
        self.total += sum(x)
        return {"total": [self.total] * len(x)}


FUNCTIONS = [add_sub, held, greet, lengths, words, words_later, meet, Total]


@pytest.fixture(scope="module")
def running():
    with running_server(functions=FUNCTIONS) as server:
        yield server


@pytest.fixture(scope="module")
def http(running):
    with http_client.InferenceServerClient(running.http_address) as client:
        yield client


@pytest.fixture(scope="module")
def grpc(running):
    with grpc_client.InferenceServerClient(running.grpc_address) as client:
        yield client


def tensor(client, name, array, datatype):
    made = client.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def text(client, name, *values):
    return tensor(client, name, np.array(values, dtype=object), "BYTES")


# ---- one answer


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_arrays(request, protocol):
    client = request.getfixturevalue(protocol)
    module = http_client if protocol == "http" else grpc_client
    a, b = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((2, 4), np.float32)
    inputs = [tensor(module, "a", a, "FP32"), tensor(module, "b", b, "FP32")]
    result = client.infer("add_sub", inputs)
    assert np.array_equal(result.as_numpy("sum"), a + b)
    assert np.array_equal(result.as_numpy("difference"), a - b)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_text_and_defaults(request, protocol):
    client = request.getfixturevalue(protocol)
    module = http_client if protocol == "http" else grpc_client
    result = client.infer("greet", [text(module, "name", "Ada")])
    assert result.as_numpy("output").tolist() == [b"Hello Ada!"]
    inputs = [text(module, "name", "Ada"), text(module, "greeting", "Ahoj")]
    assert client.infer("greet", inputs).as_numpy("output").tolist() == [b"Ahoj Ada!"]


def test_batches_of_text(http):
    lines = np.array([["a"], ["bcd"]], dtype=object)
    result = http.infer("lengths", [tensor(http_client, "text", lines, "BYTES")])
    assert result.as_numpy("output").tolist() == [[1], [3]]


def test_plain_json(running):
    answer = running.post("/v2/models/greet/generate", {"name": "Ada", "greeting": "Hi"})
    assert answer.json["output"] == "Hi Ada!"


def test_a_class_keeps_its_state(running):
    for total in (1.5, 3.0):
        answer = running.post("/v2/models/Total/generate", {"x": [1.5]})
        assert answer.json["total"] == total


def test_calls_of_an_async_function_overlap(running):
    calls = [running.call("POST", "/v2/models/meet/generate", {"name": name}) for name in "ab"]
    assert [call.response().json["output"] for call in calls] == [2, 2]


# ---- batching


def test_requests_that_wait_share_a_call(running):
    batches.clear()
    gate.clear()
    first_in.clear()
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}
    calls = [running.call("POST", "/v2/models/held/infer", body)]
    assert first_in.wait(WAIT_SECS)
    calls += [running.call("POST", "/v2/models/held/infer", body) for _ in range(3)]
    running.wait_for_pending("held", 3)
    gate.set()
    assert [call.response().status for call in calls] == [200] * 4
    assert batches == [1, 3]


def test_one_bad_request_does_not_fail_its_batch(running):
    batches.clear()
    gate.clear()
    first_in.clear()
    bodies = [
        {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "INT32", "data": [value]}]}
        for value in (0, 1, -1, 2)
    ]
    calls = [running.call("POST", "/v2/models/held/infer", bodies[0])]
    assert first_in.wait(WAIT_SECS)
    calls += [running.call("POST", "/v2/models/held/infer", body) for body in bodies[1:]]
    running.wait_for_pending("held", 3)
    gate.set()
    answers = [call.response() for call in calls]
    assert [answer.status for answer in answers] == [200, 200, 500, 200]
    assert answers[2].error == "ValueError: x must not be negative"


# ---- errors


def test_a_mistake_of_the_clients_is_one(running, http):
    answer = running.post("/v2/models/greet/generate", {"name": ""})
    assert (answer.status, answer.error) == (400, "name is empty")
    with pytest.raises(http_client.InferenceServerException, match="expects 'BYTES'"):
        http.infer("greet", [tensor(http_client, "name", np.ones(1, np.float32), "FP32")])


def test_text_that_is_none(running):
    body = {"inputs": [{"name": "name", "shape": [1], "datatype": "BYTES", "data": [[255]]}]}
    assert running.post("/v2/models/greet/infer", body).status == 400


# ---- streams


def streamed(client, model, inputs):
    """Every output of a gRPC stream, and the error that ended it, if one did."""
    arrived = queue.Queue()
    client.start_stream(lambda result, error: arrived.put((result, error)))
    try:
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        found = []
        while True:
            result, error = arrived.get(timeout=WAIT_SECS)
            if error is not None:
                return found, error.message()
            if result.get_response().parameters["triton_final_response"].bool_param:
                return found, None
            found += result.as_numpy("output").tolist()
    finally:
        client.stop_stream()


@pytest.mark.parametrize("model", ["words", "words_later"])
def test_yield_streams_over_grpc(grpc, model):
    inputs = [text(grpc_client, "text", "one two three")]
    assert streamed(grpc, model, inputs) == ([b"one", b"two", b"three"], None)


def test_an_error_ends_a_stream(grpc):
    inputs = [
        text(grpc_client, "text", "one two three"),
        tensor(grpc_client, "fail_at", np.array([1]), "INT64"),
    ]
    assert streamed(grpc, "words", inputs) == ([b"one"], "RuntimeError: lost for words")


@pytest.mark.parametrize("model", ["words", "words_later"])
def test_yield_streams_events(running, model):
    answer = running.post(f"/v2/models/{model}/generate_stream", {"text": "one two"})
    events = [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line]
    assert [event["output"] for event in events] == ["one", "two"]


# ---- what there is to see


def test_the_config_has_what_was_declared(http, running):
    config = http.get_model_config("add_sub")
    assert config["backend"] == "function"
    assert config["max_batch_size"] == 8
    assert [entry["name"] for entry in config["output"]] == ["sum", "difference"]
    assert config["dynamic_batching"]["preferred_batch_size"] == [8]
    assert http.get_model_config("words")["model_transaction_policy"]["decoupled"] is True
    assert running.states("greet") == {"1": "READY"}


def test_statistics_are_counted(running):
    before = running.statistics("lengths")["inference_stats"]["success"]["count"]
    running.post("/v2/models/lengths/generate", {"text": ["a", "b"]})
    after = running.statistics("lengths")
    assert after["inference_stats"]["success"]["count"] == before + 1
    assert after["inference_stats"]["compute_infer"]["ns"] > 0
    labels = {"model": "lengths", "version": "1"}
    assert running.metric("nv_inference_request_success", **labels) == before + 1


# ---- files

APP = """
import shoal

@shoal.model
def shout(text: str) -> str:
    return text.upper()
"""
MORE = """
@shoal.model
def whisper(text: str) -> str:
    return text.lower()
"""


@pytest.fixture
def app(tmp_path):
    file = tmp_path / "app.py"
    file.write_text(APP)
    return file


def ask(running, model, value):
    answer = running.post(f"/v2/models/{model}/generate", {"text": value})
    return answer.json.get("output", answer.json)


def test_a_file_and_a_repository_side_by_side(app, tmp_path):
    echo = 'backend: "identity" input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }'
    add_model(tmp_path / "models", "echo", echo)
    pipeline = """
        platform: "ensemble"
        input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }
        output { name: "output" data_type: TYPE_STRING dims: [ 1 ] }
        ensemble_scheduling {
          step { model_name: "echo" model_version: -1
                 input_map { key: "text" value: "text" }
                 output_map { key: "text_output" value: "same" } }
          step { model_name: "shout" model_version: -1
                 input_map { key: "text" value: "same" }
                 output_map { key: "output" value: "output" } }
        }
    """
    add_model(tmp_path / "models", "pipeline", pipeline)
    with running_server(app, tmp_path / "models") as running:
        assert ask(running, "shout", "a") == "A"
        assert ask(running, "pipeline", "b") == "B"


def test_a_changed_file_is_reloaded(app):
    with running_server(app, model_control_mode="poll", repository_poll_secs=0.1) as running:
        assert ask(running, "shout", "a") == "A"
        app.write_text(APP.replace("upper()", "upper() + '!'") + MORE)
        wait_until(lambda: ask(running, "shout", "a") == "A!", "the change is served")
        wait_until(lambda: running.states("whisper") == {"1": "READY"}, "the new function is")
        assert ask(running, "whisper", "A") == "a"
        app.write_text("this is no Python\n")
        wait_until(lambda: "SyntaxError" in str(running.index()), "the index says what is wrong")
        assert ask(running, "shout", "a") == "A!"
        app.write_text(APP)
        wait_until(lambda: ask(running, "shout", "a") == "A", "the mended file is served")
        wait_until(lambda: running.states("whisper")["1"] == "UNAVAILABLE", "the other is gone")


def test_a_load_reads_the_file_again(app):
    options = {"model_control_mode": "explicit", "load_model": ("shout",)}
    with running_server(app, **options) as running:
        app.write_text(APP.replace("upper()", "title()") + MORE)
        assert ask(running, "shout", "ab") == "AB"
        assert running.load("shout").status == 200
        assert ask(running, "shout", "ab") == "Ab"
        assert running.load("whisper").status == 200
        assert running.unload("shout").status == 200
        wait_until(lambda: running.states("shout") == {"1": "UNAVAILABLE"})
        app.write_text("x = 1\n")
        answer = running.load("whisper")
        assert answer.status == 400
        assert "there is no model in this file" in answer.error
        assert ask(running, "whisper", "A") == "a"


def test_a_load_may_bring_a_config(app):
    options = {"model_control_mode": "explicit", "load_model": ("shout",)}
    with running_server(app, **options) as running:
        config = {"instance_group": [{"count": 3, "kind": "KIND_CPU"}]}
        assert running.load("shout", config=config).status == 200
        found = running.get("/v2/models/shout/config").json
        assert found["instance_group"][0]["count"] == 3
        assert found["input"][0]["name"] == "text"


def test_labels_lie_beside_the_file(app):
    app.write_text("""
import shoal
@shoal.model(outputs=shoal.Tensor("FP32", (2,), labels="labels.txt"))
def guess(x: float): return [x, 1 - x]
""")
    (app.parent / "labels.txt").write_text("heads\ntails\n")
    with running_server(app) as running:
        body = {
            "inputs": [{"name": "x", "shape": [1], "datatype": "FP64", "data": [0.25]}],
            "outputs": [{"name": "output", "parameters": {"classification": 1}}],
        }
        answer = running.post("/v2/models/guess/infer", body)
        assert answer.json["outputs"][0]["data"] == ["0.750000:1:tails"]


def test_models_load_on_demand(app):
    with running_server(app, model_control_mode="lazy") as running:
        assert ask(running, "shout", "a") == "A"


def test_a_bare_model_file(tmp_path):
    from tests.support import onnx_models

    file = tmp_path / "sum.onnx"
    file.write_bytes(onnx_models.add_sub("FP32").SerializeToString())
    with running_server(file, model_control_mode="poll", repository_poll_secs=0.1) as running:
        assert running.states("sum") == {"1": "READY"}
        old = running.model("sum")
        touch(file)
        wait_until(lambda: running.model("sum") is not old, "the changed file is loaded")


def test_a_function_in_a_repository(tmp_path):
    files = {"1/model.py": APP.encode()}
    add_model(tmp_path, "loud", 'backend: "function" max_batch_size: 0', files)
    with running_server(tmp_path) as running:
        assert ask(running, "loud", "a") == "A"


def test_a_file_that_cannot_be_served_stops_the_start(app):
    app.write_text("import shoal\n@shoal.model\ndef f(x): ...\n")
    with pytest.raises(shoal.InvalidArgument, match=r"app.py:2: f\(x\): the argument has no type"):  # noqa: SIM117
        with running_server(app):
            pass


def test_a_class_that_cannot_be_made_is_a_model_that_failed(app):
    app.write_text(
        "import shoal\n@shoal.model\nclass Broken:\n    def __init__(self):\n"
        "        raise RuntimeError('no weights')\n    def predict(self, x: str) -> str: ...\n"
    )
    with pytest.raises(ModelsFailed) as caught, running_server(app):
        pass
    assert "Broken could not be made ready: RuntimeError: no weights" in str(caught.value)


def test_one_name_in_two_places(app, tmp_path):
    other = tmp_path / "other.py"
    other.write_text(APP)
    with pytest.raises(ModelsFailed) as caught, running_server(app, other):
        pass
    assert "model appears in two or more repositories" in caught.value.reasons[0]
    with running_server(app, other, model_namespacing=True) as running:
        assert len([row for row in running.index() if row.get("state") == "READY"]) == 2
