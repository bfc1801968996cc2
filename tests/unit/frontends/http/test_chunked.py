from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.frontends.http.body import BodyBuffer
from shoal.frontends.http.chunked import ChunkedDecoder
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import HttpFault

LIMITS = HttpLimits(max_body_bytes=1000, max_chunks=10, max_head_bytes=2000)


def decode(*pieces: bytes, limits: HttpLimits = LIMITS) -> tuple[bytes, bytes] | None:
    """The body and what follows it; None when it is not complete."""
    decoder = ChunkedDecoder(BodyBuffer(0, None), limits)
    for number, piece in enumerate(pieces):
        if decoder.feed(piece):
            return bytes(decoder.body.take()), decoder.rest + b"".join(pieces[number + 1 :])
    return None


@pytest.mark.parametrize(
    ("data", "body", "rest"),
    [
        (b"0\r\n\r\n", b"", b""),
        (b"000\r\n\r\nGET", b"", b"GET"),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello", b""),
        (b"A\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n\r\n", b"0123456789x", b"\r\n"),
        (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n", b""),
        (b"1;" + b"e" * 1022 + b"\r\nx\r\n0\r\n\r\n", b"x", b""),
        (b"1;a=b\r\nx\r\n0;last\r\n\r\n", b"x", b""),
        (b'1 \t; a="\xff"\r\nx\r\n0\r\n\r\n', b"x", b""),
        (b"1\r\nx\r\n0\r\nTrailer: a\r\nOther: b\r\n\r\nrest", b"x", b"rest"),
    ],
)
def test_good_bodies_whole_and_byte_by_byte(data, body, rest):
    assert decode(data) == (body, rest)
    assert decode(*(data[i : i + 1] for i in range(len(data)))) == (body, rest)


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (400, b"\r\n"),
        (400, b"x\r\n"),
        (400, b"-1\r\n"),
        (400, b"+1\r\n"),
        (400, b"0x1\r\n"),
        (400, b" 1\r\n"),
        (400, b"1_0\r\n"),
        (400, b"1\nx\r\n"),
        (400, b"1\rx\r\n"),
        (400, b"1 2\r\n"),
        (400, b"1;a\x00b\r\n"),
        (400, b"1;a\rb\r\n"),
        (400, b"0000000000000001\r\n"),  # sixteen digits
        (400, b"f" * 16 + b"\r\n"),
        (400, b"1;" + b"a" * 1100),
        (400, b"1\r\nxy\r\n"),
        (400, b"1\r\nx\n0\r\n\r\n"),
        (400, b"1\r\nx\rz"),
        (400, b"0\r\nTrailer: a\n\r\n"),
        (400, b"1\r\nx\r\n" * 11),
        (413, b"3e9\r\n"),
        (413, b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\n"),
        (413, b"fffffffffffffff\r\n"),
        (431, b"0\r\n" + b"Trailer: abcdefgh\r\n" * 200),
        (431, b"0\r\nTrailer: " + b"a" * 3000),
    ],
)
def test_bad_bodies_whole_and_byte_by_byte(status, data):
    with pytest.raises(HttpFault) as refused:
        decode(data)
    assert refused.value.status == status
    with pytest.raises(HttpFault) as refused:
        decode(*(data[i : i + 1] for i in range(len(data))))
    assert refused.value.status == status


def test_as_many_chunks_as_allowed_and_one_more():
    limits = HttpLimits()
    chunks = b"1\r\nx\r\n" * 65_536
    assert decode(chunks, b"0\r\n\r\n", limits=limits) == (b"x" * 65_536, b"")
    with pytest.raises(HttpFault, match="65536 non-empty chunks"):
        decode(chunks, b"1\r\nx\r\n", limits=limits)


@pytest.mark.parametrize("data", [b"", b"5", b"5\r\nhell", b"5\r\nhello\r\n", b"0\r\n", b"0\r\n\r"])
def test_what_has_no_end_is_waited_for(data):
    assert decode(data) is None


@settings(deadline=None)
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=60), max_size=10),
    rest=st.binary(max_size=10),
    cuts=st.lists(st.integers(0, 900), max_size=8),
)
def test_any_chunks_cut_anywhere_give_the_same_body(chunks, rest, cuts):
    data = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n" + rest
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in pairwise(places)]
    assert decode(*pieces) == (b"".join(chunks), rest)
