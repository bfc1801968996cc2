"""A maker of requests with the moments a test wants."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.core.request import Request
from shoal.core.response import Response


class _Nowhere:
    def send(self, response: Response) -> None:
        raise AssertionError("statistics must not answer requests")


def _request(start_ns: int, queued_ns: int, rows: int = 1) -> Request:
    request = Request("m", {}, _Nowhere())
    request.start_ns = start_ns
    request.queued_ns = queued_ns
    request.rows = rows
    return request


@pytest.fixture(scope="session")
def make_request() -> Callable[..., Request]:
    return _request
