"""What a program can ask of its server besides inference: status, repository and settings.

Each function takes the engine first; `methods` makes methods of them. The dicts are those of the
HTTP API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.readiness import Problem
from shoal.engine.local import LocalEngine
from shoal.errors import InvalidArgument, NotFound
from shoal.frontends.log_changes import read_log_changes


def problems(engine: LocalEngine) -> tuple[Problem, ...]:
    """What is wrong with the server and its models; each is a text, and has `model` and `blocks`:
    whether it keeps the server from being ready."""
    return engine.readiness().problems


def model_ready(engine: LocalEngine, model: str, version: int = -1) -> bool:
    """Whether a model is ready; an unknown one is not."""
    try:
        return engine.model_ready(model, version)
    except (NotFound, InvalidArgument):
        return False


def server_metadata(engine: LocalEngine) -> dict[str, Any]:
    """Name, version and extensions of the server."""
    return engine.server_metadata()


def metadata(engine: LocalEngine, model: str, version: int = -1) -> dict[str, Any]:
    """A model's versions, inputs and outputs."""
    return engine.model_metadata(model, version)


def config(engine: LocalEngine, model: str, version: int = -1) -> dict[str, Any]:
    """The config that a model runs with: completed, and with every default."""
    return engine.model_config(model, version)


def statistics(engine: LocalEngine, model: str = "", version: int = -1) -> dict[str, Any]:
    """The counters of a model, or of all models, under "model_stats"."""
    return {"model_stats": engine.statistics(model, version)}


def explain(engine: LocalEngine, model: str = "", version: int = -1) -> list[dict[str, Any]]:
    """Why batches are as they are, of a model or of all models."""
    return engine.explain(model, version)


def index(engine: LocalEngine, *, ready: bool = False) -> list[dict[str, str]]:
    """The models of the repositories with their states; with `ready` only those that serve."""
    return engine.index(ready_only=ready)


def load(
    engine: LocalEngine,
    model: str,
    *,
    config: str | Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Load or reload a model; returns when it serves. Needs `model_control_mode` "explicit" or
    "lazy".

    `config`, as JSON or as a dict, and `files` by path within the model's folder ("1/model.onnx")
    replace those of the repository. If the load fails, earlier versions continue to serve.
    """
    text = config if config is None or isinstance(config, str) else json.dumps(config)
    engine.load(model, text, files or {})


def unload(engine: LocalEngine, model: str, *, unload_dependents: bool = False) -> None:
    """Stop serving a model; requests in its queue are answered first."""
    engine.unload(model, unload_dependents)


def register_repository(
    engine: LocalEngine, path: str | Path, names: Mapping[str, str] | None = None
) -> None:
    """Add a folder of models, which `load` can load. Needs model_control_mode="explicit".

    `names` maps names of folders in it to the names that the models are to have.
    """
    engine.register_repository(Path(path), names or {})


def unregister_repository(engine: LocalEngine, path: str | Path) -> None:
    """Remove a folder of models; those that are loaded continue to serve."""
    engine.unregister_repository(Path(path))


def poll_repositories(engine: LocalEngine) -> None:
    """Load what has changed in the repositories, now. Needs model_control_mode="poll"."""
    engine.poll_repositories()


def trace_settings(
    engine: LocalEngine, change: Mapping[str, Any] | None = None, *, model: str = ""
) -> dict[str, list[str]]:
    """The trace settings of a model, or of all, after the change if there is one.

    A value is a text, a number or a list of these; None restores the default.
    """
    if change:
        engine.update_trace_settings(model, {name: _texts(value) for name, value in change.items()})
    return engine.trace_settings(model)


def log_settings(engine: LocalEngine, change: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The log settings, after the change if there is one.

    They have an effect if the server was made with one of the log_… options.
    """
    if change:
        engine.update_log_settings(read_log_changes(change, _bad_format))
    return engine.log_settings()


def _texts(value: Any) -> list[str] | None:
    if value is None:
        return None
    return [str(each) for each in (value if isinstance(value, (list, tuple)) else [value])]


def _bad_format(text: str) -> InvalidArgument:
    return InvalidArgument(f"log_format takes 'default', 'ISO8601' or 'json', found '{text}'")
