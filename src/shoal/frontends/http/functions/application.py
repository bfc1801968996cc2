"""Requests for an ASGI application that is served beside functions; see `backends.function.asgi`.

Exchange --> request, body --> engine --> head, body, body, … --> response, or a stream
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import orjson

from shoal.backends.function.asgi import BODY, HEAD, REQUEST, element
from shoal.core.inbox import LoopInbox, LoopReply
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.engine import Engine
from shoal.errors import Internal
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import STATUS, as_shoal_error, note_error, send_error
from shoal.frontends.http.functions.calls import request_id
from shoal.frontends.http.message import Header
from shoal.frontends.http.model_call import ModelCall
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.routes import Target
from shoal.frontends.http.traced import attach, serve_traced

_REPORTED_BYTES = 256 * 1024  # less than what an application may be ahead
_LONGEST_PORT = 5  # digits
# The server writes these itself.
_OWN_HEADERS = frozenset((b"content-length", b"transfer-encoding", b"connection", b"date"))


class ApplicationCalls:
    """Calls applications."""

    def __init__(self, engine: Engine, inbox: LoopInbox, options: HttpOptions) -> None:
        self._engine = engine
        self._inbox = inbox
        self._hidden = options.hidden_headers
        self._scheme = options.scheme

    def serve(self, exchange: Exchange, target: Target) -> None:
        """Serve a request. If this raises, there was no response."""
        tracer = self._engine.tracer
        if not (tracer.active and serve_traced(tracer, exchange, target, self._submit)):
            self._submit(exchange, target)

    def _submit(self, exchange: Exchange, target: Target) -> None:
        call = _ApplicationResponse(exchange, self._engine)
        sent = exchange.request
        described = {
            "method": sent.method,
            "path": unquote(sent.path),
            "raw_path": sent.path,
            "query_string": sent.query,
            "http_version": sent.version,
            "scheme": self._scheme,
            "headers": [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in sent.headers
                if name.decode("latin-1") not in self._hidden
            ],
            "client": _address(exchange.peer),
            "reports_reading": True,
            "server": _address((sent.header(b"host") or b"").decode("latin-1")),
        }
        request = Request(
            target.model,
            {
                REQUEST: element(REQUEST, orjson.dumps(described)),
                BODY: element(BODY, bytes(sent.body)),
            },
            LoopReply(self._inbox, call.deliver),
            id=request_id(sent),
        )
        exchange.on_disconnect = call.client_disconnected
        attach(exchange, request)
        call.submit(self._engine, request)


class _ApplicationResponse(ModelCall):
    """Writes the response of an application. For the event loop's thread."""

    def __init__(self, exchange: Exchange, engine: Engine) -> None:
        super().__init__(exchange)
        self._engine = engine
        self._unreported_bytes = 0
        self._started = False

    def deliver(self, response: Response) -> None:
        """Take a part of the response. Never raises: others wait behind it."""
        if response.final:
            self.request = None
        if self.left:
            return
        if response.error is not None:
            self._fail(response.error)
            return
        try:
            parts = {tensor.name: tensor.array.reshape(-1)[0] for tensor in response.outputs}
            self._write(parts, final=response.final)
        except Exception as failure:  # noqa: BLE001 - becomes the response
            self._fail(as_shoal_error(failure))

    def _write(self, parts: dict[str, Any], *, final: bool) -> None:
        body = parts.get(BODY, b"")
        if not self._started:
            if HEAD not in parts:
                raise Internal("the application sent no response")
            head = orjson.loads(parts[HEAD])
            headers: list[Header] = [
                (name.encode("latin-1"), value.encode("latin-1"))
                for name, value in head["headers"]
                if name.lower().encode("latin-1") not in _OWN_HEADERS
            ]
            if final:
                self.exchange.respond(head["status"], headers, [body])
                return
            self._started = True
            self.exchange.start_stream(head["status"], headers)
        self.exchange.send_chunk(body)
        if final:
            self.exchange.end_stream()
            return
        self._unreported_bytes += len(body)
        if self._unreported_bytes >= _REPORTED_BYTES:
            self.exchange.when_room(self._report)

    def _report(self) -> None:
        """Tell the application that the client keeps up."""
        count, self._unreported_bytes = self._unreported_bytes, 0
        if count and self.request is not None:
            self._engine.client_has_read(self.request, count)

    def _fail(self, error: Any) -> None:
        self.left = True  # what may follow is dropped
        if not self._started:
            send_error(self.exchange, error)
            return
        note_error(self.exchange, STATUS[error.code], error.message)
        self.exchange.abort()  # so that the client does not take a part for the whole


def _address(text: str) -> tuple[str, int | None] | None:
    """The host and port of an address; None for a Unix socket."""
    host, colon, port = text.rpartition(":")
    if not text or text.startswith("unix:"):
        return None
    has_port = colon and port.isdecimal() and len(port) <= _LONGEST_PORT
    return (host.strip("[]"), int(port)) if has_port else (text, None)
