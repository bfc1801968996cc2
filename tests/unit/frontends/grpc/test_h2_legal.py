"""What HTTP/2 allows, however odd, must work."""

from __future__ import annotations

import hpack
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from shoal.frontends.grpc.settings import GrpcLimits, GrpcSettings
from shoal.wire.http2_frames import PREFACE, H2Error


def assert_echoed(peer, stream_id, message=b"hi"):
    answer = peer.answers[stream_id]
    assert answer.blocks[0][":status"] == "200"
    assert answer.blocks[0]["content-type"] == "application/grpc"
    assert answer.messages == [(0, message)]
    assert answer.status == 0
    assert answer.reset is None
    assert peer.goaway is None


def test_the_server_greets_with_its_settings(tools):
    peer = tools.Peer()
    first, window, ack = peer.send(PREFACE, SettingsFrame(0))
    assert first.settings == {3: 1024, 4: 4 << 20, 5: 4 << 20, 6: 16384}
    assert (window.stream_id, window.window_increment) == (0, (64 << 20) - 65535)
    assert ack.flags == {"ACK"}


def test_a_call(peer):
    headers, data, trailers = peer.call(1)
    assert_echoed(peer, 1)
    assert headers.flags == {"END_HEADERS"}
    assert data.flags == set()
    assert trailers.flags == {"END_HEADERS", "END_STREAM"}
    assert not peer.connection.streams


def test_frames_of_unknown_type_are_ignored(peer, tools):
    peer.send(
        tools.raw(0x42, 0xFF, 0, b"x" * 100),
        tools.raw(0x42, 0xFF, 77, b""),
        tools.raw(0x10, 0, 0, b"priority update"),
    )
    peer.call(1)
    assert_echoed(peer, 1)


def test_unknown_flags_and_the_reserved_bit_are_ignored(peer, tools):
    block = peer.headers(1).data
    peer.send(
        tools.raw(1, 0x04 | 0x40 | 0x80, 1 | 1 << 31, block),
        tools.raw(0, 0x01 | 0x40 | 0x80, 1 | 1 << 31, tools.prefixed(b"hi")),
    )
    assert_echoed(peer, 1)


def test_unknown_settings_are_ignored(tools):
    peer = tools.Peer().greet({0xFE03: 1, 9: 5})
    peer.call(1)
    assert_echoed(peer, 1)


def test_padding_everywhere(peer, tools):
    headers = peer.headers(1)
    headers.flags.add("PADDED")
    headers.pad_length = 255
    body = DataFrame(1, data=tools.prefixed(b"hi"), flags=["END_STREAM", "PADDED"], pad_length=200)
    peer.send(headers, body)
    assert_echoed(peer, 1)


def test_padding_may_be_all_there_is(peer, tools):
    peer.send(
        peer.headers(1),
        DataFrame(1, data=b"", flags=["PADDED"], pad_length=0),
        DataFrame(1, data=tools.prefixed(b"hi")),
        DataFrame(1, data=b"", flags=["PADDED", "END_STREAM"], pad_length=9),
    )
    assert_echoed(peer, 1)


def test_priority_is_ignored(peer, tools):
    headers = peer.headers(1)
    headers.flags.add("PRIORITY")
    headers.depends_on, headers.stream_weight, headers.exclusive = 1, 5, True
    peer.send(
        PriorityFrame(7, depends_on=7), headers, tools.data(1, tools.prefixed(b"hi"), end=True)
    )
    assert_echoed(peer, 1)


@pytest.mark.parametrize("size", [1, 2, 7, 50])
def test_header_blocks_in_pieces(peer, tools, size):
    block = peer.headers(1).data
    pieces = [block[i : i + size] for i in range(0, len(block), size)]
    frames = [HeadersFrame(1, data=pieces[0])]
    frames += [ContinuationFrame(1, data=piece) for piece in pieces[1:]]
    frames.append(ContinuationFrame(1, data=b"", flags=["END_HEADERS"]))
    peer.send(*frames, tools.data(1, tools.prefixed(b"hi"), end=True))
    assert_echoed(peer, 1)


def test_trailers_may_end_a_request(peer, tools):
    peer.send(peer.headers(1), tools.data(1, tools.prefixed(b"hi")))
    assert peer.answers.get(1) is None
    peer.send(peer.block(1, [("checksum", "1")], end=True))
    assert_echoed(peer, 1)


def test_content_length_is_welcome_when_true(peer, tools):
    peer.call(1, content_length="7")
    assert_echoed(peer, 1)


@pytest.mark.parametrize("te", [None, "trailers", "Trailers"])
def test_te_may_be_missing(peer, te):
    peer.call(1, te=te)
    assert_echoed(peer, 1)


