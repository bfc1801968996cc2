"""HTTP/1.1 under load: one request at a time on a connection; bodies are counted, not stored.

start --> … --> head and body are complete --> SlotOwner.finished
"""

from __future__ import annotations

from time import perf_counter_ns

from shoal.client.errors import ProtocolError
from shoal.client.http1 import Http1Head, Http1Response
from shoal.perf.connection import ConnectionSetup, LoadError, SlotConnection
from shoal.perf.requests import Replay, SequencePosition
from shoal.wire import json_text

_END = b"\r\n\r\n"
_CACHED_HEADS = 64


class HttpLoadConnection(SlotConnection):
    """A connection that carries one request after the other."""

    def __init__(self, setup: ConnectionSetup) -> None:
        self._heads: dict[bytes, int] = {}  # body length by head, of successful responses
        self._missing = 0  # bytes of the body still to be received
        self._response: Http1Response | None = None  # set while a response is parsed in full
        self._first_ns = 0
        super().__init__(setup)

    def start(self, replay: Replay, position: SequencePosition | None) -> None:
        """Send a request. Raises LoadError."""
        data = replay.filled(position)
        self.position = position
        self._missing = 0
        self._first_ns = 0
        self.waiting = True
        start_ns = self.start_ns = perf_counter_ns()
        self.write(data)
        self.owner.send_ns += perf_counter_ns() - start_ns

    def on_readable(self) -> None:
        """Process what arrived. Raises LoadError."""
        begun_ns = perf_counter_ns()
        data = self._read()
        if not data:
            return
        if not self.waiting:
            raise LoadError(f"{self._endpoint.shown} sent more than one response to a request")
        self._first_ns = self._first_ns or begun_ns
        if self._missing:
            self._missing -= len(data)
        elif self._response is not None:
            self._feed(data)
            return
        else:
            end = data.find(_END)
            length = self._heads.get(data[:end]) if end >= 0 else None
            if length is None:
                self._response = Http1Response()
                self._feed(data)
                return
            self._missing = end + 4 + length - len(data)
        if not self._missing:
            self._done()
        elif self._missing < 0:
            raise LoadError(f"{self._endpoint.shown} sent more than it announced")

    def _done(self) -> None:
        self.waiting = False
        end_ns = perf_counter_ns()
        owner = self.owner
        owner.receive_ns += end_ns - self._first_ns
        owner.finished(self, end_ns)

    def _feed(self, data: bytes) -> None:
        """The slow path: heads not seen before, chunked bodies and errors."""
        response = self._response
        assert response is not None
        try:
            complete = response.feed(data) if data else response.end()
        except ProtocolError as error:
            raise LoadError(f"{self._endpoint.shown}: {error.message}") from None
        head = response.head
        if not complete or head is None:
            if not data:
                super()._ended()
            return
        self._response = None
        if head.status != 200:
            self.waiting = False
            if not head.keep_alive:
                self.close()
            reason = _reason(bytes(response.body))
            self.owner.refused(self, reason, f" with status {head.status}")
            return
        if not head.keep_alive:
            self.close()
            self.open()
        elif head.length is not None and not head.chunked:
            self._cache(data, head)
        self._done()

    def _cache(self, data: bytes, head: Http1Head) -> None:
        """Let the next response with this head take the fast path."""
        end = data.find(_END)
        if end < 0 or head.length is None or not data.startswith(b"HTTP/1.1 200"):
            return
        if len(self._heads) >= _CACHED_HEADS:
            self._heads.clear()
        self._heads[data[:end]] = head.length

    def _ended(self) -> None:
        if self._response is not None:
            self._feed(b"")
            return
        super()._ended()

    def close(self) -> None:
        """Close the socket and give the request up."""
        self._response = None
        super().close()


def _reason(body: bytes) -> str:
    """The server's error message."""
    try:
        return str(json_text.loads(body)["error"])
    except Exception:  # noqa: BLE001 - any body may come with any status
        return body[:200].decode("utf-8", "replace").strip() or "no reason given"
