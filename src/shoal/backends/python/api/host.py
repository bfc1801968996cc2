"""The server behind the functions of pb_utils: in this process, at the end of a pipe, or none.

    model --pb_utils--> current() --> Host

While the server runs a model's function, it stores the model in a variable of that thread (and of
the tasks it starts). A thread that the model started itself is identified by the module whose
function it runs. Everything else belongs to the model that was loaded last in this process.
"""

from __future__ import annotations

import contextvars
import logging
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from shoal.backends.initialisation import Initialisation
from shoal.backends.python.api.errors import TritonModelException
from shoal.core.request import Request

logger = logging.getLogger("shoal.models")

NOT_FROM_FORKS = (
    "the server is not there, or this process was forked by the model: only the model's own "
    "process can ask the server for something"
)


class FamilyHandle(Protocol):
    """A family of metrics in a registry."""

    def metric(self, labels: Mapping[str, str], buckets: list[float] | None) -> MetricHandle:
        """The metric with these labels. Raises ValueError if it is invalid."""

    def close(self) -> None:
        """Release it; the last release removes it."""


class MetricHandle(Protocol):
    """One metric. Methods raise ValueError for operations that its kind does not have."""

    def increment(self, value: float) -> None:
        """Add to a counter or a gauge."""

    def set(self, value: float) -> None:
        """Set a gauge."""

    def observe(self, value: float) -> None:
        """Count a value into a histogram."""

    def value(self) -> float:
        """What a counter or gauge shows."""

    def close(self) -> None:
        """Release it; the last release removes it."""


class Host(Protocol):
    """A server, as models see it. Errors are ShoalErrors."""

    shares_memory: bool  # whether responses of other models are in shared memory

    def infer(self, request: Request, *, decoupled: bool, waiting: Context | None) -> None:
        """Run `request` on another model, which responds to its reply; raises if it is rejected.

        `waiting` is the instance that blocks until the response arrives.
        """

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load or reload a model."""

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model."""

    def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model can be asked."""

    def metric_family(self, name: str, description: str, kind: str) -> FamilyHandle:
        """A family of metrics; ValueError when the name is taken by another kind."""

    def log(self, level: int, message: str, file: str, line: int) -> None:
        """Put a line into the server's log."""


class Context:
    """One instance of a model, for pb_utils."""

    __slots__ = (
        "host",
        "initialisation",
        "instance_name",
        "model_folder",
        "model_name",
        "serving",
    )

    def __init__(
        self, host: Host, model_name: str = "", instance_name: str = "", model_folder: str = ""
    ) -> None:
        self.host = host
        self.model_name = model_name
        self.instance_name = instance_name
        self.model_folder = model_folder
        self.serving = True  # false while it is being initialised or finalised
        self.initialisation: Initialisation | None = None  # in the server's process


class NoServer:
    """The host of code that runs outside a server, such as a unit test."""

    shares_memory = True

    def infer(self, request: Request, *, decoupled: bool, waiting: Context | None) -> None:
        """There is no server."""
        del decoupled, waiting
        raise TritonModelException(
            f"There is no server here to run model '{request.model_name}'. In a unit test, say "
            f"what it answers: PythonModelRunner(..., models={{'{request.model_name}': function}})"
        )

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:  # noqa: ARG002
        """There is no server."""
        raise TritonModelException(f"There is no server here to load model '{name}'.")

    def unload_model(self, name: str, unload_dependents: bool) -> None:  # noqa: ARG002
        """There is no server."""
        raise TritonModelException(f"There is no server here to unload model '{name}'.")

    def is_model_ready(self, name: str, version: int) -> bool:  # noqa: ARG002
        """Nothing is served here."""
        return False

    def metric_family(self, name: str, description: str, kind: str) -> FamilyHandle:
        """Stored in this process, where a test can read it."""
        from shoal.statistics.custom import local

        return local.family(name, description, kind)

    def log(self, level: int, message: str, file: str, line: int) -> None:
        """To Python's logging."""
        write_log(level, message, file, line)


OUTSIDE = Context(NoServer())

_current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("model", default=None)
_latest: list[Context] = []  # the models of this process, the newest last
_packages: dict[str, Context] = {}  # by the private package their modules are in


def current() -> Context:
    """Whose code this thread runs."""
    found = _current.get()
    if found is not None:
        return found
    frame = sys._getframe(1) if _packages else None
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _packages:
            return _packages[package]
        frame = frame.f_back
    return _latest[-1] if _latest else OUTSIDE


def is_known() -> bool:
    """Whether this thread runs a model's function, and was not started by the model."""
    return _current.get() is not None


def enter(context: Context) -> contextvars.Token[Context | None]:
    """From now on this thread runs `context`'s code; pass the token to `leave`."""
    return _current.set(context)


def leave(token: contextvars.Token[Context | None]) -> None:
    """Undo `enter`."""
    _current.reset(token)


def announce(context: Context, package: str = "") -> None:
    """Code of `package`, and unknown threads, belong to `context` now."""
    if context not in _latest:
        _latest.append(context)
    if package:
        _packages[package] = context


def release(context: Context, package: str = "") -> None:
    """Undo `announce`."""
    if context in _latest:
        _latest.remove(context)
    _packages.pop(package, None)


def write_log(level: int, message: str, file: str, line: int) -> None:
    """A record that names the model's own file and line."""
    if logger.isEnabledFor(level):
        extra: Any = None
        record = logger.makeRecord(logger.name, level, file, line, message, (), extra)
        logger.handle(record)
