"""Clients that vanish, stall or read slowly, beside others whose answers must stay right."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest

from shoal.testing.server import wait_until
from shoal.wire.proto import messages
from tests.chaos.checker import WIDTH, Checker
from tests.chaos.faults import connect, reset
from tests.chaos.schedule import long_run, rounds
from tests.support import accounting
from tests.support.raw_grpc import RawGrpc

FUNCTIONS = """
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import shoal


@shoal.model
def large(count: int) -> npt.NDArray[np.uint8]:
    return np.ones(count, np.uint8)


@shoal.model
def endless(start: int) -> Iterator[int]:
    while True:
        yield start
"""
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
LARGE_BYTES = 20_000_000


def infer_message():
    """A gRPC request to the model onnx."""
    made = messages.ModelInferRequest(model_name="onnx")
    made.inputs.add(name="INPUT0", datatype="FP32", shape=[1, WIDTH])
    made.raw_input_contents.append(bytes(4 * WIDTH))
    return made.SerializeToString()


def endless_message():
    """A gRPC request whose responses never end."""
    made = messages.ModelInferRequest(model_name="endless")
    made.inputs.add(name="start", datatype="INT64", shape=[1])
    made.raw_input_contents.append((5).to_bytes(8, "little"))
    return made.SerializeToString()


def http_request(path, document):
    body = json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def infer_request(model, name, datatype, shape, data):
    entry = {"name": name, "datatype": datatype, "shape": shape, "data": data}
    return http_request(f"/v2/models/{model}/infer", {"inputs": [entry]})


SMALL = infer_request("onnx", "INPUT0", "FP32", [1, WIDTH], [1, 2, 3, 4])
LARGE = http_request(
    "/v2/models/large/infer",
    {
        "inputs": [{"name": "count", "datatype": "INT64", "shape": [1], "data": [LARGE_BYTES]}],
        "outputs": [{"name": "output", "parameters": {"binary_data": True}}],
    },
)
EVENTS = http_request("/v2/models/endless/generate_stream", {"start": 1})


def in_the_head(server, leave):
    line = connect(server.http_port)
    line.sendall(SMALL[:20])
    leave(line)


def in_the_body(server, leave):
    line = connect(server.http_port)
    line.sendall(SMALL[:-5])
    leave(line)


def before_the_response(server, leave):
    line = connect(server.http_port)
    line.sendall(SMALL * 3)
    leave(line)


def in_the_response(server, leave):
    line = connect(server.http_port)
    line.sendall(LARGE)
    assert line.recv(1000).startswith(b"HTTP/1.1 200")
    leave(line)


def in_the_events(server, leave):
    line = connect(server.http_port)
    line.sendall(EVENTS)
    assert line.recv(1000).startswith(b"HTTP/1.1 200")
    leave(line)


def in_a_call(server, leave):
    client = RawGrpc(server.grpc_port)
    client.data(client.open(INFER), b"\0\0\0\0\xff" + infer_message()[:10])
    leave(client.socket)


def before_the_end_of_a_call(server, leave):
    client = RawGrpc(server.grpc_port)
    for _ in range(3):
        client.start(INFER, infer_message())
    leave(client.socket)


def in_a_stream(server, leave):
    client = RawGrpc(server.grpc_port)
    client.start(STREAM, endless_message())
    assert client.ping()
    leave(client.socket)


def in_a_stream_that_it_does_not_read(server, leave):
    client = RawGrpc(server.grpc_port, settings={4: 100}, window=0)
    client.start(STREAM, endless_message())
    assert client.ping()
    leave(client.socket)


def close(line):
    line.close()


def half_close(line):
    """The client sends no more, but would read; then it is gone."""
    line.shutdown(socket.SHUT_WR)
    line.settimeout(0.01)
    with contextlib.suppress(OSError):
        line.recv(100)
    line.close()


WHEN = (
    in_the_head,
    in_the_body,
    before_the_response,
    in_the_response,
    in_the_events,
    in_a_call,
    before_the_end_of_a_call,
    in_a_stream,
    in_a_stream_that_it_does_not_read,
)


@pytest.fixture
def server(serve, tmp_path):
    functions = tmp_path / "functions.py"
    functions.write_text(FUNCTIONS)
    return serve("onnx", "python", paths=[functions])


@pytest.mark.parametrize(
    "leave", [reset, *(pytest.param(each, marks=long_run) for each in (close, half_close))]
)
def test_clients_that_leave(server, settled, chance, leave):
    for when in WHEN:  # once, so that all pools have their size
        when(server, leave)
    before = settled(server, "onnx", "python")
    with Checker(server, "python") as checker:
        for _ in rounds(2):
            for when in chance.sample(WHEN, len(WHEN)):
                when(server, leave)
            checker.wait_for_answers(1)
    checker.check()
    wait_until(lambda: not in_progress(server), "all requests have ended")
    server.check_holds_no_more_than(before)
    for entry in server.statistics().values():
        assert not accounting.faults(entry, server.metrics())
    server.checked_stop()


def in_progress(server):
    """Requests that wait for a model."""
    return [
        labels
        for name, labels, value in accounting.samples(server.metrics())
        if name == "nv_inference_pending_request_count" and value
    ]


def test_clients_that_read_slowly(server, settled):
    before = settled(server, "onnx", "python")
    with Checker(server, "onnx", "python") as checker:
        for _ in rounds():
            lines = [connect(server.http_port) for _ in range(5)]
            for line in lines:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                line.sendall(LARGE)
            for _ in range(20):
                for line in lines:
                    assert line.recv(100)
                checker.wait_for_answers(1)
            for line in lines:
                line.close()
    checker.check()
    server.check_holds_no_more_than(before)
    server.checked_stop()
