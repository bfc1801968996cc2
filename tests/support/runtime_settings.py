"""What the fake engines of tests have in common: settings that change, and no functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from shoal.errors import InvalidArgument
from shoal.logs import Log
from shoal.statistics.trace_settings import Changes
from shoal.statistics.tracer import Tracer

DEFAULT_LOG = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


class RuntimeSettings:
    """A part of an engine: a tracer that traces nothing, an unused log, and no functions."""

    asks_process = False  # everything is in this process

    def routes(self) -> tuple[()]:
        """No function has a route of its own."""
        return ()

    def newest_models(self) -> list[Any]:
        """There are no functions to describe."""
        return []

    def __init__(self) -> None:
        self.tracer = Tracer()
        self.log = Log()
        self.traceable = {"m"}

    def trace_settings(self, model: str = "") -> dict[str, list[str]]:
        """As the engine's."""
        if model and model not in self.traceable:
            raise InvalidArgument(f"Request for unknown model : {model}")
        return self.tracer.settings(model)

    def update_trace_settings(self, model: str, changes: Changes) -> None:
        """As the engine's."""
        self.tracer.update(model, changes)

    def log_settings(self) -> dict[str, Any]:
        """As the engine's."""
        return dataclasses.asdict(self.log.settings)

    def update_log_settings(self, changes: Mapping[str, Any]) -> None:
        """As the engine's."""
        self.log.update(**changes)
