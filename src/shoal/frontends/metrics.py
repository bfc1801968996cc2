"""The metrics port: `GET /metrics` answers with the text that Prometheus scrapes.

    Prometheus --GET /metrics--> MetricsApplication.handle --> render() --> text/plain

As on Triton's metrics port, any other path is answered with 200 and an empty body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from shoal.frontends.http.exchange import JSON_CONTENT
from shoal.frontends.http.message import Header, error_body

_TEXT: Header = (b"Content-Type", b"text/plain; charset=utf-8")


class MetricsRequest(Protocol):
    """What is asked of an HTTP request's head here."""

    @property
    def method(self) -> str:
        """The verb, in capitals."""

    @property
    def path(self) -> str:
        """The target up to a question mark."""


class MetricsExchange(Protocol):
    """One HTTP request and the way to answer it; for HEAD it leaves the body out by itself."""

    @property
    def request(self) -> MetricsRequest:
        """What was asked."""

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[bytes]) -> None:
        """Send the one answer; the body is all `parts`, one after the other."""


class MetricsApplication:
    """Answers everything that arrives on the metrics port."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        """`render` makes the text; it is called once per scrape, on the thread that handles it."""
        self._render = render

    def handle(self, exchange: MetricsExchange) -> None:
        """Answer `exchange`, exactly once. What `render` raises is left to the caller."""
        request = exchange.request
        if request.method not in ("GET", "HEAD"):
            headers = [JSON_CONTENT, (b"Allow", b"GET, HEAD")]
            exchange.respond(405, headers, [error_body("Method Not Allowed")])
        elif request.path == "/metrics":
            exchange.respond(200, [_TEXT], [self._render()])
        else:
            exchange.respond(200, [_TEXT], [])
