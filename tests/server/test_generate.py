"""…/generate and …/generate_stream on a real server, with a decoupled model."""

from __future__ import annotations

import http.client
import json
import threading

import numpy as np
import pytest

from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument
from shoal.testing.server import running_server
from tests.support.fakes import WAIT_SECS, RequestBackend

CONFIG = """
backend: "requests"
max_batch_size: 0
model_transaction_policy {{ decoupled: {decoupled} }}
input [
  {{ name: "PROMPT" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] optional: true }}
]
output [ {{ name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }} ]
"""


class Model:
    """Says the prompt COUNT times; a prompt of "wait" waits until it is cancelled."""

    def __init__(self):
        self.waiting = threading.Event()
        self.cancelled = threading.Event()

    def execute(self, batch):
        for pending in batch:
            inputs = pending.request.inputs
            prompt = inputs["PROMPT"].array
            count = int(inputs["COUNT"].array[0]) if "COUNT" in inputs else 1
            if prompt[0] == b"wait":
                threading.Thread(target=self.wait, args=(pending,)).start()
                continue
            if count == 1:
                pending.send([Tensor.from_array("TEXT", prompt)])
                continue
            for _ in range(max(0, count)):
                pending.send([Tensor.from_array("TEXT", prompt)], final=False)
            if count < 0:
                pending.send(error=InvalidArgument("An Error Occurred"))
            else:
                pending.send()

    def wait(self, pending):
        pending.send([Tensor.from_array("TEXT", np.array([b"first"], dtype=object))], final=False)
        self.waiting.set()
        while not pending.request.cancelled:
            self.cancelled.wait(0.001)
        pending.send()
        self.cancelled.set()


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.fixture(scope="module")
def running(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("models")
    for name, decoupled in (("many", "true"), ("one", "false")):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG.format(decoupled=decoupled))
    backends = RequestBackend(model.execute).registry()
    with running_server(folder, backends=backends) as running:
        yield running


def ask(running, path, **document):
    return running.post(f"/v2/models/{path}", json.dumps(document).encode())


def events(answer):
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = answer.body.decode().split("\n\n")
    assert chunks.pop() == ""
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


@pytest.mark.parametrize("name", ["many", "one"])
def test_one_response_is_one_object(running, name):
    answer = ask(running, f"{name}/generate", PROMPT="hello", id="7", mood="calm")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {
        "id": "7",
        "model_name": name,
        "model_version": "1",
        "TEXT": "hello",
    }


@pytest.mark.parametrize("count", [0, 3])
def test_generate_needs_exactly_one_response(running, count):
    answer = ask(running, "many/generate", PROMPT="hello", COUNT=count)
    assert answer.status == 500
    assert "generate expects model to produce exactly 1 response" in answer.error


@pytest.mark.parametrize("count", [0, 1, 3])
def test_each_response_is_an_event(running, count):
    answer = ask(running, "many/generate_stream", PROMPT="hello", COUNT=count)
    assert answer.status == 200
    assert [event["TEXT"] for event in events(answer)] == ["hello"] * count


def test_ordinary_models_stream_too(running):
    answer = ask(running, "one/generate_stream", PROMPT="hello")
    assert [event["TEXT"] for event in events(answer)] == ["hello"]


def test_the_first_response_decides_the_status(running):
    answer = ask(running, "many/generate_stream", PROMPT="hello", COUNT=-1)
    assert answer.status == 400
    assert events(answer) == [{"error": "An Error Occurred"}]


@pytest.mark.parametrize("path", ["many/generate", "many/generate_stream"])
@pytest.mark.parametrize(
    ("document", "status", "text"),
    [
        ({}, 400, "expected number of inputs between 1 and 2 but got 0"),
        ({"PROMPT": 5}, 400, "attempt to access JSON non-string as string"),
        ({"PROMPT": ["a", "b"]}, 400, "to tensor with proper shape"),
    ],
)
def test_wrong_requests_are_plain_errors(running, path, document, status, text):
    answer = ask(running, path, **document)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    assert text in answer.error


def test_unknown_models_and_encoded_bodies(running):
    assert ask(running, "nobody/generate", PROMPT="x").status == 404
    answer = running.post("/v2/models/one/generate", b"{}", {"Content-Encoding": "gzip"})
    assert answer.status == 501


def test_a_client_that_disconnects_cancels_its_request(running, model):
    host, port = running.http_address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_SECS)
    connection.request("POST", "/v2/models/many/generate_stream", b'{"PROMPT": "wait"}')
    response = connection.getresponse()
    assert response.readline() == (
        b'data: {"model_name":"many","model_version":"1","TEXT":"first"}\n'
    )
    assert model.waiting.wait(WAIT_SECS)
    response.close()
    connection.close()
    assert model.cancelled.wait(WAIT_SECS)
