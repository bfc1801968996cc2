"""Status, repository, settings and shared memory, once for both protocols and both clients.

Each function's docstring is that of the method of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shoal.client.codec import Headers
from shoal.client.errors import InvalidInput
from shoal.client.steps import Session, Steps, Version, ask
from shoal.wire import json_text

# ---- status


def live(
    session: Session, *, timeout: float | None = None, headers: Headers | None = None
) -> Steps[bool]:
    """Whether the server runs. ConnectionFailed when nobody answers at all."""
    terms = session.terms(timeout, headers)
    return (yield from ask(session.codec.live(terms), terms))


def ready(
    session: Session, *, timeout: float | None = None, headers: Headers | None = None
) -> Steps[bool]:
    """Whether the server and all its models are ready for inference."""
    terms = session.terms(timeout, headers)
    return (yield from ask(session.codec.ready(terms), terms))


def model_ready(
    session: Session,
    model: str,
    version: Version = "",
    *,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[bool]:
    """Whether a model is ready; false for one the server does not know."""
    terms = session.terms(timeout, headers)
    call = session.codec.model_ready(model, str(version), terms)
    return (yield from ask(call, terms))


def server_metadata(
    session: Session, *, timeout: float | None = None, headers: Headers | None = None
) -> Steps[dict[str, Any]]:
    """The server's `name`, `version` and `extensions`."""
    terms = session.terms(timeout, headers)
    return (yield from ask(session.codec.server_metadata(terms), terms))


def metadata(
    session: Session,
    model: str,
    version: Version = "",
    *,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[dict[str, Any]]:
    """A model's `name`, `versions`, `platform`, and `inputs` and `outputs` with their shapes."""
    terms = session.terms(timeout, headers)
    call = session.codec.metadata(model, str(version), terms)
    return (yield from ask(call, terms))


def config(
    session: Session,
    model: str,
    version: Version = "",
    *,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[dict[str, Any]]:
    """A model's whole configuration, with the names of config.pbtxt."""
    terms = session.terms(timeout, headers)
    call = session.codec.config(model, str(version), terms)
    return (yield from ask(call, terms))


def statistics(
    session: Session,
    model: str = "",
    version: Version = "",
    *,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[list[dict[str, Any]]]:
    """Counts and durations of a model's versions, or of all models."""
    terms = session.terms(timeout, headers)
    call = session.codec.statistics(model, str(version), terms)
    return (yield from ask(call, terms))


# ---- the repository


def index(
    session: Session,
    *,
    ready: bool = False,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[list[dict[str, Any]]]:
    """The models in the repository: `name`, and where known `version`, `state` and `reason`."""
    terms = session.terms(timeout, headers)
    return (yield from ask(session.codec.index(ready, terms), terms))


def load(
    session: Session,
    model: str,
    *,
    config: Mapping[str, Any] | str = "",
    files: Mapping[str, bytes] | None = None,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[None]:
    """Load or reload a model; it is ready on return, however long that takes.

    `config` (a dict, or JSON as text) replaces the one in the repository, `files` ("1/model.onnx")
    its files; those need a config. ServerError says why it failed.
    """
    text = config if isinstance(config, str) else json_text.dumps(dict(config)).decode()
    named = {
        name if name.startswith("file:") else f"file:{name}": content
        for name, content in (files or {}).items()
    }
    if named and not text:
        raise InvalidInput(f"model '{model}' is loaded from files given here, so give config= too")
    terms = session.terms(math.inf if timeout is None else timeout, headers)
    yield from ask(session.codec.load(model, text, named, terms), terms)
    session.forget(model)


def unload(
    session: Session,
    model: str,
    *,
    unload_dependents: bool = False,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[None]:
    """Unload a model, and with `unload_dependents` those that only it needed."""
    terms = session.terms(math.inf if timeout is None else timeout, headers)
    yield from ask(session.codec.unload(model, unload_dependents, terms), terms)
    session.forget(model)


# ---- settings


def trace_settings(
    session: Session,
    change: Mapping[str, Any] | None = None,
    *,
    model: str = "",
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[dict[str, Any]]:
    """The trace settings, of the server or of one model, after `change` where one is given.

    A value of None gives a model's setting back to the server's.
    """
    terms = session.terms(timeout, headers)
    call = session.codec.trace_settings(model, change or {}, terms)
    return (yield from ask(call, terms))


def log_settings(
    session: Session,
    change: Mapping[str, Any] | None = None,
    *,
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[dict[str, Any]]:
    """The server's log settings, after `change` where one is given."""
    terms = session.terms(timeout, headers)
    return (yield from ask(session.codec.log_settings(change or {}, terms), terms))


def shared_memory_regions(
    session: Session, *, timeout: float | None = None, headers: Headers | None = None
) -> Steps[list[dict[str, Any]]]:
    """The regions of system shared memory that the server knows."""
    terms = session.terms(timeout, headers)
    return (yield from ask(session.codec.regions(terms), terms))


def register(session: Session, name: str, key: str, byte_size: int) -> Steps[None]:
    """Tell the server of a region."""
    call = session.codec.register(name, key, byte_size, session.terms())
    yield from ask(call, session.terms())


def unregister(session: Session, name: str) -> Steps[None]:
    """Have the server forget a region."""
    yield from ask(session.codec.unregister(name, session.terms()), session.terms())
