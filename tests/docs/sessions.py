"""A shell and a Python interpreter that run one text after another and keep their state.

text --> file --> child process --> status, folder --> Done
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Reads the name of a file per line; runs it, with the output in files beside it; prints its status.
_PYTHON = """
import os, sys, traceback
told = os.fdopen(os.dup(1), "w", buffering=1)
namespace = {"__name__": "__page__"}
sys.path.insert(0, "")
for line in sys.stdin:
    path, where = line.rstrip("\\n").split("\\t")
    for number, ending in ((1, ".out"), (2, ".err")):
        with open(path + ending, "wb") as file:
            os.dup2(file.fileno(), number)
    status = 0
    try:
        name, _, first = where.rpartition(":")
        with open(path, encoding="utf-8") as file:
            code = "\\n" * (int(first) - 1) + file.read()
        exec(compile(code, name, "exec"), namespace)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    print(status, os.getcwd(), file=told)
"""


@dataclass(frozen=True)
class Done:
    """The result of one text."""

    status: int
    out: str
    error: str


class Session:
    """A child process that runs texts. `close` ends it, whatever it is doing."""

    def __init__(self, command: list[str], folder: Path, scratch: Path, env: Mapping[str, str]):
        self.folder = folder  # the current folder
        self._scratch = scratch
        self._count = 0
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )

    def run(self, text: str, where: str) -> Done:
        """Run `text` to its end. Raises RuntimeError if the session itself ended."""
        self._count += 1
        path = self._scratch / f"{type(self).__name__}-{self._count}"
        path.write_text(text, encoding="utf-8")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(self._line(path, where) + "\n")
        self._process.stdin.flush()
        told = self._process.stdout.readline().rstrip("\n")
        out, error = (
            Path(f"{path}{ending}").read_text(encoding="utf-8", errors="replace")
            for ending in (".out", ".err")
        )
        if not told:
            raise RuntimeError(f"{where}: this ended its own {type(self).__name__}\n{out}{error}")
        status, _, folder = told.partition(" ")
        self.folder = Path(folder)
        return Done(int(status), out, error)

    def _line(self, path: Path, where: str) -> str:
        raise NotImplementedError

    def close(self) -> None:
        """End the child."""
        self._process.kill()
        self._process.communicate()


class Shell(Session):
    """A bash that keeps folder, variables and functions."""

    def __init__(self, folder: Path, scratch: Path, env: Mapping[str, str]) -> None:
        super().__init__(["bash", "--noprofile", "--norc"], folder, scratch, env)

    def _line(self, path: Path, where: str) -> str:
        del where
        name = shlex.quote(str(path))
        return (
            f"set -o pipefail; . {name} >{name}.out 2>{name}.err </dev/null; "
            r'printf "%s %s\n" "$?" "$PWD"'
        )


class Python(Session):
    """An interpreter that keeps its names."""

    def __init__(self, folder: Path, scratch: Path, env: Mapping[str, str]) -> None:
        super().__init__([sys.executable, "-c", _PYTHON], folder, scratch, env)

    def _line(self, path: Path, where: str) -> str:
        return f"{path}\t{where}"


def commands(text: str) -> list[tuple[int, str]]:
    """The commands of a shell text, each with the number of its first line, from 0 on.

    A command goes on as long as bash finds it incomplete.
    """
    found: list[tuple[int, str]] = []
    begun: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines()):
        if not begun:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            first = number
        begun.append(line)
        if not line.endswith("\\") and _is_complete("\n".join(begun)):
            found.append((first, "\n".join(begun)))
            begun = []
    if begun:
        found.append((first, "\n".join(begun)))
    return found


def _is_complete(text: str) -> bool:
    plain = not set(text) & set("'\"`(){}<|&;") and not text.startswith(
        ("if ", "for ", "while ", "until ", "case ")
    )
    if plain:
        return True
    looked_at = subprocess.run(
        ["bash", "-n", "-c", text], capture_output=True, text=True, check=False
    )
    return looked_at.returncode == 0 and "here-document" not in looked_at.stderr
