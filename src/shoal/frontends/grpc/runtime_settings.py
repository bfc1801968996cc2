"""Settings that change while the server runs, over gRPC: the trace and the log.

Each method takes the bytes of a request and returns those of its response, or raises. A request
without settings reads them; one with settings changes them first.
"""

from __future__ import annotations

from shoal.core.tensor import Buffer
from shoal.engine import Engine
from shoal.errors import InvalidArgument
from shoal.frontends.log_changes import read_log_changes
from shoal.wire.grpc_request import parse
from shoal.wire.proto import messages


class RuntimeSettingMethods:
    """Serves TraceSetting and LogSettings."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def asks_process(self, _message: Buffer) -> bool:
        """Whether the settings are those of another process."""
        return self._engine.asks_process

    def trace(self, message: Buffer) -> bytes:
        """TraceSetting, of a model or of all. A setting without a value is reset."""
        request = parse(messages.TraceSettingRequest, message)
        model = request.model_name
        settings = self._engine.trace_settings(model)
        if request.settings:
            changes = {name: list(each.value) or None for name, each in request.settings.items()}
            self._engine.update_trace_settings(model, changes)
            settings = self._engine.trace_settings(model)
        response = messages.TraceSettingResponse()
        for name, values in settings.items():
            response.settings[name].value.extend(values)
        content: bytes = response.SerializeToString()
        return content

    def logging(self, message: Buffer) -> bytes:
        """LogSettings."""
        request = parse(messages.LogSettingsRequest, message)
        given = {}
        for name, setting in request.settings.items():
            kind = setting.WhichOneof("parameter_choice")
            if kind is None:
                raise InvalidArgument(f"log setting '{name}' has no value")
            given[name] = getattr(setting, kind)
        if given:
            self._engine.update_log_settings(read_log_changes(given, _bad_format))
        response = messages.LogSettingsResponse()
        for name, value in self._engine.log_settings().items():
            setting = response.settings[name]
            if isinstance(value, bool):
                setting.bool_param = value
            elif isinstance(value, int):
                setting.uint32_param = value
            else:
                setting.string_param = value
        content: bytes = response.SerializeToString()
        return content


def _bad_format(text: str) -> InvalidArgument:
    return InvalidArgument(
        f"invalid argument for log_format, got: {text}; write 'default', 'ISO8601' or 'json'"
    )
