"""Calls: what a service hears and what the client gets."""

from __future__ import annotations

import gc
import gzip
import logging
import weakref
import zlib

import pytest
from hyperframe.frame import RstStreamFrame, WindowUpdateFrame

from shoal.frontends.grpc import message
from shoal.frontends.grpc.settings import CompressionLevel, GrpcLimits, GrpcSettings
from shoal.wire.http2_frames import H2Error


def hold(peer, stream_id=1, **changes):
    peer.call(stream_id, b"question", path="/test.Echo/Hold", **changes)
    return peer.service.calls[-1]


def test_what_the_client_said(peer):
    call = hold(
        peer,
        user_agent="test/1",
        custom="value",
        data_bin="AAEC/w==",
        more_bin="AAE,AgM",
        grpc_timeout="5S",
        grpc_accept_encoding="gzip",
    )
    assert call.path == "/test.Echo/Hold"
    assert call.peer == "ipv4:127.0.0.1:5"
    assert call.deadline_ns == peer.clock() + 5_000_000_000
    assert call.metadata == [
        ("user-agent", "test/1"),
        ("custom", "value"),
        ("data-bin", b"\x00\x01\x02\xff"),
        ("more-bin", b"\x00\x01"),
        ("more-bin", b"\x02\x03"),
    ]
    assert not call.cancelled
    assert peer.service.messages == [b"question"]
    assert peer.service.events == ["half-close"]


def test_reply_with_trailing_metadata(peer):
    call = hold(peer)
    call.reply((b"an", bytearray(b"sw"), memoryview(b"er")), [("a", "b"), ("c-bin", b"\xff")])
    peer.collect()
    answer = peer.answers[1]
    assert answer.messages == [(0, b"answer")]
    assert answer.blocks[-1] == {"grpc-status": "0", "a": "b", "c-bin": "/w"}
    assert not peer.connection.streams


@pytest.mark.parametrize(
    "metadata", [[("Upper", "x")], [("a", "ä")], [("grpc-x", "y")], [("", "")]]
)
def test_metadata_that_cannot_be_sent_raises_and_leaves_the_call_open(peer, metadata):
    call = hold(peer)
    with pytest.raises(ValueError, match="metadata"):
        call.reply((b"x",), metadata)
    assert peer.collect() == []
    call.finish(13, "oops")
    peer.collect()
    assert peer.answers[1].status == 13


def test_parts_of_other_types_count_in_bytes(peer):
    import numpy as np

    array = np.arange(10_000, dtype=np.float32).reshape(100, 100)
    peer.send(WindowUpdateFrame(0, window_increment=1 << 20))
    hold(peer, 1).reply((array.data, b""))
    hold(peer, 3).reply((array[:1].data,))
    peer.collect()
    assert peer.answers[3].messages == [(0, array[:1].tobytes())]
    peer.send(WindowUpdateFrame(1, window_increment=1 << 20))
    assert peer.answers[1].messages == [(0, array.tobytes())]


def test_after_finish_a_stream_hears_nothing_more(tools):
    peer = tools.Peer().greet({4: 10})
    peer.send(peer.headers(1, path="/test.Echo/ServerStream"))
    call = peer.service.calls[0]
    call.send((b"x" * 100,))  # which the client does not read yet
    call.finish(5, "enough")
    peer.send(tools.data(1, tools.prefixed(b"more")))
    peer.send(tools.raw(0, 0, 1, tools.prefixed(b"y" * 90_000)[:40_000]))
    assert peer.service.messages == []
    peer.send(WindowUpdateFrame(1, window_increment=1000))
    assert peer.answers[1].messages == [(0, b"x" * 100)]
    assert peer.answers[1].status == 5
    assert peer.answers[1].reset == H2Error.NO_ERROR
    assert peer.dispatcher.memory.unfinished_bytes == 0


