"""What an honest client does rarely: each flood ends with ENHANCE_YOUR_CALM, and not too soon."""

from __future__ import annotations

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from shoal.frontends.grpc.guard import MAX_CONTINUATIONS
from shoal.frontends.grpc.settings import GrpcLimits, GrpcSettings, KeepAlive
from shoal.wire.http2_frames import H2Error

CALM = H2Error.ENHANCE_YOUR_CALM
SETTINGS = GrpcSettings(
    GrpcLimits(
        max_idle_frames=50,
        max_resets=50,
        resets_per_sec=10,
        max_concurrent_streams=4,
        max_header_list_bytes=4096,
    ),
    KeepAlive(max_ping_strikes=0),
)


@pytest.fixture
def peer(tools):
    return tools.Peer(SETTINGS).greet()


FLOODS = {
    "settings": SettingsFrame(0).serialize(),
    "pings": PingFrame(0, opaque_data=b"12345678").serialize(),
    "priorities": PriorityFrame(1).serialize(),
    "window updates": WindowUpdateFrame(0, window_increment=1).serialize(),
    "unknown frames": bytes.fromhex("0000027f0000000000") + b"ab",
    "empty data": bytes.fromhex("000000000000000001"),
    "padding without data": bytes.fromhex("000002000800000001") + b"\x01\x00",
    "goaways": bytes.fromhex("0000080700000000000000000000000000"),
}


@pytest.mark.parametrize("frame", FLOODS.values(), ids=FLOODS.keys())
def test_frames_that_move_nothing(peer, frame):
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    peer.send(frame * 40)
    assert peer.goaway is None
    peer.send(frame * 40)
    assert peer.goaway.error_code == CALM
    assert peer.service.events == ["cancel"]


@pytest.mark.parametrize("frame", FLOODS.values(), ids=FLOODS.keys())
def test_answered_calls_make_good_for_the_frames_around_them(peer, frame):
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    for number in range(20):
        peer.send(frame * 20)
        peer.call(3 + 2 * number)
        assert peer.answers[3 + 2 * number].status == 0
    assert peer.goaway is None


def test_rapid_reset(peer):
    opened = 0
    while peer.goaway is None:
        stream_id = 1 + 2 * opened
        peer.send(
            peer.headers(stream_id, path="/test.Echo/Hold"), RstStreamFrame(stream_id, error_code=8)
        )
        opened += 1
        assert opened <= 51
    assert peer.goaway.error_code == CALM
    assert opened == 51
    assert peer.service.events == ["cancel"] * 51, "each call heard that it was taken back"


def test_cancelling_at_a_human_pace_is_fine(peer):
    for number in range(300):
        stream_id = 1 + 2 * number
        peer.send(
            peer.headers(stream_id, path="/test.Echo/Hold"), RstStreamFrame(stream_id, error_code=8)
        )
        peer.clock.advance(0.1)
    assert peer.goaway is None


def test_making_us_reset_streams_counts_as_much(peer, tools):
    for number in range(51):
        peer.send(peer.headers(1 + 2 * number, te="gzip"))
    assert peer.goaway.error_code == CALM


def test_data_on_closed_streams_counts_as_much(peer, tools):
    peer.call(1)
    for number in range(60):
        peer.call(3 + 2 * number)
        peer.send(tools.data(3 + 2 * number, b"late"))
    assert peer.goaway.error_code == CALM


def test_more_streams_than_allowed_are_refused(peer):
    for number in range(6):
        peer.send(peer.headers(1 + 2 * number, path="/test.Echo/Hold"))
    assert [peer.answers[n].reset for n in (9, 11)] == [H2Error.REFUSED_STREAM] * 2
    assert len(peer.service.calls) == 4
    peer.service.calls[0].reply((b"room",))
    peer.call(13)
    assert peer.answers[13].status == 0, "the header table is still in step, and there is room"


def test_a_client_that_reads_no_answers_gets_no_new_calls(tools):
    peer = tools.Peer(GrpcSettings(GrpcLimits(max_queued_bytes=1 << 20))).greet({4: 0})
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    peer.service.calls[0].send((b"x" * (2 << 20),))
    peer.call(3)
    assert peer.answers[3].reset == H2Error.REFUSED_STREAM


def test_a_header_block_in_too_many_pieces(peer):
    frame = peer.headers(1)
    frame.flags.discard("END_HEADERS")
    peer.send(frame, *[ContinuationFrame(1, data=b"")] * MAX_CONTINUATIONS)
    assert peer.goaway is None
    peer.send(ContinuationFrame(1, data=b""))
    assert peer.goaway.error_code == CALM


def test_a_header_block_without_end(peer):
    frame = peer.headers(1)
    frame.flags.discard("END_HEADERS")
    peer.send(frame)
    for _ in range(8):
        peer.send(ContinuationFrame(1, data=b"\x00\x01a" + b"\x7f\x81\x07" + b"x" * 1024))
    assert peer.goaway.error_code == CALM


def test_a_header_block_that_is_large_in_one_frame(peer, tools):
    peer.send(tools.raw(1, 4, 1, b"\x00" * 9000))
    assert peer.goaway.error_code == CALM


def test_a_header_block_that_unfolds_beyond_all_bounds(peer):
    first = peer.encoder.encode([("big", "x" * 3000)])
    frame = peer.headers(1)
    frame.data += first + b"\xbe" * 100
    peer.send(frame)
    assert peer.goaway.error_code == CALM


def test_metadata_a_little_too_large_is_refused_with_a_status(peer):
    peer.call(1, big="x" * 4096)
    assert peer.answers[1].status == 8
    assert "4096" in peer.answers[1].text
    peer.call(3)
    assert peer.answers[3].status == 0
    assert peer.goaway is None


def ping(peer):
    return peer.send(PingFrame(0, opaque_data=b"12345678"))


def test_pings_too_soon_are_strikes(tools):
    peer = tools.Peer(GrpcSettings(keepalive=KeepAlive(min_recv_ping_interval_ms=10_000))).greet()
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    for _ in range(3):  # the first is in time, two strikes are allowed
        assert ping(peer)[0].flags == {"ACK"}
        peer.clock.advance(9)
    assert peer.goaway is None
    ping(peer)
    assert peer.goaway.error_code == CALM
    assert peer.goaway.additional_data == b"too_many_pings"


def test_pings_at_the_right_pace_are_fine(tools):
    peer = tools.Peer(GrpcSettings(keepalive=KeepAlive(min_recv_ping_interval_ms=10_000))).greet()
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    for _ in range(20):
        ping(peer)
        peer.clock.advance(10)
    assert peer.goaway is None


def test_without_calls_pings_are_to_be_rare(tools):
    peer = tools.Peer(GrpcSettings(keepalive=KeepAlive(min_recv_ping_interval_ms=10_000))).greet()
    for _ in range(4):
        ping(peer)
        peer.clock.advance(60)
    assert peer.goaway.error_code == CALM


def test_answers_wipe_out_strikes(tools):
    peer = tools.Peer(GrpcSettings()).greet()
    for number in range(20):
        ping(peer)
        ping(peer)
        peer.call(1 + 2 * number)
    assert peer.goaway is None
