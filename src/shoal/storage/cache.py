"""The cache of remote files on this machine: what was downloaded once is not downloaded again.

    records/<key>            which content a remote file has: scope, identity and size make the key
    blobs/<kind>-<digest>    contents, named by their digests: equal files are stored once
    partial/<key>...         downloads in progress, which another run continues
    locks/<key>              held while a large file is downloaded
    listings/<repository>    what a repository contained when it was last listed
    servers/<id>/            the model folders of running servers, see `mirror`
    sources/<repository>/    for sources

Servers of one machine share the folder. Whatever appears in it appears by a rename, so that a
server may be killed at any moment. The modification time of a blob is made from its digest: after
it was written to, it differs, and the content is checked by its digest before it is used.
It is also checked at the first use after a start of the machine, so that nothing needs to be
flushed to the disk while it is downloaded.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.storage.errors import CacheUnusable
from shoal.storage.locks import open_lock, try_lock
from shoal.storage.source import RemoteFile

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_STAMP_FROM = 946_684_800  # 2000-01-01; stamps are within the 17 years that follow
_OLD_SECS = 7 * 86400.0  # after which an abandoned download is deleted
_UNPACKING_SECS = 6 * 3600.0  # after which a source has given up what it began
_MEASURE_SECS = 5.0
_PARTS = ("records", "blobs", "partial", "locks", "listings", "servers", "sources")


class RepositoryCache:
    """One cache folder. Any thread may call any method."""

    def __init__(self, folder: Path, limit_bytes: int = 0) -> None:
        """Create the folder; 0: no limit. Raises CacheUnusable if that fails."""
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._trimming = threading.Lock()  # held by the thread that deletes
        self.boot = _boot_id()
        self._records, self._blobs, self._partials = (
            os.fspath(folder / part) for part in ("records", "blobs", "partial")
        )
        self._token = secrets.token_hex(8)  # of this process
        self._numbers = itertools.count()
        self._too_large = False  # and nothing can be deleted, as was logged
        self._used = (0.0, 0)  # when the contents were last measured, and their size since then
        with self.writing():
            for part in _PARTS:
                (folder / part).mkdir(parents=True, exist_ok=True)
            self._has_locks = self._try_locks(folder / "locks" / self._token)

    @staticmethod
    def _try_locks(path: Path) -> bool:
        descriptor = open_lock(path)
        try:
            return try_lock(descriptor, if_unsupported=False)
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)

    # ---- lookup

    @staticmethod
    def key(scope: str, file: RemoteFile) -> str:
        """The name under which the content of a remote file is found."""
        text = f"{scope}\n{file.identity}\n{file.size}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def find(self, key: str, size: int) -> Path | None:
        """The content for a key, checked; None if it must be downloaded."""
        record = f"{self._records}/{key}"
        try:
            name, boot = _read_record(record)
            status = os.stat(f"{self._blobs}/{name}")  # noqa: PTH116 - for each file of each start
        except (OSError, ValueError):
            return None
        blob = Path(f"{self._blobs}/{name}")
        intact = status.st_size == size and status.st_mtime_ns == _stamp_ns(name)
        if not intact or boot != self.boot:
            if status.st_size != size or digest_of(blob, name.partition("-")[0]) != name:
                logger.warning(
                    "a file in the repository cache '%s' was changed or is damaged (%s); it is "
                    "downloaded again",
                    self.folder,
                    name,
                )
                for path in (Path(record), blob):
                    path.unlink(missing_ok=True)
                return None
            with contextlib.suppress(OSError):  # of another user, or read-only
                _stamp(blob, name)
                self._write(record, f"{name} {self.boot}")
        with contextlib.suppress(OSError):
            os.utime(record)  # used now
        return blob

    # ---- adding

    def add(self, key: str, partial: Path, digest: str) -> Path:
        """Take over a complete file, whose digest is `<kind>-<hex>`. Returns its place."""
        blob = Path(f"{self._blobs}/{digest}")
        with self.writing():
            partial.chmod(0o444)
            _stamp(partial, digest)
            if partial.stat().st_nlink > 1:  # a rename does nothing if both are links to one file
                blob.unlink(missing_ok=True)
            partial.replace(blob)
            self._write(f"{self._records}/{key}", f"{digest} {self.boot}")
        return blob

    def partial(self, key: str) -> Path:
        """Where the file for a key is written during its download."""
        # Without locks two servers may write it at once: each its own, which none continues.
        return self.folder / "partial" / (key if self._has_locks else f"{key}-{self._token}")

    def temporary(self) -> Path:
        """Where a file of any name may be written that is complete soon."""
        return Path(f"{self._partials}/{self._token}-{next(self._numbers)}.new")

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[bool]:
        """Hold the lock of a key against other threads and processes; false if it is taken."""
        path = self.folder / "locks" / key
        while True:
            with self.writing():
                descriptor = open_lock(path)
            try:
                if not try_lock(descriptor):
                    yield False
                    return
                if not _is_same(descriptor, path):
                    continue  # the last holder has deleted it
                try:
                    yield True
                finally:
                    path.unlink(missing_ok=True)
                return
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Errors of the file system become CacheUnusable."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise CacheUnusable(
                    f"the disk of the repository cache '{self.folder}' is full; free some space, "
                    "or name another folder with --repository-cache"
                ) from None
            raise CacheUnusable(
                f"the repository cache '{self.folder}' cannot be written: {error.strerror}; name "
                "another folder with --repository-cache"
            ) from None

    # ---- listings

    def save_listing(self, repository: str, rows: object) -> None:
        """Store what a repository contains, to start from when it cannot be reached."""
        with self.writing():
            self._write(self._listing(repository), json.dumps(rows))

    def saved_listing(self, repository: str) -> Any:
        """What was stored last; None if there is nothing."""
        try:
            return json.loads(self._listing(repository).read_bytes())
        except (OSError, ValueError):
            return None

    def _listing(self, repository: str) -> Path:
        return self.folder / "listings" / slug(repository)

    def _write(self, path: str | Path, text: str) -> None:
        temporary = self.temporary()
        temporary.write_bytes(text.encode())
        temporary.replace(path)

    # ---- size

    def used_bytes(self) -> int:
        """The size of all contents."""
        return sum(size for _, size, _ in self._contents())

    def make_room(self, needed_bytes: int) -> None:
        """Delete what was not used for the longest time, so that this number of bytes can be added.

        Contents that a running server has linked into its model folders are kept: deleting them
        would free nothing. Raises CacheUnusable if the disk has not enough space then.
        """
        free = self._free_bytes()
        if self._limit_bytes or needed_bytes > free:
            with self._trimming:
                excess = self._excess(needed_bytes) if self._limit_bytes else 0
                excess = max(excess, needed_bytes - free)
                was_too_large, self._too_large = self._too_large, False
                if excess > 0 and self._evict(excess) < excess:
                    self._too_large = True
                if self._too_large and not was_too_large:
                    logger.warning(
                        "the repository cache '%s' is larger than it should be: its files are in "
                        "use",
                        self.folder,
                    )
            free = self._free_bytes()
        if needed_bytes > free:
            raise CacheUnusable(
                f"the disk of the repository cache '{self.folder}' has {free:,} bytes left and "
                f"{needed_bytes:,} are needed; free some space, or name another folder with "
                "--repository-cache"
            )

    def _excess(self, needed_bytes: int) -> int:
        """How much must be deleted. Contents are measured every few seconds: they are many."""
        at, used = self._used
        now = time.monotonic()
        if not at or now - at > _MEASURE_SECS:
            at, used = now, self.used_bytes()
        excess = used + needed_bytes - self._limit_bytes
        self._used = (0.0 if excess > 0 else at), used + needed_bytes
        return excess

    def _free_bytes(self) -> int:
        with self.writing():
            return shutil.disk_usage(self.folder).free

    def _contents(self) -> Iterator[tuple[str, int, int]]:
        """Name, size and links of each content."""
        with os.scandir(self.folder / "blobs") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    yield entry.name, status.st_size, status.st_nlink

    def _evict(self, excess: int) -> int:
        """Delete this number of bytes, if possible; returns how many were."""
        self._delete_abandoned()
        records: dict[str, list[Path]] = {}
        used: dict[str, float] = {}
        for record in (self.folder / "records").iterdir():
            with contextlib.suppress(OSError, ValueError):
                name, _ = _read_record(os.fspath(record))
                records.setdefault(name, []).append(record)
                used[name] = max(used.get(name, 0.0), record.stat().st_mtime)
        freed = count = 0
        for name, size, links in sorted(self._contents(), key=lambda row: used.get(row[0], 0.0)):
            if freed >= excess:
                break
            if links > 1:
                continue
            for path in (*records.get(name, ()), self.folder / "blobs" / name):
                path.unlink(missing_ok=True)
            freed, count = freed + size, count + 1
        if count:
            logger.info("repository cache: %d files deleted (%s bytes)", count, f"{freed:,}")
        return freed

    def _delete_abandoned(self) -> None:
        """Delete downloads that were not continued for days, and what sources have unpacked.

        Its contents are in the cache, too, where they count as used while there is another link.
        """
        now = time.time()
        for path in (self.folder / "sources").glob("*/*"):
            with contextlib.suppress(OSError):
                if path.name.startswith("new-") and path.stat().st_mtime > now - _UNPACKING_SECS:
                    continue
                renamed = path.rename(self.temporary())  # never seen half deleted
                shutil.rmtree(renamed, ignore_errors=True)
        before = now - _OLD_SECS
        for path in (self.folder / "partial").iterdir():
            with contextlib.suppress(OSError):
                if path.is_dir():  # what another process was deleting when it ended
                    shutil.rmtree(path, ignore_errors=True)
                elif path.stat().st_mtime < before:
                    path.unlink()


def digest_of(path: Path, kind: str) -> str:
    """The digest of a file as `<kind>-<hex>`; empty if it cannot be read."""
    try:
        digest = hashlib.new(kind, usedforsecurity=False)
        with path.open("rb") as content:
            while block := content.read(_READ_BYTES):
                digest.update(block)
    except (OSError, ValueError):
        return ""
    return f"{kind}-{digest.hexdigest()}"


def _read_record(path: str) -> tuple[str, str]:
    """The name of the content, and the start of the machine since which it was checked."""
    with open(path, encoding="ascii") as record:  # noqa: PTH123 - as `find`
        name, _, boot = record.read().partition(" ")
    if not name or "/" in name or name.startswith("."):
        raise ValueError(path)
    return name, boot


def slug(text: str) -> str:
    """A name for a file that is different for each text, and can be recognised."""
    readable = "".join(c if c.isalnum() and c.isascii() else "-" for c in text)[-40:].strip("-")
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{readable}-{digest[:16]}"


def _stamp_ns(blob_name: str) -> int:
    """Whole seconds, because some file systems keep no more."""
    digits = blob_name.partition("-")[2][:8]
    return (_STAMP_FROM + int(digits or "0", 16) % (1 << 29)) * 1_000_000_000


def _stamp(path: Path, name: str) -> None:
    stamp = _stamp_ns(name)
    os.utime(path, ns=(stamp, stamp))


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        here, there = os.fstat(descriptor), path.stat()
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _boot_id() -> str:
    """Another one after each start of the machine; empty where that is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
