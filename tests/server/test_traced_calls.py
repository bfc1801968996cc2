"""Calls of tasks, of OpenAI's API and of the TCP port are traced as inference requests are."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading

import numpy as np
import pytest

from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument
from shoal.tasks import registry
from shoal.tasks.base import Task
from shoal.testing.server import running_server, wait_until
from tests.support.fakes import WAIT_SECS, RequestBackend
from tests.support.repositories import add_model, parameter
from tests.support.traces import CALLER, COMPUTE, SpanCollector, by_id, trace_settings

CONFIG = """
backend: "requests"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
CALL = ["REQUEST_START", "REQUEST_END", "INFER_RESPONSE_COMPLETE"]
OVER_HTTP = ["HTTP_RECV_START", "HTTP_RECV_END", *CALL, "HTTP_SEND_START", "HTTP_SEND_END"]
OVER_TCP = ["TCP_RECV_START", "TCP_RECV_END", *CALL, "TCP_SEND_START", "TCP_SEND_END"]
INNER = ["REQUEST_START", "QUEUE_START", *COMPUTE, "REQUEST_END"]


class Echo(Task):
    """Sends each text of a call to the model as a request of its own, at the same time."""

    name = "echo"
    operation = "answer"
    streams = True

    async def perform(self, request):
        text = request.text("question", longest=100)
        if text == "wrong":
            raise InvalidArgument("this question is wrong")
        await asyncio.gather(*(self._ask(word) for word in text.split()))
        return {"answer": text}

    async def stream(self, request):
        for word in request.text("question", longest=100).split():
            yield await self._ask(word)

    async def _ask(self, word):
        array = np.array([word.encode()], object)
        outputs = await self.context.infer({"text_input": array})
        return outputs["text_output"][0].decode()


class Embed(Echo):
    """As OpenAI's embeddings use it."""

    name = "embedding"
    operation = "embed"

    async def perform(self, request):
        await self._ask(request.values["texts"][0])
        return {"embeddings": [[1.0]], "tokens": 1}


TASKS = {"echo": Echo, "embedding": Embed}


@pytest.fixture(autouse=True)
def tasks(monkeypatch):
    known = {name: (task.operation, f"{__name__}:{task.__name__}") for name, task in TASKS.items()}
    monkeypatch.setattr(registry, "BUILT_IN", known)
    monkeypatch.setattr(registry, "_load", TASKS.get)
    registry.operations.cache_clear()
    yield
    registry.operations.cache_clear()


class Model:
    """Returns its input; the word `wait` waits until the test cancels the request."""

    def __init__(self):
        self.waiting = threading.Event()

    def execute(self, batch):
        for pending in batch:
            word = pending.request.inputs["text_input"].array[0]
            if word == b"wait":
                self.waiting.set()
                wait_until(lambda one=pending: one.request.cancelled)
            pending.send([Tensor.from_array("text_output", np.array([word], object))])


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def serve(repository, model):
    add_model(repository, "reader", CONFIG + parameter("task", "echo"), versions=("1",))
    add_model(repository, "encoder", CONFIG + parameter("task", "embedding"), versions=("1",))

    def start(*words, **options):
        backends = RequestBackend(model.execute).registry()
        return running_server(
            repository, backends=backends, trace_config=trace_settings(*words), **options
        )

    return start


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


@pytest.fixture
def to_file(serve, path):
    return lambda **options: serve(f"triton,file={path}", "level=TIMESTAMPS", "rate=1", **options)


@pytest.fixture
def collector():
    made = SpanCollector()
    yield made
    made.close()


@pytest.fixture
def to_collector(serve, collector):
    return lambda rate=1, **options: serve(
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        f"rate={rate}",
        f"opentelemetry,url={collector.url}",
        "opentelemetry,bsp_schedule_delay=1",
        **options,
    )


def ask_over_tcp(server, **question):
    with socket.create_connection(("127.0.0.1", server.server.tcp_port), WAIT_SECS) as client:
        client.sendall(json.dumps(question).encode() + b"\n")
        return client.makefile().readline()


def names(trace):
    return (trace["model_name"], trace["model_version"], trace.get("parent_id"))


QUESTION = {"question": "eel"}
CALLS = [
    ("/v2/models/reader/answer", QUESTION, "reader"),
    ("/answer", QUESTION, "reader"),
    ("/answer?stream=true", QUESTION, "reader"),
    ("/v1/completions", {"model": "reader", "prompt": "eel"}, "reader"),
    ("/v1/completions", {"model": "reader", "prompt": "eel", "stream": True}, "reader"),
    (
        "/v1/chat/completions",
        {"model": "reader", "messages": [{"role": "user", "content": "eel"}]},
        "reader",
    ),
    ("/v1/embeddings", {"model": "encoder", "input": "eel"}, "encoder"),
]


