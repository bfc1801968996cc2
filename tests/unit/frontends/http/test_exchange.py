import gc
import weakref

import numpy as np
import pytest

from shoal.frontends.http.exchange import ConnectionExchange
from shoal.frontends.http.head import parse_head
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import HttpRequest

DATE = b"Date: now\r\n"


class FakeSink:
    peer = "127.0.0.1:9"
    date_line = DATE

    def __init__(self) -> None:
        self.draining = False
        self.writable = True
        self.writes: list[bytes | memoryview] = []
        self.finished: list[bool] = []
        self.aborted = False

    def write(self, data) -> None:
        self.writes.append(data)

    def finish(self, exchange: ConnectionExchange, keep_alive: bool) -> None:
        self.finished.append(keep_alive)

    def abort(self) -> None:
        self.aborted = True

    @property
    def sent(self) -> bytes:
        return b"".join(bytes(data) for data in self.writes)


def exchange(
    line: bytes = b"GET / HTTP/1.1", headers: bytes = b""
) -> tuple[ConnectionExchange, FakeSink]:
    head = parse_head(line + b"\r\nHost: x\r\n" + headers + b"\r\n", HttpLimits())
    sink = FakeSink()
    return ConnectionExchange(HttpRequest(head), sink), sink


@pytest.mark.parametrize(
    ("line", "headers", "draining", "keep_alive", "says"),
    [
        (b"GET / HTTP/1.1", b"", False, True, b""),
        (b"GET / HTTP/1.1", b"Connection: close\r\n", False, False, b"Connection: close\r\n"),
        (b"GET / HTTP/1.1", b"", True, False, b"Connection: close\r\n"),
        (b"GET / HTTP/1.0", b"", False, False, b"Connection: close\r\n"),
        (
            b"GET / HTTP/1.0",
            b"Connection: keep-alive\r\n",
            False,
            True,
            b"Connection: keep-alive\r\n",
        ),
    ],
)
def test_respond_says_what_happens_to_the_connection(line, headers, draining, keep_alive, says):
    answer, sink = exchange(line, headers)
    sink.draining = draining
    answer.respond(200, [(b"A", b"b")], [b"hel", b"lo"])
    head = b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 5\r\n" + DATE + says + b"\r\n"
    assert sink.writes == [head + b"hello"]
    assert sink.finished == [keep_alive]
    assert answer.answered


def test_head_is_answered_with_the_length_and_no_body():
    answer, sink = exchange(b"HEAD / HTTP/1.1")
    answer.respond(200, (), [b"hello", bytes(100_000)])
    assert sink.sent == b"HTTP/1.1 200 OK\r\nContent-Length: 100005\r\n" + DATE + b"\r\n"


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_that_have_no_body(status):
    answer, sink = exchange()
    answer.respond(status, (), [b"ignored"])
    assert b"Content-Length" not in sink.sent
    assert sink.sent.endswith(b"\r\n\r\n")


def test_large_parts_are_sent_from_where_they_are():
    answer, sink = exchange()
    large = memoryview(bytes(200_000))
    answer.respond(200, (), [b"a", b"b", large, b"c", b"", b"d"])
    assert len(sink.writes) == 3
    assert sink.writes[0].endswith(b"\r\n\r\nab")
    assert sink.writes[1] is large
    assert sink.writes[2] == b"cd"
    assert b"Content-Length: 200004\r\n" in sink.writes[0]


@pytest.mark.parametrize("shape", [(3, 5), (300, 500), (0, 7), ()])
def test_views_of_arrays_are_sent_as_bytes(shape):
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)
    answer, sink = exchange()
    answer.respond(200, (), [array.data])
    head, _, body = sink.sent.partition(b"\r\n\r\n")
    assert b"Content-Length: %d\r\n" % array.nbytes in head
    assert body == array.tobytes()
    assert all(len(data) == memoryview(data).nbytes for data in sink.writes)


def test_a_view_that_has_gaps_is_refused_before_anything_is_sent():
    answer, sink = exchange()
    gaps = np.zeros((400, 400))[::2, ::2].data
    with pytest.raises((BufferError, TypeError)):
        answer.respond(200, (), [gaps])
    assert sink.writes == []
    assert not answer.answered


def test_a_bad_header_leaves_the_exchange_unanswered():
    answer, sink = exchange()
    with pytest.raises(ValueError, match="line break"):
        answer.respond(200, [(b"A", b"b\r\nC: d")])
    assert sink.writes == []
    answer.fail()
    assert sink.sent.startswith(b"HTTP/1.1 500 ")
    assert b'{"error":"internal error' in sink.sent


