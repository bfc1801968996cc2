"""`pip install` in pages is not run, but its packages and extras must be in pyproject.toml."""

from __future__ import annotations

import re
import shlex
import sys
from functools import lru_cache
from typing import Any

from pages import ROOT
from sessions import Done

if sys.version_info >= (3, 11):
    import tomllib
else:  # a dependency of pytest
    import tomli as tomllib

_INSTALL = re.compile(r"^(?:\S*python3? -m )?\S*pip install\b")
_NAMED = re.compile(r"^([\w.-]+)?(?:\[([\w,-]+)\])?(?:[<>=!~].*)?$")
_WITH_VALUE = {
    "-r",
    "--requirement",
    "--extra-index-url",
    "--index-url",
    "-c",
    "--target",
    "--prefix",
}


def is_install(command: str) -> bool:
    """Return whether the command installs packages."""
    return _INSTALL.match(command) is not None


def check_install(command: str) -> Done:
    """Fail if the command names a package or extra that pyproject.toml does not have."""
    words = iter(shlex.split(command, comments=True))
    for word in words:
        if word == "install":
            break
    wrong = []
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            wrong += _faults(word)
    return Done(int(bool(wrong)), "", "\n".join(wrong))


def _faults(word: str) -> list[str]:
    named = _NAMED.match(word)
    if named is None:
        return [f"'{word}' cannot be read"]
    name, extras = named[1] or ".", named[2]
    if name.rstrip("/") in {".", "shoal"}:
        known = project()["optional-dependencies"]
        return [
            f"there is no extra '{extra}'"
            for extra in (extras or "").split(",")
            if extra and extra not in known
        ]
    if _plain(name) in _packages():
        return []
    return [f"'{name}' is no package that pyproject.toml names"]


@lru_cache
def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


@lru_cache
def _packages() -> frozenset[str]:
    lists = [project()["dependencies"], *project()["optional-dependencies"].values()]
    found = (re.match(r"[\w.-]+", line) for lines in lists for line in lines)
    return frozenset(_plain(match[0]) for match in found if match)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
