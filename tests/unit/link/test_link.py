"""Channel, shared memory, link and readers, both ends in this process."""

from __future__ import annotations

import asyncio
import gc
import marshal
import os
import socket
import struct
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core import dtypes
from shoal.core.tensor import Tensor
from shoal.link.channel import ChannelClosed, MessageChannel
from shoal.link.link import Link
from shoal.link.pipe_reader import PipeReader
from tests.support.fakes import WAIT_SECS

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.fixture
def channels():
    ends = [MessageChannel(end) for end in socket.socketpair()]
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def links():
    ends = [Link(end) for end in socket.socketpair()]
    yield ends
    for end in ends:
        end.close()


def hear(end, count):
    """`count` messages, however they come."""
    messages = []
    while len(messages) < count:
        messages += end.receive()
    return messages


@given(st.lists(PLAIN, min_size=1, max_size=5))
def test_plain_values_arrive_as_they_were(values):
    one, other = (MessageChannel(end) for end in socket.socketpair())
    for value in values:
        one.send((value,), more=False)
    assert hear(other, len(values)) == [(value,) for value in values]
    one.close()
    other.close()


@given(st.lists(PLAIN, min_size=1, max_size=5), st.lists(st.integers(1, 40), min_size=1))
def test_messages_are_the_same_in_whatever_pieces_they_arrive(values, sizes):
    sender, ours = socket.socketpair()
    other = MessageChannel(ours)
    contents = [marshal.dumps((value,), 4) for value in values]
    stream = b"".join(struct.pack("<I", len(each)) + each for each in contents)
    received, turn = [], 0
    while stream:
        size = sizes[turn % len(sizes)]
        sender.sendall(stream[:size])
        received += other.receive()
        stream, turn = stream[size:], turn + 1
    assert received == [(value,) for value in values]
    sender.close()
    other.close()


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff\xff\xff\xff",  # longer than any message
        b"\x02\0\0\0(\x05",  # cut short
        b"\x01\0\0\0!",  # no type of marshal
    ],
)
def test_a_damaged_message_is_the_end(frame):
    sender, ours = socket.socketpair()
    other = MessageChannel(ours)
    sender.sendall(frame)
    with pytest.raises(ChannelClosed):
        other.receive()
    sender.close()
    other.close()


def test_an_event_loop_sends_and_receives(channels):
    one, other = channels

    async def talk():
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()
        loop.add_reader(other.fileno(), lambda: arrived.set_result(other.receive()))
        one.send((1,), more=True)
        one.send((2,), more=False)
        try:
            return await asyncio.wait_for(arrived, WAIT_SECS)
        finally:
            loop.remove_reader(other.fileno())

    assert asyncio.run(talk()) == [(1,), (2,)]


def test_a_sender_can_wait_until_the_backlog_is_small(channels):
    one, other = channels
    for number in range(8):
        one.send((number, bytes(1 << 20)), more=False)
    assert one.backlog_bytes > 1 << 20
    received = []
    reader = threading.Thread(target=lambda: received.extend(hear(other, 8)))
    reader.start()
    one.wait_for_room(0)
    assert one.backlog_bytes == 0
    reader.join(WAIT_SECS)
    assert len(received) == 8


def test_a_sender_that_waits_is_woken_at_the_end(channels):
    one, other = channels
    for _ in range(8):
        one.send((bytes(1 << 20),), more=False)
    other.close()
    one.wait_for_room(0)


def test_messages_may_wait_for_the_next(channels):
    one, other = channels
    one.send((1,), more=True)
    one.send((2,), more=True)
    one.send((3,), more=False)
    assert other.receive() == [(1,), (2,), (3,)]


@pytest.mark.parametrize("blocking", [True, False])
def test_sending_never_waits_for_the_other_side(channels, blocking):
    """And nothing is lost, also where an event loop has changed the socket, as uvloop does."""
    one, other = channels
    os.set_blocking(one.fileno(), blocking)
    content = bytes(1 << 20)
    for number in range(8):
        one.send((number, content), more=False)
    assert [number for number, _ in hear(other, 8)] == list(range(8))
    one.send(("small",), more=False)
    assert hear(other, 1) == [("small",)]


