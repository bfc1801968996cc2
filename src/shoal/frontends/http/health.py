"""Health over HTTP: is the server alive, is it ready, is a model ready.

A status is the whole answer. Probes read nothing else, so a body comes only with a problem that
somebody may want to read about.
"""

from __future__ import annotations

import asyncio

from shoal.errors import Unavailable
from shoal.frontends.http.answers import send_empty
from shoal.frontends.http.contracts import Engine, Exchange
from shoal.frontends.http.errors import as_shoal_error, send_error, send_refusal
from shoal.frontends.http.routes import Target


class HealthRoutes:
    """Serves the health endpoints."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def live(self, exchange: Exchange, _target: Target) -> None:
        """GET /v2/health/live."""
        self._check_not_exiting()
        send_empty(exchange, 200 if self._engine.live() else 400)

    def ready(self, exchange: Exchange, _target: Target) -> None:
        """GET /v2/health/ready."""
        self._check_not_exiting()
        send_empty(exchange, 200 if self._engine.ready() else 400)

    def model_ready(self, exchange: Exchange, target: Target) -> None:
        """GET …/ready of a model or of one version."""
        model, version = target.model, target.version
        if not self._engine.asks_readiness(model, version):
            _answer(exchange, self._engine.model_ready(model, version))
            return

        def done(future: asyncio.Future[bool]) -> None:
            try:
                _answer(exchange, future.result())
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - is the answer
                send_error(exchange, as_shoal_error(error))

        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(None, self._engine.model_ready, model, version)
        asked.add_done_callback(done)

    def _check_not_exiting(self) -> None:
        if self._engine.exiting():
            raise Unavailable("Server exiting")


def _answer(exchange: Exchange, ready: bool) -> None:
    if ready:
        send_empty(exchange)
    else:
        send_refusal(exchange, 400, "Model version not ready")
