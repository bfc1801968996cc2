"""Sending: windows, turns and what waits."""

from __future__ import annotations

import itertools

import pytest
from hyperframe.frame import DataFrame, HeadersFrame, SettingsFrame, WindowUpdateFrame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.buffers import BufferPool
from shoal.frontends.grpc.flow import PUMP_BYTES, Sender, ServerStream
from shoal.frontends.memory_budget import MemoryBudget


def sizes(frames, stream_id):
    return [len(f.data) for f in frames if isinstance(f, DataFrame) and f.stream_id == stream_id]


def test_nothing_leaves_beyond_the_streams_window(tools):
    peer = tools.Peer().greet({4: 30})
    frames = peer.call(1, b"x" * 95)
    assert sizes(frames, 1) == [30]
    assert sizes(peer.send(WindowUpdateFrame(1, window_increment=50)), 1) == [50]
    assert peer.send(WindowUpdateFrame(0, window_increment=50)) == []
    *_, trailers = peer.send(WindowUpdateFrame(1, window_increment=20))
    assert "END_STREAM" in trailers.flags
    assert peer.answers[1].messages == [(0, b"x" * 95)]


def test_headers_need_no_window(tools):
    peer = tools.Peer().greet({4: 0})
    (headers,) = peer.call(1)
    assert isinstance(headers, HeadersFrame)


def test_nothing_leaves_beyond_the_connections_window(tools):
    peer = tools.Peer().greet({4: 1 << 20})
    peer.call(1, b"x" * 60_000)
    peer.call(3, b"y" * 60_000)
    received = sum(sum(sizes(peer.frames, n)) for n in (1, 3))
    assert received == 65_535
    peer.send(WindowUpdateFrame(0, window_increment=1 << 20))
    assert peer.answers[3].messages == [(0, b"y" * 60_000)]
    assert peer.answers[3].status == 0


def test_small_answers_pass_large_ones(tools):
    peer = tools.Peer().greet({4: 40_000})
    peer.call(1, b"x" * 60_000)
    assert peer.answers[1].status is None
    peer.call(3, b"small")
    assert peer.answers[3].status == 0


def test_streams_take_turns(tools):
    peer = tools.Peer().greet({4: 0})
    for stream_id in (1, 3, 5):
        peer.call(stream_id, b"x" * 200_000)
    peer.send(
        SettingsFrame(0, settings={4: 1 << 20}), WindowUpdateFrame(0, window_increment=1 << 20)
    )
    order = [frame.stream_id for frame in peer.frames if isinstance(frame, DataFrame)]
    turns = [order[0]] + [b for a, b in itertools.pairwise(order) if a != b]
    assert turns[:6] == [1, 3, 5, 1, 3, 5]


def test_a_larger_initial_window_frees_what_waits(tools):
    peer = tools.Peer().greet({4: 10})
    peer.call(1, b"x" * 50)
    assert peer.answers[1].status is None
    peer.send(SettingsFrame(0, settings={4: 100}))
    assert peer.answers[1].messages == [(0, b"x" * 50)]


def test_a_smaller_initial_window_counts_against_open_streams(tools):
    peer = tools.Peer().greet({4: 100})
    peer.call(1, b"x" * 150)
    assert sizes(peer.frames, 1) == [100]
    peer.send(SettingsFrame(0, settings={4: 40}))  # the stream's window is now -60
    assert peer.send(WindowUpdateFrame(1, window_increment=60)) == []
    assert sizes(peer.send(WindowUpdateFrame(1, window_increment=5)), 1) == [5]
    peer.send(WindowUpdateFrame(1, window_increment=50))
    assert peer.answers[1].messages == [(0, b"x" * 150)]


def test_frames_follow_a_new_frame_size(tools):
    peer = tools.Peer().greet({4: 1 << 20, 5: 16_384})
    peer.send(WindowUpdateFrame(0, window_increment=1 << 20))
    assert max(sizes(peer.call(1, b"x" * 100_000), 1)) == 16_384
    peer.send(SettingsFrame(0, settings={5: 1 << 20}))
    assert sizes(peer.call(3, b"x" * 100_000), 3) == [100_005]


