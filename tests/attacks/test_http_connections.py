"""Clients that hold connections and memory: too many, too slow, sent ahead, or never read."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time

import grpc
import pytest

from tests.attacks.conftest import INFER, Neighbour, request, server_cpu_secs
from tests.support.fakes import WAIT_SECS

MIB = 1 << 20


def connect(port):
    return socket.create_connection(("127.0.0.1", port), WAIT_SECS)


def read_all(client):
    received = b""
    while piece := client.recv(1 << 16):
        received += piece
    return received


def test_one_address_may_have_only_so_many_connections(serve):
    server = serve("--max-connections-per-address=6")
    neighbour = Neighbour(server)  # has two of them
    neighbour.check()
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connect(server.http_port))
        refused = stack.enter_context(connect(server.http_port))
        answer = read_all(refused)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in answer
        assert b"--max-connections-per-address" in answer
        own = (("grpc.use_local_subchannel_pool", 1),)  # not the neighbour's connection
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", own) as channel:
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary(INFER)(request(1), timeout=WAIT_SECS)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        neighbour.check()
    neighbour.stop()


def test_a_thousand_connections_beyond_the_limit_harm_nobody(serve):
    server = serve("--max-connections=50")
    neighbour = Neighbour(server)
    neighbour.check()
    before = server_cpu_secs(server)
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(connect(server.http_port))
        neighbour.check()
    cpu_secs = server_cpu_secs(server) - before
    neighbour.check()
    print(f"{cpu_secs:.2f} s of CPU, longest wait {neighbour.longest_secs:.3f} s")
    assert cpu_secs < 1 + 0.25
    neighbour.stop()


def test_a_body_that_trickles_in_is_refused(serve):
    server = serve("--http-body-timeout-secs=1", "--http-min-rate=1000")
    neighbour = Neighbour(server)
    with connect(server.http_port) as client:
        client.sendall(b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        client.settimeout(0.05)  # between two bytes, until there is an answer
        answer = b""
        while not answer:
            with contextlib.suppress(BrokenPipeError):
                client.send(b"x")
            with contextlib.suppress(TimeoutError):
                answer = client.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"--http-min-rate" in answer
    neighbour.check()
    neighbour.stop()


def test_bodies_that_never_end_have_a_common_budget(serve):
    server = serve(f"--max-buffered-bytes={64 * MIB}")
    neighbour = Neighbour(server)
    neighbour.check()
    start = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    resident = server.resident_bytes
    refused = 0
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(connect(server.http_port))
            with contextlib.suppress(ConnectionError):
                client.sendall(start % (32 * MIB) + bytes(16 * MIB))
                client.settimeout(0.3)
                with contextlib.suppress(TimeoutError):
                    refused += client.recv(1 << 16).startswith(b"HTTP/1.1 503 ")
        assert refused >= 15
        grown = server.resident_bytes - resident
        neighbour.check()
    print(f"{grown / MIB:.0f} MiB more")
    assert grown < 2 * 64 * MIB
    neighbour.stop()


def test_responses_that_nobody_reads_have_a_common_budget(serve):
    server = serve(f"--max-buffered-bytes={64 * MIB}")
    neighbour = Neighbour(server)
    neighbour.check()
    entry = {"name": "count", "datatype": "INT64", "shape": [1], "data": [16 * MIB]}
    body = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    head = b"POST /v2/models/large/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    resident = server.resident_bytes
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(connect(server.http_port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(head % len(body) + body)
            assert client.recv(1), "the response has begun"
        neighbour.check()
        grown = server.resident_bytes - resident
    print(f"{grown / MIB:.0f} MiB more")
    assert grown < 3 * 64 * MIB
    neighbour.check()
    neighbour.stop()


@pytest.mark.parametrize(("path", "count"), [("/v2/models/stats", 5_000), ("/nothing", 20_000)])
def test_requests_sent_ahead_stall_nobody(server, neighbour, path, count):
    """Thousands in one go are answered in many turns; in between, others are served."""
    neighbour.check()
    one = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    asked = neighbour.asked
    before = server_cpu_secs(server)
    answered = 0
    with connect(server.http_port) as client:
        client.setblocking(False)
        unsent = memoryview(one * count)
        deadline = time.monotonic() + WAIT_SECS
        while answered < count and time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                unsent = unsent[client.send(unsent) :] if unsent else unsent
            with contextlib.suppress(BlockingIOError):
                answered += client.recv(1 << 20).count(b"HTTP/1.1 ")
    cpu_secs = server_cpu_secs(server) - before
    print(f"{cpu_secs / count * 1e6:.0f} us each, {neighbour.asked - asked} answers meanwhile")
    assert answered >= count - 50  # a few status lines are cut by our own reads
    assert neighbour.asked - asked >= 3
    neighbour.check()


def test_a_client_with_all_connections_does_not_stop_the_metrics(serve):
    server = serve("--max-connections=4")
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(connect(server.http_port))
        line = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=WAIT_SECS)
        line.request("GET", "/metrics")
        assert line.getresponse().status == 200
        line.close()
