"""Calls that arrive whole take a way of their own, with the outcome of the usual one."""

from __future__ import annotations

import pytest
from hyperframe.frame import PingFrame, RstStreamFrame, WindowUpdateFrame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.frontends.grpc.settings import GrpcLimits, GrpcSettings
from shoal.wire.http2_frames import PREFACE

SETTINGS = GrpcSettings(GrpcLimits(max_receive_message_bytes=500, max_frame_bytes=16_384))


def count_usual(peer, monkeypatch):
    """Every HEADERS frame that took the usual way, by its stream."""
    seen = []
    usual = peer.connection._on_headers

    def on_headers(stream_id, flags, payload):
        seen.append(stream_id)
        usual(stream_id, flags, payload)

    monkeypatch.setattr(peer.connection, "_on_headers", on_headers)
    return seen


@pytest.mark.parametrize("window", [False, True])
def test_repeated_calls_take_it(peer, tools, monkeypatch, window):
    usual = count_usual(peer, monkeypatch)
    peer.call(1, b"one")
    peer.call(3, b"two")  # its block is the first that leaves the table as it is
    for stream_id in (5, 7, 9):
        more = [WindowUpdateFrame(stream_id, window_increment=5)] if window else []
        message = tools.data(stream_id, tools.prefixed(b"%d" % stream_id), end=True)
        peer.send(peer.headers(stream_id), *more, message)
    assert usual == [1, 3]
    assert peer.service.messages == [b"one", b"two", b"5", b"7", b"9"]
    assert all(peer.answers[stream_id].status == 0 for stream_id in (5, 7, 9))
    assert not peer.connection.streams


def test_the_window_it_brings_counts(tools):
    peer = tools.Peer().greet({4: 0})  # nothing may be sent before the client says how much
    for stream_id, increment in ((1, 100), (3, 100), (5, 100), (7, 9)):
        peer.send(
            peer.headers(stream_id),
            WindowUpdateFrame(stream_id, window_increment=increment),
            tools.data(stream_id, tools.prefixed(b"12345"), end=True),
        )
    assert [peer.answers[n].status for n in (1, 3, 5, 7)] == [0, 0, 0, None]
    peer.send(WindowUpdateFrame(7, window_increment=1))
    assert peer.answers[7].status == 0


paths = st.sampled_from(["Unary", "ServerStream", "Hold", "Small", "Broken", "Missing"])
calls = st.lists(
    st.tuples(
        paths,
        st.sampled_from([0, 5, 99, 101, 501]),  # bytes of the message
        st.sampled_from([None, 0, 5, 2**31 - 1]),  # the window update between
        st.sampled_from([2, 2, 2, 4]),  # from one stream id to the next
        st.sampled_from(["", "", "open", "longer", "twice", "flag", "padded", "large"]),
        st.sampled_from(["", "", "", "ping", "reset"]),
    ),
    max_size=8,
)


def conversation(tools, made) -> bytes:
    peer = tools.Peer()  # for its encoder
    frames = [PREFACE, tools.raw(4, 0, 0)]
    stream_id = 1
    for path, size, window, step, oddity, after in made:
        frames.append(peer.headers(stream_id, path=f"/test.Echo/{path}"))
        if window is not None:
            frames.append(tools.raw(8, 0, stream_id, window.to_bytes(4, "big")))
        message = tools.prefixed(b"x" * size, flag=oddity == "flag")
        if oddity == "longer":
            message += b"y"
        if oddity == "twice":
            message += tools.prefixed(b"z")
        if oddity == "padded":
            frames.append(tools.raw(0, 9, stream_id, b"\x02" + message + b"\0\0"))
        elif oddity == "large":
            frames.append(tools.raw(0, 1, stream_id, tools.prefixed(bytes(17_000))))
        else:
            frames.append(tools.data(stream_id, message, end=oddity != "open"))
        if after == "ping":
            frames.append(PingFrame(0, opaque_data=b"12345678"))
        if after == "reset":
            frames.append(RstStreamFrame(stream_id, error_code=8))
        stream_id += step
    return b"".join(f if isinstance(f, bytes) else f.serialize() for f in frames)


def outcome(tools, data, piece):
    peer = tools.Peer(SETTINGS)
    for start in range(0, len(data), piece):
        peer.feed(data[start : start + piece])
        peer.collect()
    # Whoever is refused before all was sent is told not to send the rest: NO_ERROR, which is 0.
    answers = {
        stream_id: (answer.blocks, answer.data, answer.ended, answer.reset or None)
        for stream_id, answer in sorted(peer.answers.items())
        if answer.blocks or answer.reset
    }
    control = [
        frame.serialize()
        for frame in peer.frames
        if frame.stream_id == 0 and not isinstance(frame, WindowUpdateFrame)
    ]
    connection = peer.connection
    state = (connection.closed, connection.last_id, sorted(connection.streams))
    return answers, control, peer.service.messages, sorted(peer.service.events), state


@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(made=calls)
def test_whole_or_in_pieces_the_outcome_is_the_same(tools, made):
    data = conversation(tools, made)
    assert outcome(tools, data, len(data)) == outcome(tools, data, 7)


@pytest.mark.parametrize("frame_bytes", [1_000, 16_384])
@pytest.mark.parametrize("piece", [999, 50_000, 1 << 20])
def test_a_large_message_in_many_frames(tools, frame_bytes, piece):
    message = bytes(range(256)) * 800
    peer = tools.Peer()
    prefixed = tools.prefixed(message)
    frames = [PREFACE, tools.raw(4, 0, 0), peer.headers(1)]
    for start in range(0, len(prefixed), frame_bytes):
        last = start + frame_bytes >= len(prefixed)
        frames.append(tools.data(1, prefixed[start : start + frame_bytes], end=last))
        if start == 4 * frame_bytes:
            frames.append(PingFrame(0, opaque_data=b"12345678"))
    data = b"".join(f if isinstance(f, bytes) else f.serialize() for f in frames)
    peer = tools.Peer()
    for start in range(0, len(data), piece):
        peer.feed(data[start : start + piece])
        peer.collect()
    assert peer.service.messages == [message]
    assert peer.dispatcher.memory.unfinished_bytes == 0
    windows = (peer.connection._receive_window, peer.connection._limits.connection_window_bytes)
    assert windows[1] - windows[0] == len(prefixed)
