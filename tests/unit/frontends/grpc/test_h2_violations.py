"""Each violation of RFC 9113, sections 4 to 6 and 8, and the answer it gets."""

from __future__ import annotations

import struct

import pytest
from hyperframe.frame import RstStreamFrame, SettingsFrame

from shoal.frontends.grpc.settings import GrpcLimits, GrpcSettings
from shoal.wire.http2_frames import PREFACE, H2Error

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 0x1, 0x1, 0x4, 0x8, 0x20
PROTOCOL = H2Error.PROTOCOL_ERROR
SIZE = H2Error.FRAME_SIZE_ERROR
FLOW = H2Error.FLOW_CONTROL_ERROR
CALM = H2Error.ENHANCE_YOUR_CALM
CLOSED = H2Error.STREAM_CLOSED


def setting(name, value):
    return struct.pack(">HI", name, value)


def uint32(value):
    return struct.pack(">I", value)


# (what is wrong, type, flags, stream, payload, error code of the GOAWAY)
CONNECTION_FAULTS = [
    ("DATA on stream 0", DATA, 0, 0, b"x", PROTOCOL),
    ("DATA on an idle stream", DATA, 0, 9, b"x", PROTOCOL),
    ("DATA on a stream that would be ours", DATA, 0, 2, b"x", PROTOCOL),
    ("RST_STREAM on a stream that would be ours", RST, 0, 2, uint32(8), PROTOCOL),
    ("WINDOW_UPDATE on a stream that would be ours", WINDOW, 0, 2, uint32(8), PROTOCOL),
    ("DATA padded beyond its payload", DATA, PADDED, 3, b"\x05abc", PROTOCOL),
    ("DATA of nothing but too much padding", DATA, PADDED, 3, b"\x01", PROTOCOL),
    ("DATA padded but empty", DATA, PADDED, 3, b"", SIZE),
    ("HEADERS on stream 0", HEADERS, END_HEADERS, 0, b"\x88", PROTOCOL),
    ("HEADERS on an even stream", HEADERS, END_HEADERS, 4, b"\x88", PROTOCOL),
    ("HEADERS padded beyond its payload", HEADERS, END_HEADERS | PADDED, 5, b"\x09ab", PROTOCOL),
    ("HEADERS padded but empty", HEADERS, END_HEADERS | PADDED, 5, b"", SIZE),
    ("HEADERS without its priority", HEADERS, END_HEADERS | PRIORITISED, 5, b"abc", SIZE),
    ("HEADERS that HPACK cannot read", HEADERS, END_HEADERS, 5, b"\xff\xff\xff\xff\xff\xff",
     H2Error.COMPRESSION_ERROR),
    ("HEADERS with an unknown index", HEADERS, END_HEADERS, 5, b"\xfe", H2Error.COMPRESSION_ERROR),
    ("HEADERS with index 0", HEADERS, END_HEADERS, 5, b"\x80", H2Error.COMPRESSION_ERROR),
    ("HEADERS cut short", HEADERS, END_HEADERS, 5, b"\x00\x05ab", H2Error.COMPRESSION_ERROR),
    ("HEADERS with a table larger than allowed", HEADERS, END_HEADERS, 5, b"\x3f\xe2\x1f\x88",
     H2Error.COMPRESSION_ERROR),
    ("HEADERS with three table sizes", HEADERS, END_HEADERS, 5, b"\x20\x21\x20\x88",
     H2Error.COMPRESSION_ERROR),
    ("PRIORITY on stream 0", PRIORITY, 0, 0, b"\0\0\0\0\0", PROTOCOL),
    ("PRIORITY of a wrong size on an idle stream", PRIORITY, 0, 9, b"\0\0\0\0", SIZE),
    ("RST_STREAM on stream 0", RST, 0, 0, uint32(8), PROTOCOL),
    ("RST_STREAM on an idle stream", RST, 0, 9, uint32(8), PROTOCOL),
    ("RST_STREAM of a wrong size", RST, 0, 1, b"\0\0\0", SIZE),
    ("SETTINGS on a stream", SETTINGS, 0, 1, b"", PROTOCOL),
    ("SETTINGS of a wrong size", SETTINGS, 0, 0, b"\0\0\0", SIZE),
    ("SETTINGS acknowledged with a payload", SETTINGS, ACK, 0, setting(3, 1), SIZE),
    ("SETTINGS that enable half a push", SETTINGS, 0, 0, setting(2, 2), PROTOCOL),
    ("SETTINGS with a window too large", SETTINGS, 0, 0, setting(4, 2**31), FLOW),
    ("SETTINGS with frames too small", SETTINGS, 0, 0, setting(5, 16383), PROTOCOL),
    ("SETTINGS with frames too large", SETTINGS, 0, 0, setting(5, 2**24), PROTOCOL),
    ("SETTINGS without end", SETTINGS, 0, 0, setting(3, 1) * 300, CALM),
    ("PUSH_PROMISE from a client", PUSH, END_HEADERS, 1, uint32(2) + b"\x88", PROTOCOL),
    ("PING on a stream", PING, 0, 1, b"12345678", PROTOCOL),
    ("PING of a wrong size", PING, 0, 0, b"1234567", SIZE),
    ("GOAWAY on a stream", GOAWAY, 0, 1, uint32(0) * 2, PROTOCOL),
    ("GOAWAY of a wrong size", GOAWAY, 0, 0, uint32(0), SIZE),
    ("WINDOW_UPDATE of a wrong size", WINDOW, 0, 0, b"\0\0\0", SIZE),
    ("WINDOW_UPDATE of 0", WINDOW, 0, 0, uint32(0), PROTOCOL),
    ("WINDOW_UPDATE of 0 but for the reserved bit", WINDOW, 0, 0, uint32(2**31), PROTOCOL),
    ("WINDOW_UPDATE beyond 2^31-1", WINDOW, 0, 0, uint32(2**31 - 1), FLOW),
    ("WINDOW_UPDATE on an idle stream", WINDOW, 0, 9, uint32(1), PROTOCOL),
    ("CONTINUATION without HEADERS", CONTINUATION, END_HEADERS, 1, b"\x88", PROTOCOL),
    ("CONTINUATION on stream 0", CONTINUATION, END_HEADERS, 0, b"\x88", PROTOCOL),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "flags", "stream_id", "payload", "code"),
    [fault[1:] for fault in CONNECTION_FAULTS],
    ids=[fault[0] for fault in CONNECTION_FAULTS],
)
def test_the_connection_ends(peer, tools, kind, flags, stream_id, payload, code):
    peer.send(peer.headers(3, path="/test.Echo/Hold"))
    peer.send(tools.raw(kind, flags, stream_id, payload))
    assert peer.goaway is not None
    assert H2Error(peer.goaway.error_code) is code
    assert peer.goaway.additional_data, "the client is told why"
    assert peer.connection.closed
    assert peer.service.events == ["cancel"], "open calls are told"
    assert not peer.connection.streams


