"""The HTTP application: takes each exchange from the transport and has the right route answer it.

transport --handle--> CORS --> route --> method --> restriction --> handler
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from shoal.core.inbox import LoopInbox
from shoal.core.model_loading import ModelLoading
from shoal.errors import NotFound
from shoal.frontends.console.state import ConsoleState
from shoal.frontends.http.console import ConsoleRoutes
from shoal.frontends.http.contracts import Engine, Exchange
from shoal.frontends.http.control import ControlRoutes
from shoal.frontends.http.cors import Cors
from shoal.frontends.http.description import DescriptionRoutes
from shoal.frontends.http.errors import as_shoal_error, send_error, send_refusal
from shoal.frontends.http.explain import ExplainRoute
from shoal.frontends.http.fast_path import HttpFastPath
from shoal.frontends.http.generate import GenerateRoutes
from shoal.frontends.http.health import HealthRoutes
from shoal.frontends.http.infer import InferRoute
from shoal.frontends.http.memory import MemoryRoutes
from shoal.frontends.http.metadata import MetadataRoutes
from shoal.frontends.http.openai.door import OpenAiDoor
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.routes import Route, Target, resolve
from shoal.frontends.http.runtime_settings import RuntimeSettingRoutes
from shoal.frontends.http.tasks import TaskRoutes
from shoal.frontends.http.waiting import answer_when_loaded
from shoal.frontends.shared_memory import SharedMemory

Handler = Callable[[Exchange, Target], None]

# In lazy mode these load their model; others tell that it is not loaded.
_LOADING = frozenset(
    {"infer", "generate", "generate_stream", "model_metadata", "model_config", "task"}
)


class Application:
    """Everything above the transport. `handle` is what a listener calls, on the loop's thread."""

    def __init__(
        self,
        engine: Engine,
        inbox: LoopInbox,
        options: HttpOptions | None = None,
        render_metrics: Callable[[], bytes] | None = None,
        memory: SharedMemory | None = None,
        console: ConsoleState | None = None,
    ) -> None:
        """`memory` is shared with the other frontends: a region is registered for all of them.

        Without `console` browsers get at `/` what everybody gets there.
        """
        self._options = options or HttpOptions()
        self._cors = Cors(self._options.cors_origins) if self._options.cors_origins else None
        self._control = ControlRoutes(engine, self._options)
        health = HealthRoutes(engine)
        memory = memory or SharedMemory(allowed=False)
        regions = MemoryRoutes(memory, self._options)
        generate = GenerateRoutes(engine, inbox, self._options)
        metadata = MetadataRoutes(engine, render_metrics)
        settings = RuntimeSettingRoutes(engine, self._options)
        description = DescriptionRoutes(self._options)
        page = ConsoleRoutes(console, metadata.welcome)
        infer = InferRoute(engine, inbox, self._options, memory)
        # The lane knows neither origins nor restrictions.
        self.lane: HttpFastPath | None = None
        if infer.plans is not None and not (self._cors or self._options.restricted_apis):
            self.lane = HttpFastPath(engine, inbox, infer.plans)
        self._handlers: dict[str, Handler] = {
            "infer": infer.infer,
            "live": health.live,
            "ready": health.ready,
            "model_ready": health.model_ready,
            "server_metadata": metadata.server_metadata,
            "model_metadata": metadata.model_metadata,
            "model_config": metadata.model_config,
            "statistics": metadata.statistics,
            "explain": ExplainRoute(engine).explain,
            "metrics": metadata.metrics,
            "welcome": page.root,
            "console_file": page.file,
            "console_state": page.state,
            "openapi": description.openapi,
            "proto": description.proto,
            "index": self._control.index,
            "load": self._control.load,
            "unload": self._control.unload,
            "generate": generate.generate,
            "generate_stream": generate.generate_stream,
            "memory_status": regions.status,
            "memory_register": regions.register,
            "memory_unregister": regions.unregister,
            "trace": settings.trace,
            "logging": settings.logging,
            "task": TaskRoutes(engine, self._options).perform,
            **OpenAiDoor(engine, inbox, self._options).handlers(),
        }

    def handle(self, exchange: Exchange) -> None:
        """Answer `exchange`, exactly once, now or later. Never raises."""
        try:
            if self._cors is not None:
                admitted = self._cors.admit(exchange)
                if admitted is None:
                    return
                exchange = admitted
            self._dispatch(exchange)
        except Exception as error:  # noqa: BLE001 - becomes the answer
            send_error(exchange, as_shoal_error(error))

    def close(self) -> None:
        """Let go of the threads. Requests under way are still answered."""
        self._control.close()

    def _dispatch(self, exchange: Exchange) -> None:
        method = exchange.request.method
        path = exchange.request.path
        if method == "OPTIONS" and path == "*":  # about the server, not about one of its paths
            exchange.respond(204, [(b"Allow", b"GET, HEAD, POST, OPTIONS")], [])
            return
        target = resolve(path)
        if target is None:
            raise NotFound("Not Found")
        route = target.route
        if not route.answers(method):
            allow = [(b"Allow", route.allow)]
            if method == "OPTIONS":
                exchange.respond(204, allow, [])
            else:
                send_refusal(exchange, 405, "Method Not Allowed", allow)
            return
        if self._options.restricted_apis and self._refused(exchange, route):
            return
        try:
            self._handlers[route.name](exchange, target)
        except ModelLoading as pending:
            if route.name not in _LOADING:
                raise
            handler = self._handlers[route.name]
            answer_when_loaded(pending, exchange, lambda: handler(exchange, target))

    def _refused(self, exchange: Exchange, route: Route) -> bool:
        """Whether the request lacks the header its category asks for; it is answered then."""
        restriction = self._options.restricted_apis.get(route.category)
        if restriction is None:
            return False
        name, value = restriction
        given = exchange.request.header(name.lower().encode()) or b""
        if hmac.compare_digest(given, value.encode()):  # how long it takes tells nothing
            return False
        send_refusal(exchange, 403, f"This API is restricted, expecting header '{name}'")
        return True
