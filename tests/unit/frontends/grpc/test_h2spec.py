"""The cases of h2spec that the neighbouring files do not have, by the numbers of its sections.

h2spec 2.6 itself is a Go program that sends no gRPC. With the headers of a gRPC call added to it, all of
its 146 cases pass or are skipped but seven. Two expect DATA where an empty stream of responses has
none; one expects more streams at a time than its calls stay open for; one takes 16 KiB for the
largest frame, where the server has announced more; one sends a wrong preface that looks like
HTTP/1.1, and gets an answer in that; two expect errors for priorities, which RFC 9113 has dropped.
"""

from __future__ import annotations

import struct

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    GoAwayFrame,
    HeadersFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from shoal.wire.http2_frames import H2Error

HOLD = "/test.Echo/Hold"
UNKNOWN = 0x16  # a type of frame
PROTOCOL = H2Error.PROTOCOL_ERROR
INITIAL_WINDOW = 4


def open_block(peer, stream_id):
    """HEADERS whose block is to be continued."""
    frame = peer.headers(stream_id)
    frame.flags.discard("END_HEADERS")
    return frame


def continuation(stream_id, *, end=True):
    return ContinuationFrame(stream_id, data=b"", flags=["END_HEADERS"] if end else [])


# (section and case, the frames; made from a peer that has held call 1 open)
CONNECTION_FAULTS = {
    "4.3/2 PRIORITY in a header block": lambda peer: [open_block(peer, 3), PriorityFrame(3)],
    "4.3/3 HEADERS of another stream in a header block": lambda peer: [
        open_block(peer, 3),
        peer.headers(5),
    ],
    "5.1/4 CONTINUATION on an idle stream": lambda peer: [continuation(9)],
    "5.1/7 CONTINUATION on a half-closed stream": lambda peer: [
        peer.headers(3, path=HOLD, end=True),
        continuation(3),
    ],
    "5.1/10 CONTINUATION after RST_STREAM": lambda peer: [
        RstStreamFrame(1, error_code=8),
        continuation(1),
    ],
    "5.5/2 a frame of unknown type in a header block": lambda peer: [
        open_block(peer, 3),
        b"\0\0\x08" + bytes([UNKNOWN, 0]) + b"\0\0\0\x03" + b"12345678",
    ],
    "6.10/2 HEADERS after CONTINUATION": lambda peer: [
        open_block(peer, 3),
        continuation(3, end=False),
        peer.headers(5),
    ],
    "6.10/5 CONTINUATION after the last one": lambda peer: [
        open_block(peer, 3),
        continuation(3),
        continuation(3),
    ],
    "6.10/6 CONTINUATION after DATA": lambda peer: [
        bytes.fromhex("000001000000000001") + b"\0",
        continuation(1),
    ],
}


@pytest.mark.parametrize("made", CONNECTION_FAULTS.values(), ids=CONNECTION_FAULTS.keys())
def test_the_connection_ends(peer, made):
    peer.send(peer.headers(1, path=HOLD))
    peer.send(*made(peer))
    assert peer.goaway is not None
    assert peer.goaway.error_code == PROTOCOL
    assert peer.connection.closed


def test_headers_beyond_the_largest_frame(peer):
    """4.2/3: it ends the connection before it arrives."""
    peer.send(struct.pack(">I", peer.connection._max_frame_bytes + 1)[1:] + b"\x01\x04\0\0\0\x03")
    assert peer.goaway.error_code == H2Error.FRAME_SIZE_ERROR


# (section and case, a header block that HPACK does not allow)
UNREADABLE = {
    "hpack 2.3.3/2 a literal with an unknown name": b"\x7f\x20\x01a",
    "hpack 4.2/1 a table size after a field": b"\x82\x20",
    "hpack 5.2/1 Huffman padding of more than 7 bits": b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff",
    "hpack 5.2/2 Huffman padding of zeros": b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90",
    "hpack 5.2/3 Huffman text with the end symbol": b"\x00\x85\xf2\xb2\x4a\x84\xff\x87\x49\x51\xff\xff\xff\xfa\x7f",
}  # fmt: skip


