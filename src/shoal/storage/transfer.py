"""Downloads into the cache: several models side by side, large files in ranges.

    fetch(source, files) --> those that are not cached --> ranges --> worker threads --> cache

The ranges of each call are a queue of their own, and the workers take from these queues in turn: a
small model does not wait for a large one. A file that is complete is compared with the digest that
its storage reports and renamed into the cache. A large file that another thread or server downloads
already is waited for.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.storage.cache import RepositoryCache, digest_of
from shoal.storage.errors import ObjectDamaged, StorageError, StorageUnreachable
from shoal.storage.files import place_file
from shoal.storage.retries import RetryPolicy, with_retries
from shoal.storage.source import RemoteFile, Source

logger = logging.getLogger(__name__)

_RANGE_BYTES = 8 << 20
_SMALLEST_RANGE_BYTES = 64 << 10  # under a rate limit
_LOCKED_FROM_BYTES = 1 << 20  # smaller files are rather downloaded twice
_LOCK_WAIT_SECS = 0.1
_LOG_SECS = 10.0  # between two lines about one download


SizeCallback = Callable[[Source, int], None]


@dataclass(slots=True)
class Progress:
    """How far a download is; read by any thread, and changed by those of the transfer."""

    started: float
    name: str = ""  # of what is downloaded, for the log
    total_bytes: int = 0
    total_files: int = 0
    done_bytes: int = 0
    left: Callable[[int], None] = lambda _change: None  # called when more or less is left to do
    _changing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def percent(self) -> int:
        """Of the bytes that had to be downloaded."""
        return min(100, 100 * self.done_bytes // self.total_bytes) if self.total_bytes else 100

    def expect(self, files: int, size: int) -> None:
        """So much has to be downloaded, too."""
        with self._changing:
            self.total_files += files
            self.total_bytes += size
        self.left(size)

    def add(self, size: int) -> None:
        """So many bytes are here; a negative number if they have to be read again."""
        with self._changing:
            self.done_bytes += size
        self.left(-size)

    def end(self) -> None:
        """Nothing more is downloaded, whether all is here or not."""
        self.left(self.done_bytes - self.total_bytes)


class RateLimit:
    """So many bytes per second for everything together; 0: no limit."""

    def __init__(self, bytes_per_sec: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_sec = bytes_per_sec
        self._clock = clock
        self._free_at = clock()
        self._changing = threading.Lock()  # guards _free_at

    def delay_secs(self, size: int) -> float:
        """For how long to wait before reading so many bytes, which count from now on."""
        if not self.bytes_per_sec:
            return 0.0
        with self._changing:
            now = self._clock()
            begin = max(now, self._free_at)
            self._free_at = begin + size / self.bytes_per_sec
        return begin - now


def megabytes(size: float) -> str:
    """A size for texts."""
    return f"{size / 1e6:.0f} MB" if size >= 10e6 else f"{size / 1e6:.3g} MB"


def _ignore(_source: Source, _size: int) -> None:
    pass


class Transfer:
    """The downloads of one server. `fetch` blocks, and many threads may call it."""

    def __init__(
        self,
        *,
        threads: int = 32,
        bytes_per_sec: int = 0,
        retries: RetryPolicy | None = None,
        downloaded: SizeCallback = _ignore,
        left: SizeCallback = _ignore,
    ) -> None:
        """`downloaded` is called by any thread when bytes of a source have arrived, `left` when
        more or less bytes are left to download."""
        self.retries = retries or RetryPolicy()
        self.stopped = threading.Event()
        self._limit = RateLimit(bytes_per_sec)
        self._threads = threads
        self._downloaded = downloaded
        self._left = left
        self._jobs: deque[_Job] = deque()  # those with ranges that no worker has taken
        self._changed = threading.Condition()  # guards _jobs, their queues, _workers and _idle
        self._workers = 0
        self._idle = 0

    def fetch(
        self,
        source: Source,
        files: Sequence[RemoteFile],
        cache: RepositoryCache,
        progress: Progress | None = None,
    ) -> dict[RemoteFile, Path]:
        """The contents of files in the cache. Raises the first StorageError; what has arrived
        until then is used by the next call."""
        progress = progress or Progress(time.monotonic())
        progress.left = lambda change: self._left(source, change)
        found: dict[RemoteFile, Path] = {}
        missing: dict[str, RemoteFile] = {}
        for file in files:
            key = cache.key(source.scope, file)
            blob = cache.find(key, file.size) or _take_local(source, file, cache, key)
            if blob is not None:
                found[file] = blob
            else:
                missing[key] = file
        if missing:
            size = sum(file.size for file in missing.values())
            progress.expect(len(missing), size)
            cache.make_room(size)
            before = progress.done_bytes
            try:
                self._download(source, missing, cache, progress)
            except ObjectDamaged as error:  # on the way, perhaps: all of it is read again, once
                logger.warning("%s; it is read again", error.message)
                progress.add(before - progress.done_bytes)
                self._download(source, missing, cache, progress)
            finally:
                progress.end()
            for file in files:  # several may have one content
                if file not in found:
                    blob = cache.find(cache.key(source.scope, file), file.size)
                    if blob is None:
                        raise StorageUnreachable(
                            f"'{file.path}' of '{source.address}' was deleted from the repository "
                            f"cache '{cache.folder}' as soon as it was there; is its size limit "
                            "too small?"
                        )
                    found[file] = blob
        return found

    def close(self) -> None:
        """Stop: downloads in progress fail, and continue at the next start."""
        self.stopped.set()
        with self._changed:
            self._changed.notify_all()

    # ---- one call

    def _download(
        self,
        source: Source,
        missing: dict[str, RemoteFile],
        cache: RepositoryCache,
        progress: Progress,
    ) -> None:
        waiting = list(missing.items())
        while waiting:
            taken: list[tuple[str, RemoteFile]] = []
            with contextlib.ExitStack() as locks:
                for key, file in waiting:
                    if file.size < _LOCKED_FROM_BYTES or locks.enter_context(cache.locked(key)):
                        taken.append((key, file))
                # Another may have completed it since it was looked up.
                here = [key for key, file in taken if cache.find(key, file.size) is not None]
                for key in here:
                    progress.add(missing[key].size)
                job = _Job(source, cache, progress)
                for key, file in taken:
                    if key not in here:
                        job.add(_Download(job, key, file, self._range_bytes()))
                self._run(job)
            waiting = [one for one in waiting if one not in taken]
            if waiting and self.stopped.wait(_LOCK_WAIT_SECS):
                raise _stopped(source)

    def _range_bytes(self) -> int:
        rate = self._limit.bytes_per_sec
        return min(_RANGE_BYTES, max(_SMALLEST_RANGE_BYTES, rate // 4)) if rate else _RANGE_BYTES

    def _run(self, job: _Job) -> None:
        """Have the workers do a job; returns when they have, or raises."""
        if not job.ranges:
            return
        with self._changed:
            self._jobs.append(job)
            for _ in range(min(len(job.ranges) - self._idle, self._threads - self._workers)):
                self._workers += 1
                threading.Thread(target=self._work, name="shoal-download", daemon=True).start()
            self._changed.notify(len(job.ranges))
        while not job.finished.wait(_LOG_SECS):
            progress = job.progress
            logger.info(
                "downloading %s: %d %% of %s",
                progress.name or f"'{job.source.address}'",
                progress.percent,
                megabytes(progress.total_bytes),
            )
        if job.error is not None:
            raise job.error

    # ---- workers

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._jobs and not self.stopped.is_set():
                    self._changed.wait()
                self._idle -= 1
                if not self._jobs:
                    return
                job = self._jobs.popleft()
                download, start, end = job.ranges.popleft()
                if job.ranges:
                    self._jobs.append(job)
            try:
                if job.error is None:
                    self._read(job, download, start, end)
            except StorageError as error:
                job.fail(error)
            except Exception as error:  # must not end the worker
                logger.exception("downloading from '%s' failed", job.source.address)
                job.fail(StorageUnreachable(f"{type(error).__name__}: {error}"))
            finally:
                job.done()

    def _read(self, job: _Job, download: _Download, start: int, end: int) -> None:
        source, file = job.source, download.file

        def attempt() -> bytes | memoryview:
            if self.stopped.wait(self._limit.delay_secs(end - start)):
                raise _stopped(source)
            content = source.read(file, start, end) if end > start else b""
            if len(content) != end - start:
                raise ObjectDamaged(
                    f"'{file.path}' of '{source.address}' ended too early: {len(content)} of the "
                    f"{end - start} bytes from {start} arrived"
                )
            return content

        content = with_retries(attempt, self.retries, self.stopped)
        self._downloaded(source, end - start)
        job.progress.add(end - start)
        download.write(content, start)


class _Job:
    """The downloads of one call."""

    def __init__(self, source: Source, cache: RepositoryCache, progress: Progress) -> None:
        self.source = source
        self.cache = cache
        self.progress = progress
        self.ranges: deque[tuple[_Download, int, int]] = deque()
        self.error: StorageError | None = None
        self.finished = threading.Event()
        self._left = 0
        self._counting = threading.Lock()  # guards _left and error

    def add(self, download: _Download) -> None:
        """Add the ranges of a file that are not here yet."""
        for start, end in download.missing():
            self.ranges.append((download, start, end))
            self._left += 1

    def fail(self, error: StorageError) -> None:
        """The first error counts; the other ranges are not read any more."""
        with self._counting:
            self.error = self.error or error

    def done(self) -> None:
        """One range was read, or is not going to be."""
        with self._counting:
            self._left -= 1
            if not self._left:
                self.finished.set()


class _Download:
    """One file: written as a whole if it is one range, else into a partial file."""

    def __init__(self, job: _Job, key: str, file: RemoteFile, range_bytes: int) -> None:
        self.file = file
        self._job = job
        self._key = key
        self._step = range_bytes
        self.is_small = file.size <= range_bytes
        self._partial = job.cache.partial(key)
        self._ranges = self._partial.with_suffix(".ranges")
        self._left = 0
        self._writing = threading.Lock()  # guards _left and the list of ranges on disk

    def missing(self) -> Iterator[tuple[int, int]]:
        """The ranges to read: all but those that an interrupted download has left."""
        if self.is_small:
            yield 0, self.file.size
            return
        here = self._resume()
        starts = [start for start in range(0, self.file.size, self._step) if start not in here]
        self._left = max(1, len(starts))
        if not starts:  # complete, but not checked: it was interrupted there
            starts = [max(0, self.file.size - self._step)]
        for start in range(0, self.file.size, self._step):
            end = min(self.file.size, start + self._step)
            if start in starts:
                yield start, end
            else:
                self._job.progress.add(end - start)

    def _resume(self) -> set[int]:
        """The starts of the ranges in the partial file, which is created if there is none."""
        # After a crash of the machine the disk may lack what is listed.
        header = f"{self.file.size} {self._step} {self._job.cache.boot}"
        with contextlib.suppress(OSError, ValueError):
            first, *rest = self._ranges.read_text(encoding="ascii").splitlines()
            if first == header and self._partial.stat().st_size == self.file.size:
                logger.info("the download of '%s' is continued", self.file.path)
                return {int(line) for line in rest}
        with self._job.cache.writing():
            self._partial.unlink(missing_ok=True)
            with self._partial.open("wb") as partial:
                partial.truncate(self.file.size)
            self._ranges.write_text(f"{header}\n", encoding="ascii")
        return set()

    def write(self, content: bytes | memoryview, start: int) -> None:
        """Store a range; after the last one the file is in the cache. Raises ObjectDamaged."""
        if self.is_small:
            kind, expected = _expected(self.file)
            found = f"{kind}-{hashlib.new(kind, content, usedforsecurity=False).hexdigest()}"
            path = self._job.cache.temporary()
            with self._job.cache.writing():
                path.write_bytes(content)
            self._complete(path, found, expected)
            return
        with self._job.cache.writing(), self._partial.open("r+b", buffering=0) as partial:
            partial.seek(start)
            view = memoryview(content)
            while view:
                view = view[partial.write(view) :]
        with self._writing:
            with self._job.cache.writing(), self._ranges.open("a", encoding="ascii") as ranges:
                ranges.write(f"{start}\n")
            self._left -= 1
            last = not self._left
        if last:
            kind, expected = _expected(self.file)
            self._complete(self._partial, digest_of(self._partial, kind), expected)
            self._ranges.unlink(missing_ok=True)

    def _complete(self, path: Path, found: str, expected: str) -> None:
        if expected and found != expected:
            if self._job.source.reports_digest(self.file):
                for one in (path, self._ranges):
                    one.unlink(missing_ok=True)
                raise ObjectDamaged(
                    f"'{self.file.path}' of '{self._job.source.address}' is damaged: its checksum "
                    f"is {found.replace('-', ' ')} and should be {expected.partition('-')[2]}"
                )
            found = digest_of(path, "sha256")
        self._job.cache.add(self._key, path, found)


def _take_local(source: Source, file: RemoteFile, cache: RepositoryCache, key: str) -> Path | None:
    """The content of a file that a source has on this machine, as a link in the cache."""
    path = source.local(file)
    if path is None:
        return None
    temporary = cache.temporary()
    with cache.writing():
        place_file(path, temporary, link_from_bytes=0)
    return cache.add(key, temporary, digest_of(temporary, "sha256"))


def _expected(file: RemoteFile) -> tuple[str, str]:
    """The kind of digest to compute, and what it should be; empty if that is not known."""
    kind, _, digits = file.digest.partition(":")
    return (kind, f"{kind}-{digits}") if digits else ("sha256", "")


def _stopped(source: Source) -> StorageUnreachable:
    return StorageUnreachable(f"the download from '{source.address}' was stopped")