def test_an_error_before_any_message_is_trailers_only(peer):
    call = hold(peer)
    call.finish(5, "no such model: 'Größe' 100%\n")
    (frame,) = peer.collect()
    assert frame.flags == {"END_HEADERS", "END_STREAM"}
    assert peer.answers[1].status == 5
    assert peer.answers[1].text == "no such model: 'Gr%C3%B6%C3%9Fe' 100%25%0A"
    assert peer.answers[1].blocks[0][":status"] == "200"


def test_a_stream(peer, tools):
    peer.send(peer.headers(1, path="/test.Echo/ServerStream"))
    peer.send(tools.data(1, tools.prefixed(b"one") + tools.prefixed(b"") + tools.prefixed(b"two")))
    assert peer.answers[1].messages == [(0, b"one"), (0, b""), (0, b"two")]
    peer.send(tools.data(1, tools.prefixed(b"three"), end=True))
    assert peer.answers[1].messages[-1] == (0, b"three")
    assert peer.answers[1].status == 0
    assert len(peer.answers[1].blocks) == 2


def test_after_the_end_nothing_does_anything(peer):
    call = hold(peer)
    call.reply((b"x",))
    call.reply((b"y",))
    call.send((b"z",))
    call.finish(13, "late")
    call.pause_receiving()
    call.resume_receiving()
    peer.collect()
    assert peer.answers[1].messages == [(0, b"x")]
    assert not call.writable
    assert not call.cancelled


class Witness:
    """Something a service's callback holds."""


@pytest.mark.parametrize("end", ["reply", "reset"])
def test_an_ended_call_leaves_nothing_to_the_garbage_collector(peer, end):
    call = hold(peer)
    witness = Witness()
    call.on_cancel = lambda call=call, witness=witness: None
    gone = weakref.ref(witness)
    gc.disable()
    try:
        if end == "reply":
            call.reply((b"x",))
        else:
            peer.send(RstStreamFrame(1, error_code=8))
        peer.service.calls.clear()
        del call, witness
        assert gone() is None
    finally:
        gc.enable()


def test_cancelling(peer):
    call = hold(peer)
    peer.send(RstStreamFrame(1, error_code=8))
    assert peer.service.events == ["half-close", "cancel"]
    assert call.cancelled
    call.reply((b"late",))
    assert peer.collect() == []


def test_a_broken_service_costs_only_its_call(peer, caplog):
    with caplog.at_level(logging.ERROR):
        peer.call(1, path="/test.Echo/Broken")
    assert peer.answers[1].status == 13
    assert "the service is broken" in caplog.text
    peer.call(3)
    assert peer.answers[3].status == 0


# Deadlines.


def test_a_deadline_that_passes(peer):
    call = hold(peer, grpc_timeout="100m")
    assert peer.deadlines == [call.deadline_ns]
    peer.clock.advance(0.1)
    assert peer.dispatcher.deadlines.expire(peer.clock()) is None
    peer.collect()
    assert peer.answers[1].status == 4
    assert call.cancelled
    assert peer.service.events == ["half-close", "cancel"]


def test_a_deadline_that_is_met(peer):
    call = hold(peer, grpc_timeout="1S")
    call.reply((b"x",))
    peer.clock.advance(2)
    peer.dispatcher.deadlines.expire(peer.clock())
    assert len(peer.dispatcher.deadlines) == 0
    assert not call.cancelled


def test_a_deadline_before_the_request_is_complete(peer, tools):
    peer.send(peer.headers(1, grpc_timeout="1m"), tools.data(1, b"\0\0"))
    peer.clock.advance(1)
    peer.dispatcher.deadlines.expire(peer.clock())
    peer.collect()
    assert peer.answers[1].status == 4
    assert peer.answers[1].reset == H2Error.NO_ERROR


def test_a_deadline_while_the_client_does_not_read(tools):
    peer = tools.Peer().greet({4: 10})
    call = hold(peer, grpc_timeout="1S")
    call.reply((b"x" * 100,))
    peer.clock.advance(2)
    peer.dispatcher.deadlines.expire(peer.clock())
    peer.collect()
    assert peer.answers[1].reset == H2Error.CANCEL
    assert peer.connection.sender.queued_bytes == 0
    assert not call.cancelled, "the service had answered"


