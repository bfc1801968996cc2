"""Clients that are slow, broken, greedy or gone, on real sockets and both kinds of loop."""

import gc
import http.client
import json
import socket
import struct
import threading
import tracemalloc
import weakref

import pytest

from shoal.frontends.http.exchange import ConnectionExchange
from shoal.testing import WAIT_SECS
from tests.support.http_listener import HOST, HeldApplication, connect, read_all

SOON_SECS = 0.1


def refusal(client: socket.socket) -> tuple[int, str]:
    """The status and text of an error, after which the server must end the connection."""
    head, _, body = read_all(client).partition(b"\r\n\r\n")
    assert b"\r\nConnection: close" in head
    assert b"\r\nContent-Type: application/json" in head
    assert b"\r\nContent-Length: %d" % len(body) in head
    return int(head.split(b" ")[1]), json.loads(body)["error"]


def reset(client: socket.socket) -> None:
    """Leave without a word, as a process that was killed does."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def leave(client: socket.socket) -> None:
    client.close()


def never(exchange: ConnectionExchange) -> None:
    raise AssertionError("no request was to reach the application")


# --- slow clients ------------------------------------------------------------------------------


def test_a_head_that_does_not_end_is_refused(http_listener):
    port = http_listener.start(never, head_timeout_secs=SOON_SECS)
    with connect(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost:")
        assert refusal(client) == (408, "the request head did not arrive within 0.1 seconds")
    http_listener.wait_until_empty()


@pytest.mark.parametrize("framing", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
def test_a_body_that_stops_is_refused(http_listener, framing):
    port = http_listener.start(never, body_idle_timeout_secs=SOON_SECS)
    with connect(port) as client:
        client.sendall(b"POST /" + HOST + framing + b"\r\n\r\n1")
        assert refusal(client) == (408, "nothing of the request body arrived for 0.1 seconds")
    http_listener.wait_until_empty()


@pytest.mark.parametrize("first", [b"", b"GET /" + HOST + b"\r\n"])
def test_an_idle_connection_is_closed(http_listener, first):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"
    port = http_listener.start(
        lambda exchange: exchange.respond(200), keepalive_idle_secs=SOON_SECS
    )

    def ask() -> socket.socket:
        client = connect(port)
        client.sendall(first)
        return client

    with http_listener.call(ask) as client:  # on the loop: it sees the connection when all was sent
        assert read_all(client).startswith(answer if first else b"")
    http_listener.wait_until_empty()


@pytest.mark.parametrize("connection", [b"", b"Connection: close\r\n"])
def test_a_client_that_stops_reading_a_response_is_cut(http_listener, connection):
    answered = threading.Event()

    def handle(exchange: ConnectionExchange) -> None:
        exchange.respond(200, (), [memoryview(bytes(64 << 20))])
        answered.set()

    port = http_listener.start(handle, write_stall_secs=SOON_SECS)
    with connect(port) as client:
        client.sendall(b"GET /" + HOST + connection + b"\r\n")
        assert answered.wait(WAIT_SECS)
        http_listener.wait_until_empty()


def test_a_client_that_stops_reading_a_stream_is_cut_off_and_reported(http_listener):
    held = HeldApplication()
    port = http_listener.start(held, write_stall_secs=SOON_SECS)
    with connect(port) as client:
        client.sendall(b"GET /" + HOST + b"\r\n")
        exchange = held.wait()
        http_listener.call(exchange.start_stream, 200)
        while http_listener.call(lambda: exchange.writable):
            http_listener.call(exchange.send_chunk, bytes(1 << 20))
        held.wait_for_disconnect()
        http_listener.wait_until_empty()


# --- clients that go away ----------------------------------------------------------------------


@pytest.mark.parametrize("go", [leave, reset])
def test_disconnecting_while_the_request_is_in_flight_is_reported(http_listener, go):
    held = HeldApplication()
    port = http_listener.start(held)
    client = connect(port)
    client.sendall(b"GET /" + HOST + b"\r\n")
    exchange = held.wait()
    go(client)
    held.wait_for_disconnect()
    http_listener.call(exchange.respond, 200, (), [b"nobody hears this"])
    http_listener.wait_until_empty()
    assert not held.disconnected.acquire(blocking=False)  # told once


@pytest.mark.parametrize("go", [leave, reset])
def test_disconnecting_mid_response_is_reported(http_listener, go):
    held = HeldApplication()
    port = http_listener.start(held)
    client = connect(port)
    client.sendall(b"GET /" + HOST + b"\r\n")
    exchange = held.wait()
    http_listener.call(exchange.start_stream, 200)
    http_listener.call(exchange.send_chunk, b"first")
    received = b""
    while b"first" not in received:
        received += client.recv(1000)
    go(client)
    held.wait_for_disconnect()
    http_listener.call(exchange.send_chunk, b"second")
    http_listener.call(exchange.end_stream)
    http_listener.wait_until_empty()


@pytest.mark.parametrize("go", [leave, reset])
@pytest.mark.parametrize("size", [1000, 10_000_000])
def test_disconnecting_mid_body_leaves_nothing_behind(http_listener, go, size):
    port = http_listener.start(never)
    client = connect(port)
    client.sendall(
        b"POST /" + HOST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\nhalf" % size
    )
    assert b"100 Continue" in client.recv(1000)
    (connection,) = http_listener.call(lambda: list(http_listener.listener._state.connections))
    body = connection._reader._body
    assert body is not None
    go(client)
    http_listener.wait_until_empty()
    assert connection._reader._body is None
    assert connection._reader.target is None


def test_an_exchange_is_freed_when_its_client_disconnects(http_listener):
    """Memory goes with the last reference: no timer, task or table keeps a request."""
    bodies = []
    arrived, left = threading.Event(), threading.Event()
    kept = []

    def handle(exchange: ConnectionExchange) -> None:
        bodies.append(weakref.ref(exchange.request.body))
        exchange.on_disconnect = lambda: (kept.remove(exchange), left.set())
        kept.append(exchange)
        arrived.set()

    port = http_listener.start(handle)
    client = connect(port)
    client.sendall(b"POST /" + HOST + b"Content-Length: 100000\r\n\r\n" + bytes(100_000))
    assert arrived.wait(WAIT_SECS)
    gc.disable()
    try:
        client.close()
        assert left.wait(WAIT_SECS)
        http_listener.wait_until_empty()
        assert bodies[0]() is None
    finally:
        gc.enable()


def test_half_a_request_is_refused_when_the_client_still_reads(http_listener):
    port = http_listener.start(never)
    with connect(port) as client:
        client.sendall(b"POST /" + HOST + b"Content-Length: 10\r\n\r\nhalf")
        client.shutdown(socket.SHUT_WR)
        assert refusal(client) == (400, "the connection ended before the request did")
    http_listener.wait_until_empty()


# --- broken and greedy clients -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        (400, b"hello\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\n\r\n"),
        (400, b"GET / HTTP/1.1\nHost: x\n\n"),
        (400, b"POST /" + HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
        (400, b"POST /" + HOST + b"Content-Length: five\r\n\r\nhello"),
        (400, b"POST /" + HOST + b"Transfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n"),
        (400, b"POST /" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 65_537),
        (413, b"POST /" + HOST + b"Content-Length: 10000000000\r\n\r\n"),
        (414, b"GET /" + b"a" * 9000 + HOST + b"\r\n"),
        (417, b"POST /" + HOST + b"Expect: luck\r\nContent-Length: 5\r\n\r\nhello"),
        (431, b"GET /" + HOST + b"A: b\r\n" * 300 + b"\r\n"),
        (431, b"GET /" + HOST + b"A: " + b"b" * 70_000 + b"\r\n\r\n"),
        (501, b"POST /" + HOST + b"Transfer-Encoding: gzip\r\n\r\n"),
        (501, b"BREW /" + HOST + b"\r\n"),
        (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ],
)
def test_what_is_broken_is_refused_with_a_sentence(http_listener, status, sent):
    port = http_listener.start(never)
    with connect(port) as client:
        client.sendall(sent)
        refused, text = refusal(client)
        assert refused == status
        assert len(text.split()) > 3
    http_listener.wait_until_empty()


def test_the_response_before_a_broken_request_arrives_first(http_listener):
    port = http_listener.start(lambda exchange: exchange.respond(200, (), [b"fine"]))
    with connect(port) as client:
        client.sendall(b"GET /" + HOST + b"\r\nnonsense\r\n\r\n" + bytes(100_000))
        received = read_all(client)
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"fineHTTP/1.1 400 Bad Request\r\n" in received


def test_a_refusal_reaches_a_client_that_sends_all_before_it_reads(http_listener):
    port = http_listener.start(never, max_body_bytes=1000)
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECS)
    client.request("POST", "/", body=bytes(8 << 20))
    response = client.getresponse()
    assert response.status == 413
    assert "1000 bytes" in json.loads(response.read())["error"]
    client.close()
    http_listener.wait_until_empty()


def test_a_refused_client_that_stays_is_cut(http_listener):
    port = http_listener.start(never, linger_secs=SOON_SECS)
    with connect(port) as client:
        client.sendall(b"nonsense\r\n\r\n")
        http_listener.wait_until_empty()


def test_a_claimed_length_alone_takes_no_memory(http_listener):
    port = http_listener.start(never, max_body_bytes=None, max_buffered_bytes=1 << 40)
    tracemalloc.start()
    try:
        with connect(port) as client:
            client.sendall(
                b"POST /" + HOST + b"Expect: 100-continue\r\nContent-Length: 10000000000\r\n\r\n"
            )
            assert b"100 Continue" in client.recv(1000)
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    http_listener.wait_until_empty()


def test_pipelining_without_reading_is_bounded(http_listener):
    """A client that only writes is answered a little, then its requests stay in the kernel."""
    served = []

    def handle(exchange: ConnectionExchange) -> None:
        served.append(1)
        exchange.respond(200, (), [bytes(60_000)])

    port = http_listener.start(handle, write_stall_secs=SOON_SECS)
    with connect(port) as client:
        client.settimeout(SOON_SECS)
        with pytest.raises(OSError, match=r".+"):
            client.sendall((b"GET /" + HOST + b"\r\n") * 1_000_000)
        http_listener.wait_until_empty()
    assert len(served) < 1000
