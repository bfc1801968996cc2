"""Settings that can change while the server runs, over HTTP: those of tracing and of the log.

GET  --> the settings          POST {"name": value, ...} --> the settings after the change
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.engine import Engine
from shoal.errors import InvalidArgument, Unavailable
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.responses import respond_if_blocking, send_json
from shoal.frontends.http.routes import Target, route
from shoal.frontends.log_changes import read_log_changes
from shoal.wire import http_body, json_limits

_TRACE = "/v2[/models/{model}]/trace/setting"
_RECORDING = "/v2/models/{model}/trace/recording"
_LISTED = ("trace_level",)  # these have several values; the others are plain texts


class RuntimeSettingRoutes:
    """Serves /v2/trace/setting, /v2/models/M/trace/setting and /recording, and /v2/logging."""

    def __init__(self, engine: Engine, options: HttpOptions) -> None:
        self._engine = engine
        self._most_bytes = options.max_input_bytes

    @route(
        f"GET {_TRACE}",
        api="trace",
        summary="The trace settings of a model, or of all models",
        response="TraceSettings",
        page="tracing",
    )
    def get_trace(self, exchange: Exchange, target: Target) -> None:
        """Send the settings; most are plain texts."""
        respond_if_blocking(
            exchange,
            self._engine.asks_process,
            lambda: _shown(self._engine.trace_settings(target.model)),
            respond=lambda shown: send_json(exchange, shown),
        )

    @route(
        f"POST {_TRACE}",
        api="trace",
        summary="Change trace settings",
        description="null restores the setting of all models, or the one the server started with.",
        request="TraceSettings",
        response="TraceSettings",
        page="tracing",
    )
    def update_trace(self, exchange: Exchange, target: Target) -> None:
        """Change some settings and send them all."""
        if exchange.caller is not None and not target.model:
            exchange.caller.check_all_models()
        document = self._read(exchange)

        def work() -> dict[str, Any]:
            self._engine.trace_settings(target.model)  # an unknown model is reported first
            changes = {name: _texts(name, value) for name, value in document.items()}
            self._engine.update_trace_settings(target.model, changes)
            return _shown(self._engine.trace_settings(target.model))

        respond_if_blocking(
            exchange,
            self._engine.asks_process,
            work,
            respond=lambda shown: send_json(exchange, shown),
        )

    @route(
        f"GET {_RECORDING}",
        api="trace",
        summary="The recorded requests of a model, the newest first",
        response="TraceRecording",
        page="tracing",
    )
    def get_recording(self, exchange: Exchange, target: Target) -> None:
        """What happened to each of them, and when."""
        self._send_recording(exchange, target.model)

    @route(
        f"POST {_RECORDING}",
        api="trace",
        summary="Record the next requests of a model",
        description="In memory, for a minute at most. 0 ends a recording.",
        request="TraceRecordingRequest",
        response="TraceRecording",
        page="tracing",
    )
    def record(self, exchange: Exchange, target: Target) -> None:
        """Begin or end a recording."""
        count = self._read(exchange).get("count", 20)
        if type(count) is not int:
            raise InvalidArgument(f"'count' takes a number of requests, found {str(count)[:40]!r}")
        self._send_recording(exchange, target.model, count)

    def _send_recording(self, exchange: Exchange, model: str, count: int | None = None) -> None:
        def work() -> dict[str, Any]:
            if count is not None:
                self._engine.record_traces(model, count)
            return self._engine.recorded_traces(model)

        respond_if_blocking(
            exchange,
            self._engine.asks_process,
            work,
            respond=lambda recorded: send_json(exchange, recorded),
        )

    @route("GET /v2/logging", api="logging", response="LogSettings", page="logging")
    def get_logging(self, exchange: Exchange, _target: Target) -> None:
        """The log settings."""
        self._change_logging(exchange, {})

    @route(
        "POST /v2/logging",
        api="logging",
        request="LogSettings",
        response="LogSettings",
        page="logging",
    )
    def update_logging(self, exchange: Exchange, _target: Target) -> None:
        """Change log settings.

        null leaves a setting as it is.
        """
        changes = read_log_changes(self._read(exchange), _bad_format)
        self._change_logging(exchange, changes)

    def _change_logging(self, exchange: Exchange, changes: Mapping[str, Any]) -> None:
        """Change some settings and send them all."""

        def work() -> dict[str, Any]:
            if changes:
                self._engine.update_log_settings(changes)
            return self._engine.log_settings()

        respond_if_blocking(
            exchange,
            self._engine.asks_process,
            work,
            respond=lambda settings: send_json(exchange, settings),
        )

    def _read(self, exchange: Exchange) -> dict[str, Any]:
        """The body as a JSON object; an empty body stands for an empty one."""
        body = exchange.request.body
        if not len(body):
            return {}
        http_body.check_json_size(len(body), self._most_bytes)
        document = json_limits.loads(body, self._most_bytes)
        if type(document) is not dict:
            raise InvalidArgument("settings are changed with a JSON object of names and values")
        return document


def _texts(name: str, value: Any) -> list[str] | None:
    """A setting as texts. Triton writes numbers as texts; numbers are accepted, too."""
    if value is None:
        return None
    values = value if type(value) is list else [value]
    for each in values:
        if type(each) not in (str, int):
            raise InvalidArgument(
                f"attempt to access JSON non-string as string: '{name}' must be a text, or an "
                f"array of texts"
            )
    return [str(each) for each in values]


def _bad_format(text: str) -> Unavailable:
    """Unavailable and not InvalidArgument, as Triton has it."""
    return Unavailable(
        f"invalid argument for --log_format, got: {text}; write 'default', 'ISO8601' or 'json'"
    )


def _shown(settings: Mapping[str, list[str]]) -> dict[str, Any]:
    """The trace settings as clients read them: most are plain texts."""
    return {
        name: values if name in _LISTED else ",".join(values) for name, values in settings.items()
    }
