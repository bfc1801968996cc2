"""Models without a folder: functions from Python files or passed in, and bare model files.

    app.py                --found-->  {"double": [app.py], "shout": [app.py]}
    [double, shout]                   {"double": [functions], ...}
    resnet50.onnx                     {"resnet50": [resnet50.onnx]}

The file takes the place of a model's folder, so that names, duplicates and changes are handled as
for folders. Python files are imported when first needed, and again only by `refresh`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.backends.base import Backend
from shoal.backends.function import code as files_of_code
from shoal.backends.function import declaration as declarations
from shoal.backends.function.asgi import ApplicationDeclaration
from shoal.backends.function.backend import backend_of
from shoal.backends.function.code import CodeFile
from shoal.backends.function.declaration import BACKEND, Declaration
from shoal.config.model import ModelConfig
from shoal.config.platforms import PLATFORMS
from shoal.core.interface import FunctionInterface
from shoal.errors import ConfigError
from shoal.repository.layout import Fingerprint

_PASSED_IN = Path("functions")  # in place of a file, for functions that were passed in
_VERSION = 1  # the only one of such a model
_SUFFIXES = {Path(platform.filename).suffix for platform in PLATFORMS}
_PYTHON = ".py"
_TRITON_CLASS = re.compile(r"^(class|from\b.*\bimport\b.*)\s+TritonPythonModel\b", re.MULTILINE)


def is_model_file(path: str | Path) -> bool:
    """Whether a path is a file with models rather than a folder."""
    return Path(path).suffix in _SUFFIXES and Path(path).is_file()


@dataclass(frozen=True, slots=True)
class FolderlessModel:
    """One model without a folder, as preparation needs it."""

    folder: Path  # of its labels and other files
    version_path: Path  # in place of the folder of its only version
    file: str  # where errors point
    config: ModelConfig
    fingerprint: object  # differs when the model has changed
    backend: Backend | None = None  # None: the config or the file's name leads to one
    bare_file: Path | None = None  # the file that is all of the model

    @property
    def versions(self) -> dict[int, Path]:
        """Its only version."""
        return {_VERSION: self.version_path}


def _function_model(
    declaration: Declaration | ApplicationDeclaration, code: CodeFile | None
) -> FolderlessModel:
    return FolderlessModel(
        folder=declaration.folder,
        # Other files beside this one are not part of the model.
        version_path=_PASSED_IN if code is None else code.file,
        file=f"{declaration.place.file}: {declaration.place.function}",
        config=declaration.config,
        fingerprint=(BACKEND, declaration),  # a file that was read again has new declarations
        backend=backend_of(declaration, code),
    )


def _bare_model(path: Path) -> FolderlessModel:
    return FolderlessModel(
        folder=path.parent,
        version_path=path.parent,
        file=str(path),
        config=ModelConfig(default_model_filename=path.name),
        fingerprint=files_of_code.look(path),
        bare_file=path,
    )


class DeclaredModels:
    """All models without a folder."""

    def __init__(self, files: Sequence[Path] = (), functions: Sequence[Any] = ()) -> None:
        """Nothing is read yet. InvalidArgument for a function without `@shoal.model`."""
        unique = list(dict.fromkeys(files))
        self._files = [file for file in unique if _has_functions(file)]
        self._bare = [file for file in unique if file not in self._files]
        self._functions = declarations.of_all(functions)
        self._reading = threading.Lock()  # serialises imports; guards changes of _codes
        self._codes: Mapping[Path, CodeFile] = {}

    def found(self, *, namespaced: bool = False) -> dict[str, list[Path]]:
        """The models by name, each with its file. Raises ConfigError for an invalid file."""
        self._read_first()
        pairs = [(_PASSED_IN, name) for name in self._functions]
        pairs += [(file, name) for file, code in self._codes.items() for name in code.models]
        pairs += [(file, _bare_name(file)) for file in self._bare]
        found: dict[str, list[Path]] = {}
        for file, name in pairs:
            key = f"{file.as_posix()}/{name}" if namespaced else name
            found.setdefault(key, []).append(file)
        return found

    def find(self, place: Path, name: str) -> FolderlessModel | None:
        """The model `name` that was found at `place`; None if that is a folder."""
        if place == _PASSED_IN and name in self._functions:
            return _function_model(self._functions[name], None)
        if place in self._bare:
            return _bare_model(place)
        code = self._codes.get(place)
        if code is None or name not in code.models:
            return None
        return _function_model(code.models[name], code)

    def interfaces(self) -> dict[str, FunctionInterface]:
        """What callers know of the functions, by model name."""
        found = {name: each.interface for name, each in self._functions.items()}
        for code in self._codes.values():
            found |= {name: each.interface for name, each in code.models.items()}
        return found

    def refresh(self, name: str) -> None:
        """Read the file that declares a model again if it has changed.

        An unknown name may be new in any of them. Raises ConfigError; earlier models stay then.
        """
        with self._reading:
            codes = dict(self._codes)
            declaring = [file for file, code in codes.items() if name in code.models]
            for file in declaring or list(codes):
                if codes[file].changed():
                    newer = CodeFile(file)
                    try:
                        self._check_routes({**codes, file: newer})
                    except ConfigError:
                        newer.release()
                        raise
                    codes[file].release()
                    codes[file] = newer
                    self._codes = dict(codes)

    def look(self, *, namespaced: bool = False) -> dict[str, tuple[tuple[Path, Fingerprint], ...]]:
        """The models with the fingerprints of their files, for the poller."""
        found = self.found(namespaced=namespaced)
        prints = {file: code.look() for file, code in self._codes.items()}
        prints |= {file: files_of_code.look(file) for file in self._bare}
        return {
            name: tuple((place, prints.get(place, ())) for place in places)
            for name, places in found.items()
        }

    def close(self) -> None:
        """Release the modules of the files; their models must be unloaded before."""
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
            self._check_routes(self._codes)

    def _check_routes(self, codes: Mapping[Path, CodeFile]) -> None:
        """Raises ConfigError for two functions with one route, and for two applications."""
        found = [each for code in codes.values() for each in code.models.values()]
        functions = [each for each in found if isinstance(each, Declaration)]
        declarations.check_routes([*self._functions.values(), *functions])
        applications = [each for each in found if isinstance(each, ApplicationDeclaration)]
        if len(applications) > 1:
            raise applications[1].place.error(
                f"another file has an ASGI application, too: {applications[0].place.file}",
                fix="Serve one of them",
            )


def _bare_name(file: Path) -> str:
    """The name of a bare file's model: that of the file, or of the folder around a model.onnx."""
    if file.stem != "model":
        return file.stem
    folders = [parent.name for parent in file.absolute().parents if not parent.name.isdecimal()]
    return folders[0] or file.stem


def _has_functions(file: Path) -> bool:
    """Whether a file is Python with functions, and not a model.py for Triton."""
    if file.suffix != _PYTHON:
        return False
    try:
        return not _TRITON_CLASS.search(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return True  # importing it will report the error