def test_nothing_to_read_is_no_end(channels):
    one, other = channels
    os.set_blocking(other.fileno(), False)
    assert other.receive() == []
    one.send((1,), more=False)
    assert hear(other, 1) == [(1,)]


def test_files_ride_along(channels):
    one, other = channels
    ours, theirs = os.pipe()
    one.send(("file",), [theirs], more=False)
    assert hear(other, 1) == [("file",)]
    with os.fdopen(other.next_file(), "wb") as opened:
        opened.write(b"hello")
    with os.fdopen(ours, "rb") as opened:
        assert opened.read() == b"hello"


def test_both_sides_notice_the_end(channels):
    one, other = channels
    one.send((1,), more=False)
    one.close()
    assert hear(other, 1) == [(1,)]
    with pytest.raises(ChannelClosed):
        other.receive()
    with pytest.raises(ChannelClosed):
        one.send((2,), more=False)


# ---- tensors


def over(links, tensors):
    one, other = links
    one.send("tensors", one.pack(tensors))
    ((_, (packed,)),) = hear(other, 1)
    return other.unpack(packed)


def tensor(array, name="x", datatype=None):
    return Tensor.from_array(name, np.asarray(array), datatype)


@pytest.mark.parametrize("size", [0, 1, 1000, 5000, 100_000, 3_000_000])
def test_tensors_of_every_size(links, size):
    sent = np.arange(size, dtype=np.int32).reshape(1, size)
    (got,) = over(links, [tensor(sent)])
    assert got.name == "x"
    assert got.datatype is dtypes.INT32
    assert got.shape == (1, size)
    assert np.array_equal(got.array, sent)


def test_strings_scalars_and_odd_layouts(links):
    sent = [
        tensor(np.array([b"a" * 50_000, b""], object), "text"),
        tensor(np.array(7, np.int64), "scalar"),
        tensor(np.arange(60_000, dtype=np.float32).reshape(300, 200).T, "turned"),
        tensor(np.array([1, 2], np.uint16), "half", dtypes.BF16),
    ]
    got = over(links, sent)
    assert [t.name for t in got] == ["text", "scalar", "turned", "half"]
    assert got[0].array.tolist() == [b"a" * 50_000, b""]
    assert got[1].array == 7
    assert np.array_equal(got[2].array, sent[2].array)
    assert got[3].datatype is dtypes.BF16


def test_large_tensors_are_not_copied_on_arrival(links):
    (got,) = over(links, [tensor(np.zeros(100_000, np.float32))])
    array = got.array
    assert array.flags.writeable
    assert array.ctypes.data % 64 == 0


def test_one_message_may_bring_any_number_of_large_tensors(links):
    one, other = links
    numbers = range(300)  # more than the system passes on at once
    packed = [one.pack([tensor(np.full(20_000, number))]) for number in numbers]
    one.send("tensors", packed)
    ((_, (arrived,)),) = hear(other, 1)
    assert [other.unpack(each)[0].array[-1] for each in arrived] == list(numbers)


def test_memory_is_used_again_once_nobody_looks(links):
    one, other = links
    numbers = set()
    for value in range(20):
        (got,) = over(links, [tensor(np.full(50_000, value, np.int32))])
        assert got.array[0] == value
        kept = got.array[:1]
        del got
        numbers |= set(one._pool._lent)
        del kept
        gc.collect()
        other.send("release")
        hear(one, 1)
    assert len(numbers) <= 2


def test_what_is_looked_at_stays_as_it_is(links):
    kept = [over(links, [tensor(np.full(50_000, value, np.int32))])[0].array for value in range(5)]
    assert [array[0] for array in kept] == list(range(5))


