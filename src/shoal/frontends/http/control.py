"""The model repository over HTTP: index, load, unload.

These calls block, a load for minutes, so they run on a thread pool of their own: queued loads must
not occupy the loop's own threads, which inference needs.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from shoal.core.tensor import Buffer
from shoal.engine import Engine
from shoal.errors import InvalidArgument, Unsupported
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.responses import respond_from_thread
from shoal.frontends.http.routes import REPOSITORY, Target, route
from shoal.frontends.uploads import UploadRule
from shoal.wire import http_body, json_limits, json_text

Result = TypeVar("Result")

_THREADS = 16
_FILE_PREFIX = "file:"


class ControlRoutes:
    """Lists, loads and unloads models."""

    def __init__(self, engine: Engine, options: HttpOptions) -> None:
        self._engine = engine
        self._options = options
        self._uploads = UploadRule(options.model_upload)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shoal-control")

    @route(
        f"POST {REPOSITORY}/index",
        api="model-repository",
        response="Index",
        request="IndexRequest",
        request_required=False,
        page="repositories",
    )
    def index(self, exchange: Exchange, _target: Target) -> None:
        """All models and versions, with their states."""
        ready_only = read_index(exchange.request.body, self._options.max_input_bytes)
        caller = exchange.caller

        def work() -> list[dict[str, str]]:
            rows = self._engine.index(ready_only)
            return rows if caller is None else [row for row in rows if caller.may_use(row["name"])]

        self.run(exchange, work)

    @route(
        f"POST {REPOSITORY}/models/{{model}}/load",
        api="model-repository",
        request="LoadRequest",
        request_required=False,
    )
    def load(self, exchange: Exchange, target: Target) -> None:
        """Load or reload a model.

        In explicit and lazy mode. Responds when the model is loaded. The body may hold a config
        and files to use instead of the repository's; --allow-model-upload decides who may send
        files.
        """
        _check_repository(target)
        body, peer = exchange.request.body, exchange.peer
        headers = [name.decode("latin-1") for name, _ in exchange.request.headers]
        has_key = None if exchange.caller is None else exchange.caller.upload

        def work() -> None:
            check = partial(self._uploads.check, peer, headers, has_key=has_key)
            config, files = read_load(body, self._options.max_input_bytes, check)
            self._engine.load(target.model, config, files)

        self.run(exchange, work)

    @route(
        f"POST {REPOSITORY}/models/{{model}}/unload",
        api="model-repository",
        request="UnloadRequest",
        request_required=False,
    )
    def unload(self, exchange: Exchange, target: Target) -> None:
        """Unload a model.

        In explicit and lazy mode.
        """
        _check_repository(target)
        dependents = read_unload(exchange.request.body, self._options.max_input_bytes)
        self.run(exchange, lambda: self._engine.unload(target.model, dependents))

    def close(self) -> None:
        """Accept no more work; calls that have begun finish."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def run(
        self,
        exchange: Exchange,
        work: Callable[[], Result],
        *,
        respond: Callable[[Result], None] | None = None,
    ) -> None:
        """Run `work` on a thread and respond; see `respond_from_thread`."""
        respond_from_thread(exchange, work, respond=respond, threads=self._threads)


def read_index(body: Buffer, most_bytes: int) -> bool:
    """Whether the client requests only models that are ready."""
    try:
        ready = read_object(body, most_bytes).get("ready", False)
    except json_text.TooDeep as error:  # the only member is 'ready', which does not nest
        raise InvalidArgument(
            f"Invalid value for 'ready': expected a boolean. {error.message}"
        ) from None
    if type(ready) is not bool:
        raise InvalidArgument("Invalid value for 'ready': expected a boolean")
    return ready


def read_load(
    body: Buffer, most_bytes: int, check_upload: Callable[[], None]
) -> tuple[str | None, dict[str, bytes]]:
    """The config (as JSON text) and the files, by path inside the model's folder, of a load.

    `check_upload` raises if the client may send no files.
    """
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in _parameters(body, most_bytes).items():
        if type(value) is not str:
            raise InvalidArgument(
                f"attempt to access JSON non-string as string: load parameter '{key}' must be a "
                f"string"
            )
        if key == "config":
            config = value
        elif key.startswith(_FILE_PREFIX):
            check_upload()
            files[_inner_path(key)] = _base64(key, value)
        else:
            raise InvalidArgument(
                f"unrecognized load parameter '{key}', expected 'config' or "
                f"'file:<version>/<file name>'"
            )
    if files and config is None:
        raise InvalidArgument(
            "the load parameters hold files but no 'config': a model given as files needs its "
            "config beside them"
        )
    return config, files


def read_unload(body: Buffer, most_bytes: int) -> bool:
    """Whether to unload the models that depend on this one, too."""
    dependents = _parameters(body, most_bytes).get("unload_dependents", False)
    if type(dependents) is not bool:
        raise InvalidArgument(
            "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean"
        )
    return dependents


def _check_repository(target: Target) -> None:
    if target.repository:
        raise Unsupported("'repository_name' specification is not supported")


def _parameters(body: Buffer, most_bytes: int) -> dict[str, Any]:
    parameters = read_object(body, most_bytes).get("parameters", {})
    if type(parameters) is not dict:
        raise InvalidArgument("Unable to parse 'parameters': attempt to get members for non-object")
    return parameters


def read_object(body: Buffer, most_bytes: int) -> dict[str, Any]:
    """The body as a JSON object; an empty body stands for an empty one."""
    if not len(body):
        return {}
    http_body.check_json_size(len(body), most_bytes)
    document = json_limits.loads(body, most_bytes)
    if type(document) is not dict:
        raise InvalidArgument("the request body must be a JSON object")
    return document


def _inner_path(key: str) -> str:
    """The path a `file:` parameter names, which must stay inside the model's folder."""
    path = key.removeprefix(_FILE_PREFIX)
    parts = path.split("/")
    if not path or ".." in parts or parts[0] == "" or "\\" in path or "\0" in path:
        raise InvalidArgument(
            f"load parameter {key!r} does not name a file inside the model's folder, expected "
            f"'file:<version>/<file name>'"
        )
    return path


def _base64(key: str, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise InvalidArgument(f"load parameter '{key}' is not valid base64: {error}") from None
