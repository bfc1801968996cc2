"""What clients have changed in an engine process, so that one that replaces it is the same.

a client's call --> Journal --> engine
                       '-- if it succeeded --> supervisor: record --> replay in a new engine
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.engine import Engine
from shoal.errors import ShoalError
from shoal.statistics.trace_settings import Changes

logger = logging.getLogger(__name__)

Call = Sequence[Any]  # the method and its arguments, as plain values
Calls = dict[tuple[str, ...], Call]  # those that matter, in the order in which they were made


def record(calls: Calls, method: str, *arguments: Any) -> None:
    """Keep a call that succeeded, instead of earlier ones that it makes void."""
    if method in ("load", "unload"):
        key: tuple[str, ...] = ("model", arguments[0])
        calls.pop(key, None)
    elif method in ("register_repository", "unregister_repository"):
        key = ("repository", arguments[0])
        calls.pop(key, None)
        if method == "unregister_repository":
            return
    else:  # settings: the last one of each
        key = (method, *arguments[:-1])
        *_, before = calls.pop(key, ({},))
        arguments = (*arguments[:-1], {**before, **arguments[-1]})
    calls[key] = (method, *arguments)


class Journal:
    """Calls the engine, and reports what has succeeded to the supervisor."""

    def __init__(self, engine: Engine, report: Callable[..., None]) -> None:
        self._engine = engine
        self._report = report

    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """As `Engine.load`."""
        self._engine.load(name, config_json, files)
        self._report("load", name, config_json, dict(files))

    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """As `Engine.unload`."""
        self._engine.unload(name, unload_dependents)
        self._report("unload", name, unload_dependents)

    def register_repository(self, path: Path, names: Mapping[str, str]) -> None:
        """As `Engine.register_repository`."""
        self._engine.register_repository(path, names)
        self._report("register_repository", str(path), dict(names))

    def unregister_repository(self, path: Path, *, wait_secs: float = 0.0) -> bool:
        """As `Engine.unregister_repository`."""
        released = self._engine.unregister_repository(path, wait_secs=wait_secs)
        self._report("unregister_repository", str(path))
        return released

    def update_trace_settings(self, model: str, changes: Changes) -> None:
        """As `Engine.update_trace_settings`."""
        self._engine.update_trace_settings(model, changes)
        self._report("update_trace_settings", model, dict(changes))

    def update_log_settings(self, changes: Mapping[str, Any]) -> None:
        """As `Engine.update_log_settings`."""
        self._engine.update_log_settings(changes)
        self._report("update_log_settings", dict(changes))

    @staticmethod
    def replay(engine: Engine, calls: Sequence[Call]) -> None:
        """Make the calls again, in a new engine. What fails is logged. Blocks."""
        for method, *arguments in calls:
            if method == "register_repository":
                arguments[0] = Path(arguments[0])
            try:
                getattr(engine, method)(*arguments)
            except ShoalError as error:
                logger.error(  # noqa: TRY400 - a sentence, not a traceback
                    "%s(%s) could not be repeated in the new engine process: %s",
                    method,
                    arguments[0],
                    error.message,
                )
