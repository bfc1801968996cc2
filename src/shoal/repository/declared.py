"""Models without a folder: functions declared in Python files or handed over, and bare model files.

    app.py                --found-->  {"double": [app.py], "shout": [app.py]}
    [double, shout]                   {"double": [functions], ...}
    resnet50.onnx                     {"resnet50": [resnet50.onnx]}

The file stands where a model's folder would, so that names, duplicates and changes are dealt with
as for folders. Python files are imported when somebody first looks, and again only by `refresh`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shoal.backends.base import Backend
from shoal.backends.function import code as files_of_code
from shoal.backends.function import declaration as declarations
from shoal.backends.function.backend import FunctionBackend
from shoal.backends.function.code import CodeFile
from shoal.backends.function.declaration import BACKEND, Declaration
from shoal.config.model import ModelConfig
from shoal.config.platforms import PLATFORMS
from shoal.repository.layout import Fingerprint

_HANDED_OVER = Path("functions")  # in place of a file, for those that were handed over
_VERSION = 1  # the only one such a model has
_SUFFIXES = {Path(platform.filename).suffix for platform in PLATFORMS}
_PYTHON = ".py"
_TRITON_CLASS = re.compile(r"^(class|from\b.*\bimport\b.*)\s+TritonPythonModel\b", re.MULTILINE)


def is_model_file(path: str | Path) -> bool:
    """Whether a place that models come from is a file of them rather than a folder."""
    return Path(path).suffix in _SUFFIXES and Path(path).is_file()


class FolderlessModel(Protocol):
    """One model, as preparation wants it."""

    @property
    def folder(self) -> Path:
        """Where its labels and the like are."""

    @property
    def versions(self) -> dict[int, Path]:
        """Its one version, and what stands for the folder of it."""

    @property
    def file(self) -> str:
        """Where the operator should look."""

    @property
    def config(self) -> ModelConfig:
        """What is said about it."""

    @property
    def backend(self) -> Backend | None:
        """A backend of its own; None where the config names one."""

    @property
    def fingerprint(self) -> object:
        """Changes when the model changes."""

    @property
    def bare_file(self) -> Path | None:
        """The file that is all of the model, where there is one."""


@dataclass(frozen=True, slots=True)
class DeclaredModel:
    """A function."""

    declaration: Declaration
    code: CodeFile | None

    @property
    def folder(self) -> Path:
        """Where its labels and the like are."""
        return self.declaration.folder

    @property
    def versions(self) -> dict[int, Path]:
        """Its one version. The file stands for the folder: what lies beside it is not the model."""
        return {_VERSION: _HANDED_OVER if self.code is None else self.code.file}

    @property
    def file(self) -> str:
        """Where the operator should look."""
        return f"{self.declaration.place.file}: {self.declaration.place.function}"

    @property
    def config(self) -> ModelConfig:
        """What it declares."""
        return self.declaration.config

    @property
    def backend(self) -> Backend:
        """A backend that knows this one model."""
        return FunctionBackend(self.declaration, self.code)

    @property
    def fingerprint(self) -> object:
        """Differs from that of any other declaration: a file that was read again is all new."""
        return (BACKEND, self.declaration)

    @property
    def bare_file(self) -> None:
        """Its code may be anywhere."""
        return


@dataclass(frozen=True, slots=True)
class BareModel:
    """A model file that lies in no repository. Everything is taken from the file."""

    path: Path

    @property
    def folder(self) -> Path:
        """Where its labels and the like are."""
        return self.path.parent

    @property
    def versions(self) -> dict[int, Path]:
        """Its one version."""
        return {_VERSION: self.path.parent}

    @property
    def file(self) -> str:
        """Where the operator should look."""
        return str(self.path)

    @property
    def config(self) -> ModelConfig:
        """Only which file it is."""
        return ModelConfig(default_model_filename=self.path.name)

    @property
    def backend(self) -> None:
        """The one the file's name leads to."""
        return

    @property
    def fingerprint(self) -> object:
        """Path, time and size."""
        return files_of_code.look(self.path)

    @property
    def bare_file(self) -> Path:
        """The file."""
        return self.path


class DeclaredModels:
    """All models without a folder."""

    def __init__(self, files: Sequence[Path] = (), functions: Sequence[Any] = ()) -> None:
        """Nothing is read yet. InvalidArgument for a function without `@shoal.model`."""
        unique = list(dict.fromkeys(files))
        self._files = [file for file in unique if _has_functions(file)]
        self._bare = {file: BareModel(file) for file in unique if file not in self._files}
        self._functions = declarations.of_all(functions)
        self._reading = threading.Lock()  # serialises imports; guards changes of _codes
        self._codes: Mapping[Path, CodeFile] = {}

    def found(self, *, namespaced: bool = False) -> dict[str, list[Path]]:
        """The models by name, each with its file. Raises ConfigError for a file that is wrong."""
        self._read_first()
        pairs = [(_HANDED_OVER, name) for name in self._functions]
        pairs += [(file, name) for file, code in self._codes.items() for name in code.models]
        pairs += [(file, _bare_name(file)) for file in self._bare]
        found: dict[str, list[Path]] = {}
        for file, name in pairs:
            key = f"{file.as_posix()}/{name}" if namespaced else name
            found.setdefault(key, []).append(file)
        return found

    def find(self, place: Path, name: str) -> FolderlessModel | None:
        """The model `name` that was found at `place`; None if that is a folder."""
        if place == _HANDED_OVER and name in self._functions:
            return DeclaredModel(self._functions[name], None)
        if place in self._bare:
            return self._bare[place]
        code = self._codes.get(place)
        if code is None or name not in code.models:
            return None
        return DeclaredModel(code.models[name], code)

    def refresh(self, name: str) -> None:
        """Read the file that declares a model again if it has changed.

        A name that nobody knows may be new in any of them. Raises ConfigError; what was there
        before then stays.
        """
        with self._reading:
            codes = dict(self._codes)
            declaring = [file for file, code in codes.items() if name in code.models]
            for file in declaring or list(codes):
                if codes[file].changed():
                    newer = CodeFile(file)
                    codes[file].release()
                    codes[file] = newer
                    self._codes = dict(codes)

    def look(self, *, namespaced: bool = False) -> dict[str, tuple[tuple[Path, Fingerprint], ...]]:
        """The models with what their files look like now, as the poller compares them."""
        found = self.found(namespaced=namespaced)
        prints = {file: code.look() for file, code in self._codes.items()}
        prints |= {file: files_of_code.look(file) for file in self._bare}
        return {
            name: tuple((place, prints.get(place, ())) for place in places)
            for name, places in found.items()
        }

    def close(self) -> None:
        """Let the modules of the files go, once the models of them have."""
        with self._reading:
            codes, self._codes = self._codes, {}
            self._files = []
        for code in codes.values():
            code.release()

    def _read_first(self) -> None:
        """Import each file, unless that was done before."""
        if len(self._codes) == len(self._files):
            return
        with self._reading:
            for file in self._files:
                if file not in self._codes:
                    self._codes = {**self._codes, file: CodeFile(file)}


def _bare_name(file: Path) -> str:
    """What a bare file's model is called: as the file, or as the folder around a model.onnx."""
    if file.stem != "model":
        return file.stem
    folders = [parent.name for parent in file.absolute().parents if not parent.name.isdecimal()]
    return folders[0] or file.stem


def _has_functions(file: Path) -> bool:
    """Whether a file is Python with functions in it, and not a model.py for Triton."""
    if file.suffix != _PYTHON:
        return False
    try:
        return not _TRITON_CLASS.search(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return True  # importing it will say what is wrong
