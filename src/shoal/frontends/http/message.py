"""HTTP messages as values: a request as it was received, a response's head as bytes.

Nothing here reads or writes a socket.
"""

from __future__ import annotations

import http
import json
import time
from collections.abc import Sequence
from typing import TypeAlias

Header: TypeAlias = tuple[bytes, bytes]
Part: TypeAlias = bytes | bytearray | memoryview

_PLAIN = b"identity"
CHUNKED = -1  # a body length that is not known before its end

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}


class HttpFault(Exception):
    """The client violated HTTP or a limit: respond with `status` and `message`, then close."""

    def __init__(
        self,
        status: int,
        message: str,
        headers: Sequence[Header] = (),
        body: bytes | None = None,
    ) -> None:
        """`body` is the whole body of the response, if it is not that of every other error."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers
        self.body = body
        self.head: Head | None = None  # of the request, where that much is known


class Head:
    """A parsed request head. It never changes, so equal head bytes may share one."""

    __slots__ = (
        "body_length",
        "expects_continue",
        "fields",
        "headers",
        "keep_alive",
        "method",
        "path",
        "plain",
        "plain_offset",
        "query",
        "raw",
        "target",
        "tensor_offset",
        "version",
    )

    def __init__(
        self,
        *,
        raw: bytes,
        method: str,
        target: str,
        path: str,
        query: str,
        version: str,
        headers: tuple[Header, ...],
        fields: dict[bytes, bytes],
        body_length: int,
        tensor_offset: int,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.raw = raw  # as it was sent, with the empty line that ends it
        self.method = method
        self.target = target
        self.path = path
        self.query = query
        self.version = version  # "1.0" or "1.1"
        self.headers = headers
        self.fields = fields
        self.body_length = body_length  # or CHUNKED
        self.tensor_offset = tensor_offset  # where in the body 64-byte alignment begins
        codings = [fields.get(name, _PLAIN) for name in (b"content-encoding", b"accept-encoding")]
        self.plain = codings == [_PLAIN, _PLAIN]  # neither body nor response is compressed
        self.plain_offset = tensor_offset if self.plain else 0
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue

    @property
    def sent_method(self) -> str:
        """The method of the request line."""
        return self.method


class HttpRequest:
    """One complete request.

    A small body is `bytes`; a large one is a memoryview of memory that belongs to this request
    alone, placed so that the byte after the JSON header lies on a 64-byte boundary.
    """

    __slots__ = ("body", "head")

    begun_ns: int = 0  # it arrived in one piece

    def __init__(self, head: Head, body: bytes | memoryview = b"") -> None:
        self.head = head
        self.body = body

    @property
    def method(self) -> str:
        """The method, in upper case as every known method is."""
        return self.head.method

    @property
    def target(self) -> str:
        """The target of the request line, unchanged."""
        return self.head.target

    @property
    def path(self) -> str:
        """The target's path, still percent-encoded; `*` and CONNECT's authority stay as sent."""
        return self.head.path

    @property
    def plain(self) -> bool:
        """Whether neither the body nor the response is to be compressed."""
        return self.head.plain

    @property
    def plain_offset(self) -> int:
        """Where the tensors begin, if there are any and nothing is to be encoded; else 0."""
        return self.head.plain_offset

    @property
    def query(self) -> str:
        """What follows the question mark, still encoded; empty without one."""
        return self.head.query

    @property
    def version(self) -> str:
        """`1.0` or `1.1`."""
        return self.head.version

    @property
    def headers(self) -> tuple[Header, ...]:
        """All (name, value) pairs as sent and in order, names in lower case."""
        return self.head.headers

    @property
    def keep_alive(self) -> bool:
        """Whether the client will use the connection again."""
        return self.head.keep_alive

    def header(self, name: bytes) -> bytes | None:
        """The value under a lower-case name; repeated headers are joined with a comma."""
        return self.head.fields.get(name)


class GradualRequest(HttpRequest):
    """A request whose body arrived in pieces, and when it began."""

    __slots__ = ("begun_ns",)

    def __init__(self, head: Head, body: bytes | memoryview, begun_ns: int) -> None:
        super().__init__(head, body)
        self.begun_ns = begun_ns


def error_body(message: str) -> bytes:
    """The body of every error: `{"error":"<message>"}`."""
    return json.dumps({"error": message}, separators=(",", ":")).encode()


def status_line(status: int) -> bytes:
    """The first line of a response."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def response_head(status: int, headers: Sequence[Header], closing: bytes) -> bytes:
    """Everything before a response's body; `closing` is our own last lines and the empty one.

    Raises ValueError when a header holds a line break: it would start a header of its own.
    """
    return response_lines(status, headers) + closing


def response_lines(status: int, headers: Sequence[Header]) -> bytes:
    """The status line and the given headers. Raises ValueError as `response_head` does."""
    lines = [_STATUS_LINES.get(status) or status_line(status)]
    for name, value in headers:
        lines.append(b"%b: %b\r\n" % (name, value))
    given = b"".join(lines)
    if given.count(b"\n") != len(lines) or given.count(b"\r") != len(lines):
        raise ValueError(f"a response header holds a line break: {[name for name, _ in headers]!r}")
    return given


def date_line(unix_secs: float) -> bytes:
    """The Date header of responses sent during that second, in no language but HTTP's."""
    moment = time.gmtime(unix_secs)
    return b"Date: %b, %02d %b %04d %02d:%02d:%02d GMT\r\n" % (
        _WEEKDAYS[moment.tm_wday].encode(),
        moment.tm_mday,
        _MONTHS[moment.tm_mon - 1].encode(),
        moment.tm_year,
        moment.tm_hour,
        moment.tm_min,
        moment.tm_sec,
    )
