"""Finding a backend by its name.

    config.backend | config.platform --backend_name--> "onnxruntime" --get--> Backend

Backends come from the entry points of the group `shoal.backends`, so an installed package can
add one. Those of `config.backends` are found even when Shoal runs from a source tree that is not
installed. A backend's module, and with it the runtime library, is imported when the first model
needs it.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from shoal.backends.base import Backend
from shoal.backends.initialisation import initialising
from shoal.config.backends import BACKEND_NAMES, BACKENDS
from shoal.errors import ConfigError, ShoalError

GROUP = "shoal.backends"

_BUILT_IN = tuple(name for name, backend in BACKENDS.items() if backend.entry_point)


def backend_name(backend: str, platform: str = "") -> str:
    """The name of the backend that a config specifies; "" if it specifies none.

    Older configs name a platform instead of a backend; some name one in the backend field.
    """
    name = backend or platform
    return BACKEND_NAMES.get(name, name)


def missing_library(backend: str, error: ImportError, *, file: str) -> ConfigError:
    """The error for a backend whose library is not installed; it says how to install it."""
    missing = error.name or str(error)
    extra = BACKENDS[backend].extra if backend in BACKENDS else ""
    package = f"'shoal[{extra}]'" if extra else missing.partition(".")[0]
    return ConfigError(
        f"the backend '{backend}' cannot be used because {missing!r} is not installed",
        file=file,
        field="backend",
        fix=f"Install it, for instance with: pip install {package}",
    )


class BackendRegistry:
    """All backends, each created once, when it is first requested."""

    def __init__(self, extra: Mapping[str, Callable[[], Backend]] | None = None) -> None:
        """`extra` adds backends by name, before installed ones; for tests."""
        self._extra = dict(extra or {})
        self._made: dict[str, Backend] = {}
        self._lock = threading.Lock()  # guards _made: models load concurrently

    def names(self) -> tuple[str, ...]:
        """The names that `get` accepts, sorted."""
        return tuple(sorted({*self._extra, *_BUILT_IN, *entry_points(group=GROUP).names}))

    def get(self, name: str, *, file: str = "config.pbtxt") -> Backend:
        """The backend called `name` (a platform's name works too).

        Raises ConfigError when there is none, when its runtime is not installed or when its
        module does not load; `file` is where the operator should look.
        """
        name = backend_name(name)
        with self._lock:
            if name not in self._made:
                self._made[name] = self._make(name, file)
            return self._made[name]

    def _make(self, name: str, file: str) -> Backend:
        try:
            factory = self._factory(name)
            if factory is None:
                raise self._unknown(name, file)
            return factory()
        except ShoalError:
            raise
        except ImportError as error:
            raise missing_library(name, error, file=file) from error
        except Exception as error:  # a broken plug-in must cost its own models only
            raise ConfigError(
                f"the backend '{name}' failed to start: {type(error).__name__}: {error}",
                file=file,
                field="backend",
            ) from error

    def _factory(self, name: str) -> Callable[[], Backend] | None:
        if name in self._extra:
            return self._extra[name]
        for entry in entry_points(group=GROUP, name=name):
            with contextlib.nullcontext() if name in _BUILT_IN else initialising(name):
                installed: Callable[[], Backend] = entry.load()
            return installed
        if name in _BUILT_IN:
            module, _, attribute = BACKENDS[name].entry_point.partition(":")
            built_in: Callable[[], Backend] = getattr(importlib.import_module(module), attribute)
            return built_in
        return None

    def _unknown(self, name: str, file: str) -> ConfigError:
        known = ", ".join(self.names())
        fix = f"The backends installed here are: {known}"
        if name in BACKENDS:
            message = f"Shoal has no '{name}' backend"
            fix = f"{BACKENDS[name].alternative}. {fix}"
        elif name:
            message = f"unknown backend '{name}'"
        else:
            message = "no backend is named"
        return ConfigError(message, file=file, field="backend", fix=fix)


_process = BackendRegistry()  # one Backend object serves the whole process


def names() -> tuple[str, ...]:
    """The names of the backends this process has."""
    return _process.names()


def get(name: str, *, file: str = "config.pbtxt") -> Backend:
    """The process's backend called `name`; ConfigError says which there are when it has none."""
    return _process.get(name, file=file)