@pytest.mark.parametrize("value", ["5", "S", "123456789S", "-1S", "1X", ""])
def test_timeouts_that_are_none(peer, value):
    peer.call(1, grpc_timeout=value)
    assert peer.answers[1].status == 13
    assert "grpc-timeout" in peer.answers[1].text


# Requests that are wrong above HTTP/2.


def test_a_unary_call_needs_a_message(peer):
    peer.send(peer.headers(1, end=True))
    assert peer.answers[1].status == 13
    assert "without a message" in peer.answers[1].text
    assert peer.service.events == ["cancel"]


def test_a_unary_call_has_one_message(peer, tools):
    peer.send(peer.headers(1), tools.data(1, tools.prefixed(b"a") + tools.prefixed(b"b"), end=True))
    assert peer.answers[1].status == 13
    assert "second message" in peer.answers[1].text
    assert not peer.service.messages


def test_a_unary_call_waits_for_the_half_close(peer, tools):
    peer.send(peer.headers(1), tools.data(1, tools.prefixed(b"a")))
    assert not peer.service.messages
    peer.send(tools.data(1, b"", end=True))
    assert peer.service.messages == [b"a"]


@pytest.mark.parametrize("path", ["/test.Echo/Unary", "/test.Echo/ServerStream"])
def test_a_request_that_ends_inside_a_message(peer, tools, path):
    peer.send(peer.headers(1, path=path), tools.data(1, b"\0\0\0\0\x09abc", end=True))
    assert peer.answers[1].status == 13
    assert peer.service.events == ["cancel"]


def test_a_message_with_an_unknown_flag(peer, tools):
    peer.send(peer.headers(1), tools.data(1, tools.prefixed(b"x", flag=2), end=True))
    assert peer.answers[1].status == 13


def test_messages_before_a_bad_one_are_heard(peer, tools):
    both = tools.prefixed(b"good") + tools.prefixed(b"bad", flag=7)
    peer.send(peer.headers(1, path="/test.Echo/ServerStream"), tools.data(1, both))
    assert peer.service.messages == [b"good"]
    assert peer.answers[1].messages == [(0, b"good")]
    assert peer.answers[1].status == 13


def test_messages_larger_than_the_method_takes(peer, tools):
    peer.call(1, b"x" * 100, path="/test.Echo/Small")
    assert peer.answers[1].status == 0
    peer.send(
        peer.headers(3, path="/test.Echo/Small"), tools.data(3, tools.prefixed(b"x" * 101)[:50])
    )
    assert peer.answers[3].status == 8
    assert peer.answers[3].text == "Received message larger than max (101 vs. 100)"
    assert peer.answers[3].reset == H2Error.NO_ERROR


def test_answers_larger_than_the_method_sends(peer):
    peer.call(1, b"x", path="/test.Echo/Small")
    call = hold(peer, 3)
    call._route.max_send_bytes = 10
    call.reply((b"x" * 11,))
    peer.collect()
    assert peer.answers[3].status == 8
    assert peer.answers[3].text == "Sent message larger than max (11 vs. 10)"


def test_too_many_large_messages_at_once(tools):
    peer = tools.Peer(GrpcSettings(GrpcLimits(max_buffered_bytes=100_000))).greet()
    for stream_id in (1, 3):
        peer.send(peer.headers(stream_id), b"")
        peer.send(tools.raw(0, 0, stream_id, tools.prefixed(b"x" * 90_000)[:60_000]))
    assert peer.answers[3].status == 8
    assert peer.dispatcher.memory.unfinished_bytes == 60_000 - 5
    peer.send(RstStreamFrame(1))
    assert peer.dispatcher.memory.unfinished_bytes == 0
    assert peer.dispatcher.memory.pool.lent == 0


