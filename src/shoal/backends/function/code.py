"""A Python file with models: imported, and imported again when it has changed.

    app.py --CodeFile--> {"double": Declaration, ...}

Each import has its own modules, including those of files beside app.py, so that an older import can
continue to serve beside a newer one. They are removed when their last model is closed.
"""

from __future__ import annotations

import importlib
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.backends.function import declaration as declarations
from shoal.backends.function.asgi import ApplicationDeclaration, is_application
from shoal.backends.function.declaration import Declaration
from shoal.backends.initialisation import initialising
from shoal.errors import ConfigError

_APPLICATION = "app"

FilePrint = tuple[tuple[str, int, int], ...]


class CodeFile:
    """One import of a file. Users of its contents hold it, and release it when done."""

    def __init__(self, file: Path) -> None:
        """Import `file`, which counts as the first hold.

        Raises ConfigError, with the line in the file, if it cannot be imported or declares no
        model; then nothing is left behind.
        """
        self.file = file
        self._lock = threading.Lock()  # guards _holds
        self._holds = 1
        from shoal.backends.python.loading import PrivateModule  # not before there is a file

        importlib.invalidate_caches()  # a file beside it may be new
        self.print = look(file)
        try:
            with initialising(file.name):
                self._module = PrivateModule(file.absolute(), [file.absolute().parent])
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            raise _not_imported(file, error) from error
        try:
            self._files = self._own_files()
            self.models = self._find_models()
        except BaseException:
            self._module.close()
            raise
        self.print = look(*self._files)

    def changed(self) -> bool:
        """Whether the file, or one beside it that it imports, has changed."""
        return self.look() != self.print

    def look(self) -> FilePrint:
        """What its files look like now."""
        return look(*self._files)

    def hold(self) -> None:
        """Keep its modules until `release`."""
        with self._lock:
            self._holds += 1

    def release(self) -> None:
        """Undo `hold`, or the import itself. The last one removes the modules."""
        with self._lock:
            self._holds -= 1
            last = self._holds == 0
        if last:
            self._module.close()

    def _own_files(self) -> list[Path]:
        """The file itself and those beside it that it imports."""
        prefix = f"{self._module.package}."
        files = [
            Path(path)
            for name, module in sys.modules.copy().items()  # other threads import meanwhile
            if name.startswith(prefix) and (path := getattr(module, "__file__", None))
        ]
        return sorted({self.file.absolute(), *files})

    def _find_models(self) -> dict[str, Declaration | ApplicationDeclaration]:
        """Every model in the file's namespace, from any module, and its ASGI application."""
        namespace = vars(self._module.module)
        values = list(namespace.values())
        functions = declarations.of_all([value for value in values if declarations.of(value)])
        models: dict[str, Declaration | ApplicationDeclaration] = dict(functions)
        application = self._find_application(namespace)
        if application is not None:
            if application.name in models:
                raise application.place.error(
                    f"the ASGI application has the name of the model '{application.name}'",
                    fix="Give one of them another name",
                )
            models[application.name] = application
        if not models:
            raise ConfigError(
                "there is no model in this file",
                file=str(self.file),
                fix="Write @shoal.model above a function",
            )
        return models

    def _find_application(self, namespace: Mapping[str, Any]) -> ApplicationDeclaration | None:
        """The ASGI application of the file: the only one, or that called `app`."""
        found = {
            name: value
            for name, value in namespace.items()
            if not name.startswith("_") and not declarations.of(value) and is_application(value)
        }
        chosen = dict(list(found.items())[:1]) if len({*map(id, found.values())}) == 1 else {}
        if found and not chosen:
            if _APPLICATION not in found:
                raise ConfigError(
                    f"there are several ASGI applications in this file ({', '.join(found)})",
                    file=str(self.file),
                    fix=f"Call the one to serve '{_APPLICATION}'",
                )
            chosen = {_APPLICATION: found[_APPLICATION]}
        for name, value in chosen.items():
            return ApplicationDeclaration(value, name, self.file)
        return None


def look(*files: Path) -> FilePrint:
    """Path, time and size of files; missing ones are left out."""
    rows: list[tuple[str, int, int]] = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        rows.append((str(file), status.st_mtime_ns, status.st_size))
    return tuple(rows)


def _not_imported(file: Path, error: BaseException) -> ConfigError:
    """The reason, with the line in the file."""
    line: int | None = None
    if isinstance(error, SyntaxError) and error.filename == str(file.absolute()):
        line = error.lineno
    else:
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(file.absolute()):
                line = frame.lineno
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return ConfigError(
        f"the file cannot be imported: {what}", file=f"{file}:{line}" if line else str(file)
    )
