"""However the bytes of a connection are cut into pieces, the outcome is the same."""

from __future__ import annotations

import gzip

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.frontends.grpc.settings import GrpcLimits, GrpcSettings
from shoal.wire.http2_frames import PREFACE

SETTINGS = GrpcSettings(GrpcLimits(max_receive_message_bytes=200_000))


def conversation(tools) -> bytes:
    """A bit of everything that is legal, and a little that is not."""
    peer = tools.Peer()  # for its encoder
    prefixed = tools.prefixed
    large = bytes(range(256)) * 600
    first = peer.headers(1)  # in the order in which they are sent, for the header table
    long_block = peer.headers(3).data
    padded = peer.headers(5)
    padded.flags |= {"PADDED", "PRIORITY"}
    padded.pad_length = 17
    packed = prefixed(gzip.compress(b"z" * 5000), flag=1)
    frames = [
        PREFACE,
        SettingsFrame(0, settings={4: 1 << 20, 5: 1 << 20}),
        WindowUpdateFrame(0, window_increment=1 << 22),
        first,
        tools.data(1, prefixed(b"first"), end=True),
        HeadersFrame(3, data=long_block[:5]),
        ContinuationFrame(3, data=long_block[5:9]),
        ContinuationFrame(3, data=long_block[9:], flags=["END_HEADERS"]),
        tools.raw(0, 0, 3, prefixed(large)[:3]),
        tools.raw(0, 0, 3, prefixed(large)[3:70_000]),
        PingFrame(0, opaque_data=b"12345678"),
        padded,
        DataFrame(5, data=prefixed(b"padded"), flags=["PADDED", "END_STREAM"], pad_length=100),
        tools.raw(0, 0, 3, prefixed(large)[70_000:71_000]),
        tools.raw(0, 0, 3, prefixed(large)[71_000:]),
        tools.raw(0, 1, 3),
        tools.raw(0x33, 7, 9, b"unknown" * 30),
        peer.headers(7, path="/test.Echo/ServerStream", grpc_encoding="gzip"),
        tools.data(7, prefixed(b"one") + prefixed(b"") + packed + prefixed(b"tw")[:6]),
        tools.data(7, b"o"[:0]),
        PriorityFrame(7),
        tools.data(7, prefixed(b"three"), end=True),
        peer.headers(9, path="/test.Echo/Hold"),
        tools.data(9, prefixed(b"held")),
        RstStreamFrame(9, error_code=8),
        peer.headers(11, te="gzip"),
        tools.data(11, b"nobody wants this" * 10),
        peer.headers(13),
        tools.data(13, prefixed(b"x" * 200_001)[:9000]),
        tools.data(13, b"y" * 500, end=True),
        peer.headers(15, path="/test.Echo/ServerStream"),
        tools.data(15, prefixed(b"fine") + prefixed(b"wrong", flag=9) + b"rest"),
        tools.raw(2, 0, 7, b"1234"),
        peer.headers(17, content_length="3"),
        tools.raw(0, 9, 17, b"\x04" + prefixed(b"no") + b"\0" * 4),
        peer.headers(19),
        DataFrame(19, data=b"", flags=["PADDED"], pad_length=250),
        tools.data(19, prefixed(b"last")),
        peer.block(19, [("some", "trailer")], end=True),
        tools.raw(7, 0, 0, b"\0" * 8 + b"bye" * 50),
        tools.raw(4, 0, 0, b"12345"),  # and the end of it all
        peer.headers(21, end=True),
    ]
    return b"".join(f if isinstance(f, bytes) else f.serialize() for f in frames)


def outcome(peer):
    """What must not depend on the cuts; when window is granted again may."""
    answers = {
        stream_id: (answer.blocks, answer.data, answer.ended, answer.reset)
        for stream_id, answer in sorted(peer.answers.items())
        if answer.blocks or answer.reset is not None
    }
    control = [
        frame.serialize()
        for frame in peer.frames
        if frame.stream_id == 0 and not isinstance(frame, WindowUpdateFrame)
    ]
    return answers, control, peer.service.messages, peer.service.events


def play(tools, data, cuts):
    peer = tools.Peer(SETTINGS)
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        peer.feed(data[start:stop])
        peer.collect()
    assert peer.dispatcher.memory.unfinished_bytes == 0
    assert peer.connection.sender.queued_bytes == 0
    return peer


@pytest.fixture(scope="module")
def whole():
    return {}


def expected(tools, whole):
    if not whole:
        data = conversation(tools)
        whole["data"] = data
        whole["outcome"] = outcome(play(tools, data, []))
    return whole["data"], whole["outcome"]


def test_the_conversation_is_what_it_means_to_be(tools, whole):
    _, (answers, control, messages, events) = expected(tools, whole)
    assert [len(m) for m in messages] == [5, 6, 153_600, 3, 0, 5000, 2, 4, 4]
    assert events == ["cancel"] * 5
    statuses = {n: a[0][-1].get("grpc-status") for n, a in answers.items() if a[0]}
    assert statuses == {1: "0", 3: "0", 5: "0", 7: "13", 13: "8", 15: "13", 19: "0"}
    assert {n: a[3] for n, a in answers.items() if a[3] is not None} == {
        7: 6, 11: 1, 13: 0, 15: 0, 17: 1,
    }  # fmt: skip
    assert control[-1][3] == 7, "GOAWAY comes last"


@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_cut_anywhere(tools, whole, data):
    stream, right = expected(tools, whole)
    # Most cuts shortly after each other, where the frames are small.
    positions = st.one_of(st.integers(1, len(stream) - 1), st.integers(1, 400))
    cuts = sorted(data.draw(st.sets(positions, max_size=40)))
    assert outcome(play(tools, stream, cuts)) == right


def test_byte_by_byte(tools, whole):
    stream, right = expected(tools, whole)
    skipped = range(75_000, len(stream) - 60_000)  # the middle of the large message
    cuts = [position for position in range(1, len(stream)) if position not in skipped]
    assert outcome(play(tools, stream, cuts)) == right
