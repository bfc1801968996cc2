"""Finding a backend by its name.

    config.backend | config.platform --backend_name--> "onnxruntime" --get--> Backend

Backends come from the entry points of the group `shoal.backends`, so an installed package can
add one. Those of `config.backends` are found even when Shoal runs from a source tree that is not
installed. A backend's module, and with it the runtime library, is imported when the first model
needs it. Other names are Python-based backends: folders of --backend-directory with a model.py.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from shoal.backends.base import Backend
from shoal.backends.initialisation import initialising
from shoal.config.backends import BACKEND_NAMES, BACKENDS, PYTHON_RUNTIME, is_python_based
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

    def __init__(
        self,
        extra: Mapping[str, Callable[[], Backend]] | None = None,
        *,
        directory: str | Path | None = None,
    ) -> None:
        """`extra` adds backends by name, before installed ones; for tests. Folders of `directory`
        are Python-based backends."""
        self._extra = dict(extra or {})
        self._directory = None if directory is None else Path(directory).absolute()
        self._made: dict[str, Backend] = {}
        self._lock = threading.Lock()  # guards _made: models load concurrently

    def names(self) -> tuple[str, ...]:
        """The names that `get` accepts, sorted."""
        installed = {*self._extra, *_BUILT_IN, *entry_points(group=GROUP).names}
        return tuple(sorted({*installed, *self._python_based_names()}))

    def get(
        self, name: str, *, file: str = "config.pbtxt", runtime: str = "", model: str = ""
    ) -> Backend:
        """The backend called `name` (a platform's name works too) of a `model`.

        Python-based backends come last, unless the config's `runtime` requests one. Raises
        ConfigError when there is none, when its runtime is not installed or when its module does
        not load; `file` is where the operator should look.
        """
        if is_python_based(name, runtime):
            return self._get_python_based(name, file, model)
        name = backend_name(name)
        if name not in self._made and not self._is_installed(name):
            folder = self._python_based_folder(name)
            if folder is None:
                raise self._unknown(name, file)
            return _python_based(name, folder)
        with self._lock:
            if name not in self._made:
                self._made[name] = self._make(name, file)
            return self._made[name]

    def _make(self, name: str, file: str) -> Backend:
        try:
            return self._factory(name)()
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

    def _is_installed(self, name: str) -> bool:
        if name in self._extra or name in _BUILT_IN:
            return True
        return bool(entry_points(group=GROUP, name=name))

    def _factory(self, name: str) -> Callable[[], Backend]:
        if name in self._extra:
            return self._extra[name]
        for entry in entry_points(group=GROUP, name=name):
            with contextlib.nullcontext() if name in _BUILT_IN else initialising(name):
                installed: Callable[[], Backend] = entry.load()
            return installed
        module, _, attribute = BACKENDS[name].entry_point.partition(":")
        built_in: Callable[[], Backend] = getattr(importlib.import_module(module), attribute)
        return built_in

    # ---- Python-based backends

    def _python_based_names(self) -> list[str]:
        if self._directory is None:
            return []
        return [file.parent.name for file in self._directory.glob(f"*/{PYTHON_RUNTIME}")]

    def _python_based_folder(self, name: str) -> Path | None:
        """The folder of a Python-based backend; None if there is none."""
        if self._directory is None or not _is_file_name(name):
            return None
        folder = self._directory / name
        return folder if (folder / PYTHON_RUNTIME).is_file() else None

    def _get_python_based(self, name: str, file: str, model: str) -> Backend:
        """The Python-based backend that `runtime` requests; ConfigError with Triton's text."""
        folder = self._python_based_folder(name)
        if folder is not None:
            return _python_based(name, folder)
        searched = (self._directory or Path()) / name[:100] / PYTHON_RUNTIME
        raise ConfigError(
            f"unable to find Python backend based backend library '{PYTHON_RUNTIME}' for model "
            f"'{model}', searched: '{searched}'",
            file=file,
            field="runtime",
            fix="Name the folder of the backend's folder with --backend-directory, or remove "
            f'runtime: "{PYTHON_RUNTIME}"',
        )

    def _unknown(self, name: str, file: str) -> ConfigError:
        fix = f"The backends installed here are: {', '.join(self.names())}"
        if not name:
            return ConfigError("no backend is named", file=file, field="backend", fix=fix)
        if self._directory is not None and _is_file_name(name):
            folder = self._directory / name
            fix = f"There is no '{folder / PYTHON_RUNTIME}'. {fix}"
            library = folder / f"libtriton_{name}.so"
            if library.is_file():
                fix = f"'{library}' is in C++, which cannot be loaded. {fix}"
        if name in BACKENDS:
            fix = f"Shoal has no '{name}' backend. {BACKENDS[name].alternative}. {fix}"
        return ConfigError(
            f"unable to find backend library for backend '{name}', try specifying runtime on the "
            "model configuration",
            file=file,
            field="backend",
            fix=fix,
        )


def _python_based(name: str, folder: Path) -> Backend:
    from shoal.backends.python.backend import PythonBackend

    return PythonBackend(name, folder)


def _is_file_name(name: str) -> bool:
    """Whether `name`, which clients may send, is one part of a path."""
    return name not in ("", ".", "..") and not {"/", "\\", "\0"} & {*name}


_process = BackendRegistry()  # one Backend object serves the whole process


def names() -> tuple[str, ...]:
    """The names of the backends this process has."""
    return _process.names()


def get(name: str, *, file: str = "config.pbtxt") -> Backend:
    """The process's backend called `name`; ConfigError says which there are when it has none."""
    return _process.get(name, file=file)
