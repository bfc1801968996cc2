"""A sampled request over HTTP: its exchange records when it arrived and when its response was sent.

    HTTP_RECV_START, HTTP_RECV_END --> handler --> HTTP_SEND_START, HTTP_SEND_END --> trace complete

Handlers are the same for every request; they `attach` the request that they make from a traced
exchange, or the calls that they start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import orjson

from shoal.core.model_loading import ModelLoading
from shoal.core.request import Request
from shoal.core.tensor import Buffer
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import as_shoal_error, send_error
from shoal.frontends.http.message import Header
from shoal.frontends.http.routes import Target
from shoal.frontends.http.waiting import respond_when_loaded
from shoal.frontends.http.wrapped_exchange import EndedExchange
from shoal.statistics.trace import Trace
from shoal.statistics.tracer import RequestTracer

_FIRST_ERROR = 400
_MOST_ERROR_BYTES = 64 << 10


def serve_traced(
    tracer: RequestTracer,
    exchange: Exchange,
    target: Target,
    serve: Callable[[Exchange, Target], None],
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


class TracedExchange(EndedExchange):
    """An exchange whose response, or whose client's disconnect, completes a trace."""

    __slots__ = ("trace",)

    def __init__(self, inner: Exchange, trace: Trace) -> None:
        super().__init__(inner)
        self.trace = trace

    def _client_disconnected(self) -> None:
        super()._client_disconnected()
        self.trace.leave()

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[Buffer]) -> None:
        """Respond, exactly once."""
        self._begin(status, parts)
        super().respond(status, headers, parts)
        self._end()

    def start_stream(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a response whose body follows in chunks."""
        self._begin(status)
        self._inner.start_stream(status, headers)

    def end_stream(self) -> None:
        """Complete a response that `start_stream` began."""
        super().end_stream()
        self._end()

    def _begin(self, status: int, parts: Sequence[Buffer] = ()) -> None:
        self.trace.event("HTTP_SEND_START")
        if status >= _FIRST_ERROR:
            self.trace.failed(_error_text(parts) or f"HTTP status {status}")

    def _end(self) -> None:
        self.trace.event("HTTP_SEND_END")
        self.trace.finish()


def _error_text(parts: Sequence[Buffer]) -> str:
    """The text that the client gets, in KServe's or OpenAI's format; empty if it is another one."""
    if sum(len(part) for part in parts) > _MOST_ERROR_BYTES:
        return ""
    try:
        error = orjson.loads(b"".join(parts))["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        return ""
    return text if isinstance(text, str) else ""