def test_nothing_is_read_after_the_end(peer, tools):
    peer.send(tools.raw(PING, 0, 1, b"12345678"))
    assert peer.call(1) == []
    assert not peer.service.calls


# (what is wrong, type, flags, payload, error code of the RST_STREAM) on open stream 1
STREAM_FAULTS = [
    ("PRIORITY of a wrong size", PRIORITY, 0, b"\0\0\0\0", SIZE),
    ("WINDOW_UPDATE of 0", WINDOW, 0, uint32(0), PROTOCOL),
    ("WINDOW_UPDATE beyond 2^31-1", WINDOW, 0, uint32(2**31 - 1), FLOW),
    ("HEADERS that are no trailers", HEADERS, END_HEADERS, b"\x00\x01a\x01b", PROTOCOL),
    ("trailers with a pseudo-header", HEADERS, END_HEADERS | END_STREAM, b"\x88", PROTOCOL),
    ("trailers in capitals", HEADERS, END_HEADERS | END_STREAM, b"\x00\x01A\x01b", PROTOCOL),
]


@pytest.mark.parametrize(
    ("kind", "flags", "payload", "code"),
    [fault[1:] for fault in STREAM_FAULTS],
    ids=[fault[0] for fault in STREAM_FAULTS],
)
def test_only_the_stream_ends(peer, tools, kind, flags, payload, code):
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    peer.send(tools.raw(kind, flags, 1, payload))
    assert peer.answers[1].reset == code
    assert peer.service.events == ["cancel"]
    peer.call(3, b"others go on")
    assert peer.answers[3].messages == [(0, b"others go on")]
    assert peer.goaway is None


