from __future__ import annotations

import pytest

from shoal.frontends.metrics import MetricsApplication

TEXT = (b"Content-Type", b"text/plain; charset=utf-8")


class Exchange:
    """Stands in for one HTTP request; it is its own request head."""

    def __init__(self, method: str, path: str) -> None:
        self.method = method
        self.path = path
        self.request = self
        self.responses: list[tuple[int, list[tuple[bytes, bytes]], bytes]] = []

    def respond(self, status, headers, parts) -> None:
        self.responses.append((status, list(headers), b"".join(parts)))


def answer(method: str, path: str, render=lambda: b"a 1\n"):
    exchange = Exchange(method, path)
    MetricsApplication(render).handle(exchange)
    (response,) = exchange.responses
    return response


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_metrics(method):
    assert answer(method, "/metrics") == (200, [TEXT], b"a 1\n")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metricsx", "/v2/health/ready"])
def test_other_paths_are_fine_and_empty(path):
    def render() -> bytes:
        raise AssertionError("nobody asked for the metrics")

    assert answer("GET", path, render) == (200, [TEXT], b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(method):
    status, headers, body = answer(method, "/metrics")
    assert status == 405
    assert (b"Allow", b"GET, HEAD") in headers
    assert body == b'{"error":"Method Not Allowed"}'


def test_each_scrape_renders_anew():
    texts = iter([b"a 1\n", b"a 2\n"])
    application = MetricsApplication(lambda: next(texts))
    bodies = []
    for _ in range(2):
        exchange = Exchange("GET", "/metrics")
        application.handle(exchange)
        bodies.append(exchange.responses[0][2])
    assert bodies == [b"a 1\n", b"a 2\n"]