@pytest.mark.parametrize("block", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_unreadable_header_blocks(peer, block):
    peer.send(HeadersFrame(1, data=block, flags=["END_HEADERS"]))
    assert peer.goaway.error_code == H2Error.COMPRESSION_ERROR


def test_headers_on_a_stream_the_client_has_reset(peer):
    """5.1/9"""
    peer.send(peer.headers(1, path=HOLD), RstStreamFrame(1, error_code=8))
    peer.send(peer.headers(1, end=True))
    assert peer.goaway.error_code == H2Error.STREAM_CLOSED


@pytest.mark.parametrize("code", [0xFF, 2**32 - 1])
def test_unknown_error_codes(peer, code):
    """7/1, 7/2"""
    peer.send(peer.headers(1, path=HOLD))
    peer.send(RstStreamFrame(1, error_code=code), GoAwayFrame(0, error_code=code))
    assert peer.service.events == ["cancel"]
    assert peer.goaway is None or peer.goaway.error_code == H2Error.NO_ERROR


@pytest.mark.parametrize("state", ["idle", "open", "half-closed", "closed"])
@pytest.mark.parametrize("weight", [0, 255])
@pytest.mark.parametrize("depends_on", [0, 1, 3])
def test_priorities_are_ignored_in_every_state(peer, tools, state, weight, depends_on):
    """generic 2/1, 2/3, 2/5, 3.3/1 to 3.3/5, and 5.3.1: RFC 9113 ignores what they say."""
    if state == "closed":
        peer.call(3)
    elif state != "idle":
        peer.send(peer.headers(3, path=HOLD, end=state == "half-closed"))
    peer.send(PriorityFrame(3, depends_on=depends_on, stream_weight=weight, exclusive=bool(weight)))
    peer.call(5)
    assert peer.answers[5].status == 0
    assert peer.goaway is None
    assert 3 not in peer.answers or peer.answers[3].reset is None


def test_half_closed_streams_may_be_widened_and_reset(peer, tools):
    """generic 2/2, 2/4"""
    peer.send(
        peer.headers(1, path=HOLD),
        tools.data(1, tools.prefixed(b"x"), end=True),
        WindowUpdateFrame(1, window_increment=100),
    )
    assert peer.service.events == ["half-close"]
    peer.send(RstStreamFrame(1, error_code=8))
    assert peer.service.events == ["half-close", "cancel"]
    assert peer.goaway is None


def test_a_frame_of_16_kib_is_taken(peer, tools):
    """4.2/1"""
    message = b"m" * ((1 << 14) - 5)
    peer.send(peer.headers(1), tools.data(1, tools.prefixed(message), end=True))
    assert peer.answers[1].messages == [(0, message)]


def test_the_last_value_of_a_setting_counts(peer):
    """6.5.3/1"""
    pairs = struct.pack(">HIHI", INITIAL_WINDOW, 100, INITIAL_WINDOW, 1)
    peer.send(struct.pack(">I", len(pairs))[1:] + b"\x04\0\0\0\0\0" + pairs)
    peer.call(1, b"hello")
    assert peer.answers[1].data == b"\0"


def test_an_answer_waits_for_a_window_of_one_byte(peer):
    """6.9.1/1, 6.9.2/1, 6.9.2/2: the window of an open stream changes with the setting, below 0, too."""
    peer.send(SettingsFrame(0, settings={INITIAL_WINDOW: 3}))
    peer.call(1, b"hello")
    whole = b"\0\0\0\0\x05hello"
    assert peer.answers[1].data == whole[:3]
    peer.send(SettingsFrame(0, settings={INITIAL_WINDOW: 1}))  # 2 more have been sent already
    peer.send(WindowUpdateFrame(1, window_increment=2))
    assert peer.answers[1].data == whole[:3]
    peer.send(SettingsFrame(0, settings={INITIAL_WINDOW: 2}))
    assert peer.answers[1].data == whole[:4]
    peer.send(WindowUpdateFrame(1, window_increment=100))
    assert peer.answers[1].data == whole
    assert peer.answers[1].status == 0


@pytest.mark.parametrize("announced", ["9", "11"])
def test_content_length_counts_all_data_frames(peer, tools, announced):
    """8.1.2.6/2"""
    message = tools.prefixed(b"hello")
    peer.send(
        peer.headers(1, path=HOLD, content_length=announced),
        tools.data(1, message[:4]),
        tools.data(1, message[4:], end=True),
    )
    assert peer.answers[1].reset == PROTOCOL


# What may stand for "user-agent: a" in a header block; 0x3a is the name's index in the static table.
REPRESENTATIONS = {
    "indexed name, kept": b"\x7a\x01a",
    "indexed name, kept, Huffman": b"\x7a\x81\x1f",
    "new name, kept": b"\x40\x0auser-agent\x01a",
    "new name, kept, Huffman": b"\x40\x87\xb5\x05\xb1\x61\xcc\x5a\x93\x81\x1f",
    "indexed name": b"\x0f\x2b\x01a",
    "indexed name, Huffman": b"\x0f\x2b\x81\x1f",
    "new name": b"\x00\x0auser-agent\x01a",
    "new name, Huffman": b"\x00\x87\xb5\x05\xb1\x61\xcc\x5a\x93\x81\x1f",
    "indexed name, never kept": b"\x1f\x2b\x01a",
    "indexed name, never kept, Huffman": b"\x1f\x2b\x81\x1f",
    "new name, never kept": b"\x10\x0auser-agent\x01a",
    "new name, never kept, Huffman": b"\x10\x87\xb5\x05\xb1\x61\xcc\x5a\x93\x81\x1f",
}


@pytest.mark.parametrize("field", REPRESENTATIONS.values(), ids=REPRESENTATIONS.keys())
@pytest.mark.parametrize("update", [b"", b"\x3f\x31", b"\x20\x3f\x31"])
def test_every_representation_of_a_header(peer, tools, field, update):
    """generic 5: also after one or two changes of the table's size."""
    frame = peer.headers(1)
    frame.data = update + frame.data + field
    peer.send(frame, tools.data(1, tools.prefixed(b"x"), end=True))
    assert peer.answers[1].status == 0
    assert dict(peer.service.calls[0].metadata)["user-agent"] == "a"
