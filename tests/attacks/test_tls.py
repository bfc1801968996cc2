"""Clients that begin TLS and do not go on, that send something else, or want to begin again."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess

import pytest

from tests.attacks.conftest import AttackedServer, Neighbour, server_cpu_secs
from tests.support.http_listener import connect, read_all


def hello():
    """The bytes with which a client begins."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.fixture(scope="module")
def trust(certificates):
    return ssl.create_default_context(cafile=str(certificates / "root.pem"))


@pytest.fixture(scope="module")
def encrypted(certificates):
    """The options of a server that speaks HTTPS."""
    return (f"--https-cert={certificates}/own.pem", f"--https-key={certificates}/own.key")


@pytest.fixture(scope="module")
def server(tmp_path_factory, encrypted):
    """A server with HTTPS that all attacks share."""
    attacked = AttackedServer(tmp_path_factory.mktemp("attacked"), *encrypted)
    yield attacked
    attacked.stop()


@pytest.fixture
def attacked(server, trust):
    """The server, and its neighbour."""
    neighbour = Neighbour(server, trust)
    neighbour.check()
    yield server, neighbour
    neighbour.stop()


@pytest.mark.parametrize("first", [b"", hello()[:40], hello()], ids=["silent", "part", "hello"])
def test_a_thousand_handshakes_that_stop_harm_nobody(attacked, first):
    server, neighbour = attacked
    before = server_cpu_secs(server)
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            client = stack.enter_context(connect(server.http_port))
            client.sendall(first)
        neighbour.check()
        fresh = Neighbour(server, neighbour._encryption)  # a new client gets its turn, too
        fresh.check()
        fresh.stop()
        cpu_secs = server_cpu_secs(server) - before
    print(f"{cpu_secs:.2f} s of CPU, longest wait {neighbour.longest_secs:.3f} s")
    assert cpu_secs < (3 if first == hello() else 1)  # a thousand handshakes are legitimate work
    neighbour.check()


def test_handshakes_that_stop_are_ended(serve, encrypted):
    server = serve(*encrypted, "--http-head-timeout-secs=0.5")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server.http_port)) for _ in range(3)]
        for client, first in zip(clients, (b"", hello()[:40], hello()), strict=True):
            client.sendall(first)
        for client in clients:
            with contextlib.suppress(ConnectionError):
                read_all(client)  # until the server ends it, and not the time-out of this test


@pytest.mark.parametrize(
    "content",
    [
        b"\x00" * 70_000,
        b"\xff\xfe\xfd",
        b"\x16\x03\x01" + b"\xff" * 70_000,  # a record that is none
        b"\x16\x03\x01\x40\x00" + b"\x01" + b"\x00" * 16_383,  # one that ends within its hello
        b"\x16\x03\x01\x00\x00" * 10_000,  # empty ones
        b"\x80\x2e\x01\x00\x02" + b"\x00" * 60,  # SSL 2
        b"\x15\x03\x01\x00\x02\x01\x00",  # an alert
        b"SSH-2.0-x\r\n",
    ],
    ids=["zeros", "bytes", "garbage", "cut", "empty", "sslv2", "alert", "ssh"],
)
def test_garbage_instead_of_a_hello(attacked, content):
    server, neighbour = attacked
    before = server_cpu_secs(server)
    with connect(server.http_port) as client, contextlib.suppress(OSError):
        client.sendall(content)
        client.shutdown(socket.SHUT_WR)
        read_all(client)
    neighbour.check()
    assert server_cpu_secs(server) - before < 0.25 + 0.75  # with what the neighbour asks meanwhile


def test_renegotiation_is_refused(attacked):
    """Asked for by OpenSSL's own client: Python's does not offer it."""
    server, neighbour = attacked
    words = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.http_port}", "-tls1_2"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as client:
        client.stdin.write(b"R\n")
        client.stdin.flush()
        said = client.stdout.read()  # it ends when the server says no
        client.stdin.close()
    assert b"RENEGOTIATING" in said
    assert b"no renegotiation" in said
    neighbour.check()


def test_handshakes_count_among_the_connections(serve, encrypted, trust):
    server = serve(*encrypted, "--max-connections-per-address=8")
    neighbour = Neighbour(server, trust)  # has two of them
    neighbour.check()
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(connect(server.http_port))
        refused = stack.enter_context(connect(server.http_port))
        with contextlib.suppress(ConnectionError):
            assert refused.recv(1) == b""
        neighbour.check()
    neighbour.stop()
