"""The download of one file: what of it is missing, and where what arrives is written.

    a small file   one piece      --> cache
    a large file   ranges, chunks --> partial/<key>, with a list of what is there --> cache

A large file appears in the cache when all of it is there and has the digest that its storage
reports. Until then the partial file and its list stay, so that another run continues.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from shoal.storage.cache import RepositoryCache, digest_of
from shoal.storage.errors import ObjectDamaged
from shoal.storage.source import RemoteFile, Source

logger = logging.getLogger(__name__)


class FileDownload:
    """One file. Several threads may write ranges of it at once."""

    def __init__(
        self, source: Source, file: RemoteFile, cache: RepositoryCache, key: str, *, small: bool
    ) -> None:
        self.source = source
        self.file = file
        self.is_small = small
        self.blob: Path | None = None  # its place in the cache, in the end
        self._cache = cache
        self._key = key
        self._partial = cache.partial(key)
        self._journal = self._partial.with_suffix(".ranges")
        kind, _, digits = file.digest.partition(":")
        self._kind, self._expected = (kind, f"{kind}-{digits}") if digits else ("sha256", "")
        self._hash = hashlib.new(self._kind, usedforsecurity=False)
        self._hashed = 0  # bytes from the start
        self._left = 0
        self._writing = threading.Lock()  # guards _left and the journal

    def missing(self, range_bytes: int) -> list[tuple[int, int]]:
        """The ranges to read: all but those that an interrupted download has left."""
        if self.is_small:
            return [(0, self.file.size)]
        found = [
            (start, min(end, start + range_bytes))
            for gap, end in _gaps(self._resume(), self.file.size)
            for start in range(gap, end, range_bytes)
        ]
        found = found or [(self.file.size, self.file.size)]  # complete, but it was not checked
        self._left = len(found)
        return found

    def _resume(self) -> list[tuple[int, int]]:
        """What is in the partial file, which is created if there is none."""
        # After a crash of the machine the disk may lack what is listed.
        header = f"{self.file.size} {self._cache.boot}"
        with contextlib.suppress(OSError, ValueError):
            first, *rest = self._journal.read_text(encoding="ascii").splitlines()
            if first == header and self._partial.stat().st_size == self.file.size:
                rows = [(int(start), int(end)) for start, end in (row.split() for row in rest)]
                if all(0 <= start <= end <= self.file.size for start, end in rows):
                    logger.info("the download of '%s' is continued", self.file.path)
                    return rows  # else a full disk has cut one off
        with self._cache.writing():
            self._partial.unlink(missing_ok=True)
            with self._partial.open("wb") as partial:
                partial.truncate(self.file.size)
            self._journal.write_text(f"{header}\n", encoding="ascii")
        return []

    def store(self, content: bytes | memoryview) -> None:
        """Put a small file into the cache. Raises ObjectDamaged."""
        self._hash.update(content)
        path = self._cache.temporary()
        with self._cache.writing():
            path.write_bytes(content)
        self._complete(path, f"{self._kind}-{self._hash.hexdigest()}")

    @contextlib.contextmanager
    def open(self, start: int) -> Iterator[FileIO]:
        """The partial file, for `write`."""
        with self._cache.writing():
            partial = FileIO(self._partial, "r+")
        with partial:
            partial.seek(start)
            yield partial

    def write(self, partial: FileIO, chunk: bytes | memoryview, start: int) -> None:
        """Write a chunk after the one before it."""
        view = memoryview(chunk)
        with self._cache.writing():
            rest = view
            while rest:
                rest = rest[partial.write(rest) or 0 :]
            if start == self._hashed:  # in order, as far as one range goes
                self._hash.update(view)
                self._hashed += len(view)
            with self._writing, self._journal.open("a", encoding="ascii") as journal:
                journal.write(f"{start} {start + len(view)}\n")

    def end_range(self) -> None:
        """A range is complete; after the last one the file is in the cache.

        Raises ObjectDamaged, after which nothing of it is left.
        """
        with self._writing:
            self._left -= 1
            if self._left:
                return
        whole = self._hashed == self.file.size
        digest = f"{self._kind}-{self._hash.hexdigest()}" if whole else ""
        self._complete(self._partial, digest or digest_of(self._partial, self._kind))
        self._journal.unlink(missing_ok=True)

    def _complete(self, path: Path, found: str) -> None:
        expected = self._expected
        if expected and found != expected:
            if self.source.reports_digest(self.file):
                for one in (path, self._journal):
                    one.unlink(missing_ok=True)
                raise ObjectDamaged(
                    f"'{self.file.path}' of '{self.source.address}' is damaged: its checksum is "
                    f"{found.replace('-', ' ')} and should be {expected.partition('-')[2]}"
                )
            found = digest_of(path, "sha256")
        self.blob = self._cache.add(self._key, path, found)


def _gaps(here: list[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file of `size` bytes that `here` does not cover."""
    position = 0
    for start, end in sorted(here):
        if start > position:
            yield position, start
        position = max(position, end)
    if position < size:
        yield position, size
