"""Our side of HTTP/2 against the server side of the library h2, which knows the rules."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.client import ProtocolError
from shoal.client.address import parse
from shoal.client.codec import CallOptions
from shoal.client.grpc_codec import GrpcCodec
from shoal.client.http2 import Http2Connection

BLOCK = GrpcCodec(parse("grpc://host:1"), {"x-one": "1"}).block(
    "ModelInfer", CallOptions(None, 1.0)
)
RESPONSE = [(":status", "200"), ("content-type", "application/grpc")]
TRAILERS = [("grpc-status", "0")]


class Server:
    """h2, answering; `cut` is how many bytes travel at a time."""

    def __init__(self, cut=1 << 20, **changes):
        self.client = Http2Connection()
        self.cut = cut
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        names = {h2.settings.SettingCodes[name.upper()]: value for name, value in changes.items()}
        self.h2.local_settings = h2.settings.Settings(client=False, initial_values=names)
        self.h2.initiate_connection()
        self.received = {}
        self.events = []
        self.credit = True

    def deliver(self):
        """Carry bytes both ways until nobody has any."""
        while True:
            parts, size = self.client.take()
            whole = b"".join(parts)
            assert len(whole) == size
            for event in self.h2.receive_data(whole) if whole else ():
                self.events.append(event)
                if isinstance(event, h2.events.DataReceived):
                    self.received[event.stream_id] = (
                        self.received.get(event.stream_id, b"") + event.data
                    )
                    if self.credit:
                        self.h2.acknowledge_received_data(
                            event.flow_controlled_length, event.stream_id
                        )
            back = self.h2.data_to_send()
            for start in range(0, len(back), self.cut):
                self.client.receive(back[start : start + self.cut])
            if not whole and not back:
                return

    def kinds(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def answer(self, stream_id, *messages, trailers=TRAILERS):
        self.h2.send_headers(stream_id, RESPONSE)
        for message in messages:
            body = b"\x00" + len(message).to_bytes(4, "big") + message
            for start in range(0, len(body), 16384):
                self.h2.send_data(stream_id, body[start : start + 16384])
        self.h2.send_headers(stream_id, trailers, end_stream=True)


def call(server, *parts):
    stream = server.client.open(BLOCK)
    stream.send(list(parts), sum(map(len, parts)), end=True)
    server.deliver()
    return stream


def test_a_call():
    server = Server()
    stream = call(server, b"he", b"llo")
    (request,) = server.kinds(h2.events.RequestReceived)
    headers = dict(request.headers)
    assert headers[":path"] == "/inference.GRPCInferenceService/ModelInfer"
    assert headers[":method"] == "POST"
    assert headers[":authority"] == "host:1"
    assert headers["content-type"] == "application/grpc"
    assert headers["te"] == "trailers"
    assert headers["grpc-timeout"] == "1000m"
    assert headers["x-one"] == "1"
    assert server.received[stream.id] == b"\x00\x00\x00\x00\x05hello"
    assert server.kinds(h2.events.StreamEnded)
    assert stream.ended is None
    server.answer(stream.id, b"world")
    server.deliver()
    assert [bytes(message) for message in stream.messages] == [b"world"]
    assert stream.ended.code == 0
    assert server.client.streams == {}


@settings(max_examples=30)
@given(cut=st.integers(1, 40), sizes=st.lists(st.integers(0, 70_000), min_size=1, max_size=3))
def test_messages_in_any_pieces(cut, sizes):
    server = Server(cut * 997)
    stream = call(server, b"x")
    bodies = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    server.answer(stream.id, *bodies)
    server.deliver()
    assert [bytes(message) for message in stream.messages] == bodies
    assert stream.ended.code == 0


@pytest.mark.parametrize("window", [1_000, 65_535, 10_000_000])
def test_large_messages_wait_for_the_window(window):
    server = Server(initial_window_size=window)
    server.deliver()
    body = bytes(range(256)) * 2_000
    stream = call(server, body[:3], body[3:])
    assert server.received[stream.id][5:] == body
    assert not stream.blocked


def test_a_window_that_stays_shut_and_opens_later():
    server = Server()
    server.credit = False
    told = []
    stream = server.client.open(BLOCK)
    stream.news = lambda: told.append(stream.blocked)
    stream.send([b"x" * 100_000], 100_000, end=True)
    server.deliver()
    assert stream.blocked
    assert len(server.received[stream.id]) == 65_535
    server.h2.acknowledge_received_data(65_535, stream.id)
    server.deliver()
    assert not stream.blocked
    assert told == [False]
    assert server.kinds(h2.events.StreamEnded)


def test_a_call_that_ends_while_it_waits_for_the_window():
    server = Server()
    server.credit = False
    stream = server.client.open(BLOCK)
    stream.send([b"x" * 100_000], 100_000, end=True)
    server.deliver()
    news = []
    stream.news = lambda: news.append(stream.ended)
    server.h2.reset_stream(stream.id, 2)
    server.h2.increment_flow_control_window(100_000)
    server.deliver()
    assert [ended.code for ended in news] == [13]
    assert not stream.blocked


def test_calls_beside_each_other():
    server = Server()
    streams = [call(server, bytes([index])) for index in range(5)]
    for stream in reversed(streams):
        server.answer(stream.id, bytes([stream.id]))
    server.deliver()
    assert [bytes(stream.messages[0]) for stream in streams] == [
        bytes([stream.id]) for stream in streams
    ]


def test_messages_in_both_directions():
    server = Server()
    stream = server.client.open(BLOCK)
    stream.send([b"one"], 3)
    server.deliver()
    server.h2.send_headers(stream.id, RESPONSE)
    server.h2.send_data(stream.id, b"\x00\x00\x00\x00\x01a")
    server.deliver()
    assert bytes(stream.messages.popleft()) == b"a"
    stream.send([b"two"], 3)
    stream.finish()
    server.deliver()
    assert server.received[stream.id] == b"\x00\x00\x00\x00\x03one\x00\x00\x00\x00\x03two"
    assert server.kinds(h2.events.StreamEnded)


@pytest.mark.parametrize(
    ("headers", "code", "text"),
    [
        ([("grpc-status", "5"), ("grpc-message", "no %c3%a9")], 5, "no é"),
        ([("grpc-status", "99")], 2, ""),
        ([], 2, "without a status"),
        ([(":status", "503")], 14, "HTTP status 503"),
        ([(":status", "404")], 12, "HTTP status 404"),
    ],
)
def test_how_calls_end(headers, code, text):
    server = Server()
    stream = call(server, b"x")
    status = [] if headers and headers[0][0] == ":status" else RESPONSE
    server.h2.send_headers(stream.id, status + headers, end_stream=True)
    server.deliver()
    assert (stream.ended.code, text in stream.ended.message) == (code, True)


def test_headers_that_repeat_are_read_once():
    server = Server()
    for _ in range(4):
        stream = call(server, b"x")
        server.answer(stream.id, b"y")
        server.deliver()
        assert stream.ended.code == 0
        assert stream.headers[":status"] == "200"
    assert server.client._known


def test_resets():
    server = Server()
    refused, failed, given_up = (call(server, b"x") for _ in range(3))
    server.h2.reset_stream(refused.id, 7)
    server.h2.reset_stream(failed.id, 2)
    given_up.cancel()
    server.deliver()
    assert (refused.ended.code, refused.ended.untouched) == (14, True)
    assert (failed.ended.code, failed.ended.untouched) == (13, False)
    assert given_up.ended.code == 1
    assert server.kinds(h2.events.StreamReset)[0].stream_id == given_up.id


def test_a_server_that_goes_away():
    server = Server()
    served, late = call(server, b"x"), call(server, b"x")
    server.h2.send_headers(served.id, RESPONSE)
    server.deliver()
    server.h2.close_connection(last_stream_id=served.id)
    server.deliver()
    assert server.client.closing
    assert (late.ended.code, late.ended.untouched) == (14, True)
    assert served.ended is None
    server.client.lost()
    assert (served.ended.code, served.ended.untouched) == (-1, False)


def test_pings_are_answered():
    server = Server()
    server.deliver()
    server.h2.ping(b"12345678")
    server.deliver()
    assert server.kinds(h2.events.PingAckReceived)[0].ping_data == b"12345678"


def test_the_number_of_streams_a_server_takes():
    server = Server(max_concurrent_streams=3)
    server.deliver()
    assert server.client.max_streams == 3


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\xff",
        b"\x00\x00\x00\x09\x04\x00\x00\x00\x01",
    ],
)
def test_what_is_no_http2(data):
    with pytest.raises(ProtocolError):
        Http2Connection().receive(data)


def test_a_compressed_message():
    server = Server()
    stream = call(server, b"x")
    server.h2.send_headers(stream.id, RESPONSE)
    server.h2.send_data(stream.id, b"\x01\x00\x00\x00\x01a")
    with pytest.raises(ProtocolError, match="compressed"):
        server.deliver()
