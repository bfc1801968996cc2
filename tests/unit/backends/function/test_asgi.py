"""ASGI applications as models: what they are, and that they wait for slow clients."""

from __future__ import annotations

import asyncio
import functools
import json
import threading

import numpy as np
import pytest

from shoal.backends.base import Placement
from shoal.backends.function.asgi import (
    _MOST_AHEAD_BYTES,
    ApplicationDeclaration,
    ApplicationModel,
    _checked_head,
    is_application,
)
from shoal.core.dtypes import BYTES
from shoal.core.reply import DISCARD
from shoal.core.request import Request
from shoal.core.tensor import Tensor
from tests.support.fakes import WAIT_SECS

CHUNK = 100_000


async def function(scope, receive, send): ...


class Callable:
    async def __call__(self, scope, receive, send): ...


class Other:
    async def __call__(self, request): ...


def test_what_is_an_application():
    assert is_application(function)
    assert is_application(Callable())
    for other in (Callable, Other(), lambda scope, receive, send: None, 5, asyncio.sleep, print):
        assert not is_application(other)


class Code:
    """Stands for the file of an application."""

    def release(self):
        pass


class Pending:
    """A request whose responses are kept; the client has read none of them."""

    def __init__(self, **sent):
        described = {
            "method": "GET", "path": "/", "raw_path": "/", "query_string": "", "http_version": "1.1",
            "scheme": "http", "headers": [], "client": None, "server": None, **sent,
        }  # fmt: skip
        contents = {"request": json.dumps(described).encode(), "body": b""}
        tensors = {
            name: Tensor(name, BYTES, (1,), array=np.array([content], dtype=object))
            for name, content in contents.items()
        }
        self.request = Request("app", tensors, DISCARD)
        self.sent = 0
        self.most_ahead = 0
        self.read = 0
        self.ahead = threading.Event()
        self.ended = threading.Event()
        self.error = None
        self.when_ahead = self.ahead.set

    def send(self, outputs=(), *, error=None, parameters=None, final=True):
        self.error = error
        self.sent += sum(len(tensor.array[0]) for tensor in outputs if tensor.name == "body")
        self.most_ahead = max(self.most_ahead, self.sent - self.read)
        if self.sent - self.read > _MOST_AHEAD_BYTES:
            self.when_ahead()
        if final:
            self.ended.set()


@pytest.fixture
def model(tmp_path):
    async def application(scope, receive, send):
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(30):
            await send({"type": "http.response.body", "body": bytes(CHUNK), "more_body": True})
        await send({"type": "http.response.body"})

    declaration = ApplicationDeclaration(application, "app", tmp_path / "app.py")
    made = ApplicationModel("app", declaration, Code())
    executor = made.executor(Placement("KIND_CPU"))
    yield functools.partial(executor.execute)
    executor.close()
    made.close()


def test_an_application_waits_for_a_slow_client(model):
    pending = Pending(reports_reading=True)
    model([pending])
    for _ in range(4):  # each time it goes on until it is too far ahead again
        assert pending.ahead.wait(WAIT_SECS)
        pending.ahead.clear()
        pending.read += 5 * CHUNK
        pending.request.client_has_read(5 * CHUNK)
    assert pending.ended.wait(WAIT_SECS)
    assert pending.error is None
    assert pending.most_ahead <= _MOST_AHEAD_BYTES + CHUNK


def test_a_client_that_leaves_ends_the_waiting(model):
    pending = Pending(reports_reading=True)
    model([pending])
    assert pending.ahead.wait(WAIT_SECS)
    pending.request.cancel()
    assert pending.ended.wait(WAIT_SECS)
    assert "disconnected" in str(pending.error)


def test_a_client_that_leaves_before_the_waiting_ends_it(model):
    """The application has sent what was too much, and has not begun to wait."""
    pending = Pending(reports_reading=True)
    pending.when_ahead = pending.request.cancel
    model([pending])
    assert pending.ended.wait(WAIT_SECS)
    assert "disconnected" in str(pending.error)


def test_nothing_waits_where_no_client_reports(model):
    pending = Pending()
    model([pending])
    assert pending.ended.wait(WAIT_SECS)
    assert pending.sent == 30 * CHUNK


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, [(b"x-name", b"secret\r\nset-cookie: a=b")]),
        (200, [(b"x-name: a\r\nx-other", b"secret")]),
        (200, [(b"transfer-encoding ", b"secret")]),
        (99999, []),
        (101, []),
        ("200 OK\r\nx-name: secret", []),
    ],
)
def test_a_response_head_that_cannot_be_sent(status, headers):
    with pytest.raises(RuntimeError, match="the application sent the"):
        _checked_head({"status": status, "headers": headers})


def test_values_of_headers_are_not_shown():
    with pytest.raises(RuntimeError) as caught:
        _checked_head({"status": 200, "headers": [(b"set-cookie", b"key=secret\n")]})
    assert "secret" not in str(caught.value)
