"""Files of a git clone, bare or with a work tree; only what is committed is read."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from upstream.example import Block, Edited, Source

_FENCED = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Clone:
    """A clone at one commit."""

    def __init__(self, path: Path, commit: str = "HEAD") -> None:
        self._path = path
        self.commit = self._git("rev-parse", "--short", commit).decode().strip()

    def at(self, commit: str) -> Clone:
        """The same clone at another commit."""
        return Clone(self._path, commit)

    def copy(self, source: Source, destination: Path) -> None:
        """Write `source` to `destination`; the folders above are made."""
        if not isinstance(source, str):
            return _write(destination, self.text(source).encode())
        names = self._git("ls-tree", "-r", "-z", "--name-only", self.commit, "--", source)
        for name in filter(None, names.decode().split("\0")):
            below = Path(name).relative_to(source)
            _write(destination / below, self._git("show", f"{self.commit}:{name}"))
        if not names:
            raise FileNotFoundError(f"{self._path} has no {source} at {self.commit}")
        return None

    def text(self, source: Source) -> str:
        """The text of one file, of one block, or either of them edited."""
        if isinstance(source, Edited):
            text = self.text(source.source)
            for old, new in source.replacements.items():
                if old not in text:
                    raise LookupError(f"{source.source} at {self.commit} does not contain {old!r}")
                text = text.replace(old, new)
            return text
        if isinstance(source, Block):
            for text in _FENCED.findall(self.text(source.page)):
                if source.text in text:
                    return str(text)
            raise LookupError(f"no block of {source.page} contains {source.text!r}")
        return self._git("show", f"{self.commit}:{source}").decode()

    def line(self, page: str, start: str) -> str:
        """The first line of a page that starts with `start`."""
        for line in self.text(page).splitlines():
            if line.strip().startswith(start):
                return line.strip()
        raise LookupError(f"no line of {page} starts with {start!r}")

    def _git(self, *arguments: str) -> bytes:
        command = ["git", "-C", str(self._path), *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
