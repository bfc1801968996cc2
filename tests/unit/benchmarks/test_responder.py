"""The program that answers at once, with the load generator that measures it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time

import pytest
from benchmarks.environments import Unavailable
from benchmarks.loads import open_loop, wrk
from benchmarks.loads.program import compiled
from benchmarks.peers import base, responder
from benchmarks.workloads import WORKLOADS

WORKLOAD = WORKLOADS["tails"]
RESPONSE = responder.response(WORKLOAD)


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    folder = tmp_path_factory.mktemp("responder")
    try:
        program = compiled(responder._SOURCE, folder)
    except Unavailable as error:
        pytest.skip(str(error))
    file = folder / "response.bin"
    file.write_bytes(RESPONSE)
    (port,) = base.free_ports(1)
    with subprocess.Popen([program, str(port), str(file)]) as process:
        try:
            _wait_until_it_listens(port)
            yield port
        finally:
            process.terminate()


def _wait_until_it_listens(port):
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < until


@pytest.fixture
def client(port):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client


def received(client, count):
    data = b""
    while len(data) < count * len(RESPONSE):
        data += client.recv(1 << 16)
    return data


def test_the_response_is_the_right_one(port):
    peer = responder.Responder()
    (target,) = peer.targets(WORKLOAD, [port, 0, 0])
    body_bytes = target.ask(WORKLOAD)  # raises if not
    assert RESPONSE.endswith(b"\r\n\r\n" + RESPONSE[-body_bytes:])


def test_a_request_in_pieces_is_answered_once_it_is_complete(client):
    client.sendall(b"POST / HTTP/1.1\r\ncontent-LENGTH: 4\r\n\r\nab")
    client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(30)
    client.sendall(b"cd")
    assert received(client, 1) == RESPONSE


def test_requests_at_once_are_answered_one_by_one(client):
    client.sendall(b"GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nok" * 3)
    assert received(client, 6) == RESPONSE * 6


def test_a_request_that_is_too_large_ends_the_connection(client):
    with contextlib.suppress(ConnectionError):  # while it is still being sent
        client.sendall(b"x" * (1 << 20))
    with contextlib.suppress(ConnectionError):
        assert client.recv(1) == b""


def test_it_gets_the_rate_of_shoal_and_the_equal_rate():
    from benchmarks import bench

    results = bench.Results()
    for peer, turn, rate in (
        ("shoal", 0, 1_000),
        ("triton-onnx", 0, 300),
        ("shoal", 1, 2_000),
    ):
        results.measurements.append(
            {
                "workload": "tails",
                "tool": wrk.NAME,
                "turn": turn,
                "peer": peer,
                "concurrency": 64,
                "per_second": rate,
            }
        )
    share = open_loop.SHARE
    assert bench._rates(WORKLOAD, results, 0, ["shoal"]) == {64: share * 1_000}
    assert bench._rates(WORKLOAD, results, 0, ["shoal", "triton-onnx"]) == {64: share * 300}
    assert bench._rates(WORKLOAD, results, 1, ["shoal", "triton-onnx"]) == {64: share * 2_000}
    assert bench._rates(WORKLOAD, results, 2, ["shoal"]) == {}
