"""A connection on a socket that is none: bytes in pieces of any size, and when something is sent."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.buffers import BufferPool
from shoal.frontends.grpc.data import _equal_headers
from shoal.frontends.grpc.dispatch import Dispatcher
from shoal.frontends.grpc.receive_mark import LEAST_BYTES
from shoal.frontends.grpc.settings import GrpcSettings
from shoal.frontends.grpc.transport import ConnectionRegistry, Transport
from shoal.wire.http2_frames import PREFACE


class Loop:
    """Runs what is to come soon when a test says so."""

    def __init__(self):
        self.soon = []

    def call_soon(self, callback):
        self.soon.append(callback)

    def turn(self):
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


class Socket(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.paused = False

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data):
        self.written += bytes(data)

    def writelines(self, parts):
        self.written += b"".join(parts)

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def is_closing(self):
        return False


class Wired:
    """A client that sends through a transport, into the memory it asks for."""

    def __init__(self, tools):
        self.peer = tools.Peer()  # for its encoder and its service
        self.loop = Loop()
        self.pool = BufferPool()
        service = self.peer.service
        dispatcher = Dispatcher(service, GrpcSettings(), lambda _: None, pool=self.pool)
        self.registry = ConnectionRegistry(dispatcher, self.loop)
        self.socket = Socket()
        self.transport = Transport(self.registry)
        self.transport.connection_made(self.socket)

    @property
    def messages(self):
        return self.peer.service.messages

    def send(self, data, size=1 << 20):
        while data:
            buffer = self.transport.get_buffer(-1)
            count = min(len(buffer), len(data), size)
            buffer[:count] = data[:count]
            self.transport.buffer_updated(count)
            data = data[count:]
            while self.socket.paused:  # this client's turn is over
                self.loop.turn()
        self.loop.turn()


@pytest.fixture
def wired(tools):
    made = Wired(tools)
    made.send(PREFACE + tools.raw(4, 0, 0))
    return made


def make_message(size, salt=0):
    """Bytes that repeat, but never after as many as a frame or a read has."""
    turn = bytes(range(salt, 251)) + bytes(range(salt))
    return (turn * (size // 251 + 1))[:size]


def framed(tools, stream_id, message, frame_bytes, padding=0):
    """The DATA frames of a call, one by one."""
    whole = tools.prefixed(message)
    frames = []
    for start in range(0, len(whole), frame_bytes):
        end = start + frame_bytes >= len(whole)
        frame = tools.data(stream_id, whole[start : start + frame_bytes], end=end)
        if padding:
            frame.flags.add("PADDED")
            frame.pad_length = padding
        frames.append(frame.serialize())
    return frames


def assert_returned_once(pool):
    """Nothing is lent any more, and nothing is in the pool twice."""
    assert pool.lent == 0
    kept = [memory for same_size in pool._free.values() for memory in same_size]
    assert len({memory.ctypes.data for memory in kept}) == len(kept)
    assert sum(memory.nbytes for memory in kept) == pool.kept_bytes


@pytest.mark.parametrize("frame_bytes", [1_000, 16_384])
def test_a_large_message_in_many_frames(tools, wired, frame_bytes):
    message = make_message(600_000)
    frames = framed(tools, 1, message, frame_bytes)
    wired.send(wired.peer.headers(1).serialize() + b"".join(frames))
    assert wired.messages == [message]


def test_many_small_calls_in_one_read(tools, wired):
    connection = wired.transport.connection
    message = make_message(300)

    def calls(first_id, count):
        ids = range(first_id, first_id + 2 * count, 2)
        return b"".join(
            wired.peer.headers(stream_id).serialize()
            + tools.data(stream_id, tools.prefixed(message), end=True).serialize()
            for stream_id in ids
        )

    for stream_id in (1, 3, 5):
        wired.send(calls(stream_id, 1))
    looks = []
    whole_call = connection._whole_call
    connection._whole_call = lambda *given: looks.append(given) or whole_call(*given)
    many = calls(7, 200)
    assert len(many) > 60_000
    wired.send(many)
    assert wired.messages == [message] * 203
    assert not looks  # all of them were recognised


def test_its_memory_is_not_kept(tools, wired):
    for stream_id in (1, 3, 5):
        frames = framed(tools, stream_id, make_message(300_000), 16_384)
        head = wired.peer.headers(stream_id, path="/test.Echo/Hold").serialize()
        wired.send(head + b"".join(frames))
    assert len(wired.messages) == 3
    assert_returned_once(wired.pool)


@pytest.mark.parametrize("frame_bytes", [1_000, 16_384, 1 << 20])
@pytest.mark.parametrize("arrived", [6, 3_000, 100_000, 250_000])
def test_a_message_that_is_never_complete_is_freed_once(tools, wired, frame_bytes, arrived):
    first = b"".join(framed(tools, 1, make_message(300_000), frame_bytes))
    wired.send(wired.peer.headers(1).serialize() + first[:arrived])
    if frame_bytes == 1 << 20:  # a frame cannot be left unfinished: the connection is lost
        wired.transport.connection.close()
        assert_returned_once(wired.pool)
        return
    rest = -arrived % (frame_bytes + 9)
    reset = tools.raw(3, 0, 1, b"\0\0\0\x08")
    wired.send(first[arrived : arrived + rest] + reset)
    assert_returned_once(wired.pool)
    assert wired.transport.connection.streams == {}
    frames = framed(tools, 3, make_message(300_000), frame_bytes)
    wired.send(wired.peer.headers(3).serialize() + b"".join(frames))
    assert wired.messages == [make_message(300_000)]


def test_how_many_frames_are_compared_at_once_is_bounded(tools, wired, monkeypatch):
    """Else many short frames that differ would cost time in proportion to their number squared."""
    compared = []

    def equal_headers(headers, count):
        compared.append(count)
        return _equal_headers(headers, count)

    monkeypatch.setattr("shoal.frontends.grpc.data._equal_headers", equal_headers)
    message = make_message(200_000)
    whole = tools.prefixed(message)
    frames, start = [], 0
    while start < len(whole):
        size = 97 + start % 2  # no two in a row have one length
        frames.append(tools.data(1, whole[start : start + size], end=start + size >= len(whole)))
        start += size
    wired.send(wired.peer.headers(1).serialize() + b"".join(f.serialize() for f in frames))
    assert wired.messages == [message]
    assert max(compared) <= 64 < len(frames)


def test_a_call_that_ends_while_its_message_arrives(tools, wired):
    frames = framed(tools, 1, make_message(300_000), 16_384)
    wired.send(wired.peer.headers(1).serialize() + b"".join(frames[:6]))
    wired.peer.service.calls[0].finish()
    wired.loop.turn()
    wired.send(b"".join(frames[6:]))
    assert wired.messages == []
    wired.send(wired.peer.headers(3).serialize() + b"".join(framed(tools, 3, b"next", 16_384)))
    assert wired.messages == [b"next"]


calls = st.lists(
    st.tuples(
        st.sampled_from([100, 40_000, 100_000, 200_001]),  # bytes of the message
        st.sampled_from([997, 9_000, 16_384, 300_000]),  # to a frame
        st.sampled_from([0, 0, 0, 200]),  # of padding
        st.sampled_from([None, None, None, 1, 4, 15]),  # frames after which it is reset
    ),
    min_size=1,
    max_size=3,
)


@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(made=calls, order=st.randoms(use_true_random=False), reads=st.data())
def test_however_frames_and_reads_fall_messages_arrive_intact(tools, made, order, reads):
    wired = Wired(tools)
    wired.send(PREFACE + tools.raw(4, 0, 0))
    expected, waiting, data = [], [], []
    for index, (size, frame_bytes, padding, reset_after) in enumerate(made):
        stream_id = 2 * index + 1
        message = make_message(size, index)
        data.append(wired.peer.headers(stream_id, path="/test.Echo/Hold").serialize())
        frames = framed(tools, stream_id, message, frame_bytes, padding)
        if reset_after is not None and reset_after < len(frames):
            frames[reset_after:] = [tools.raw(3, 0, stream_id, b"\0\0\0\x08")]
        else:
            expected.append(message)
        waiting.append(frames)
    while any(waiting):
        frames = order.choice([frames for frames in waiting if frames])
        for _ in range(order.choice([1, 3, 20])):
            if frames:
                data.append(frames.pop(0))
        if order.random() < 0.2:
            data.append(tools.raw(99, 0, 0, b"a type that nobody knows"))
    whole = b"".join(data)
    while whole:
        count = reads.draw(st.sampled_from([5_000, 16_393, 70_000, 1 << 20]))
        wired.send(whole[:count], reads.draw(st.sampled_from([3_001, 30_000, 1 << 20])))
        whole = whole[count:]
    assert sorted(map(bytes, wired.messages)) == sorted(expected)
    assert_returned_once(wired.pool)


class Expectations:
    """Stands for the receive marks of a listener, and for the mark of its only connection."""

    size = 0

    def __init__(self):
        self.missing = 0

    def of(self, transport):
        return self

    def expect(self, missing):
        self.missing = self.size = missing if missing >= LEAST_BYTES else 0


@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    message_bytes=st.sampled_from([100, 40_000, 150_001]),
    frame_bytes=st.sampled_from([5_000, 16_384, 100_000]),
    padding=st.sampled_from([0, 0, 200]),
    reads=st.data(),
)
def test_no_more_is_waited_for_than_must_arrive(tools, message_bytes, frame_bytes, padding, reads):
    """Else the server would wait for bytes that the client does not send."""
    wired = Wired(tools)
    wired.registry.marks = expectations = Expectations()
    wired.send(PREFACE + tools.raw(4, 0, 0))
    message = make_message(message_bytes)
    for stream_id in (1, 3):
        frames = framed(tools, stream_id, message, frame_bytes, padding)
        whole = wired.peer.headers(stream_id, path="/test.Echo/Hold").serialize() + b"".join(frames)
        while whole:
            sizes = [3_001, 16_393, 30_000, 1 << 20]
            count = max(expectations.missing, reads.draw(st.sampled_from(sizes)))
            wired.send(whole[:count], count)
            whole = whole[count:]
            assert expectations.missing <= len(whole)
        assert wired.messages.pop() == message
        wired.peer.service.calls[-1].finish()


def test_the_rest_of_a_message_is_waited_for(tools, wired):
    wired.registry.marks = expectations = Expectations()
    frames = framed(tools, 1, make_message(600_000), 16_384)
    wired.send(wired.peer.headers(1).serialize() + b"".join(frames[:2]) + frames[2][:5_000])
    assert expectations.missing == 600_000 - 2 * 16_384 - 5_000 + 5
    wired.send(b"".join([frames[2][5_000:], *frames[3:]]))
    assert expectations.missing == 0
    assert len(wired.messages) == 1


def test_the_rest_is_waited_for_also_if_the_turn_of_the_client_was_over(tools, wired):
    answers = iter([True])
    wired.transport.connection.turn_over = lambda: next(answers, False)
    wired.registry.marks = expectations = Expectations()
    frames = framed(tools, 1, make_message(600_000), 16_384)
    wired.send(wired.peer.headers(1).serialize() + b"".join(frames[:2]) + frames[2][:5_000])
    assert next(answers, None) is None
    assert expectations.missing == 600_000 - 2 * 16_384 - 5_000 + 5


def test_nothing_is_waited_for_beside_other_calls(tools, wired):
    wired.registry.marks = expectations = Expectations()
    wired.send(wired.peer.headers(1, path="/test.Echo/Hold").serialize())
    frames = framed(tools, 3, make_message(600_000), 16_384)
    wired.send(wired.peer.headers(3).serialize() + b"".join(frames[:9]))
    assert expectations.missing == 0


def test_nothing_is_written_where_there_is_nothing_to_say(tools, wired):
    wired.socket.written = b""
    wired.send(wired.peer.headers(1, path="/test.Echo/Hold").serialize())
    assert wired.socket.written == b""
    assert not wired.transport.connection.sender.awake
    wired.peer.service.calls[0].finish()
    wired.loop.turn()
    assert wired.socket.written
