"""Store a model in a remote repository, so that no server loads half of it.

    mark --> shared files --> config.pbtxt --> versions, each with its largest file last --> unmark

The mark is an empty object, MARKER; servers leave a model alone while they see it (`listing`). At
the end it becomes the list of what was stored, with which the next push finds what has not changed
in storages that report no digests. The order of the files is for other servers, which do not know
the mark: a version without its model file cannot be loaded.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from shoal.storage.errors import StorageError
from shoal.storage.listing import MARKER, is_version
from shoal.storage.retries import RetryPolicy, with_retries
from shoal.storage.source import RemoteFile, Source

_THREADS = 8
_READ_BYTES = 1 << 20
_CONFIG = "config.pbtxt"
_KEEP = ".keep"  # in a version folder without files, which an object store would not have


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push has done."""

    sent_files: int = 0
    sent_bytes: int = 0
    unchanged_files: int = 0


def local_files(folder: Path) -> dict[str, Path | None]:
    """The files of a model folder by path; None for what only keeps an empty version folder.

    Hidden files and bytecode are left out. Links are followed.
    """
    found: dict[str, Path | None] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(part.startswith(".") or part == "__pycache__" for part in relative.parts):
            continue
        if path.is_file():
            found[relative.as_posix()] = path
        elif path.is_dir() and is_version(relative.as_posix()) and not any(path.iterdir()):
            found[f"{relative.as_posix()}/{_KEEP}"] = None
    return found


def stages(files: Mapping[str, Path | None]) -> Iterator[list[str]]:
    """Groups of paths, in the order in which they are stored; those of a group side by side."""
    tops = {path: path.partition("/")[0] for path in files}
    versions = sorted({int(top) for path, top in tops.items() if is_version(top) and "/" in path})
    of_versions = {str(version) for version in versions}
    shared = [path for path, top in tops.items() if top not in of_versions and path != _CONFIG]
    yield shared
    yield [_CONFIG] if _CONFIG in files else []
    for version in versions:
        inside = [path for path in files if path.startswith(f"{version}/")]
        largest = max(inside, key=lambda path: _size(files[path]))
        yield [path for path in inside if path != largest]
        yield [largest]


class Pusher:
    """Stores models in one remote repository."""

    def __init__(
        self,
        source: Source,
        listed: Sequence[RemoteFile],
        stored: Callable[[int], None] = lambda _size: None,
        retries: RetryPolicy | None = None,
    ) -> None:
        """`listed` is what the repository has; `stored` is called with the bytes of each file."""
        self._source = source
        self._listed = {file.path: file for file in listed}
        self._stored = stored
        self._retries = retries or RetryPolicy()
        self._stopped = threading.Event()

    def changed(self, name: str, files: Mapping[str, Path | None]) -> list[str]:
        """The paths whose contents differ from what is stored. Raises OSError."""
        known = self._manifest(name)
        return [path for path, at in files.items() if not self._is_stored(name, path, at, known)]

    def has(self, name: str) -> bool:
        """Whether the repository has files of a model."""
        return any(path.startswith(f"{name}/") for path in self._listed)

    def push(self, name: str, files: Mapping[str, Path | None], changed: Sequence[str]) -> Pushed:
        """Store the `changed` ones of the files of a model. Raises StorageError and OSError;
        servers keep what they have of the model until a push succeeds."""
        marker = self._listed.get(f"{name}/{MARKER}")
        interrupted = marker is not None and not marker.size
        if not changed and not interrupted:
            return Pushed(unchanged_files=len(files))
        known = self._manifest(name)
        self._put_text(f"{name}/{MARKER}", "")
        tags: dict[str, str] = {}

        def send(path: str) -> None:
            at = files[path]
            if at is None:
                tags[path] = self._put_text(f"{name}/{path}", "")
            else:
                tags[path] = self._put(f"{name}/{path}", at)
            self._stored(_size(at))

        with ThreadPoolExecutor(_THREADS, "shoal-push") as pool:
            for stage in stages(files):
                list(pool.map(send, [path for path in stage if path in changed]))
        rows = {
            path: [_digest(at, "sha256"), tags[path] if path in tags else self._tag(name, path)]
            for path, at in files.items()
        }
        kept = {path: row for path, row in known.items() if path not in rows}
        self._put_text(f"{name}/{MARKER}", json.dumps({"files": {**kept, **rows}}, indent=1))
        sent = sum(_size(files[path]) for path in changed)
        return Pushed(len(changed), sent, len(files) - len(changed))

    # ---- what is stored already

    def _is_stored(
        self, name: str, path: str, at: Path | None, known: Mapping[str, Sequence[str]]
    ) -> bool:
        remote = self._listed.get(f"{name}/{path}")
        if remote is None or remote.size != _size(at):
            return False
        kind, _, digits = remote.digest.partition(":")
        if digits:
            return _digest(at, kind) == digits
        digest, tag = known.get(path, ("", ""))
        return bool(tag) and tag == self._tag(name, path) and digest == _digest(at, "sha256")

    def _tag(self, name: str, path: str) -> str:
        remote = self._listed.get(f"{name}/{path}")
        return "" if remote is None else remote.identity.partition(" ")[0]

    def _manifest(self, name: str) -> dict[str, list[str]]:
        """Digest and identity of each file, from the last push; empty if it did not end."""
        marker = self._listed.get(f"{name}/{MARKER}")
        if marker is None or not marker.size:
            return {}
        try:
            text = bytes(self._source.read(marker, 0, marker.size))
            files = json.loads(text)["files"]
            return {path: [str(digest), str(tag)] for path, (digest, tag) in files.items()}
        except (StorageError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    # ---- storing

    def _put(self, path: str, content: Path) -> str:
        return with_retries(
            lambda: self._source.put(path, content), self._retries, self._stopped
        ).partition(" ")[0]

    def _put_text(self, path: str, text: str) -> str:
        with tempfile.NamedTemporaryFile("w", prefix="shoal-push-", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            return self._put(path, Path(file.name))


def _size(at: Path | None) -> int:
    return 0 if at is None else at.stat().st_size


def _digest(at: Path | None, kind: str) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    if at is not None:
        with at.open("rb") as content:
            while piece := content.read(_READ_BYTES):
                digest.update(piece)
    return digest.hexdigest()
