"""One request and its response, as the application sees them.

    handle(exchange) --respond-----------------------------> head and body
                    `--start_stream, send_chunk*, end_stream--> head, chunks, end

The application responds exactly once, now or later, always on the event loop's thread. If the
client disconnects first, `on_disconnect` is called and the response is dropped.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from shoal.frontends.http.errors import refusal_body
from shoal.frontends.http.message import (
    Head,
    Header,
    HttpRequest,
    Part,
    error_body,
    response_head,
)

if TYPE_CHECKING:
    from shoal.access.caller import Caller
    from shoal.frontends.http.protocol import HttpConnection

logger = logging.getLogger(__name__)

_JOIN_BYTES = 64 * 1024  # below this one write of a copy is cheaper than two writes
_WITHOUT_BODY = frozenset((204, 304))
JSON_CONTENT: Header = (b"Content-Type", b"application/json")
RETRY_AFTER: Header = (b"Retry-After", b"1")


class _Stage(enum.Enum):
    WAITING = "no response yet"
    STREAMING = "the response is sent in chunks"
    DONE = "the response was sent"


_WAITING, _STREAMING, _DONE = _Stage


class ConnectionExchange:
    """A request and its response. For the event loop's thread only."""

    __slots__ = (
        "_chunked",
        "_keep_alive",
        "_sink",
        "_stage",
        "caller",
        "failure",
        "model",
        "on_disconnect",
        "on_writable",
        "peer",
        "request",
        "status",
    )

    def __init__(self, request: HttpRequest, sink: HttpConnection) -> None:
        self.request = request
        self.peer = sink.peer
        self.caller: Caller | None = None  # whose key it has, where keys are required
        self.model = ""  # of a function's own route
        self.status = 0  # of the response
        self.failure = b""  # the body of an error response
        self.on_disconnect: Callable[[], object] | None = None  # called once, when that happens
        self.on_writable: Callable[[], object] | None = None  # `writable` became true again
        self._sink: HttpConnection | None = sink
        self._stage = _WAITING
        self._keep_alive = False
        self._chunked = False

    @property
    def head(self) -> Head:
        """The head of the request."""
        return self.request.head

    @property
    def received_bytes(self) -> int:
        """The size of the request."""
        return len(self.request.head.raw) + len(self.request.body)

    @property
    def answered(self) -> bool:
        """Whether a response was started."""
        return self._stage is not _WAITING

    @property
    def writable(self) -> bool:
        """Whether the client keeps up; while false, a stream should wait for `on_writable`."""
        return self._sink is not None and self._sink.writable

    def respond(
        self, status: int, headers: Sequence[Header] = (), parts: Sequence[Part] = ()
    ) -> None:
        """Send the whole response; Content-Length, Date and Connection are added here.

        Large parts are sent from where they are, so they must not change afterwards. Raises
        ValueError for a header with a line break in it, and then nothing has been sent.
        """
        if self._stage is not _WAITING:
            raise RuntimeError("this exchange has a response already")
        sink = self._sink
        if sink is None:
            self._stage = _DONE
            return
        self.status = status
        if status >= 400:
            self.failure = b"".join(parts)
        request_head = self.request.head
        total = 0
        for part in parts:
            total += part.nbytes if type(part) is memoryview else len(part)
        keep_alive = request_head.keep_alive and not sink.draining
        if status in _WITHOUT_BODY:
            closing = b"%b%b" % (
                sink.date_line,
                _connection_lines(keep_alive, request_head.version),
            )
        else:
            closing = b"Content-Length: %d\r\n%b%b" % (
                total,
                sink.date_line,
                _connection_lines(keep_alive, request_head.version),
            )
        head = response_head(status, headers, closing)
        if not total or request_head.method == "HEAD" or status in _WITHOUT_BODY:
            sink.write(head)
        elif total <= _JOIN_BYTES:
            sink.write(b"".join((head, *parts)))
        else:
            for piece in list(_pieces(head, parts)):  # all are checked before one is sent
                sink.write(piece)
        self._finish(sink, keep_alive)

    def start_stream(self, status: int, headers: Sequence[Header] = ()) -> None:
        """Send the head of a response whose body follows in chunks. Raises as `respond` does."""
        if self._stage is not _WAITING:
            raise RuntimeError("this exchange has a response already")
        sink = self._sink
        if sink is None:
            self._stage = _STREAMING
            return
        self.status = status
        request_head = self.request.head
        chunked = request_head.version == "1.1"
        # HTTP/1.0 knows no chunks: there the end of the connection is the end of the body.
        keep_alive = request_head.keep_alive and chunked and not sink.draining
        closing = b"%b%b%b" % (
            b"Transfer-Encoding: chunked\r\n" if chunked else b"",
            sink.date_line,
            _connection_lines(keep_alive, request_head.version),
        )
        sink.write(response_head(status, headers, closing))
        self._chunked = chunked
        self._keep_alive = keep_alive
        self._stage = _STREAMING

    def send_chunk(self, data: Part) -> None:
        """Send a piece of the body; nothing when `data` is empty or the client has disconnected.

        Never blocks: unread data is buffered, so check `writable`.
        """
        if self._stage is not _STREAMING:
            raise RuntimeError("start_stream must come before send_chunk, end_stream after it")
        sink = self._sink
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if sink is None or not size or self.request.head.method == "HEAD":
            return
        if not self._chunked:
            sink.write(_flat(data))
        elif size <= _JOIN_BYTES:
            sink.write(b"".join((b"%x\r\n" % size, data, b"\r\n")))
        else:
            sink.write(b"%x\r\n" % size)
            sink.write(_flat(data))
            sink.write(b"\r\n")

    def when_room(self, callback: Callable[[], object]) -> None:
        """Call back once the client keeps up: at once, or when it has read what was sent."""
        if self.writable:
            callback()
        else:
            self.on_writable = callback

    def end_stream(self) -> None:
        """Complete a streamed response."""
        if self._stage is not _STREAMING:
            raise RuntimeError("start_stream must come before end_stream, which comes once")
        sink = self._sink
        if sink is None:
            self._stage = _DONE
            return
        if self._chunked and self.request.head.method != "HEAD":
            sink.write(b"0\r\n\r\n")
        self._finish(sink, self._keep_alive and not sink.draining)

    def abort(self) -> None:
        """Abort the connection, so that the client notices the incomplete response."""
        sink = self._sink
        self._stage = _DONE
        if sink is not None:
            sink.abort()  # calls on_disconnect
            self._release()

    def fail(self) -> None:
        """The application failed: respond with 500, or abort a response that was started."""
        if self._stage is _WAITING:
            text = "internal error: the request could not be handled, the server's log says why"
            self.respond(500, (JSON_CONTENT,), (error_body(text),))
        elif self._stage is _STREAMING:
            self.abort()

    def give_up(self, reason: str) -> None:
        """For the connection: respond with an error instead of the application, which is notified
        as if the client had disconnected. In a stream, the error is its last event."""
        stage, callback = self._stage, self.on_disconnect
        body = refusal_body(self.request.path, 503, reason)
        if stage is _STREAMING:
            self.send_chunk(b"data: %b\n\n" % body)
            self.end_stream()
        elif stage is _WAITING:
            self.respond(503, (JSON_CONTENT, RETRY_AFTER), (body,))
        self._stage = stage  # what the application still sends is dropped, as without a client
        if callback is not None:
            try:
                callback()
            except Exception:
                logger.exception("on_disconnect failed for %s", self.request.target)

    def client_disconnected(self) -> None:
        """For the connection: the client has disconnected."""
        callback = self.on_disconnect
        self._release()
        if callback is not None:
            try:
                callback()
            except Exception:
                logger.exception("on_disconnect failed for %s", self.request.target)

    def client_writable(self) -> None:
        """For the connection: there is room for more again."""
        if self.on_writable is not None:
            try:
                self.on_writable()
            except Exception:
                logger.exception("on_writable failed for %s", self.request.target)
                self.fail()

    def _finish(self, sink: HttpConnection, keep_alive: bool) -> None:
        self._stage = _DONE
        self._release()
        sink.finish(self, keep_alive)

    def _release(self) -> None:
        # Callbacks usually refer back to this exchange; without them it is freed at once.
        self._sink = None
        self.on_disconnect = None
        self.on_writable = None


def _connection_lines(keep_alive: bool, version: str) -> bytes:
    """The Connection header, where the version's default is not what happens, and the end."""
    if not keep_alive:
        return b"Connection: close\r\n\r\n"
    return b"\r\n" if version == "1.1" else b"Connection: keep-alive\r\n\r\n"


def _pieces(head: bytes, parts: Sequence[Part]) -> Iterator[Part]:
    """What to write: small neighbours joined, large parts as they are."""
    small: list[Part] = [head]
    for part in parts:
        if (part.nbytes if isinstance(part, memoryview) else len(part)) < _JOIN_BYTES:
            small.append(part)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield _flat(part)
    if small:
        yield b"".join(small)


def _flat(part: Part) -> Part:
    """A view in single bytes: transports slice what they could not send by element."""
    if isinstance(part, memoryview) and (part.ndim != 1 or part.itemsize != 1):
        return part.cast("B")
    return part
