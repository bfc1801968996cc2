"""Read-only information about the server and its models: metadata, configs, statistics, metrics."""

from __future__ import annotations

from collections.abc import Callable

from shoal.core.pauses import Pauses
from shoal.engine import Engine
from shoal.errors import NotFound
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import JSON
from shoal.frontends.http.responses import respond_from_thread, respond_if_blocking, send_json
from shoal.frontends.http.routes import MODEL_VERSION, TEXT_MEDIA, Target, route
from shoal.frontends.metrics import send_metrics
from shoal.wire import json_text


class MetadataRoutes:
    """Serves what can only be read."""

    def __init__(self, engine: Engine, render_metrics: Callable[[], bytes] | None) -> None:
        self._engine = engine
        self._render_metrics = render_metrics

    @route("GET /v2[/]", api="metadata", response="ServerMetadata")
    def server_metadata(self, exchange: Exchange, _target: Target) -> None:
        """The server's name, version and extensions."""
        send_json(exchange, self._engine.server_metadata())

    @route(f"GET {MODEL_VERSION}", api="metadata", loads_model=True, response="ModelMetadata")
    def model_metadata(self, exchange: Exchange, target: Target) -> None:
        """A model's inputs, outputs and versions."""
        send_json(exchange, self._engine.model_metadata(target.model, target.version))

    @route(
        f"GET {MODEL_VERSION}/config", api="model-config", loads_model=True, response="ModelConfig"
    )
    def model_config(self, exchange: Exchange, target: Target) -> None:
        """A model's configuration, with every default written out."""
        send_json(exchange, self._engine.model_config(target.model, target.version))

    @route(
        "GET /v2/models/stats",
        api="statistics",
        summary="Statistics of all models",
        response="Statistics",
    )
    @route(
        f"GET {MODEL_VERSION}/stats",
        api="statistics",
        summary="Statistics of a model",
        description="Besides Triton's counters: `execution` is where the model runs (`loop` or "
        "`threads`) and why, `task` counts the calls of its task, `generation` the texts of a "
        "model that generates.",
        response="Statistics",
    )
    def statistics(self, exchange: Exchange, target: Target) -> None:
        """Statistics of all models, of one, or of one version."""
        if target.model:
            respond_if_blocking(
                exchange,
                self._engine.asks_process,
                lambda: self._engine.statistics(target.model, target.version),
                respond=lambda counted: send_json(exchange, {"model_stats": counted}),
            )
            return
        caller = exchange.caller

        def work() -> bytes:
            pause = Pauses()
            parts = []
            for each in self._engine.statistics():
                if caller is None or caller.may_use(each["name"]):
                    parts.append(json_text.dumps(each))
                pause()
            return b'{"model_stats":[%b]}' % b",".join(parts)

        respond_from_thread(
            exchange, work, respond=lambda body: exchange.respond(200, [JSON], [body])
        )

    @route(
        "GET /metrics[/]",
        api="",
        key_api="metrics",
        response_media=(TEXT_MEDIA,),
        page="metrics",
    )
    def metrics(self, exchange: Exchange, _target: Target) -> None:
        """Metrics in Prometheus text format, as on the metrics port."""
        if self._render_metrics is None:
            raise NotFound("metrics are switched off on this server")
        send_metrics(exchange, self._render_metrics)