def test_while_the_transport_is_full_only_control_frames_leave(tools):
    peer = tools.Peer().greet()
    peer.connection.sender.open = False
    frames = peer.call(1, b"x" * 50)
    assert [type(frame) for frame in frames] == [HeadersFrame]
    assert peer.connection.sender.queued_bytes == 55
    assert peer.send(SettingsFrame(0))[0].flags == {"ACK"}
    peer.connection.sender.open = True
    peer.collect()
    assert peer.answers[1].messages == [(0, b"x" * 50)]
    assert peer.connection.sender.queued_bytes == 0


def test_a_pump_is_bounded():
    sender = Sender(
        lambda: None, lambda stream: None, 0, MemoryBudget(1 << 20, BufferPool()), 1 << 20
    )
    stream = ServerStream(1, 1 << 30)
    sender.window = 1 << 30
    sender.message(stream, (b"x" * (1 << 20),), 1 << 20)
    sender.pump()
    assert sum(map(len, sender.out)) < PUMP_BYTES * 1.01
    assert sender.sendable


def test_the_transport_is_woken_once():
    woken = []
    sender = Sender(
        lambda: woken.append(1),
        lambda stream: None,
        0,
        MemoryBudget(1 << 20, BufferPool()),
        1 << 20,
    )
    stream = ServerStream(1, 1000)
    for _ in range(5):
        sender.message(stream, (b"x",), 1)
    assert woken == [1]
    sender.out.clear()
    sender.awake = False
    sender.control(b"ping")
    assert woken == [1, 1]


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 70_000])
def test_queued_and_direct_messages_look_the_same(tools, size):
    outcomes = []
    for window in (1 << 20, 7, 0):
        peer = tools.Peer().greet({4: window})
        peer.send(WindowUpdateFrame(0, window_increment=1 << 20))
        peer.call(1, b"m" * size)
        if window < 1 << 20:
            peer.send(WindowUpdateFrame(1, window_increment=1 << 20))
        outcomes.append((peer.answers[1].messages, peer.answers[1].status, peer.answers[1].blocks))
    assert outcomes[0][0] == [(0, b"m" * size)]
    assert outcomes[0] == outcomes[1] == outcomes[2]


part_sizes = st.lists(st.sampled_from([0, 1, 9, 99, 100, 101, 250, 1_000]), min_size=1, max_size=6)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=st.lists(part_sizes, min_size=1, max_size=3),
    frame_bytes=st.sampled_from([1, 7, 100, 1_000, 1 << 20]),
    windows=st.lists(st.integers(1, 700), max_size=8),
)
def test_frames_hold_the_messages_however_parts_and_windows_fall(
    tools, messages, frame_bytes, windows
):
    """Nothing is lost or swapped; frames are as large as they may be, and no larger."""
    memory = MemoryBudget(1 << 20, BufferPool())
    sender = Sender(lambda: None, lambda stream: None, 0, memory, 1 << 20)
    sender.max_frame_bytes = frame_bytes
    stream = ServerStream(1, 0)  # all of it waits
    numbers = itertools.cycle(range(256))
    expected = b""
    for sizes_of_parts in messages:
        parts = [bytes(itertools.islice(numbers, size)) for size in sizes_of_parts]
        assert sender.message(stream, [memoryview(part) for part in parts], sum(sizes_of_parts))
        expected += tools.prefixed(b"".join(parts))
    received = b""
    for window in [*windows, len(expected)]:
        before = len(received)
        sender.enlarge_stream(stream, window)
        while sender.sendable:
            sender.pump()
        found = tools.parse(b"".join(sender.out))
        sender.out.clear()
        received += b"".join(frame.data for frame in found)
        assert len(received) == min(len(expected), before + window)
        lengths = [len(frame.data) for frame in found]
        assert lengths[:-1] == [frame_bytes] * (len(lengths) - 1)
        assert all(0 < length <= frame_bytes for length in lengths)
    assert received == expected
    assert sender.queued_bytes == memory.queued_bytes == stream.queued_bytes == 0
