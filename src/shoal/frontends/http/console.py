"""The web console over HTTP: its page at `/`, its files, and the state it shows.

A browser that requests `/` gets the page; a program, which does not accept HTML, gets JSON. The
page and its files contain no secrets, cannot be restricted and need no key. The page has to request
everything it shows, so restrictions and keys apply to that. All of it is for the server's own names
only: a page that has rebound its name to this machine could read it.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from shoal.engine import Engine
from shoal.errors import InvalidArgument, NotFound
from shoal.frontends.console.files import DOCS, PAGE, console_file
from shoal.frontends.console.state import Console
from shoal.frontends.http.browsers import BrowserRules
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.message import HttpRequest
from shoal.frontends.http.responses import respond_from_thread, send_json
from shoal.frontends.http.routes import Target, route

_LINKS = {
    "health": "/v2/health/ready",
    "metadata": "/v2",
    "statistics": "/v2/models/stats",
    "metrics": "/metrics",
    "openapi": "/openapi.json",
    "docs": "/docs",
    "proto": "/proto",
}


def _accepts_html(request: HttpRequest) -> bool:
    """Whether the client names HTML; programs send `*/*`."""
    for entry in (request.header(b"accept") or b"").lower().split(b","):
        kind, _, weight = entry.partition(b";")
        if kind.strip() == b"text/html":
            return weight.replace(b" ", b"") not in (b"q=0", b"q=0.0")
    return False


class ConsoleRoutes:
    """Serves the console; without a `state` it is switched off, and `/` serves only the links."""

    def __init__(self, engine: Engine, state: Console | None, browsers: BrowserRules) -> None:
        self._engine = engine
        self._state = state
        self._browsers = browsers

    @route(
        "GET /",
        api="",
        key_api="metadata",
        is_public=_accepts_html,
        response="Welcome",
        page="console",
    )
    def welcome(self, exchange: Exchange, _target: Target) -> None:
        """Links to the other routes.

        Browsers get the web console.
        """
        if self._state is not None and _accepts_html(exchange.request):
            self._browsers.check_host(exchange.request.header)
            _send_file(exchange, PAGE)
            return
        server = self._engine.server_metadata()
        named = {"name": server["name"], "version": server["version"]}
        send_json(exchange, {**named, "server": "shoal", "links": _LINKS})

    @route(
        "GET /docs",
        api="",
        is_public=lambda _: True,
        response_media=("text/html",),
        page="functions",
    )
    def docs(self, exchange: Exchange, _target: Target) -> None:
        """A page with all routes, on which they can be tried.

        It shows the OpenAPI document; functions come first.
        """
        self._check(exchange)
        _send_file(exchange, DOCS)

    @route(
        "GET /console/{asset}",
        api="",
        is_public=lambda _: True,
        response_media=("text/css", "text/javascript", "image/svg+xml"),
    )
    def console_file(self, exchange: Exchange, target: Target) -> None:
        """A file of the web console."""
        self._check(exchange)
        _send_file(exchange, target.file)

    @route("GET /v2/console", api="statistics", response="ConsoleState", page="console")
    def console_state(self, exchange: Exchange, _target: Target) -> None:
        """The state that the web console shows: counters, the machine, recent errors.

        For the console of this version: the format may change with the next one.
        """
        state = self._check(exchange)
        after = _errors_after(exchange.request)
        allow = None if exchange.caller is None else exchange.caller.may_use
        respond_from_thread(exchange, lambda: state.document(after, allow))

    def _check(self, exchange: Exchange) -> Console:
        if self._state is None:
            raise NotFound("the console is switched off on this server (--console=false)")
        self._browsers.check_host(exchange.request.header)
        return self._state


def _send_file(exchange: Exchange, name: str) -> None:
    request = exchange.request
    found = console_file(name)
    accepted = request.header(b"accept-encoding") or b""
    known = request.header(b"if-none-match") or b""
    exchange.respond(*found.response(accepted, known))


def _errors_after(request: HttpRequest) -> int:
    text = parse_qs(request.query).get("errors_after", ["0"])[-1]
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidArgument(f"errors_after takes the number of an error, found '{text[:40]}'")
    return int(text)
