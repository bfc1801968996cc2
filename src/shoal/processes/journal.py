"""What clients have loaded, unloaded or added, so that a new engine process has the same models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.engine import Engine
from shoal.errors import ShoalError

logger = logging.getLogger(__name__)

Calls = dict[str, tuple[Any, ...]]  # by name: the last call that succeeded


def record(calls: Calls, method: str, name: str, *arguments: Any) -> None:
    """Keep a call that succeeded. The order is that in which models were last changed."""
    calls.pop(name, None)
    if method != "unregister":
        calls[name] = (method, name, *arguments)


class Journal:
    """Reports model control in the engine process to the supervisor."""

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

    def register_repository(self, path: str, names: dict[str, str]) -> None:
        """As `Engine.register_repository`."""
        self._engine.register_repository(Path(path), names)
        self._report("register", path, names)  # which is no name of a model: it begins with a slash

    def unregister_repository(self, path: str, wait_secs: float) -> bool:
        """As `Engine.unregister_repository`."""
        released = self._engine.unregister_repository(Path(path), wait_secs=wait_secs)
        self._report("unregister", path)
        return released

    @staticmethod
    def replay(engine: Engine, calls: list[tuple[Any, ...]]) -> None:
        """Call them again, in a new engine. What fails is logged. Blocks."""
        for method, name, *arguments in calls:
            try:
                if method == "register":
                    engine.register_repository(Path(name), *arguments)
                else:
                    (engine.load if method == "load" else engine.unload)(name, *arguments)
            except ShoalError as error:
                logger.error(  # noqa: TRY400 - a sentence, not a traceback
                    "'%s' could not be %sed again: %s", name, method, error.message
                )
