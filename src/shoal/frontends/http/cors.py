"""CORS: lets web pages of other origins use this server, if the operator allows it.

browser --OPTIONS (preflight)--> allowed origins     browser --request--> response + headers
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.tensor import Buffer
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.message import Header
from shoal.frontends.http.wrapped_exchange import WrappedExchange
from shoal.wire.http_body import LENGTH_HEADER

_EXPOSED: Header = (b"Access-Control-Expose-Headers", LENGTH_HEADER.encode())
_METHODS: Header = (b"Access-Control-Allow-Methods", b"GET, HEAD, POST, OPTIONS")
_MAX_AGE: Header = (b"Access-Control-Max-Age", b"600")
_BY_ORIGIN: Header = (b"Vary", b"Origin")


class Cors:
    """The origins that may read responses."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any_origin = "*" in origins
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)

    def admit(self, exchange: Exchange) -> Exchange | None:
        """The exchange to continue with, whose response gets the CORS headers.

        None if the request was a preflight, to which this has responded.
        """
        request = exchange.request
        origin = request.header(b"origin")
        if origin is None or not (self._any_origin or origin in self._origins):
            return exchange
        allowed = (b"Access-Control-Allow-Origin", b"*" if self._any_origin else origin)
        headers = [allowed] if self._any_origin else [allowed, _BY_ORIGIN]
        if request.method == "OPTIONS" and request.header(b"access-control-request-method"):
            requested = request.header(b"access-control-request-headers")
            if requested:
                headers.append((b"Access-Control-Allow-Headers", requested))
            exchange.respond(204, [*headers, _METHODS, _MAX_AGE], [])
            return None
        return _CorsExchange(exchange, [*headers, _EXPOSED])


class _CorsExchange(WrappedExchange):
    """An exchange whose response gets additional headers."""

    __slots__ = ("_headers",)

    def __init__(self, inner: Exchange, headers: Sequence[Header]) -> None:
        super().__init__(inner)
        self._headers = headers

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[Buffer]) -> None:
        """Respond, exactly once."""
        self._inner.respond(status, [*headers, *self._headers], parts)

    def start_stream(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a response whose body follows in chunks."""
        self._inner.start_stream(status, [*headers, *self._headers])
