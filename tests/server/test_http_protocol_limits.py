"""Clients that are slow, broken, greedy or gone, on real sockets and both kinds of loop."""

import asyncio
import gc
import http.client
import json
import socket
import struct
import threading
import tracemalloc
import weakref

import pytest

from shoal.frontends.http.exchange import Exchange
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.listener import HttpListener
from tests.support.fakes import WAIT_SECS as PATIENCE_SECS

HOST = b" HTTP/1.1\r\nHost: x\r\n"
SOON_SECS = 0.1


class Server:
    """A listener on a loop of its own in a thread of its own, so that tests may block."""

    def __init__(self, kind: str) -> None:
        uvloop = pytest.importorskip("uvloop") if kind == "uvloop" else None
        self.loop = uvloop.new_event_loop() if uvloop else asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.listener: HttpListener | None = None
        self.faults: list[dict] = []
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))

    def call(self, function, *arguments):
        async def called():
            return function(*arguments)

        return self.await_(called())

    def await_(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_SECS)

    def start(self, handle, **limits) -> int:
        self.listener = HttpListener(handle, HttpLimits(**limits))
        return self.await_(self.listener.start("127.0.0.1", 0))

    def wait_until_empty(self) -> None:
        """Until every connection is gone."""
        gone = threading.Event()
        state = self.listener._state
        told = state.on_empty

        def empty() -> None:
            told()
            gone.set()

        def watch() -> None:
            state.on_empty = empty
            if not state.connections:
                gone.set()

        self.call(watch)
        assert gone.wait(PATIENCE_SECS), "a connection was left behind"
        self.call(lambda: None)  # what told of it has returned, and holds nothing any more

    def stop(self) -> None:
        async def finish() -> None:
            self.listener.stop_accepting()
            self.listener.abort_all()
            assert await self.listener.drain(PATIENCE_SECS)
            assert self.listener._timer is None
            me = asyncio.current_task()
            assert [task for task in asyncio.all_tasks() if task is not me] == []

        try:
            self.await_(finish())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()
        assert self.faults == []


@pytest.fixture(params=["asyncio", "uvloop"])
def server(request):
    running = Server(request.param)
    yield running
    running.stop()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECS)


def read_all(client: socket.socket) -> bytes:
    received = b""
    while piece := client.recv(1 << 16):
        received += piece
    return received


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