@pytest.mark.parametrize(("route", "body", "name"), CALLS)
def test_a_call_and_the_request_in_it_are_in_the_file(to_file, path, route, body, name):
    with to_file() as running:
        assert running.post(route, body).status == 200
    call, inner = by_id(path)
    assert names(call) == (name, 1, None)
    assert names(inner) == (name, 1, call["id"])
    assert sorted(call["events"]) == sorted(OVER_HTTP)
    assert sorted(inner["events"]) == sorted(INNER)


@pytest.mark.parametrize(("route", "body", "name"), CALLS)
def test_a_call_continues_the_trace_of_its_caller(to_collector, collector, route, body, name):
    with to_collector(rate=0) as running:
        assert running.post(route, body).status == 200  # not sampled: no caller asks for it
        assert running.post(route, body, CALLER).status == 200
        whole, call, inner, compute = collector.take(4)
    assert {span["traceId"] for span in (whole, call, inner, compute)} == {
        CALLER["traceparent"][3:35]
    }
    assert whole["name"] == "InferRequest"
    assert whole["parentSpanId"] == CALLER["traceparent"][36:52]
    assert (call["name"], call["parentSpanId"]) == (name, whole["spanId"])
    assert (inner["name"], inner["parentSpanId"]) == (name, call["spanId"])
    assert (compute["name"], compute["parentSpanId"]) == ("compute", inner["spanId"])
    assert collector.spans.empty()


@pytest.mark.parametrize("question", [{"model": "reader", **QUESTION}, QUESTION])
def test_a_question_over_tcp_is_in_the_file(to_file, path, question):
    with to_file(tcp_port=0) as running:
        assert ask_over_tcp(running, **question) == "eel\n"
    call, inner = by_id(path)
    assert names(call) == ("reader", 1, None)
    assert names(inner) == ("reader", 1, call["id"])
    assert call["events"] == OVER_TCP
    assert sorted(inner["events"]) == sorted(INNER)


def test_a_question_over_tcp_makes_spans(to_collector, collector):
    with to_collector(tcp_port=0) as running:
        assert ask_over_tcp(running, **QUESTION) == "eel\n"
        whole, call, inner, _ = collector.take(4)
    assert [event["name"] for event in whole["events"]] == [*OVER_TCP[:2], *OVER_TCP[4:]]
    assert (call["name"], call["parentSpanId"]) == ("reader", whole["spanId"])
    assert (inner["name"], inner["parentSpanId"]) == ("reader", call["spanId"])


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/answer", {"question": "eel pike cod"}),
        ("/v1/completions", {"model": "reader", "prompt": "eel", "n": 3}),
    ],
)
def test_several_requests_of_one_call_have_the_same_parent(to_file, path, route, body):
    with to_file() as running:
        assert running.post(route, body).status == 200
    call, *inner = by_id(path)
    assert [names(one) for one in inner] == [("reader", 1, call["id"])] * 3


def test_a_failed_call_is_marked(to_collector, collector):
    with to_collector() as running:
        assert running.post("/answer", {"question": "wrong"}).status == 400
        whole, call = collector.take(2)
        assert whole["status"]["code"] == 2
        assert "HTTP status" not in whole["status"]["message"]
        assert call["status"] == {"code": 2, "message": "this question is wrong"}


def test_a_refused_call_is_traced(to_file, path):
    with to_file(tcp_port=0) as running:
        assert running.post("/v2/models/encoder/answer", QUESTION).status == 400
        assert ask_over_tcp(running, model="encoder", **QUESTION).startswith("error: ")
    refused, over_tcp = by_id(path)
    assert refused["events"] == [*OVER_HTTP[:2], *OVER_HTTP[-2:]]
    assert over_tcp["events"] == [*OVER_TCP[:2], *OVER_TCP[-2:]]


@pytest.mark.parametrize("protocol", ["http", "tcp"])
def test_a_client_that_disconnects(to_file, path, model, protocol):
    with to_file(tcp_port=0) as running:
        server = running.server
        port = server.http_port if protocol == "http" else server.tcp_port
        with socket.create_connection(("127.0.0.1", port), WAIT_SECS) as client:
            body = b'{"question": "wait"}'
            head = b"POST /answer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            client.sendall((head if protocol == "http" else b"") + body)
            assert model.waiting.wait(WAIT_SECS)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset
        wait_until(path.exists)
    call, inner = by_id(path)
    assert names(call) == ("reader", 1, None)
    assert names(inner) == ("reader", 1, call["id"])
    assert not [name for name in call["events"] if "SEND" in name]


def test_only_the_settings_of_the_model_count(to_file, path):
    with to_file() as running:
        off = {"trace_level": ["OFF"]}
        assert running.post("/v2/models/reader/trace/setting", off).status == 200
        assert running.post("/answer", QUESTION).status == 200
        assert running.post("/v1/embeddings", {"model": "encoder", "input": "eel"}).status == 200
    assert [trace["model_name"] for trace in by_id(path)] == ["encoder", "encoder"]
