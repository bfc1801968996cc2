"""A sampled request over HTTP: its exchange records when it arrived and when its response was sent.

    HTTP_RECV_START, HTTP_RECV_END --> handler --> HTTP_SEND_START, HTTP_SEND_END --> trace complete

Handlers are the same for every request; they `attach` the request that they make from a traced
exchange, or the calls that they start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from shoal.access.caller import Caller
from shoal.core.model_loading import ModelLoading
from shoal.core.request import Request
from shoal.core.tensor import Buffer
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import as_shoal_error, send_error
from shoal.frontends.http.message import Header, HttpRequest
from shoal.frontends.http.routes import Target
from shoal.frontends.http.waiting import respond_when_loaded
from shoal.statistics.trace import Trace
from shoal.statistics.tracer import Tracer

_FIRST_ERROR = 400


def serve_traced(
    tracer: Tracer, exchange: Exchange, target: Target, serve: Callable[[Exchange, Target], None]
) -> bool:
    """Call `serve` with a traced exchange if it is sampled; else return false."""
    now_ns = time.monotonic_ns()
    request = exchange.request

    def header(name: str) -> str | None:
        value = request.header(name.encode())
        return None if value is None else value.decode("latin-1")

    trace = tracer.start(target.model, header)
    if trace is None:
        return False
    trace.event("HTTP_RECV_START", request.begun_ns or now_ns)
    trace.event("HTTP_RECV_END", now_ns)
    traced = TracedExchange(exchange, trace)
    try:
        serve(traced, target)
    except ModelLoading as pending:
        respond_when_loaded(pending, traced, lambda: serve(traced, target))
    except Exception as error:  # noqa: BLE001 - becomes the response
        send_error(traced, as_shoal_error(error))
    return True


def attach(exchange: Exchange, request: Request) -> None:
    """Trace `request` if its exchange is sampled. Call this before the engine accepts it."""
    if type(exchange) is TracedExchange:
        exchange.trace.attach(request)


def trace_of(exchange: Exchange) -> Trace | None:
    """The trace that the exchange is part of, if it is sampled."""
    return exchange.trace if type(exchange) is TracedExchange else None


class TracedExchange:
    """An exchange whose response, or whose client's disconnect, completes a trace."""

    __slots__ = ("_callback", "_inner", "trace")

    def __init__(self, inner: Exchange, trace: Trace) -> None:
        self._inner = inner
        self._callback: Callable[[], object] | None = None
        self.trace = trace
        inner.on_disconnect = self._client_disconnected

    @property
    def request(self) -> HttpRequest:
        """The request."""
        return self._inner.request

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._inner.peer

    @property
    def caller(self) -> Caller | None:
        """Whose key the request has."""
        return self._inner.caller

    @caller.setter
    def caller(self, caller: Caller | None) -> None:
        self._inner.caller = caller

    @property
    def on_disconnect(self) -> Callable[[], object] | None:
        """Called when the client disconnects before the response."""
        return self._callback

    @on_disconnect.setter
    def on_disconnect(self, callback: Callable[[], object] | None) -> None:
        self._callback = callback

    def _client_disconnected(self) -> None:
        if self._callback is not None:
            self._callback()
        self.trace.leave()

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[Buffer]) -> None:
        """Respond, exactly once."""
        self._begin(status)
        self._inner.respond(status, headers, parts)
        self._end()

    def start_stream(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a response whose body follows in chunks."""
        self._begin(status)
        self._inner.start_stream(status, headers)

    def send_chunk(self, data: Buffer) -> None:
        """Send a chunk of that body."""
        self._inner.send_chunk(data)

    def when_room(self, callback: Callable[[], object]) -> None:
        """Call back once the client has read enough."""
        self._inner.when_room(callback)

    def end_stream(self) -> None:
        """Complete a response that `start_stream` began."""
        self._inner.end_stream()
        self._end()

    def _begin(self, status: int) -> None:
        self.trace.event("HTTP_SEND_START")
        if status >= _FIRST_ERROR:
            self.trace.failed(f"HTTP status {status}")

    def _end(self) -> None:
        self.trace.event("HTTP_SEND_END")
        self.trace.finish()
