"""Settings that change while the server runs, over HTTP: the trace and the log.

GET  --> the settings          POST {"name": value, ...} --> the settings after the change
"""

from __future__ import annotations

from typing import Any

from shoal.errors import InvalidArgument, Unavailable
from shoal.frontends.http.answers import send_json
from shoal.frontends.http.contracts import Engine, Exchange
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.routes import Target
from shoal.frontends.log_changes import read_log_changes
from shoal.wire import http_body, json_text

_LISTED = ("trace_level",)  # these have several values; the others are plain texts


class RuntimeSettingRoutes:
    """Serves /v2/trace/setting, /v2/models/M/trace/setting and /v2/logging."""

    def __init__(self, engine: Engine, options: HttpOptions) -> None:
        self._engine = engine
        self._most_bytes = options.max_input_bytes

    def trace(self, exchange: Exchange, target: Target) -> None:
        """The trace settings of a model, or of all. null goes back to what holds otherwise."""
        model = target.model
        if exchange.request.method == "POST":
            document = self._read(exchange)
            self._engine.trace_settings(model)  # an unknown model comes before all other mistakes
            changes = {name: _texts(name, value) for name, value in document.items()}
            self._engine.update_trace_settings(model, changes)
        settings = self._engine.trace_settings(model)
        shown = {
            name: values if name in _LISTED else ",".join(values)
            for name, values in settings.items()
        }
        send_json(exchange, shown)

    def logging(self, exchange: Exchange, _target: Target) -> None:
        """The log settings. null leaves one as it is."""
        if exchange.request.method == "POST":
            changes = read_log_changes(self._read(exchange), _bad_format)
            self._engine.update_log_settings(changes)
        send_json(exchange, self._engine.log_settings())

    def _read(self, exchange: Exchange) -> dict[str, Any]:
        """The body as a JSON object; nothing at all stands for an empty one."""
        body = exchange.request.body
        if not len(body):
            return {}
        http_body.check_json_size(len(body), self._most_bytes)
        document = json_text.loads(body)
        if type(document) is not dict:
            raise InvalidArgument("settings are changed with a JSON object of names and values")
        return document


def _texts(name: str, value: Any) -> list[str] | None:
    """A setting as texts. Triton has texts for numbers; numbers are understood, too."""
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
    """Not an invalid argument: clients of Triton know it by this code."""
    return Unavailable(
        f"invalid argument for --log_format, got: {text}; write 'default' or 'ISO8601'"
    )
