"""What the server tells about itself and its models: metadata, configs, statistics, metrics."""

from __future__ import annotations

from collections.abc import Callable

from shoal.errors import NotFound
from shoal.frontends.http.answers import send_json
from shoal.frontends.http.contracts import Engine, Exchange
from shoal.frontends.http.routes import Target


class MetadataRoutes:
    """Serves what can only be read."""

    def __init__(self, engine: Engine, render_metrics: Callable[[], bytes] | None) -> None:
        self._engine = engine
        self._render_metrics = render_metrics

    def server_metadata(self, exchange: Exchange, _target: Target) -> None:
        """GET /v2."""
        send_json(exchange, self._engine.server_metadata())

    def model_metadata(self, exchange: Exchange, target: Target) -> None:
        """GET /v2/models/M, of all ready versions or of one."""
        send_json(exchange, self._engine.model_metadata(target.model, target.version))

    def model_config(self, exchange: Exchange, target: Target) -> None:
        """GET …/config."""
        send_json(exchange, self._engine.model_config(target.model, target.version))

    def statistics(self, exchange: Exchange, target: Target) -> None:
        """GET …/stats, of all models, of one, or of one version."""
        counted = self._engine.statistics(target.model, target.version)
        send_json(exchange, {"model_stats": counted})

    def metrics(self, exchange: Exchange, _target: Target) -> None:
        """GET /metrics: what the metrics port serves, for those who reach this port only."""
        if self._render_metrics is None:
            raise NotFound("metrics are switched off on this server")
        content = (b"Content-Type", b"text/plain; charset=utf-8")
        exchange.respond(200, [content], [self._render_metrics()])

    def welcome(self, exchange: Exchange, _target: Target) -> None:
        """GET /: where to go from here."""
        server = self._engine.server_metadata()
        send_json(
            exchange,
            {
                "name": server["name"],
                "version": server["version"],
                "server": "shoal",
                "links": {
                    "health": "/v2/health/ready",
                    "metadata": "/v2",
                    "statistics": "/v2/models/stats",
                    "metrics": "/metrics",
                    "openapi": "/openapi.json",
                    "proto": "/proto",
                },
            },
        )
