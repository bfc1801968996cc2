from __future__ import annotations

import asyncio

import pytest

from shoal.frontends.metrics import MetricsApplication

TEXT = (b"Content-Type", b"text/plain; charset=utf-8")


class Exchange:
    """Stands in for one HTTP request; it is its own request head."""

    def __init__(self, method: str, path: str) -> None:
        self.method = method
        self.path = path
        self.request = self
        self.answered = asyncio.Event()
        self.responses: list[tuple[int, list[tuple[bytes, bytes]], bytes]] = []

    def header(self, name: bytes) -> bytes | None:
        return None

    def respond(self, status, headers, parts) -> None:
        self.responses.append((status, list(headers), b"".join(parts)))
        self.answered.set()


async def handled(application, method: str, path: str):
    exchange = Exchange(method, path)
    application.handle(exchange)
    await asyncio.wait_for(exchange.answered.wait(), 10)
    (response,) = exchange.responses
    return response


def answer(method: str, path: str, render=lambda: b"a 1\n"):
    return asyncio.run(handled(MetricsApplication(render), method, path))


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
    bodies = [asyncio.run(handled(application, "GET", "/metrics"))[2] for _ in range(2)]
    assert bodies == [b"a 1\n", b"a 2\n"]


def test_the_event_loop_continues_while_the_text_is_made():
    """`render` waits for the loop here, which would never end on the loop's own thread."""

    async def main():
        loop = asyncio.get_running_loop()

        def render() -> bytes:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
            return b"a 1\n"

        return await handled(MetricsApplication(render), "GET", "/metrics")

    assert asyncio.run(main())[2] == b"a 1\n"