class Held:
    """An application that keeps its exchanges, and events for what happens to them."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.arrived = threading.Semaphore(0)
        self.left = threading.Semaphore(0)

    def __call__(self, exchange: Exchange) -> None:
        exchange.on_disconnect = self.left.release
        self.exchanges.append(exchange)
        self.arrived.release()

    def wait(self) -> Exchange:
        assert self.arrived.acquire(timeout=PATIENCE_SECS)
        return self.exchanges[-1]

    def wait_left(self) -> None:
        assert self.left.acquire(timeout=PATIENCE_SECS)


def never(exchange: Exchange) -> None:
    raise AssertionError("no request was to reach the application")


# --- slow clients ------------------------------------------------------------------------------


def test_a_head_that_does_not_end_is_refused(server):
    port = server.start(never, head_timeout_secs=SOON_SECS)
    with connect(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost:")
        assert refusal(client) == (408, "the request head did not arrive within 0.1 seconds")
    server.wait_until_empty()


@pytest.mark.parametrize("framing", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
def test_a_body_that_stops_is_refused(server, framing):
    port = server.start(never, body_idle_timeout_secs=SOON_SECS)
    with connect(port) as client:
        client.sendall(b"POST /" + HOST + framing + b"\r\n\r\n1")
        assert refusal(client) == (408, "nothing of the request body arrived for 0.1 seconds")
    server.wait_until_empty()


@pytest.mark.parametrize("first", [b"", b"GET /" + HOST + b"\r\n"])
def test_an_idle_connection_is_closed(server, first):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"
    port = server.start(lambda exchange: exchange.respond(200), keepalive_idle_secs=SOON_SECS)

    def ask() -> socket.socket:
        client = connect(port)
        client.sendall(first)
        return client

    with server.call(ask) as client:  # on the loop: it sees the connection when all was sent
        assert read_all(client).startswith(answer if first else b"")
    server.wait_until_empty()


@pytest.mark.parametrize("connection", [b"", b"Connection: close\r\n"])
def test_a_client_that_stops_reading_a_response_is_cut(server, connection):
    answered = threading.Event()

    def handle(exchange: Exchange) -> None:
        exchange.respond(200, (), [memoryview(bytes(64 << 20))])
        answered.set()

    port = server.start(handle, write_stall_secs=SOON_SECS)
    with connect(port) as client:
        client.sendall(b"GET /" + HOST + connection + b"\r\n")
        assert answered.wait(PATIENCE_SECS)
        server.wait_until_empty()


def test_a_client_that_stops_reading_a_stream_is_cut_and_the_application_told(server):
    held = Held()
    port = server.start(held, write_stall_secs=SOON_SECS)
    with connect(port) as client:
        client.sendall(b"GET /" + HOST + b"\r\n")
        exchange = held.wait()
        server.call(exchange.start_stream, 200)
        while server.call(lambda: exchange.writable):
            server.call(exchange.send_chunk, bytes(1 << 20))
        held.wait_left()
        server.wait_until_empty()


# --- clients that go away ----------------------------------------------------------------------


@pytest.mark.parametrize("go", [leave, reset])
def test_leaving_while_the_request_is_in_flight_is_told(server, go):
    held = Held()
    port = server.start(held)
    client = connect(port)
    client.sendall(b"GET /" + HOST + b"\r\n")
    exchange = held.wait()
    go(client)
    held.wait_left()
    assert exchange.disconnected
    server.call(exchange.respond, 200, (), [b"nobody hears this"])
    server.wait_until_empty()
    assert not held.left.acquire(blocking=False)  # told once


@pytest.mark.parametrize("go", [leave, reset])
def test_leaving_mid_response_is_told(server, go):
    held = Held()
    port = server.start(held)
    client = connect(port)
    client.sendall(b"GET /" + HOST + b"\r\n")
    exchange = held.wait()
    server.call(exchange.start_stream, 200)
    server.call(exchange.send_chunk, b"first")
    received = b""
    while b"first" not in received:
        received += client.recv(1000)
    go(client)
    held.wait_left()
    server.call(exchange.send_chunk, b"second")
    server.call(exchange.end_stream)
    server.wait_until_empty()


@pytest.mark.parametrize("go", [leave, reset])
@pytest.mark.parametrize("size", [1000, 10_000_000])
def test_leaving_mid_body_leaves_nothing_behind(server, go, size):
    port = server.start(never)
    client = connect(port)
    client.sendall(
        b"POST /" + HOST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\nhalf" % size
    )
    assert b"100 Continue" in client.recv(1000)
    (connection,) = server.call(lambda: list(server.listener._state.connections))
    body = connection._reader._body
    assert body is not None
    go(client)
    server.wait_until_empty()
    assert connection._reader._body is None
    assert connection._reader.target is None


def test_an_exchange_is_freed_when_its_client_leaves(server):
    """Memory goes with the last reference: no timer, task or table keeps a request."""
    bodies = []
    arrived, left = threading.Event(), threading.Event()
    kept = []

    def handle(exchange: Exchange) -> None:
        bodies.append(weakref.ref(exchange.request.body))
        exchange.on_disconnect = lambda: (kept.remove(exchange), left.set())
        kept.append(exchange)
        arrived.set()

    port = server.start(handle)
    client = connect(port)
    client.sendall(b"POST /" + HOST + b"Content-Length: 100000\r\n\r\n" + bytes(100_000))
    assert arrived.wait(PATIENCE_SECS)
    gc.disable()
    try:
        client.close()
        assert left.wait(PATIENCE_SECS)
        server.wait_until_empty()
        assert bodies[0]() is None
    finally:
        gc.enable()


def test_half_a_request_is_answered_where_somebody_still_reads(server):
    port = server.start(never)
    with connect(port) as client:
        client.sendall(b"POST /" + HOST + b"Content-Length: 10\r\n\r\nhalf")
        client.shutdown(socket.SHUT_WR)
        assert refusal(client) == (400, "the connection ended before the request did")
    server.wait_until_empty()


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
def test_what_is_broken_is_refused_with_a_sentence(server, status, sent):
    port = server.start(never)
    with connect(port) as client:
        client.sendall(sent)
        refused, text = refusal(client)
        assert refused == status
        assert len(text.split()) > 3
    server.wait_until_empty()


def test_the_answer_before_a_broken_request_arrives_first(server):
    port = server.start(lambda exchange: exchange.respond(200, (), [b"fine"]))
    with connect(port) as client:
        client.sendall(b"GET /" + HOST + b"\r\nnonsense\r\n\r\n" + bytes(100_000))
        received = read_all(client)
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"fineHTTP/1.1 400 Bad Request\r\n" in received


def test_a_refusal_reaches_a_client_that_sends_all_before_it_reads(server):
    port = server.start(never, max_body_bytes=1000)
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECS)
    client.request("POST", "/", body=bytes(8 << 20))
    response = client.getresponse()
    assert response.status == 413
    assert "1000 bytes" in json.loads(response.read())["error"]
    client.close()
    server.wait_until_empty()


def test_a_refused_client_that_stays_is_cut(server):
    port = server.start(never, linger_secs=SOON_SECS)
    with connect(port) as client:
        client.sendall(b"nonsense\r\n\r\n")
        server.wait_until_empty()


def test_a_claimed_length_alone_takes_no_memory(server):
    port = server.start(never, max_body_bytes=None)
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
    server.wait_until_empty()


def test_pipelining_without_reading_is_bounded(server):
    """A client that only writes is answered a little, then its requests stay in the kernel."""
    served = []

    def handle(exchange: Exchange) -> None:
        served.append(1)
        exchange.respond(200, (), [bytes(60_000)])

    port = server.start(handle, write_stall_secs=SOON_SECS)
    with connect(port) as client:
        client.settimeout(SOON_SECS)
        with pytest.raises(OSError, match=r".+"):
            client.sendall((b"GET /" + HOST + b"\r\n") * 1_000_000)
        server.wait_until_empty()
    assert len(served) < 1000