def test_idle_memory_has_a_limit(links):
    one, other = links
    many = [over(links, [tensor(np.zeros(40 << 20, np.uint8))]) for _ in range(3)]
    many.clear()
    gc.collect()
    other.send("release")
    hear(one, 1)
    assert one._pool._idle_bytes <= 64 << 20
    one.send("news")
    hear(other, 1)
    assert len(other._views._memory) == 1


# ---- arrays


def arrays_over(links, arrays):
    one, other = links
    one.send("arrays", one.pack_arrays(arrays))
    ((_, (packed,)),) = hear(other, 1)
    return other.unpack_arrays(packed)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.array(2.5, np.float32),
        np.zeros((3, 0), np.float64),
        np.array([True, False]),
        np.array([["a", "bcd"]]),
        np.array([b"x", b"yz"]),
        np.arange(8, dtype=">i4"),
        np.arange(60_000, dtype=np.float16).reshape(300, 200).T,
        np.arange(100_000, dtype=np.uint16)[::3],
        np.arange("2020", "2021", dtype="datetime64[D]"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_arrive_as_they_were(links, array):
    (got,) = arrays_over(links, [array])
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert np.array_equal(got, array)


@pytest.mark.parametrize("size", [3, 50_000])
def test_arrays_of_objects_hold_bytes(links, size):
    (got,) = arrays_over(links, [np.array([["a", b"b" * size]], object)])
    assert got.tolist() == [[b"a", b"b" * size]]


def test_small_and_large_arrays_in_one_message(links):
    sent = [np.full(size, size) for size in (1, 30_000, 2, 40_000)]
    got = arrays_over(links, sent)
    assert all(np.array_equal(*pair) for pair in zip(got, sent, strict=True))
    assert got[1].ctypes.data % 64 == got[3].ctypes.data % 64 == 0


# ---- readers


class Reader:
    """Reads one end of a pair and notes what came."""

    def __init__(self, *, always_watch):
        ours, theirs = socket.socketpair()
        self.channel, self.other = MessageChannel(ours), MessageChannel(theirs)
        self.got = set()
        self.ends = 0
        self.readers = set()
        self.arrived = threading.Semaphore(0)
        self.closed = threading.Event()
        self.turns = PipeReader(
            *(ours, self.receive, self.hung_up, self.channel.close),
            name="watcher",
            always_watch=always_watch,
        )

    def receive(self):
        for (value,) in self.channel.receive():
            self.readers.add(threading.current_thread().name)
            self.got.add(value)
            self.turns.tell()
            self.arrived.release()

    def hung_up(self):
        self.ends += 1
        self.closed.set()

    def wait_for(self, value):
        self.turns.wait_for(lambda: value in self.got)
        return value in self.got


@pytest.fixture(params=[False, True], ids=["lean", "watched"])
def reader(request):
    made = Reader(always_watch=request.param)
    yield made
    made.other.close()
    made.turns.join()


def test_who_waits_gets_its_answer(reader):
    reader.other.send((1,), more=False)
    assert reader.wait_for(1)


def test_what_nobody_waits_for_is_read_too(reader):
    reader.other.send((1,), more=False)
    assert reader.arrived.acquire(timeout=WAIT_SECS)
    assert reader.got == {1}


def test_answers_in_another_order(reader):
    done = []
    threads = [
        threading.Thread(target=lambda n=number: done.append(reader.wait_for(n)))
        for number in range(5)
    ]
    for thread in threads:
        thread.start()
    for number in (4, 0, 3, 1, 2):
        reader.other.send((number,), more=False)
    for thread in threads:
        thread.join(WAIT_SECS)
    assert done == [True] * 5


def test_the_end_wakes_everybody_and_is_told_once(reader):
    done = []
    threads = [
        threading.Thread(target=lambda n=number: done.append(reader.wait_for(n)))
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    reader.other.close()
    for thread in threads:
        thread.join(WAIT_SECS)
    assert done == [False] * 3
    assert reader.closed.wait(WAIT_SECS)
    assert reader.ends == 1


def test_many_rounds_end_with_nothing_lost(reader):
    for number in range(300):
        reader.other.send((number,), more=False)
        assert reader.wait_for(number)
