"""A link under random use: messages arrive equal and in order, and all memory comes back."""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import socket
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core import dtypes
from shoal.core.tensor import Tensor
from shoal.link.channel import ChannelClosed, MessageChannel
from shoal.link.link import INLINE_BYTES, Link

SIZES = st.sampled_from([0, 1, 100, INLINE_BYTES, INLINE_BYTES + 1, 40_000, 70_000, 300_000])
# Who sends (0 or 1), the sizes of the tensors, which of them were received into lent memory, whether
# more follows, and whether the receiver keeps the tensors for a while.
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.lists(st.tuples(SIZES, st.booleans()), max_size=4),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


@contextlib.contextmanager
def linked():
    ends = [Link(end) for end in socket.socketpair()]
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


def hear(end, count):
    messages = []
    while len(messages) < count:
        messages += end.receive()
    return messages


def contents(link, number, tensors):
    """Tensors with bytes that no other message has."""
    made = []
    for index, (size, is_lent) in enumerate(tensors):
        raw = np.random.default_rng((number, index)).bytes(size)
        if is_lent and size:
            memory = link.lend(size, index)
            memory[:] = raw
            raw = memory
        made.append(Tensor(f"{number}-{index}", dtypes.UINT8, (size,), raw=raw))
    return made


def check(number, tensors):
    for index, tensor in enumerate(tensors):
        raw = np.random.default_rng((number, index)).bytes(len(tensor.raw))
        assert (tensor.name, bytes(tensor.raw)) == (f"{number}-{index}", raw)


def take(link, received, messages):
    """Check the tensors of messages; returns those that are kept."""
    kept = []
    for _, (number, packed) in received:
        _, sizes, _, keep = messages[number]
        tensors = link.unpack(packed)
        assert [len(tensor.raw) for tensor in tensors] == [size for size, _ in sizes]
        check(number, tensors)
        if keep:
            kept.append((number, tensors))
    return kept


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@settings(max_examples=40)
@given(MESSAGES)
def test_messages_arrive_equal_and_in_order_and_their_memory_comes_back(messages):
    with linked() as ends:
        sent = [[], []]
        kept = []
        for number, (sender, tensors, more, _) in enumerate(messages):
            link = ends[sender]
            packed = link.pack(contents(link, number, tensors))
            link.send("tensors", number, packed, more=more)
            sent[sender].append(number)
        for sender in (0, 1):
            ends[sender].flush()
            received = hear(ends[1 - sender], len(sent[sender]))
            assert [body[0] for _, body in received] == sent[sender]
            kept += take(ends[1 - sender], received, messages)
            del received
        for number, tensors in kept:  # nothing was written over meanwhile
            check(number, tensors)
        kept.clear()
        tensors = None
        gc.collect()
        for sender in (0, 1):
            ends[sender].send("released")
            hear(ends[1 - sender], 1)
        for link in ends:
            link._pool.take(1)  # notices loans that are over
            assert len(link._pool._lent) == 1


NEWS = [
    (["not a number"], [], []),
    ([], [(1, 4096, "")], []),  # no descriptor came with it
    ([], [(1,)], []),
    ([], 5, []),
    (1, 2),
    5,
]


@pytest.mark.parametrize("news", NEWS, ids=repr)
def test_news_that_cannot_be_read_are_the_end(news):
    ours, theirs = socket.socketpair()
    link = Link(ours)
    with theirs, contextlib.closing(link):
        content = marshal.dumps(("kind", (), news), 4)
        theirs.sendall(struct.pack("<I", len(content)) + content)
        if news == NEWS[0]:
            assert link.receive() == [("kind", ())]  # what it never lent is not released
        else:
            with pytest.raises(ChannelClosed):
                link.receive()


@pytest.mark.parametrize("content", [(), ("kind", ()), 7, ("a", (), None, 4)], ids=repr)
def test_messages_of_another_form_are_the_end(content):
    ours, theirs = socket.socketpair()
    link = Link(ours)
    with theirs, contextlib.closing(link):
        packed = marshal.dumps(content, 4)
        theirs.sendall(struct.pack("<I", len(packed)) + packed)
        with pytest.raises(ChannelClosed):
            link.receive()


def test_files_that_wait_are_closed_once():
    """Another file gets the number of a closed one: it must stay open."""
    ours, theirs = socket.socketpair()
    channel = MessageChannel(ours)
    with theirs:
        read, write = os.pipe()
        channel.send(("waits",), [read], more=True)
        channel.hang_up()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(read)
        again = os.dup2(write, read)
        for _ in range(2):
            with pytest.raises(ChannelClosed):
                channel.send(("later",), more=False)
        os.fstat(again)
        channel.close()
        os.fstat(again)
        os.close(again)
        os.close(write)


@pytest.mark.parametrize("closed_first", [True, False])
def test_segments_that_were_never_announced_leave_no_descriptor(closed_first):
    before = descriptors()
    with linked() as (one, _):
        if closed_first:
            one.close()
        segment = one._pool.take(100_000)
        assert os.fstat(segment.file).st_size == segment.size
        del segment
    del one, _
    gc.collect()
    assert descriptors() == before