def test_a_limit_reached_by_what_the_socket_wrote_itself(tools):
    peer = tools.Peer(GrpcSettings(GrpcLimits(max_buffered_bytes=100_000))).greet()
    frame = tools.raw(0, 1, 1, tools.prefixed(b"x" * 150_000))
    peer.send(peer.headers(1))
    for start in range(0, len(frame), 20_000):
        peer.feed(frame[start : start + 20_000])
    peer.collect()
    assert peer.direct_bytes > 0
    assert peer.answers[1].status == 8
    peer.call(3)
    assert peer.answers[3].status == 0, "the rest of the frame was skipped"


def test_memory_does_not_run_far_ahead_of_very_long_messages(peer, tools, monkeypatch):
    monkeypatch.setattr(message, "_EAGER_BYTES", 50_000)
    text = bytes(range(250)) * 2000
    data = peer.headers(1).serialize() + tools.raw(0, 1, 1, tools.prefixed(text))
    peer.feed(data[:1000])
    assert peer.dispatcher.memory.pool.lent == 1
    assert len(peer.connection.direct) < 50_000
    for start in range(1000, len(data), 30_000):
        peer.feed(data[start : start + 30_000])
    assert peer.service.messages == [text]
    assert peer.direct_bytes > 400_000


def test_no_memory_for_a_message(peer, tools, monkeypatch):
    def take(_length, aligned_at):
        raise MemoryError

    monkeypatch.setattr(peer.dispatcher.memory.pool, "take", take)
    peer.send(peer.headers(1), tools.raw(0, 1, 1, tools.prefixed(b"x" * 40_000)))
    assert peer.answers[1].status == 8
    assert "40000 bytes" in peer.answers[1].text


def test_a_request_that_stops_arriving(peer, tools):
    peer.send(
        peer.headers(1), tools.data(1, b"\0"), peer.headers(3, path="/test.Echo/ServerStream")
    )
    peer.connection.sweep_stalled(2)
    for _ in range(2):
        peer.connection.sweep_stalled(2)
        assert peer.collect() == []
    peer.connection.sweep_stalled(2)
    peer.collect()
    assert peer.answers[1].status == 4
    assert list(peer.connection.streams) == [3], "streams may be silent for as long as they like"


# Compression.


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_requests(peer, tools, encoding, pack):
    peer.send(
        peer.headers(1, grpc_encoding=encoding),
        tools.data(1, tools.prefixed(pack(b"x" * 50_000), flag=1), end=True),
    )
    assert peer.service.messages == [b"x" * 50_000]


def test_an_encoding_may_be_announced_and_not_used(peer):
    peer.call(1, grpc_encoding="gzip")
    assert peer.answers[1].status == 0


def test_an_encoding_we_do_not_know(peer, tools):
    peer.send(
        peer.headers(1, grpc_encoding="snappy"),
        tools.data(1, tools.prefixed(b"x", flag=1), end=True),
    )
    assert peer.answers[1].status == 12
    assert "snappy" in peer.answers[1].text
    assert peer.answers[1].blocks[-1]["grpc-accept-encoding"] == "identity,deflate,gzip"


def test_a_compressed_message_without_an_encoding(peer, tools):
    peer.send(peer.headers(1), tools.data(1, tools.prefixed(b"x", flag=1), end=True))
    assert peer.answers[1].status == 13


@pytest.mark.parametrize("damage", [lambda d: d[:-9], lambda d: d + b"more", lambda d: b"no" + d])
def test_damaged_compression(peer, tools, damage):
    packed = damage(gzip.compress(b"x" * 1000))
    peer.send(
        peer.headers(1, grpc_encoding="gzip"),
        tools.data(1, tools.prefixed(packed, flag=1), end=True),
    )
    assert peer.answers[1].status == 13
    assert "gzip" in peer.answers[1].text


