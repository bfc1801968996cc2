"""Importing model.py: in its own process, or in one with other models.

    its own process    the folder of model.py first on sys.path, as in Triton
    among others       a private package per instance: `import helper` finds the helper.py beside
                       this model.py, never that of another model

The code of a Python-based backend is in the backend's folder, and its model reads other files in
the folder of its version.

In a shared process no model's folder is on sys.path. Instead each module in a model's folder has
its own `__import__`, which searches that folder first. Modules of the standard library are never
imported from a model's folder.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.machinery
import importlib.util
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from shoal.backends.python.api.errors import TritonModelException

_PREFIX = "shoal_python_model_"
_numbers = itertools.count(1)


class ModelSource(NamedTuple):
    """Where the code of a model is, and where its other files are."""

    file: Path  # model.py
    model_folder: Path  # what `get_model_dir` returns

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders whose modules the code can import, the first one before the others."""
        folder = self.file.parent
        return (folder,) if self.is_shared else (folder, folder.parent)

    @property
    def is_shared(self) -> bool:
        """Whether the code is that of a Python-based backend, for several models."""
        return self.file.parent != self.model_folder


def import_alone(source: ModelSource) -> ModuleType:
    """Import a model in a process that has no other one.

    The module is called `<version>.model`, or `model` if it is that of a backend, and its folder is
    importable, as in Triton.
    """
    file = source.file
    _check_file(file)
    sys.path[:0] = map(str, source.folders)
    sys.dont_write_bytecode = True  # see _Loader.path_stats
    return importlib.import_module(
        file.stem if source.is_shared else f"{file.parent.name}.{file.stem}"
    )


class PrivateModule:
    """A model.py imported beside others; `close` removes it and the modules of its folder."""

    def __init__(self, file: Path, folders: Sequence[Path] = ()) -> None:
        """Import `file`. Raises what the import raises, and then leaves nothing behind.

        `folders` contain its own modules; by default the folders of the model and of its version.
        """
        _check_file(file)
        folders = folders or (file.parent, file.parent.parent)
        self.package = f"{_PREFIX}{next(_numbers)}"
        _finder.add(self.package, folders)
        try:
            package = ModuleType(self.package)
            package.__path__ = [str(folder) for folder in folders]
            sys.modules[self.package] = package
            self.module = importlib.import_module(f"{self.package}.{file.stem}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove its modules from the process. Running code keeps its references."""
        _finder.remove(self.package)
        inside = f"{self.package}."
        for name in sys.modules.copy():  # other threads import meanwhile
            if name == self.package or name.startswith(inside):
                sys.modules.pop(name, None)


class _Finder:
    """Finds the modules of private packages, for Python's import system."""

    def __init__(self) -> None:
        self._builtins: dict[str, dict[str, Any]] = {}

    def add(self, package: str, folders: Sequence[Path]) -> None:
        """Register `package`; the first one installs this finder."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        importer = _Importer(package, folders)
        self._builtins[package] = {**vars(builtins), "__import__": importer}

    def remove(self, package: str) -> None:
        """Undo `add`."""
        self._builtins.pop(package, None)
        if not self._builtins:
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module `name`, if it belongs to one of our packages."""
        if not name.startswith(_PREFIX):
            return None
        own = self._builtins.get(name.partition(".")[0])
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if own is None or spec is None or spec.loader is None:
            return spec
        if isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path, own)
        return spec


_finder = _Finder()


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a module with the built-ins of its package."""

    def __init__(self, name: str, path: str, own: Mapping[str, Any]) -> None:
        super().__init__(name, path)
        self._own = own

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Refuse, so that bytecode is neither read nor written.

        Python takes bytecode for current when the source has the same size and was written in the
        same second. A model that is changed and reloaded at once would be served unchanged.
        """
        raise OSError(path)

    def exec_module(self, module: ModuleType) -> None:
        """Run it."""
        vars(module)["__builtins__"] = self._own
        super().exec_module(module)


class _Importer:
    """`__import__` for the modules of one package, which prefers modules of its folders."""

    def __init__(self, package: str, folders: Sequence[Path]) -> None:
        self._package = package
        self._folders = [str(folder) for folder in folders]
        self._ours: dict[str, bool] = {}

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        """Import as Python does, under the package's name if the module is one of ours."""
        ordinary: Callable[..., ModuleType] = builtins.__import__
        if level or not self._is_ours(name.partition(".")[0]):
            return ordinary(name, globals, locals, fromlist, level)
        inner = f"{self._package}.{name}"
        module = ordinary(inner, globals, locals, fromlist, 0)
        if fromlist:
            return module
        return sys.modules[f"{self._package}.{name.partition('.')[0]}"]

    def _is_ours(self, name: str) -> bool:
        found = self._ours.get(name)
        if found is None:
            found = self._ours[name] = self._find(name)
        return found

    def _find(self, name: str) -> bool:
        if name in sys.builtin_module_names or name in sys.stdlib_module_names:
            return False
        spec = importlib.machinery.PathFinder.find_spec(name, self._folders)
        if spec is None:
            return False
        if spec.loader is not None and spec.origin is not None:
            return True
        # A folder without __init__.py may contain anything: it is a package only if no other is.
        return name not in sys.modules and importlib.util.find_spec(name) is None


def model_class(module: ModuleType, file: Path) -> type:
    """The model's class; TritonModelException says what is missing."""
    found = getattr(module, "TritonPythonModel", None)
    if not isinstance(found, type):
        raise TritonModelException(f"{file} has no class TritonPythonModel")
    if not callable(getattr(found, "execute", None)):
        raise TritonModelException(f"Python model {file} does not implement `execute` method.")
    return found


def _check_file(file: Path) -> None:
    if file.suffix != ".py":
        raise TritonModelException(
            f"Model name must end with '.py'. Model name is \"{file.name}\"."
        )
    if not file.is_file():
        raise TritonModelException(f"Python model file not found in '{file}'")
