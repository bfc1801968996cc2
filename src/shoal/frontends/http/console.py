"""The web console over HTTP: its page at `/`, its files, and the state it draws.

A browser that asks for `/` gets the page; programs, which do not ask for HTML, get what they
always got there. The page and its files hold no secrets and are for everybody; what they show
they have to ask for, and whatever of that is restricted stays so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from shoal.errors import InvalidArgument, NotFound
from shoal.frontends.console.files import PAGE, console_file
from shoal.frontends.console.state import ConsoleState
from shoal.frontends.http.answers import send_json
from shoal.frontends.http.contracts import Exchange, HttpRequest
from shoal.frontends.http.errors import as_shoal_error, send_error
from shoal.frontends.http.routes import Target

Handler = Callable[[Exchange, Target], None]


class ConsoleRoutes:
    """Serves the console, or with no `state` what is there without it."""

    def __init__(self, state: ConsoleState | None, welcome: Handler) -> None:
        """`welcome` answers at `/` to those who do not look with a browser."""
        self._state = state
        self._welcome = welcome

    def root(self, exchange: Exchange, target: Target) -> None:
        """GET /."""
        if self._state is not None and _wants_page(exchange.request):
            _send_file(exchange, PAGE)
        else:
            self._welcome(exchange, target)

    def file(self, exchange: Exchange, target: Target) -> None:
        """GET /console/FILE."""
        self._check()
        _send_file(exchange, target.file)

    def state(self, exchange: Exchange, _target: Target) -> None:
        """GET /v2/console: what the page draws, made on a thread."""
        state = self._check()
        after = _errors_after(exchange.request)

        def done(future: asyncio.Future[dict[str, Any]]) -> None:
            try:
                send_json(exchange, future.result())
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - is the answer
                send_error(exchange, as_shoal_error(error))

        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, state.document, after).add_done_callback(done)

    def _check(self) -> ConsoleState:
        if self._state is None:
            raise NotFound("the console is switched off on this server (--console=false)")
        return self._state


def _send_file(exchange: Exchange, name: str) -> None:
    request = exchange.request
    found = console_file(name)
    accepted = request.header(b"accept-encoding") or b""
    known = request.header(b"if-none-match") or b""
    exchange.respond(*found.answer(accepted, known))


def _wants_page(request: HttpRequest) -> bool:
    """Whether HTML is asked for by name; `*/*` is what programs say."""
    for entry in (request.header(b"accept") or b"").lower().split(b","):
        kind, _, weight = entry.partition(b";")
        if kind.strip() == b"text/html":
            return weight.replace(b" ", b"") not in (b"q=0", b"q=0.0")
    return False


def _errors_after(request: HttpRequest) -> int:
    asked = parse_qs(request.query).get("errors_after", ["0"])[-1]
    if not (asked.isascii() and asked.isdecimal() and len(asked) < 20):
        raise InvalidArgument(f"errors_after takes the number of an error, found '{asked[:40]}'")
    return int(asked)
