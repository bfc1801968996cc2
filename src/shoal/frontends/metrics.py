"""The metrics port: `GET /metrics` returns the text that Prometheus scrapes.

    Prometheus --GET /metrics--> MetricsApplication.handle --> render() --> text/plain

As on Triton's metrics port, the response for any other path is 200 with an empty body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from shoal.frontends.http.exchange import JSON_CONTENT
from shoal.frontends.http.message import Header, error_body

_TEXT: Header = (b"Content-Type", b"text/plain; charset=utf-8")


class MetricsRequest(Protocol):
    """The part of an HTTP request that is used here."""

    @property
    def method(self) -> str:
        """In upper case."""

    @property
    def path(self) -> str:
        """Without the query."""


class MetricsExchange(Protocol):
    """One HTTP request and its response; for HEAD it omits the body itself."""

    @property
    def request(self) -> MetricsRequest:
        """The request."""

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[bytes]) -> None:
        """Send the response; the body is the concatenation of `parts`."""


class MetricsApplication:
    """Serves the metrics port."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        """`render` returns the text; it is called once per scrape, on the calling thread."""
        self._render = render

    def handle(self, exchange: MetricsExchange) -> None:
        """Respond to `exchange`, exactly once. Errors of `render` are left to the caller."""
        request = exchange.request
        if request.method not in ("GET", "HEAD"):
            headers = [JSON_CONTENT, (b"Allow", b"GET, HEAD")]
            exchange.respond(405, headers, [error_body("Method Not Allowed")])
        elif request.path == "/metrics":
            exchange.respond(200, [_TEXT], [self._render()])
        else:
            exchange.respond(200, [_TEXT], [])
