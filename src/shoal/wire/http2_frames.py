"""HTTP/2 frames as bytes: names, numbers and packing (RFC 9113, sections 4, 6 and 7).

    | length 24 | type 8 | flags 8 | stream 32 | payload ...

No state and no I/O: what a frame means on a connection is decided by the server's `h2` and the
client's `http2`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9

DATA = 0
HEADERS = 1
PRIORITY = 2
RST_STREAM = 3
SETTINGS = 4
PUSH_PROMISE = 5
PING = 6
GOAWAY = 7
WINDOW_UPDATE = 8
CONTINUATION = 9

# Flags; the first bit has two names, by frame type.
END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

MAX_WINDOW = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_BYTES = 16_384
LARGEST_FRAME_BYTES = 2**24 - 1

# The 24-bit length is read as 16 and 8 bits: struct has no type of three bytes.
HEADER = struct.Struct(">HBBBI")
_UINT32 = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_GOAWAY = struct.Struct(">II")


class H2Error(enum.IntEnum):
    """Why a stream or a connection ends (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Setting(enum.IntEnum):
    """What either side may set (section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ConnectionFault(Exception):
    """The peer violated the connection's rules: send GOAWAY with the reason, then close."""

    def __init__(self, code: H2Error, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class StreamFault(Exception):
    """The peer violated one stream's rules: reset that stream; all others continue."""

    def __init__(self, stream_id: int, code: H2Error, message: str) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.code = code
        self.message = message


def header(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """The nine bytes before a payload of `length`."""
    return HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def rst_stream(stream_id: int, code: H2Error) -> bytes:
    """End one stream at once."""
    return header(4, RST_STREAM, 0, stream_id) + _UINT32.pack(code)


def window_update(stream_id: int, increment: int) -> bytes:
    """Let the peer send `increment` bytes more; stream 0 is the whole connection."""
    return header(4, WINDOW_UPDATE, 0, stream_id) + _UINT32.pack(increment)


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """A SETTINGS frame."""
    payload = b"".join(_SETTING.pack(name, value) for name, value in values)
    return header(len(payload), SETTINGS, 0, 0) + payload


SETTINGS_ACK = header(0, SETTINGS, ACK, 0)


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """The settings in a payload whose length is a multiple of six, in order."""
    return [(name, value) for name, value in _SETTING.iter_unpack(payload)]


def ping(payload: bytes, *, ack: bool) -> bytes:
    """A PING with its eight bytes, or the response to one."""
    return header(8, PING, ACK if ack else 0, 0) + payload


def goaway(last_stream_id: int, code: H2Error, message: str) -> bytes:
    """Streams above `last_stream_id` will not be served; `message` is for people."""
    debug = message.encode("ascii", "replace")[:1024]
    return header(8 + len(debug), GOAWAY, 0, 0) + _GOAWAY.pack(last_stream_id, code) + debug


def header_block(stream_id: int, block: bytes, *, end_stream: bool, max_frame_bytes: int) -> bytes:
    """A HEADERS frame with `block`, followed by as many CONTINUATION frames as it takes."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= max_frame_bytes:
        return header(len(block), HEADERS, flags | END_HEADERS, stream_id) + block
    frames = [header(max_frame_bytes, HEADERS, flags, stream_id), block[:max_frame_bytes]]
    for start in range(max_frame_bytes, len(block), max_frame_bytes):
        piece = block[start : start + max_frame_bytes]
        last = start + max_frame_bytes >= len(block)
        frames.append(header(len(piece), CONTINUATION, END_HEADERS if last else 0, stream_id))
        frames.append(piece)
    return b"".join(frames)


def literal(name: bytes, value: bytes) -> bytes:
    """One header field, without indexing and without Huffman coding."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(length: int) -> bytes:
    """A string length in HPACK's integer form with a prefix of seven bits."""
    if length < 127:
        return bytes((length,))
    encoded = bytearray((127,))
    length -= 127
    while length >= 128:
        encoded.append(length & 127 | 128)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)
