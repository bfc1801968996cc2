"""The metrics port: `GET /metrics` returns the text that Prometheus scrapes.

    Prometheus --GET /metrics--> MetricsApplication.handle --> render(), on a thread --> text, gzip

As on Triton's metrics port, the response for any other path is 200 with an empty body.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.access.access import Access
from shoal.access.caller import METRICS
from shoal.errors import ShoalError
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import send_error
from shoal.frontends.http.exchange import JSON_CONTENT
from shoal.frontends.http.keys import HttpKeys
from shoal.frontends.http.message import Header, error_body
from shoal.frontends.http.responses import respond_from_thread
from shoal.wire import compression

_TEXT: Header = (b"Content-Type", b"text/plain; charset=utf-8")
_VARY: Header = (b"Vary", b"Accept-Encoding")


def send_metrics(exchange: Exchange, render: Callable[[], bytes]) -> None:
    """Respond with the metrics, made on a thread: with many models that takes a while.

    They are compressed, on that thread, if the client accepts it.
    """
    coding = compression.negotiate(exchange.request.header(b"accept-encoding"))
    if coding == compression.IDENTITY:
        respond_from_thread(
            exchange, render, respond=lambda text: exchange.respond(200, [_TEXT], [text])
        )
        return
    headers = [_TEXT, _VARY, (b"Content-Encoding", coding.encode())]
    respond_from_thread(
        exchange,
        lambda: compression.compress([render()], coding),
        respond=lambda packed: exchange.respond(200, headers, packed),
    )


class MetricsApplication:
    """Serves the metrics port."""

    def __init__(self, render: Callable[[], bytes], access: Access | None = None) -> None:
        """`render` returns the text; it is called once per scrape, on a thread. With `access`,
        requests need a key unless metrics are open."""
        self._render = render
        self._keys = HttpKeys(access) if access is not None else None

    def handle(self, exchange: Exchange) -> None:
        """Respond to `exchange`, exactly once."""
        request = exchange.request
        if self._keys is not None:
            try:
                exchange = self._keys.admit(exchange, METRICS)
            except ShoalError as error:
                send_error(exchange, error)
                return
        if request.method not in ("GET", "HEAD"):
            headers = [JSON_CONTENT, (b"Allow", b"GET, HEAD")]
            exchange.respond(405, headers, [error_body("Method Not Allowed")])
        elif request.path == "/metrics":
            send_metrics(exchange, self._render)
        else:
            exchange.respond(200, [_TEXT], [])