@pytest.mark.parametrize(
    "content_type",
    ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"],
)
def test_content_types_of_grpc(peer, content_type):
    peer.call(1, content_type=content_type)
    assert_echoed(peer, 1)


@pytest.mark.parametrize("content_type", [None, "application/json", "application/grpc-web"])
def test_other_content_types_get_415(peer, content_type):
    peer.call(1, content_type=content_type)
    assert peer.answers[1].blocks[0][":status"] == "415"
    assert "application/grpc" in peer.answers[1].text
    assert not peer.service.calls


def test_only_post_is_served(peer):
    fields = [(n, "GET" if n == ":method" else v) for n, v in peer_headers()]
    peer.send(peer.block(1, fields, end=True))
    assert peer.answers[1].blocks[0][":status"] == "405"


def peer_headers():
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/test.Echo/Unary"),
        ("content-type", "application/grpc"),
    ]


def test_streams_may_skip_ids_and_interleave(peer, tools):
    peer.send(peer.headers(3), peer.headers(101))
    peer.send(tools.data(101, tools.prefixed(b"b"), end=True))
    peer.send(tools.data(3, tools.prefixed(b"a"), end=True))
    assert_echoed(peer, 3, b"a")
    assert_echoed(peer, 101, b"b")


def test_ping_is_answered_with_its_own_bytes(peer):
    (answer,) = peer.send(PingFrame(0, opaque_data=b"abcdefgh"))
    assert answer.flags == {"ACK"}
    assert answer.opaque_data == b"abcdefgh"


def test_answers_to_pings_nobody_asked_for_are_ignored(peer):
    assert peer.send(PingFrame(0, opaque_data=b"abcdefgh", flags=["ACK"])) == []


def test_frames_on_a_stream_we_have_reset_are_ignored(peer, tools):
    peer.send(peer.headers(1, te="gzip"))
    assert peer.answers[1].reset == H2Error.PROTOCOL_ERROR
    answers = peer.send(
        tools.data(1, b"x" * 100),
        WindowUpdateFrame(1, window_increment=5),
        peer.block(1, [("late", "trailer")], end=True),
        RstStreamFrame(1, error_code=8),
    )
    assert answers == []
    peer.call(3)
    assert_echoed(peer, 3)


def test_window_updates_and_resets_on_closed_streams_are_ignored(peer):
    peer.call(1)
    answers = peer.send(
        WindowUpdateFrame(1, window_increment=5), RstStreamFrame(1), PriorityFrame(1)
    )
    assert answers == []


def test_a_smaller_header_table_is_acknowledged_in_the_next_block(peer):
    peer.send(SettingsFrame(0, settings={1: 0}))
    frames = peer.call(1)
    assert frames[0].data.startswith(b"\x20")
    assert not frames[-1].data.startswith(b"\x20"), "once is enough"
    strict = hpack.Decoder()
    strict.max_allowed_table_size = 0
    strict.header_table_size = 0
    assert strict.decode(frames[0].data)
    peer.send(SettingsFrame(0, settings={1: 8192}))
    assert not peer.call(3)[0].data.startswith(b"\x20")
    peer.send(SettingsFrame(0, settings={1: 100}))
    assert peer.call(5)[0].data.startswith(b"\x20")


def test_the_clients_table_may_shrink_and_grow(peer, tools):
    peer.call(1, custom="one")
    peer.encoder.header_table_size = 0
    peer.call(3, custom="one")
    peer.encoder.header_table_size = 4096
    peer.call(5, custom="one")
    peer.call(7, custom="one")
    peer.call(9, custom="one")
    for stream_id, call in zip((1, 3, 5, 7, 9), peer.service.calls, strict=True):
        assert_echoed(peer, stream_id)
        assert call.metadata == [("custom", "one")]


def test_a_smaller_frame_size_is_kept(tools):
    peer = tools.Peer().greet({4: 1 << 20, 5: 16384})
    message = b"x" * 50_000
    peer.call(1, message)
    sizes = [len(f.data) for f in peer.frames if isinstance(f, DataFrame)]
    assert max(sizes) == 16384
    assert_echoed(peer, 1, message)


def test_long_trailers_are_continued(tools):
    peer = tools.Peer().greet()
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    many = [(f"key-{number}", "v" * 1000) for number in range(40)]
    peer.service.calls[0].reply((b"hi",), many)
    frames = peer.collect()
    assert sum(isinstance(frame, ContinuationFrame) for frame in frames) == 2
    assert peer.answers[1].blocks[-1]["key-39"] == "v" * 1000
    assert peer.answers[1].status == 0


def test_early_answers_end_the_stream_without_error(peer, tools):
    peer.send(peer.headers(1, path="/no/such"))
    assert peer.answers[1].status == 12
    assert "/no/such" in peer.answers[1].text
    assert peer.answers[1].reset == H2Error.NO_ERROR
    assert peer.send(tools.data(1, b"x" * 100, end=True)) == []


