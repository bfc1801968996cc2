"""HTTP responses, however they are cut up."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client import ProtocolError
from shoal.client.http1 import Http1Response

BODY = bytes(range(256)) * 3
PLAIN = b"HTTP/1.1 200 OK\r\nX: 1\r\nx: 2\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100\r\n%b\r\n200;a=b\r\n%b\r\n0\r\nT: r\r\n\r\n"
    % (
        BODY[:256],
        BODY[256:],
    )
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


@pytest.mark.parametrize("whole", [PLAIN, CHUNKED, CONTINUED])
@given(cuts=st.lists(st.integers(0, 900), max_size=8))
def test_any_cut(whole, cuts):
    response = Http1Response()
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    for start, end in itertools.pairwise(places):
        if start < end:
            done = response.feed(whole[start:end])
            assert done == (end == len(whole))
    assert bytes(response.body) == BODY
    assert response.head.status == 200
    assert response.head.keep_alive


def test_headers():
    response = Http1Response()
    assert response.feed(PLAIN)
    assert response.head.headers == {"x": "1, 2", "content-length": "768"}


def test_a_body_received_in_place():
    response = Http1Response()
    assert not response.feed(PLAIN[:-700])
    room = response.room()
    room[:] = BODY[-700:]
    assert response.received(700)
    assert bytes(response.body) == BODY


def test_binary_data_starts_at_a_round_place():
    import numpy as np

    head = b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 5\r\nContent-Length: 13\r\n\r\n"
    response = Http1Response()
    assert response.feed(head + b"abcde" + b"\x01" * 8)
    array = np.frombuffer(response.body[5:], np.float64)
    assert array.flags.aligned


def test_a_body_without_length_ends_with_the_connection():
    response = Http1Response()
    assert not response.feed(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert response.end()
    assert response.body == b"abc"
    assert not response.head.keep_alive


def test_a_connection_that_ends_too_early():
    response = Http1Response()
    response.feed(PLAIN[:-1])
    assert not response.end()
    assert response.begun


@pytest.mark.parametrize(
    ("head", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 204 No\r\n\r\n", True),
    ],
)
def test_who_keeps_the_connection(head, keep):
    response = Http1Response()
    assert response.feed(head)
    assert response.head.keep_alive is keep


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00",
        b"SSH-2.0-OpenSSH",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        b"HTTP/1.1 " + b"a" * (1 << 20),
    ],
)
def test_what_is_no_response(data):
    with pytest.raises(ProtocolError):
        Http1Response().feed(data)
