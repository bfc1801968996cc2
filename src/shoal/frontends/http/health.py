"""Health over HTTP: whether the server is alive, whether it is ready, whether a model is ready.

The status is the whole response, because probes read nothing else; only a problem has a body.
"""

from __future__ import annotations

from shoal.engine import Engine
from shoal.errors import Unavailable
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import send_refusal
from shoal.frontends.http.responses import respond_from_thread, send_empty
from shoal.frontends.http.routes import MODEL_VERSION, Target, route


class HealthRoutes:
    """Serves the health endpoints."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @route("GET /v2/health/live", api="health")
    def live(self, exchange: Exchange, _target: Target) -> None:
        """Whether the server is alive.

        200 if it is, else 400; 503 while it exits.
        """
        self._check_not_exiting()
        send_empty(exchange, 200 if self._engine.live() else 400)

    @route("GET /v2/health/ready", api="health")
    def ready(self, exchange: Exchange, _target: Target) -> None:
        """Whether the server is ready for traffic.

        200 when every requested model can serve, else 400; 503 while the server exits.
        """
        self._check_not_exiting()
        send_empty(exchange, 200 if self._engine.ready() else 400)

    @route(f"GET {MODEL_VERSION}/ready", api="health")
    def model_ready(self, exchange: Exchange, target: Target) -> None:
        """Whether a model is ready.

        200 if it is, else 400.
        """
        model, version = target.model, target.version

        def respond(ready: bool) -> None:
            if ready:
                send_empty(exchange)
            else:
                send_refusal(exchange, 400, "Model version not ready")

        if self._engine.asks_readiness(model, version):
            respond_from_thread(
                exchange, lambda: self._engine.model_ready(model, version), respond=respond
            )
        else:
            respond(self._engine.model_ready(model, version))

    def _check_not_exiting(self) -> None:
        if self._engine.exiting():
            raise Unavailable("Server exiting")
