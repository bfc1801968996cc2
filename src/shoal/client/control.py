"""Status, repository, settings and shared memory, for both protocols and both clients.

Each function's docstring is that of the method of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shoal.client.codec import Headers
from shoal.client.errors import InvalidInput
from shoal.client.steps import ClientSession, Steps, Version, send_once
from shoal.wire import json_text

# ---- status


def live(
    session: ClientSession, *, timeout: float | None = None, headers: Headers | None = None
) -> Steps[bool]:
    """Whether the server is live. Raises ConnectionFailed when there is none."""
    options = session.options(timeout, headers)
    return (yield from send_once(session.codec.live(options), options))


def ready(
    session: ClientSession, *, timeout: float | None = None, headers: Headers | None = None
) -> Steps[bool]:
    """Whether the server and all its models are ready for inference."""
    options = session.options(timeout, headers)
    return (yield from send_once(session.codec.ready(options), options))


def model_ready(
    session: ClientSession,
    model: str,
    version: Version = "",
    *,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[bool]:
    """Whether a model is ready; false for an unknown model."""
    options = session.options(timeout, headers)
    call = session.codec.model_ready(model, str(version), options)
    return (yield from send_once(call, options))


def server_metadata(
    session: ClientSession, *, timeout: float | None = None, headers: Headers | None = None
) -> Steps[dict[str, Any]]:
    """The server's `name`, `version` and `extensions`."""
    options = session.options(timeout, headers)
    return (yield from send_once(session.codec.server_metadata(options), options))


def metadata(
    session: ClientSession,
    model: str,
    version: Version = "",
    *,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[dict[str, Any]]:
    """A model's `name`, `versions`, `platform`, and `inputs` and `outputs` with their shapes."""
    options = session.options(timeout, headers)
    call = session.codec.metadata(model, str(version), options)
    return (yield from send_once(call, options))


def config(
    session: ClientSession,
    model: str,
    version: Version = "",
    *,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[dict[str, Any]]:
    """A model's complete configuration, with the names of config.pbtxt."""
    options = session.options(timeout, headers)
    call = session.codec.config(model, str(version), options)
    return (yield from send_once(call, options))


def statistics(
    session: ClientSession,
    model: str = "",
    version: Version = "",
    *,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[list[dict[str, Any]]]:
    """Counts and durations of a model's versions, or of all models."""
    options = session.options(timeout, headers)
    call = session.codec.statistics(model, str(version), options)
    return (yield from send_once(call, options))


# ---- the repository


def index(
    session: ClientSession,
    *,
    ready: bool = False,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[list[dict[str, Any]]]:
    """The models in the repository: `name`, and if known `version`, `state` and `reason`."""
    options = session.options(timeout, headers)
    return (yield from send_once(session.codec.index(ready, options), options))


def load(
    session: ClientSession,
    model: str,
    *,
    config: Mapping[str, Any] | str = "",
    files: Mapping[str, bytes] | None = None,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[None]:
    """Load or reload a model; it is ready on return. By default there is no time-out.

    `config` (a dict, or JSON as text) replaces the one in the repository, `files` ("1/model.onnx")
    its files; those need a config. Raises ServerError with the reason.
    """
    text = config if isinstance(config, str) else json_text.dumps(dict(config)).decode()
    named = {
        name if name.startswith("file:") else f"file:{name}": content
        for name, content in (files or {}).items()
    }
    if named and not text:
        raise InvalidInput(f"model '{model}' is loaded from files given here, so give config= too")
    options = session.options(math.inf if timeout is None else timeout, headers)
    yield from send_once(session.codec.load(model, text, named, options), options)
    session.evict(model)


def unload(
    session: ClientSession,
    model: str,
    *,
    unload_dependents: bool = False,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[None]:
    """Unload a model, and with `unload_dependents` the models that only it needs."""
    options = session.options(math.inf if timeout is None else timeout, headers)
    yield from send_once(session.codec.unload(model, unload_dependents, options), options)
    session.evict(model)


# ---- settings


def trace_settings(
    session: ClientSession,
    change: Mapping[str, Any] | None = None,
    *,
    model: str = "",
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[dict[str, Any]]:
    """The trace settings of the server or of one model, after `change` if given.

    A value of None resets a model's setting to the server's.
    """
    options = session.options(timeout, headers)
    call = session.codec.trace_settings(model, change or {}, options)
    return (yield from send_once(call, options))


def log_settings(
    session: ClientSession,
    change: Mapping[str, Any] | None = None,
    *,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[dict[str, Any]]:
    """The server's log settings, after `change` if given."""
    options = session.options(timeout, headers)
    return (yield from send_once(session.codec.log_settings(change or {}, options), options))


def shared_memory_regions(
    session: ClientSession, *, timeout: float | None = None, headers: Headers | None = None
) -> Steps[list[dict[str, Any]]]:
    """The registered regions of system shared memory."""
    options = session.options(timeout, headers)
    return (yield from send_once(session.codec.regions(options), options))


def register(session: ClientSession, name: str, key: str, byte_size: int) -> Steps[None]:
    """Register a region."""
    call = session.codec.register(name, key, byte_size, session.options())
    yield from send_once(call, session.options())


def unregister(session: ClientSession, name: str) -> Steps[None]:
    """Unregister a region."""
    yield from send_once(session.codec.unregister(name, session.options()), session.options())
