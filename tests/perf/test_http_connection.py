"""HTTP answers of every shape, from a server that follows a script."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, contextmanager, suppress

import pytest

from shoal.perf.connection import Endpoint, LoadError
from shoal.perf.messages import LoadJob
from shoal.perf.poller import SocketPoller
from shoal.perf.requests import Content, RequestLayout, http_head, http_request
from shoal.perf.sequences import SequencePlan
from shoal.perf.worker_pool import LoadLevel, WorkerPool
from tests.support.fakes import WAIT_SECS

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class ScriptedServer:
    """Answers each request on each connection with the same pieces of bytes."""

    def __init__(self, *pieces, close=False):
        self._pieces = pieces
        self._close = close
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def stop(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(WAIT_SECS)

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,))
            thread.start()
            self._threads.append(thread)

    def _serve(self, connection):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pending = b""
        with closing(connection), suppress(ConnectionError):  # the client may leave at any time
            while True:
                while b"}<end>" not in pending:
                    data = connection.recv(65536)
                    if not data:
                        return
                    pending += data
                pending = pending.partition(b"}<end>")[2]
                for piece in self._pieces:
                    connection.sendall(piece)
                if self._close:
                    return


@contextmanager
def load(server, slots=2, **settings):
    """A pool that sends small requests, each of which ends so that the script can tell."""
    layout = RequestLayout("m")
    endpoint = Endpoint("http", "127.0.0.1", server.port, encrypted=False)
    content = Content("A", "UINT8", (5,), b"<end>")
    replay = http_request(http_head(endpoint.authority, layout), layout, [content])
    pool = WorkerPool(LoadJob(endpoint, [[replay]], **settings))
    try:
        yield pool, slots
    finally:
        pool.stop()
        server.stop()


def finish(pool, slots, count=20):
    """Send `count` requests; how many were answered."""
    pool.start(LoadLevel(concurrency=slots, limit=count))
    while True:
        answered, idle = pool.count()
        if idle or answered >= count:
            return len(pool.end_window().ends)


@pytest.mark.parametrize(
    "pieces",
    [
        [OK],
        [OK[:10], OK[10:30], OK[30:]],
        [OK[:-2], OK[-2:]],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", b"lo\r\n0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n", *[b"x" * 30_000] * 10],
    ],
)
def test_whole_answers(pieces):
    with load(ScriptedServer(*pieces)) as (pool, slots):
        assert finish(pool, slots) == 20


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    ],
)
def test_connections_that_close_are_opened_again(answer):
    server = ScriptedServer(answer, close=True)
    with load(server) as (pool, slots):
        assert finish(pool, slots) == 20
    assert server.connections >= 20


@pytest.mark.parametrize(
    ("pieces", "close", "words"),
    [
        (
            [b'HTTP/1.1 503 Busy\r\nContent-Length: 17\r\n\r\n{"error":"later"}'[:-1], b"}"],
            False,
            "refused a request with status 503",
        ),
        ([b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone"], False, "status 404: gone"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], False, "not an HTTP response"),
        ([OK + b"!"], False, "more than"),
        ([b""], True, "closed the connection"),
        ([OK[:-1]], True, "closed the connection"),
    ],
)
def test_answers_that_end_the_load(pieces, close, words):
    with load(ScriptedServer(*pieces, close=close)) as (pool, slots):
        with pytest.raises(LoadError, match=words):
            finish(pool, slots)
        with pytest.raises(LoadError, match=words):  # and it stays that way
            pool.drain()


REFUSED = b'HTTP/1.1 503 No\r\nContent-Length: 20\r\n\r\n{"error": "not now"}'


@pytest.mark.parametrize(
    ("pieces", "close", "reason"),
    [
        ([REFUSED], False, "not now"),
        ([b"HTTP/1.1 200 OK\r\n"], True, "closed the connection"),
        ([b"nonsense"], False, "not an HTTP response"),
    ],
)
def test_failures_are_counted_where_that_is_wanted(pieces, close, reason):
    server = ScriptedServer(*pieces, close=close)
    with load(server, 3, tolerant=True, sequences=SequencePlan()) as (pool, slots):
        pool.start(LoadLevel(concurrency=slots, each=4))
        while not pool.count()[1]:
            pass
        measured = pool.end_window()
    ((found, count),) = measured.failures.items()
    assert reason in found
    assert (count, len(measured.ends)) == (12, 0)


def test_each_slot_sends_the_same_number():
    with load(ScriptedServer(OK), 3, tolerant=True, sequences=SequencePlan()) as (pool, slots):
        for _ in range(2):
            pool.start(LoadLevel(concurrency=slots, each=4))
            while not pool.count()[1]:
                pass
            assert len(pool.end_window().ends) == 12


def test_a_server_that_goes_away_before_it_is_reached():
    server = ScriptedServer(OK)
    server.stop()
    layout = RequestLayout("m")
    endpoint = Endpoint("http", "127.0.0.1", server.port, encrypted=False)
    replay = http_request(http_head(endpoint.authority, layout), layout, [])
    pool = WorkerPool(LoadJob(endpoint, [[replay]]))
    try:
        with pytest.raises(LoadError, match="no server answers at"):
            finish(pool, 1)
    finally:
        pool.stop()


def test_systems_whose_pipes_cannot_be_waited_for(monkeypatch):
    monkeypatch.setattr("shoal.perf.worker_pool.PIPES_ARE_POLLABLE", False)
    monkeypatch.setattr("shoal.perf.poller.make", SocketPoller)
    with load(ScriptedServer(OK)) as (pool, slots):
        assert finish(pool, slots) == 20
