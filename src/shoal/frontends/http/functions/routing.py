"""The routes of functions that serve now, and ASGI applications for all other paths.

    "POST /greet"        --find-->  Target(route, "greet")
    "GET /users/ada"     --find-->  Target(route, "profile", arguments=(("name", "ada"),))

They come and go with their models, so the table is made again when the engine has other routes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

from shoal.access.caller import Caller
from shoal.config.suggest import near_match
from shoal.core.interface import FunctionRoute
from shoal.engine import Engine
from shoal.errors import NotFound
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.functions.application import ApplicationCalls
from shoal.frontends.http.functions.calls import FunctionCalls
from shoal.frontends.http.routes import HttpEndpoint, HttpRoute, Target

NOT_FOUND = "Not Found"
_PARAMETER = re.compile(r"\{(\w+)\}")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_MOST_LISTED = 20


class FunctionRouting:
    """Finds and serves functions by their own routes. For the event loop's thread."""

    def __init__(
        self, engine: Engine, calls: FunctionCalls, applications: ApplicationCalls
    ) -> None:
        self._engine = engine
        self._calls = calls
        self._applications = applications
        self._table = _RouteTable(())

    def find(self, method: str, path: str, *, with_applications: bool) -> Target | None:
        """The target of a request; None if no function and no application serves the path.

        Where the method is another one, the route of the target has no endpoint for it. Raises
        ModelLoading while the routes are not known.
        """
        routes = self._engine.routes()
        if routes is not self._table.routes:
            self._table = _RouteTable(routes)
        return self._table.find(method, path, with_applications=with_applications)

    def serve(self, exchange: Exchange, target: Target) -> None:
        """Serve a request. If this raises, there was no response."""
        exchange.model = target.model
        interface = self._engine.find(target.model).interface
        if interface is not None and interface.is_application:
            self._applications.serve(exchange, target)
        else:
            self._calls.serve_route(exchange, target)

    def not_found(
        self, path: str, caller: Caller | None, *, listed: bool, has_docs: bool
    ) -> NotFound:
        """The error for a path that nothing serves; with `listed` it names the routes there are,
        as far as `caller` may use them."""
        known = [
            route
            for route in self._table.routes
            if route.path and (caller is None or caller.may_use(route.model))
        ]
        if not known or not listed:
            return NotFound(NOT_FOUND)
        near = near_match(path, [route.path for route in known])
        shown = ", ".join(f"{route.method} {route.path}" for route in known[:_MOST_LISTED])
        more = ", …" if len(known) > _MOST_LISTED else ""
        advice = f"; did you mean {near}?" if near else "."
        return NotFound(
            f"{NOT_FOUND}: there is no {path[:200]} here{advice} The functions are {shown}{more}"
            f"{'; /docs shows everything' if has_docs else ''}"
        )


class _RouteTable:
    """Routes by path, compiled."""

    def __init__(self, routes: Sequence[FunctionRoute]) -> None:
        self.routes = routes
        by_template: dict[str, list[FunctionRoute]] = {}
        for route in routes:
            if route.path:
                by_template.setdefault(_PARAMETER.sub("{}", route.path), []).append(route)
        # Literal segments before parameters, as for the server's own routes.
        ordered = sorted(by_template, key=lambda path: ["{" in part for part in path.split("/")])
        self._entries = [_Entry(by_template[template]) for template in ordered]
        applications = [route for route in routes if not route.path]
        self._application: Target | None = None
        if applications:
            every = [_endpoint(method, "/", applications[0].model) for method in _METHODS]
            self._application = Target(HttpRoute(every), applications[0].model)

    def find(self, method: str, path: str, *, with_applications: bool) -> Target | None:
        """The target of a path."""
        other: Target | None = None
        for entry in self._entries:
            found = entry.pattern.fullmatch(path)
            if found is None:
                continue
            if method in entry.owners:
                model, names = entry.owners[method]
                values = zip(names, map(unquote, found.groups()), strict=True)
                return Target(entry.route, model, arguments=tuple(values))
            other = other or Target(entry.route)
        return (self._application if with_applications else None) or other


class _Entry:
    """The functions of one path, by method."""

    def __init__(self, routes: Sequence[FunctionRoute]) -> None:
        first = routes[0].path
        parts = [re.escape(part) for part in _PARAMETER.split(first)[::2]]
        self.pattern = re.compile("([^/]+)".join(parts))
        self.route = HttpRoute([_endpoint(one.method, first, one.model) for one in routes])
        self.owners = {one.method: (one.model, _PARAMETER.findall(one.path)) for one in routes}
        if "GET" in self.owners:
            self.owners["HEAD"] = self.owners["GET"]


def _endpoint(method: str, path: str, model: str) -> HttpEndpoint:
    return HttpEndpoint(
        method,
        _PARAMETER.sub("x", path),
        FunctionRouting.serve,
        model,
        "inference",
        "",
        "",
        loads_model=True,
    )