GOOD = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/test.Echo/Unary",
    "content-type": "application/grpc",
}
MALFORMED = {
    "a name in capitals": [*GOOD.items(), ("Upper", "1")],
    "a name with a space": [*GOOD.items(), ("a b", "1")],
    "an empty name": [*GOOD.items(), ("", "1")],
    "a value with a line feed": [*GOOD.items(), ("a", "x\ny")],
    "a value with NUL": [*GOOD.items(), ("a", "x\0y")],
    "a path that ends with a space": list({**GOOD, ":path": "/test.Echo/Unary "}.items()),
    "a value that ends with a tab": [*GOOD.items(), ("a", "x\t")],
    "no method": [item for item in GOOD.items() if item[0] != ":method"],
    "no scheme": [item for item in GOOD.items() if item[0] != ":scheme"],
    "no path": [item for item in GOOD.items() if item[0] != ":path"],
    "an empty path": list({**GOOD, ":path": ""}.items()),
    "two paths": [(":path", "/other"), *GOOD.items()],
    "a pseudo-header after a header": [("a", "b"), *GOOD.items()],
    "an unknown pseudo-header": [(":protocol", "x"), *GOOD.items()],
    "a response's pseudo-header": [(":status", "200"), *GOOD.items()],
    "connection": [*GOOD.items(), ("connection", "close")],
    "keep-alive": [*GOOD.items(), ("keep-alive", "1")],
    "transfer-encoding": [*GOOD.items(), ("transfer-encoding", "chunked")],
    "upgrade": [*GOOD.items(), ("upgrade", "h2c")],
    "te other than trailers": [*GOOD.items(), ("te", "gzip")],
    "content-length that is no number": [*GOOD.items(), ("content-length", "ten")],
    "two content-lengths": [*GOOD.items(), ("content-length", "1"), ("content-length", "2")],
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_requests_are_reset(peer, tools, fields):
    peer.send(peer.block(1, fields), tools.data(1, tools.prefixed(b"x"), end=True))
    assert peer.answers[1].reset == PROTOCOL
    assert not peer.service.calls
    peer.call(3)
    assert peer.answers[3].status == 0
    assert peer.goaway is None


@pytest.mark.parametrize("announced", ["5", "8"])
def test_content_length_must_be_true(peer, tools, announced):
    peer.send(
        peer.headers(1, path="/test.Echo/Hold", content_length=announced),
        tools.data(1, tools.prefixed(b"x"), end=True),
    )
    assert peer.answers[1].reset == PROTOCOL
    assert not peer.service.messages


def test_data_after_the_end_of_a_stream(peer, tools):
    peer.send(
        peer.headers(1, path="/test.Echo/Hold"),
        tools.data(1, tools.prefixed(b"x"), end=True),
        tools.data(1, b"more"),
    )
    assert peer.answers[1].reset == CLOSED
    assert peer.service.events == ["half-close", "cancel"]


def test_headers_after_the_end_of_a_stream(peer, tools):
    peer.send(
        peer.headers(1, path="/test.Echo/Hold"),
        tools.data(1, tools.prefixed(b"x"), end=True),
        peer.headers(1, end=True),
    )
    assert peer.answers[1].reset == CLOSED
    peer.call(3)
    assert peer.answers[3].status == 0, "the header table is still in step"


def test_data_on_a_stream_that_was_answered(peer, tools):
    peer.call(1)
    peer.send(tools.data(1, b"late"))
    assert peer.answers[1].reset == CLOSED
    assert peer.goaway is None


def test_data_on_a_stream_the_client_has_reset(peer, tools):
    peer.send(peer.headers(1, path="/test.Echo/Hold"), RstStreamFrame(1, error_code=8))
    peer.send(tools.data(1, b"late"))
    assert peer.answers[1].reset == CLOSED


def test_headers_on_a_stream_that_was_answered(peer):
    peer.call(1)
    peer.send(peer.headers(1, end=True))
    assert peer.goaway.error_code == CLOSED


def test_stream_ids_must_grow(peer):
    peer.call(5)
    peer.send(peer.headers(3, end=True))
    assert peer.goaway.error_code == PROTOCOL


def test_a_header_block_may_not_be_interrupted(peer, tools):
    frame = peer.headers(1)
    frame.flags.discard("END_HEADERS")
    peer.send(frame, tools.raw(PING, 0, 0, b"12345678"))
    assert peer.goaway.error_code == PROTOCOL


def test_a_header_block_goes_on_on_its_own_stream(peer, tools):
    frame = peer.headers(1)
    frame.flags.discard("END_HEADERS")
    peer.send(frame, tools.raw(CONTINUATION, END_HEADERS, 3, b""))
    assert peer.goaway.error_code == PROTOCOL


def test_frames_larger_than_allowed_end_the_connection_before_they_arrive(peer):
    peer.feed(b"\x40\x00\x01" + bytes([DATA, 0]) + uint32(1))
    peer.collect()
    assert peer.goaway.error_code == SIZE


def test_large_settings_end_the_connection_before_they_arrive(peer):
    peer.feed(b"\x00\x60\x00" + bytes([SETTINGS, 0]) + uint32(0))
    peer.collect()
    assert peer.goaway.error_code == CALM


def test_data_beyond_the_window_of_the_stream(tools):
    settings = GrpcSettings(GrpcLimits(stream_window_bytes=65535, connection_window_bytes=1 << 20))
    peer = tools.Peer(settings).greet()
    peer.send(peer.headers(1, path="/test.Echo/ServerStream"))
    peer.service.calls[0].pause_receiving()
    for _ in range(3):
        peer.send(tools.data(1, b"\0" * 16384))
    assert peer.answers.get(1) is None or peer.answers[1].reset is None
    peer.send(tools.data(1, b"\0" * 16384))
    assert peer.answers[1].reset == FLOW
    assert peer.goaway is None


def test_data_beyond_the_window_of_the_connection(tools):
    settings = GrpcSettings(GrpcLimits(stream_window_bytes=1 << 20, connection_window_bytes=65535))
    peer = tools.Peer(settings).greet()
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    peer.send(tools.raw(DATA, 0, 1, tools.prefixed(b"x" * 65535)))
    assert peer.goaway.error_code == FLOW


def test_a_new_initial_window_may_not_overflow_a_stream(peer):
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    peer.send(bytes.fromhex("000004080000000001") + uint32(2**31 - 1 - 65535))
    assert peer.goaway is None
    peer.send(SettingsFrame(0, settings={4: 65536}))
    assert peer.goaway.error_code == FLOW


@pytest.mark.parametrize(
    "first",
    [
        bytes.fromhex("0000080600000000003132333435363738"),  # PING
        bytes.fromhex("000000040100000000"),  # an acknowledgement of settings
        bytes.fromhex("000000000000000001"),  # DATA
    ],
)
def test_settings_come_first(tools, first):
    peer = tools.Peer()
    peer.send(PREFACE, first)
    assert peer.goaway.error_code == PROTOCOL


@pytest.mark.parametrize(
    "start", [b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\x03\x01\x02\x00\x01\x00\x01"]
)
def test_a_wrong_preface(tools, start):
    peer = tools.Peer()
    peer.send(start)
    assert peer.goaway.error_code == PROTOCOL
    assert peer.connection.closed


def test_plain_http_gets_a_sentence(tools):
    peer = tools.Peer()
    peer.feed(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
    head, body = b"".join(peer.connection.sender.out).split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-length: %d" % len(body) in head
    assert b"gRPC" in body
    assert peer.connection.closed
