"""One gRPC call on an HTTP/2 connection: its messages, and how it ended."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from shoal.client.errors import GRPC_STATUS, ProtocolError
from shoal.core.tensor import Buffer
from shoal.wire import http2_frames as frames

if TYPE_CHECKING:
    from shoal.client.http2 import Http2Connection

PREFIX = struct.Struct(">BI")  # of each message: compressed flag and length
_ALIGNMENT = 16
_OK = "0"
TOP_UP_BYTES = 1 << 28  # received before a window is opened again
NO_HEADERS: dict[str, str] = {}  # of a call whose response has not begun


class Ended(NamedTuple):
    """How a call ended: gRPC's code and message, and the headers."""

    code: int
    message: str
    headers: dict[str, str]
    untouched: bool = False  # the server did not process it: it may be resent


class Http2Stream:
    """One call on a connection."""

    __slots__ = (
        "_connection",
        "_filled",
        "_message",
        "_prefix",
        "_received",
        "_unsent",
        "_unsent_end",
        "ended",
        "headers",
        "id",
        "messages",
        "news",
        "window",
    )

    def __init__(self, connection: Http2Connection) -> None:
        self.id = 0
        self.window = 0  # bytes that we may still send
        self.messages: deque[memoryview] = deque()
        self.ended: Ended | None = None
        self.headers = NO_HEADERS
        self.news: Callable[[], None] | None = (
            None  # called on new messages, on the end, and when all is sent
        )
        self._connection = connection
        self._prefix = b""  # an incomplete message prefix
        self._message: memoryview | None = None
        self._filled = 0
        self._received = 0  # since the last WINDOW_UPDATE
        self._unsent: deque[memoryview] = deque()
        self._unsent_end = False

    @property
    def blocked(self) -> bool:
        """Whether data waits for flow control."""
        return bool(self._unsent)

    def send(self, parts: list[Buffer], size: int, *, end: bool = False) -> None:
        """Send one message; `end` says that it is the last."""
        prefix = PREFIX.pack(0, size)
        self._connection.send_framed(self, [prefix, *parts], len(prefix) + size, end)

    def finish(self) -> None:
        """End the sending side."""
        self._unsent_end = True
        self._connection._flush(self)

    def cancel(self) -> None:
        """Cancel the call."""
        if self.ended is None:
            self._connection._cancel(self)

    def _data(self, piece: Buffer) -> None:
        """Process a piece of the messages."""
        view = memoryview(piece)
        size = len(view)
        position = 0
        before = len(self.messages)
        self._received += size
        if self._received >= TOP_UP_BYTES:
            self._connection.put(frames.window_update(self.id, self._received))
            self._received = 0
        while position < size:
            message = self._message
            if message is None:
                prefix = self._prefix + bytes(view[position : position + 5 - len(self._prefix)])
                position += len(prefix) - len(self._prefix)
                if len(prefix) < 5:
                    self._prefix = prefix
                    break
                self._prefix = b""
                compressed, length = PREFIX.unpack(prefix)
                if compressed:
                    raise ProtocolError("the server sent an unexpected compressed message")
                # Tensors are at the end of a message: aligning its end aligns them.
                pad = -length % _ALIGNMENT
                message = self._message = memoryview(bytearray(pad + length))[pad:]
                self._filled = 0
            count = min(len(message) - self._filled, size - position)
            message[self._filled : self._filled + count] = view[position : position + count]
            self._filled += count
            position += count
            if self._filled == len(message):
                self._message = None
                self.messages.append(message)
        if len(self.messages) != before and self.news is not None:
            self.news()

    def _trailers(self, fields: dict[str, str]) -> None:
        """The server ended the call."""
        self._end(ended_by(fields, self.headers))

    def _end(self, ended: Ended) -> None:
        self.ended = ended
        self._unsent.clear()
        if self.news is not None:
            self.news()


def ended_by(trailers: dict[str, str], headers: dict[str, str]) -> Ended:
    """The end of a call, from its trailers."""
    merged = {**headers, **trailers} if headers else trailers
    code = trailers.get("grpc-status")
    if code == _OK:
        return Ended(0, "", merged)
    status = merged.get(":status", "200")
    if code is None or not code.isdigit():
        if status != "200":
            return Ended(_from_http(status), f"HTTP status {status}", merged)
        return Ended(2, "the call ended without a status", merged)
    number = int(code)
    return Ended(
        number if number < len(GRPC_STATUS) else 2,
        unquote(trailers.get("grpc-message", ""), errors="replace"),
        merged,
    )


def _from_http(status: str) -> int:
    """The gRPC code for an HTTP status, by gRPC's specification."""
    codes = {"400": 13, "401": 16, "403": 7, "404": 12}
    return codes.get(status, 14 if status in ("429", "502", "503", "504") else 2)
