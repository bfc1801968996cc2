"""Starts a child process: makes the modules it needs importable and runs one of them.

    python bootstrap.py <where shoal is> <where numpy is> <socket> <module>

The child's Python may be one in which nothing of the server is installed. So this file uses only
the standard library, and imports only the modules named here from the server; numpy only if the
environment has none. The module has a function `main(socket)`.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import marshal
import socket
import struct
import sys
from collections.abc import Sequence
from types import ModuleType

_OURS = ("shoal", "triton_python_backend_utils", "c_python_backend_utils")
_LEAST = (3, 10)


class _ModuleFinder:
    """Finds certain top-level modules in one folder."""

    def __init__(self, names: Sequence[str], folder: str) -> None:
        self._names = names
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module, if it is one of those and exists there."""
        if path is None and name in self._names:
            return importlib.machinery.PathFinder.find_spec(name, [self._folder], target)
        return None


def _fail(connection: str, text: str) -> None:
    """Send the server the reason in the format of `channel`, and end."""
    if sys.platform != "win32":
        content = marshal.dumps(("failed", (text,), None), 4)
        socket.socket(fileno=int(connection)).sendall(struct.pack("<I", len(content)) + content)
    sys.exit(text)


def main(arguments: Sequence[str]) -> None:
    """Check the interpreter, make the modules importable, run the child."""
    shoal_folder, numpy_folder, connection, module = arguments
    del sys.argv[1:]  # code that reads its command line has none
    if sys.version_info < _LEAST:
        _fail(
            connection,
            f"Shoal's Python models need Python {_LEAST[0]}.{_LEAST[1]} or newer, and that of "
            f"{sys.prefix} is {sys.version.split()[0]}",
        )
    sys.path.pop(0)  # the folder of this file
    sys.meta_path.insert(0, _ModuleFinder(_OURS, shoal_folder))
    if numpy_folder:
        sys.meta_path.append(_ModuleFinder(("numpy",), numpy_folder))
    try:
        import numpy as np  # noqa: F401 - a clear word before anything else needs it
    except ImportError as error:
        _fail(
            connection,
            f"the Python environment {sys.prefix} has no numpy that works ({error}); install it "
            f"there",
        )
    importlib.import_module(module).main(connection)


if __name__ == "__main__":
    main(sys.argv[1:])
