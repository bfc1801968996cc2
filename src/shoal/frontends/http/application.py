"""The HTTP application: passes each exchange from the transport to the handler of its route.

transport --handle--> CORS --> browser rules --> route --> method --> restriction, key --> handler
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from shoal.access.access import Access
from shoal.core.inbox import LoopInbox
from shoal.core.model_loading import ModelLoading
from shoal.engine import Engine
from shoal.frontends.console.state import Console
from shoal.frontends.http.browsers import BrowserRules
from shoal.frontends.http.console import ConsoleRoutes
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.control import ControlRoutes
from shoal.frontends.http.cors import Cors
from shoal.frontends.http.description import DescriptionRoutes
from shoal.frontends.http.errors import as_shoal_error, send_error, send_refusal
from shoal.frontends.http.explain import ExplainRoute
from shoal.frontends.http.fast_path import HttpFastPath
from shoal.frontends.http.functions.application import ApplicationCalls
from shoal.frontends.http.functions.calls import FunctionCalls
from shoal.frontends.http.functions.routing import FunctionRouting
from shoal.frontends.http.generate import GenerateRoutes
from shoal.frontends.http.health import HealthRoutes
from shoal.frontends.http.infer import InferRoute
from shoal.frontends.http.keyed_fast_path import KeyedHttpFastPath
from shoal.frontends.http.keys import HttpKeys
from shoal.frontends.http.memory import MemoryRoutes
from shoal.frontends.http.metadata import MetadataRoutes
from shoal.frontends.http.openai.endpoints import OpenAiEndpoints
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.routes import (
    Handler,
    HttpEndpoint,
    HttpRoute,
    Target,
    bind,
    resolve,
)
from shoal.frontends.http.runtime_settings import RuntimeSettingRoutes
from shoal.frontends.http.tasks import TaskRoutes
from shoal.frontends.http.waiting import respond_when_loaded
from shoal.frontends.shared_memory import SharedMemory

Serve = Callable[[Exchange, HttpEndpoint, Target, Handler], None]


class Application:
    """Everything above the transport. `handle` is what a listener calls, on the loop's thread."""

    def __init__(
        self,
        engine: Engine,
        inbox: LoopInbox,
        options: HttpOptions | None = None,
        render_metrics: Callable[[], bytes] | None = None,
        memory: SharedMemory | None = None,
        console: Console | None = None,
        access: Access | None = None,
    ) -> None:
        """`memory` is shared with the other frontends: a region is registered for all of them.

        Without `console` the web console is switched off. With `access`, requests need a key.
        """
        self._options = options or HttpOptions()
        self._keys = HttpKeys(access) if access is not None else None
        guarded = self._keys is not None or self._options.restricted_apis
        self._serve: Serve = self._serve_guarded if guarded else self._serve_open
        self._has_console = console is not None
        # Refuses large bodies of clients without a key before they arrive.
        self.check_head = self._keys.check_head if self._keys is not None else None
        self._cors = Cors(self._options.cors_origins) if self._options.cors_origins else None
        self._browsers = BrowserRules(self._options.cors_origins, self._options.allowed_hosts)
        self.control = ControlRoutes(engine, self._options)
        memory = memory or SharedMemory(allowed=False)
        hidden = access.secret_headers if access is not None else frozenset[str]()
        self._options = replace(self._options, hidden_headers=hidden)
        infer = InferRoute(engine, inbox, self._options, memory)
        # The fast path knows neither forwarded headers nor origins nor restrictions.
        self.fast_path: HttpFastPath | None = None
        slow = infer.forwarding or self._cors or self._options.restricted_apis
        if self._options.plans and not slow:
            self.fast_path = (
                HttpFastPath(infer, self._browsers)
                if self._keys is None
                else KeyedHttpFastPath(infer, self._browsers, self._keys)
            )
        calls = FunctionCalls(engine, inbox, self._options)
        applications = ApplicationCalls(engine, inbox, self._options)
        self._functions = FunctionRouting(engine, calls, applications)
        self._handlers = bind(
            [
                infer,
                self.control,
                HealthRoutes(engine, self._keys),
                MetadataRoutes(engine, render_metrics),
                ExplainRoute(engine),
                GenerateRoutes(engine, inbox, self._options, calls),
                MemoryRoutes(memory, self._options),
                RuntimeSettingRoutes(engine, self._options),
                DescriptionRoutes(engine, self._options, access),
                ConsoleRoutes(engine, console, self._browsers),
                TaskRoutes(engine, self._options),
                OpenAiEndpoints(engine, inbox, self._options),
            ]
        )

    def handle(self, exchange: Exchange, handler: Handler | None = None) -> None:
        """Respond to `exchange`, exactly once, now or later. Never raises.

        `handler` takes the place of the route's own; the rules of the route apply to it.
        """
        try:
            if self._cors is not None:
                admitted = self._cors.admit(exchange)
                if admitted is None:
                    return
                exchange = admitted
            request = exchange.request
            self._browsers.check(request.method, request.header)
            self._dispatch(exchange, handler)
        except Exception as error:  # noqa: BLE001 - becomes the response
            send_error(exchange, as_shoal_error(error))

    def close(self) -> None:
        """Release the threads. Pending requests still get their response."""
        self.control.close()

    def _dispatch(self, exchange: Exchange, handler: Handler | None) -> None:
        method = exchange.request.method
        path = exchange.request.path
        if method == "OPTIONS" and path == "*":  # about the server, not about a path
            exchange.respond(204, [(b"Allow", b"GET, HEAD, POST, OPTIONS")], [])
            return
        target = resolve(path)
        if target is None or (target.operation and not target.model):
            try:
                found = self._functions.find(method, path, with_applications=target is None)
            except ModelLoading as pending:  # another process is asked first
                respond_when_loaded(pending, exchange, partial(self._dispatch, exchange, handler))
                return
            if target is None or (found is not None and found.model and not handler):
                self._dispatch_function(exchange, found)
                return
        route = target.route
        endpoint = route.endpoints.get(method)
        if endpoint is None:
            self._refuse_method(exchange, route)
            return
        self._serve(exchange, endpoint, target, handler or self._handlers[endpoint])

    @staticmethod
    def _refuse_method(exchange: Exchange, route: HttpRoute, names: str = "") -> None:
        """Respond to a method that the path does not have; with `names`, say which it has."""
        allow = [(b"Allow", route.allow)]
        if exchange.request.method == "OPTIONS":
            exchange.respond(204, allow, [])
        else:
            methods = f"{names} {', '.join(route.endpoints)}" if names else ""
            send_refusal(exchange, 405, f"Method Not Allowed{methods}", allow)

    def _dispatch_function(self, exchange: Exchange, target: Target | None) -> None:
        """Serve a function's own route, or an application."""
        request = exchange.request
        if target is None:
            caller = None
            if self._keys is not None:
                caller = self._keys.caller_if_any(request.header)
            listed = self._keys is None or caller is not None
            raise self._functions.not_found(
                request.path, caller, listed=listed, has_docs=self._has_console
            )
        endpoint = target.route.endpoints.get(request.method)
        if endpoint is None:
            self._refuse_method(exchange, target.route, f": {request.path} takes")
        else:
            self._serve(exchange, endpoint, target, self._functions.serve)

    def _serve_guarded(
        self, exchange: Exchange, endpoint: HttpEndpoint, target: Target, handler: Handler
    ) -> None:
        """Serve a request that has the required header and key."""
        if self._refused(exchange, endpoint.api):
            return
        is_public = endpoint.is_public
        public = self._has_console and is_public is not None and is_public(exchange.request)
        if self._keys is not None and not public:
            api = endpoint.api or endpoint.key_api
            exchange = self._keys.admit(exchange, api, target.model)
        try:
            self._serve_open(exchange, endpoint, target, handler)
        except Exception as error:  # noqa: BLE001 - becomes the response, which ends the request
            send_error(exchange, as_shoal_error(error))

    def _serve_open(
        self, exchange: Exchange, endpoint: HttpEndpoint, target: Target, handler: Handler
    ) -> None:
        try:
            handler(exchange, target)
        except ModelLoading as pending:
            if not (endpoint.loads_model or pending.only_asks):
                raise
            respond_when_loaded(pending, exchange, partial(handler, exchange, target))

    def _refused(self, exchange: Exchange, api: str) -> bool:
        """Respond to a request that lacks the header its API kind requires; false if it has it."""
        restriction = self._options.restricted_apis.get(api)
        if restriction is None:
            return False
        name, value = restriction
        given = exchange.request.header(name.lower().encode()) or b""
        if hmac.compare_digest(given, value.encode()):  # takes the same time for any value
            return False
        send_refusal(exchange, 403, f"This API is restricted, expecting header '{name}'")
        return True
