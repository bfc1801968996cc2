from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core import buffers
from shoal.frontends.http.body import ALIGNMENT, SMALL_BYTES
from shoal.frontends.http.head import parse_head
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import HttpFault, HttpRequest
from shoal.frontends.http.reader import Arriving, RequestReader
from shoal.frontends.memory_budget import MemoryBudget

HOST = b" HTTP/1.1\r\nHost: x\r\n"


def reader(**limits) -> RequestReader:
    return RequestReader(parse_head, HttpLimits(**limits), MemoryBudget(1 << 20, buffers.pool))


def receive(source: RequestReader, data: bytes) -> list[HttpRequest]:
    """Deliver `data` as a socket would, and take what is complete."""
    taken = []
    while data:
        if source.target is not None:
            count = min(len(source.target), len(data))
            source.target[:count] = data[:count]
            source.fill(count)
        else:
            count = len(data)
            source.feed(data)
        data = data[count:]
        while (request := source.take()) is not None:
            taken.append(request)
    return taken


def sized(body: bytes, path: bytes = b"/") -> bytes:
    return b"POST %b%bContent-Length: %d\r\n\r\n%b" % (path, HOST, len(body), body)


def chunked(chunks: list[bytes]) -> bytes:
    head = b"PUT /chunks" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%X;e\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\nT: t\r\n\r\n"


STREAM = (
    b"GET /first"
    + HOST
    + b"\r\n"
    + sized(b"hello\r\n\r\nGET /no HTTP/1.1", b"/second")
    + b"\r\n\r\n"  # empty lines between requests are allowed
    + chunked([b"abc", b"\r\n", b"0"])
    + sized(b"", b"/empty")
    + b"GET /last?q HTTP/1.0\r\n\r\n"
)
EXPECTED = [
    ("GET", "/first", b""),
    ("POST", "/second", b"hello\r\n\r\nGET /no HTTP/1.1"),
    ("PUT", "/chunks", b"abc\r\n0"),
    ("POST", "/empty", b""),
    ("GET", "/last", b""),
]


def shown(requests: list[HttpRequest]) -> list[tuple[str, str, bytes]]:
    return [(request.method, request.path, bytes(request.body)) for request in requests]


def test_the_stream_in_one_piece():
    assert shown(receive(reader(), STREAM)) == EXPECTED


@pytest.mark.parametrize("cut", range(1, len(STREAM)))
def test_the_stream_cut_once_at_every_place(cut):
    source = reader()
    taken = receive(source, STREAM[:cut]) + receive(source, STREAM[cut:])
    assert shown(taken) == EXPECTED
    assert source.arriving is Arriving.NOTHING
    assert source.waiting_bytes == 0


def test_the_stream_byte_by_byte():
    source = reader()
    taken = [request for byte in STREAM for request in receive(source, bytes([byte]))]
    assert shown(taken) == EXPECTED


bodies = st.one_of(st.binary(max_size=100), st.just(bytes(range(256)) * 200))


@settings(deadline=None)
@given(
    messages=st.lists(st.tuples(st.booleans(), bodies), min_size=1, max_size=5),
    cuts=st.lists(st.floats(0, 1), max_size=10),
)
def test_any_stream_cut_anywhere(messages, cuts):
    stream = b"".join(
        chunked([body[i : i + 7000] for i in range(0, len(body), 7000)]) if chunks else sized(body)
        for chunks, body in messages
    )
    places = sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})
    source = reader()
    taken = [r for a, b in pairwise(places) for r in receive(source, stream[a:b])]
    assert [bytes(request.body) for request in taken] == [body for _, body in messages]
    assert source.target is None


@pytest.mark.parametrize("arrived", [0, 1, 40_000, 300_000])
@pytest.mark.parametrize("offset", [0, 187])
def test_a_large_body_is_aligned_behind_its_json_header(arrived, offset):
    body = bytes(range(256)) * 1172
    head = b"POST /" + HOST + b"Inference-Header-Content-Length: %d\r\n" % offset
    for framed in (
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
    ):
        source = reader()
        cut = framed.index(b"\r\n\r\n") + 4 + arrived
        (request,) = receive(source, framed[:cut]) + receive(source, framed[cut:])
        assert isinstance(request.body, memoryview)
        assert bytes(request.body) == body
        address = np.frombuffer(request.body, np.uint8).ctypes.data
        assert (address + offset) % ALIGNMENT == 0


def test_a_large_body_is_received_where_it_stays():
    body = bytes(SMALL_BYTES + 1)
    framed = sized(body)
    source = reader()
    assert receive(source, framed[:-10]) == []
    target = source.target
    assert target is not None
    assert len(target) == 10
    (request,) = receive(source, framed[-10:])
    assert isinstance(request.body, memoryview)
    assert np.shares_memory(np.frombuffer(target, np.uint8), np.frombuffer(request.body, np.uint8))


def test_what_arrives_is_told():
    source = reader()
    assert source.arriving is Arriving.NOTHING
    receive(source, b"\r\n")
    receive(source, b"\r")
    assert source.arriving is Arriving.NOTHING
    receive(source, b"\nPOST /" + HOST)
    assert source.arriving is Arriving.HEAD
    receive(source, b"Content-Length: 3\r\n\r\n1")
    assert source.arriving is Arriving.BODY
    receive(source, b"23")
    assert source.arriving is Arriving.NOTHING


def test_a_dripping_head_is_no_progress_and_a_dripping_body_is():
    source = reader()
    receive(source, b"P")
    before = source.progress
    receive(source, b"O")
    receive(source, b"ST /" + HOST)
    assert source.progress == before
    receive(source, b"Content-Length: 3\r\n\r\n")
    before = source.progress
    receive(source, b"1")
    assert source.progress > before


@pytest.mark.parametrize(
    ("arrived", "owes"),
    [
        (b"", True),
        (b"hel", True),  # a body that has begun and waits: harmless, and it may be needed
        (b"hello", False),
    ],
)
def test_continue_is_owed_while_the_body_is_not_there(arrived, owes):
    source = reader()
    receive(
        source, b"POST /" + HOST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n" + arrived
    )
    assert source.owes_continue is owes


@pytest.mark.parametrize(("arrived", "owes"), [(b"", True), (b"1\r\nx\r\n0\r\n\r\n", False)])
def test_continue_is_owed_to_chunks_too(arrived, owes):
    head = b"POST /" + HOST + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
    source = reader()
    receive(source, head + arrived)
    assert source.owes_continue is owes


def test_a_length_beyond_the_limit_is_refused_before_the_body():
    source = reader(max_body_bytes=10)
    source.feed(b"POST /" + HOST + b"Content-Length: 11\r\n\r\n")
    with pytest.raises(HttpFault) as refused:
        source.take()
    assert refused.value.status == 413
    assert source.target is None


def test_requests_before_a_broken_one_are_served():
    source = reader()
    source.feed(b"GET /1" + HOST + b"\r\nbroken")
    assert source.take().path == "/1"
    with pytest.raises(HttpFault):
        source.take()


def test_a_head_that_never_ends_is_refused_at_its_limit():
    source = reader(max_head_bytes=3000)
    receive(source, b"GET /" + HOST)
    while source.waiting_bytes <= 3000 - 6:
        receive(source, b"A: b\r\n")
    with pytest.raises(HttpFault) as refused:
        receive(source, b"A: b\r\n")
    assert refused.value.status == 431


def test_drop_forgets_everything():
    source = reader()
    receive(source, sized(bytes(100_000))[:-1])
    source.drop()
    assert (source.target, source.waiting_bytes, source.arriving) == (None, 0, Arriving.NOTHING)