def test_goaway_from_the_client_lets_calls_finish(peer, tools):
    peer.send(peer.headers(1), GoAwayFrame(0, additional_data=b"bye"))
    peer.send(tools.data(1, tools.prefixed(b"hi"), end=True))
    assert_echoed(peer, 1)


def test_received_bytes_are_granted_again(tools):
    limits = GrpcLimits(stream_window_bytes=100_000, connection_window_bytes=200_000)
    peer = tools.Peer(GrpcSettings(limits)).greet({4: 1 << 20})
    peer.send(peer.headers(1, path="/test.Echo/ServerStream"))
    sent = 0
    stream_window, connection_window = 100_000, 200_000
    for _ in range(200):
        message = tools.prefixed(b"x" * 10_000)
        sent += len(message)
        stream_window -= len(message)
        connection_window -= len(message)
        assert min(stream_window, connection_window) >= 0
        frames = peer.send(tools.data(1, message), WindowUpdateFrame(0, window_increment=10_005))
        for frame in frames:
            if isinstance(frame, WindowUpdateFrame):
                if frame.stream_id:
                    stream_window += frame.window_increment
                else:
                    connection_window += frame.window_increment
    assert stream_window <= 100_000
    assert connection_window <= 200_000
    assert len(peer.service.messages) == 200


def test_data_nobody_wants_still_fills_the_connections_window_again(tools):
    limits = GrpcLimits(connection_window_bytes=100_000)
    peer = tools.Peer(GrpcSettings(limits)).greet()
    peer.send(peer.headers(1, path="/no/such"))
    for _ in range(20):
        peer.send(tools.data(1, b"x" * 16_000))
    assert peer.goaway is None
    granted = sum(
        frame.window_increment
        for frame in peer.frames
        if isinstance(frame, WindowUpdateFrame) and not frame.stream_id
    )
    assert granted > 300_000


def test_the_length_of_a_message_widens_its_window_at_once(tools):
    limits = GrpcLimits(stream_window_bytes=65_535)
    peer = tools.Peer(GrpcSettings(limits)).greet()
    peer.send(peer.headers(1), tools.data(1, tools.prefixed(b"")[:1] + (10**6).to_bytes(4, "big")))
    (update,) = [f for f in peer.frames if isinstance(f, WindowUpdateFrame) and f.stream_id == 1]
    assert update.window_increment == 10**6 - (65_535 - 5)


def test_remembered_heads_do_not_outlive_the_table_they_were_read_with(peer, tools):
    # Everything literal or static but the last field: 0xbe is the newest entry of the table.
    start = b"\x83\x86\x04\x10/test.Echo/Unary\x0f\x10\x10application/grpc"
    newest = start + b"\xbe"
    blocks = [
        start + b"\x40\x01a\x011",
        newest,
        newest,
        start + b"\x40\x01b\x012",
        newest,
        b"\x20" + start,
        b"\x3f\xe1\x1f" + start + b"\x40\x01c\x013",
        newest,
    ]
    for number, block in enumerate(blocks):
        frame = HeadersFrame(1 + 2 * number, data=block, flags=["END_HEADERS", "END_STREAM"])
        peer.send(frame)
    a, b, c = [("a", "1")], [("b", "2")], [("c", "3")]
    assert [call.metadata for call in peer.service.calls] == [a, a, a, b, b, [], c, c]


def test_more_heads_than_are_remembered(peer):
    start = b"\x83\x86\x04\x10/test.Echo/Unary\x0f\x10\x10application/grpc\x00\x01x\x02"
    values = [f"{number % 90:02}" for number in range(300)]
    for number, value in enumerate(values):
        block = start + value.encode()
        peer.send(HeadersFrame(1 + 2 * number, data=block, flags=["END_HEADERS"]))
    assert [call.metadata for call in peer.service.calls] == [[("x", value)] for value in values]


@pytest.mark.parametrize("value", ["%%%", "A", "AAA=A"])
def test_binary_metadata_that_is_none(peer, value):
    peer.call(1, data_bin=value)
    assert peer.answers[1].status == 13
    assert "data-bin" in peer.answers[1].text


def test_metadata_may_begin_and_end_with_spaces(peer):
    peer.call(1, a=" x  ")
    assert peer.service.calls[0].metadata == [("a", " x  ")]


def test_text_metadata_need_not_be_ascii(peer):
    block = peer.encoder.encode([*peer_headers(), ("a", "ü".encode()), ("b", b"\xff")])
    peer.send(HeadersFrame(1, data=block, flags=["END_HEADERS"]))
    assert peer.service.calls[0].metadata == [("a", "ü"), ("b", "ÿ")]
