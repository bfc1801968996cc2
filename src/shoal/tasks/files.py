"""The files of a model's task as they were when it was loaded, for the tasks of other processes.

engine: read_files, at the load --> front end, at its first call: written --> the task reads them

Meanwhile the files may have changed: a reload that failed leaves the model as it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_MOST_BYTES = 256 << 20  # of one file and of all
_TEXTS = {".json", ".txt"}  # that a task may read in the folder of a version


def read_files(folder: Path) -> dict[str, bytes]:
    """The contents of the files in a model's folder that tasks may read, by their paths in it."""
    contents: dict[str, bytes] = {}
    left = _MOST_BYTES
    try:
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            of_version = inside.parts[0].isdecimal()
            if path.is_file() and (not of_version or path.suffix in _TEXTS):
                size = path.stat().st_size
                if size <= left:
                    contents[inside.as_posix()] = path.read_bytes()
                    left -= size
    except OSError:  # the task says what is missing
        return contents
    return contents


@contextmanager
def written(contents: Mapping[str, bytes]) -> Iterator[Path]:
    """A folder with these contents."""
    with tempfile.TemporaryDirectory(prefix="shoal-task-") as name:
        folder = Path(name)
        for file, content in contents.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield folder