def test_a_small_message_that_would_be_huge(tools):
    settings = GrpcSettings(GrpcLimits(max_receive_message_bytes=1 << 20))
    peer = tools.Peer(settings).greet()
    bomb = gzip.compress(b"\0" * (64 << 20))
    peer.send(peer.headers(1, grpc_encoding="gzip"))
    peer.send(tools.raw(0, 1, 1, tools.prefixed(bomb, flag=1)))
    assert peer.answers[1].status == 8


@pytest.mark.parametrize(
    ("accepted", "encoding", "unpack"),
    [
        ("identity, deflate, gzip", "gzip", gzip.decompress),
        ("deflate", "deflate", zlib.decompress),
    ],
)
def test_compressed_responses(tools, accepted, encoding, unpack):
    peer = tools.Peer(GrpcSettings(compression=CompressionLevel.HIGH)).greet()
    peer.call(1, b"x" * 5000, grpc_accept_encoding=accepted)
    answer = peer.answers[1]
    assert answer.blocks[0]["grpc-encoding"] == encoding
    ((flag, packed),) = answer.messages
    assert flag == 1
    assert len(packed) < 200
    assert unpack(packed) == b"x" * 5000
    peer.call(3, b"tiny", grpc_accept_encoding=accepted)
    assert peer.answers[3].messages == [(0, b"tiny")]


@pytest.mark.parametrize("accepted", [None, "identity", "snappy"])
def test_responses_stay_plain_for_clients_that_accept_nothing(tools, accepted):
    peer = tools.Peer(GrpcSettings(compression=CompressionLevel.LOW)).greet()
    peer.call(1, b"x" * 5000, grpc_accept_encoding=accepted)
    assert "grpc-encoding" not in peer.answers[1].blocks[0]
    assert peer.answers[1].messages == [(0, b"x" * 5000)]


# Flow control, as a service sees it.


def test_a_slow_reader_is_noticed(tools):
    limits = GrpcLimits(send_high_bytes=10_000, send_low_bytes=5_000)
    peer = tools.Peer(GrpcSettings(limits)).greet({4: 1000})
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    call = peer.service.calls[0]
    sent = 0
    while call.writable:
        call.send((b"x" * 995,))
        sent += 1
    peer.collect()
    assert sent == 12
    assert peer.service.events == []
    for _ in range(6):
        peer.send(WindowUpdateFrame(1, window_increment=1000))
    assert peer.service.events == []
    peer.send(WindowUpdateFrame(1, window_increment=1000))
    assert peer.service.events == ["drain"]
    assert call.writable
    call.finish()
    peer.send(WindowUpdateFrame(1, window_increment=100_000))
    assert len(peer.answers[1].messages) == sent
    assert peer.answers[1].status == 0
    assert not peer.connection.streams


def test_a_paused_stream_gets_no_more_window(tools):
    limits = GrpcLimits(stream_window_bytes=65_535)
    peer = tools.Peer(GrpcSettings(limits)).greet()
    peer.send(peer.headers(1, path="/test.Echo/ServerStream"))
    call = peer.service.calls[0]
    call.pause_receiving()

    def updates():
        return [f for f in peer.frames if isinstance(f, WindowUpdateFrame) and f.stream_id == 1]

    for _ in range(3):
        peer.send(tools.data(1, tools.prefixed(b"x" * 16_000)))
    assert updates() == []
    assert len(peer.service.messages) == 3, "what the window allowed still arrives"
    call.resume_receiving()
    peer.collect()
    assert [update.window_increment for update in updates()] == [3 * 16_005]


def test_large_messages_come_in_place_and_aligned(peer, tools):
    import numpy as np

    text = bytes(range(256)) * 1000
    views = []
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    peer.service.calls[0].on_message = views.append
    for piece in range(0, 300_000, 50_000):
        frame = tools.raw(0, int(piece == 250_000), 1, tools.prefixed(text)[piece:][:50_000])
        peer.feed(frame[:9])
        peer.feed(frame[9:])
    assert peer.direct_bytes >= 200_000
    (view,) = views
    assert view == text
    end = np.frombuffer(view, np.uint8).ctypes.data + len(view)
    assert end % 64 == 0
