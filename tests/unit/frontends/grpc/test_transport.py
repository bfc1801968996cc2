"""A connection on a socket that is none: bytes in pieces of any size, and when something is sent."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.buffers import BufferPool
from shoal.frontends.grpc.dispatch import Dispatcher
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


def framed(tools, stream_id, message, frame_bytes):
    """The DATA frames of a call, one by one."""
    whole = tools.prefixed(message)
    starts = range(0, len(whole), frame_bytes)
    return [
        tools.data(
            stream_id, whole[start : start + frame_bytes], end=start + frame_bytes >= len(whole)
        ).serialize()
        for start in starts
    ]


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
    assert wired.pool.lent == 0


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
        st.sampled_from([997, 9_000, 16_384]),  # to a frame
    ),
    min_size=1,
    max_size=3,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(made=calls, order=st.randoms(use_true_random=False), reads=st.data())
def test_however_frames_and_reads_fall_messages_arrive_intact(tools, made, order, reads):
    wired = Wired(tools)
    wired.send(PREFACE + tools.raw(4, 0, 0))
    expected, waiting, data = [], [], []
    for index, (size, frame_bytes) in enumerate(made):
        stream_id = 2 * index + 1
        expected.append(make_message(size, index))
        data.append(wired.peer.headers(stream_id, path="/test.Echo/Hold").serialize())
        waiting.append(framed(tools, stream_id, expected[-1], frame_bytes))
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


def test_nothing_is_written_where_there_is_nothing_to_say(tools, wired):
    wired.socket.written = b""
    wired.send(wired.peer.headers(1, path="/test.Echo/Hold").serialize())
    assert wired.socket.written == b""
    assert not wired.transport.connection.sender.awake
    wired.peer.service.calls[0].finish()
    wired.loop.turn()
    assert wired.socket.written