def test_an_exchange_is_answered_once():
    answer, _ = exchange()
    answer.respond(200)
    for again in (
        lambda: answer.respond(200),
        lambda: answer.start_stream(200),
        lambda: answer.send_chunk(b"x"),
        answer.end_stream,
    ):
        with pytest.raises(RuntimeError):
            again()


def test_a_stream_in_chunks():
    answer, sink = exchange()
    answer.start_stream(200, [(b"A", b"b")])
    answer.send_chunk(b"hello")
    answer.send_chunk(b"")
    answer.send_chunk(memoryview(bytes(100_000)))
    assert sink.finished == []
    answer.end_stream()
    assert sink.sent == (
        b"HTTP/1.1 200 OK\r\nA: b\r\nTransfer-Encoding: chunked\r\n" + DATE + b"\r\n"
        b"5\r\nhello\r\n" + b"186a0\r\n" + bytes(100_000) + b"\r\n0\r\n\r\n"
    )
    assert sink.finished == [True]


def test_a_stream_to_http_1_0_ends_with_the_connection():
    answer, sink = exchange(b"GET / HTTP/1.0", b"Connection: keep-alive\r\n")
    answer.start_stream(200)
    answer.send_chunk(b"hello")
    answer.end_stream()
    assert sink.sent == b"HTTP/1.1 200 OK\r\n" + DATE + b"Connection: close\r\n\r\nhello"
    assert sink.finished == [False]


def test_a_stream_to_head_has_no_body():
    answer, sink = exchange(b"HEAD / HTTP/1.1")
    answer.start_stream(200)
    answer.send_chunk(b"hello")
    answer.end_stream()
    assert sink.sent.endswith(b"chunked\r\n" + DATE + b"\r\n")
    assert sink.finished == [True]


def test_a_stream_that_outlives_the_drain_closes_its_connection():
    answer, sink = exchange()
    answer.start_stream(200)
    sink.draining = True
    answer.end_stream()
    assert sink.finished == [False]


def test_a_broken_stream_is_cut():
    answer, sink = exchange()
    answer.start_stream(200)
    answer.fail()
    assert sink.aborted
    assert sink.finished == []


def test_backpressure_is_told():
    answer, sink = exchange()
    told = []
    answer.on_writable = lambda: told.append(1)
    answer.start_stream(200)
    assert answer.writable
    sink.writable = False
    assert not answer.writable
    answer.client_writable()
    assert told == [1]
    answer.end_stream()
    assert not answer.writable


def test_a_failing_on_writable_cuts_the_stream():
    answer, sink = exchange()
    answer.start_stream(200)
    answer.on_writable = lambda: 1 / 0
    answer.client_writable()
    assert sink.aborted


@pytest.mark.parametrize("streaming", [False, True])
def test_after_the_client_left_answers_are_dropped(streaming):
    answer, sink = exchange()
    left = []
    answer.on_disconnect = lambda: left.append(1)
    if streaming:
        answer.start_stream(200)
    before = len(sink.writes)
    answer.client_disconnected()
    assert left == [1]
    if streaming:
        answer.send_chunk(b"x")
        answer.end_stream()
    else:
        answer.respond(200, (), [b"x"])
    assert len(sink.writes) == before
    assert sink.finished == []


def test_a_stream_begun_after_the_client_left_is_dropped():
    answer, sink = exchange()
    answer.client_disconnected()
    answer.start_stream(200)
    answer.send_chunk(b"x")
    answer.end_stream()
    answer.abort()
    assert sink.writes == []
    assert not sink.aborted


def test_a_failing_on_disconnect_is_contained(caplog):
    answer, _ = exchange()
    answer.on_disconnect = lambda: 1 / 0
    answer.client_disconnected()
    assert "ZeroDivisionError" in caplog.text


def test_an_answered_exchange_is_freed_without_the_garbage_collector():
    class Watched(ConnectionExchange):
        __slots__ = ("__weakref__",)

    head = parse_head(b"GET / HTTP/1.0\r\n\r\n", HttpLimits())
    answer = Watched(HttpRequest(head), FakeSink())
    answer.on_disconnect = answer.abort
    watched = weakref.ref(answer)
    gc.disable()
    try:
        answer.respond(200)
        del answer
        assert watched() is None
    finally:
        gc.enable()
