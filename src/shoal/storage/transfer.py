"""Downloads into the cache: several models side by side, large files in ranges.

    fetch(source, files) --> those that are not cached --> ranges --> threads --> cache

The ranges of each call are a queue of their own. The calling thread takes from its own queue, and
workers take from all of them in turn: a small model does not wait for a large one. A large file
that another thread or server downloads already is waited for.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.storage.cache import RepositoryCache, digest_of
from shoal.storage.download import FileDownload
from shoal.storage.errors import ObjectDamaged, StorageError, StorageUnreachable
from shoal.storage.files import place_file
from shoal.storage.progress import Progress, RateLimit, SizeCallback, megabytes
from shoal.storage.retries import RetryPolicy, with_retries
from shoal.storage.source import RemoteFile, Source

logger = logging.getLogger(__name__)

_SMALL_BYTES = 1 << 20  # read at once; rather downloaded twice than locked
_WHOLE_BYTES = 64 << 20  # read by one request: some stores read a file from its start for each
_RANGE_BYTES = 32 << 20
_LOCK_WAIT_SECS = 0.1
_LOG_SECS = 10.0  # between two lines about one download


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
        self._reading = threading.Semaphore(threads)  # held for each request
        self._downloaded = downloaded
        self._left = left
        self._jobs: deque[_Job] = deque()  # those with ranges that no thread has taken
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
        found: dict[str, Path] = {}
        missing: dict[str, RemoteFile] = {}
        keys = {file: cache.key(source.scope, file) for file in files}
        for file, key in keys.items():
            blob = cache.find(key, file.size) or _take_local(source, file, cache, key)
            if blob is not None:
                found[key] = blob
            else:
                missing[key] = file
        if missing:
            size = sum(file.size for file in missing.values())
            progress.expect(len(missing), size)
            cache.make_room(size)
            before = progress.done_bytes
            try:
                found |= self._download(source, missing, cache, progress)
            except ObjectDamaged as error:  # on the way, perhaps: all of it is read again, once
                logger.warning("%s; it is read again", error.message)
                progress.add(before - progress.done_bytes)
                found |= self._download(source, missing, cache, progress)
            finally:
                progress.end()
        return {file: found[key] for file, key in keys.items()}

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
    ) -> dict[str, Path]:
        """Download all of `missing`; returns their places in the cache."""
        found: dict[str, Path] = {}
        waiting = dict(missing)
        while waiting:
            job = _Job(progress)
            with contextlib.ExitStack() as locks:
                for key, file in list(waiting.items()):
                    small = file.size <= _SMALL_BYTES
                    if not small and not locks.enter_context(cache.locked(key)):
                        continue
                    del waiting[key]
                    # Another may have completed it since it was looked up.
                    blob = None if small else cache.find(key, file.size)
                    if blob is not None:
                        found[key] = blob
                        progress.add(file.size)
                    else:
                        job.add(key, FileDownload(source, file, cache, key, small=small))
                self._run(job)
            found |= job.blobs()
            if waiting and self.stopped.wait(_LOCK_WAIT_SECS):
                raise _stopped(source)
        return found

    def _run(self, job: _Job) -> None:
        """Do a job, with the help of the workers; returns when it is done, or raises."""
        others = len(job.ranges) - 1
        if others > 0:
            with self._changed:
                self._jobs.append(job)
                for _ in range(min(others - self._idle, self._threads - self._workers)):
                    self._workers += 1
                    threading.Thread(target=self._work, name="shoal-download", daemon=True).start()
                self._changed.notify(others)
        while True:
            with self._changed:
                if not job.ranges:
                    break
                taken = self._take(job)
            self._do(job, *taken)
        while not job.wait(_LOG_SECS):
            progress = job.progress
            logger.info(
                "downloading %s: %d %% of %s",
                progress.name,
                progress.percent,
                megabytes(progress.total_bytes),
            )
        if job.error is not None:
            raise job.error

    # ---- threads

    def _take(self, job: _Job) -> tuple[FileDownload, int, int]:
        """The next range of a job. The caller holds the lock."""
        taken = job.ranges.popleft()
        if not job.ranges and job in self._jobs:
            self._jobs.remove(job)
        return taken

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._jobs and not self.stopped.is_set():
                    self._changed.wait()
                self._idle -= 1
                if not self._jobs:
                    return
                job = self._jobs[0]
                self._jobs.rotate(-1)
                taken = self._take(job)
            self._do(job, *taken)

    def _do(self, job: _Job, download: FileDownload, start: int, end: int) -> None:
        """Read a range; errors are the job's."""
        try:
            if job.error is None:
                with self._reading:
                    self._read(job, download, start, end)
        except StorageError as error:
            job.fail(error)
        except Exception as error:  # must not end the worker
            logger.exception("downloading from '%s' failed", download.source.address)
            job.fail(StorageUnreachable(f"{type(error).__name__}: {error}"))
        finally:
            job.end_range()

    def _read(self, job: _Job, download: FileDownload, start: int, end: int) -> None:
        if download.is_small:
            content = with_retries(lambda: self._whole(download), self.retries, self.stopped)
            self._arrived(job, download, len(content))
            download.store(content)
            return
        position = start
        with download.open(start) as partial:
            while position < end:

                def attempt(position: int = position) -> int:
                    partial.seek(position)
                    for chunk in self._chunks(download, position, end):
                        download.write(partial, chunk, position)
                        self._arrived(job, download, len(chunk))
                        position += len(chunk)
                        if job.error is not None:
                            break
                    return position

                position = with_retries(attempt, self.retries, self.stopped)
                if job.error is not None:
                    return
        download.end_range()

    def _whole(self, download: FileDownload) -> bytes | memoryview:
        source, file = download.source, download.file
        self._wait_for_rate(source, file.size)
        content = source.read(file, 0, file.size) if file.size else b""
        if len(content) != file.size:
            raise _too_short(download, len(content), file.size)
        return content

    def _chunks(self, download: FileDownload, start: int, end: int) -> Iterator[bytes | memoryview]:
        """The chunks of a range that arrive; ends early, after at least one of them, if the
        connection does."""
        source, position = download.source, start
        try:
            for chunk in source.stream(download.file, start, end):
                self._wait_for_rate(source, len(chunk))
                position += len(chunk)
                if position > end:
                    raise _too_short(download, position - start, end - start)
                yield chunk
        except StorageError as error:
            if not error.retryable or position == start:
                raise
        else:
            if position == start and end > start:
                raise _too_short(download, 0, end - start)

    def _wait_for_rate(self, source: Source, size: int) -> None:
        if self.stopped.wait(self._limit.delay_secs(size)):
            raise _stopped(source)

    def _arrived(self, job: _Job, download: FileDownload, size: int) -> None:
        self._downloaded(download.source, size)
        job.progress.add(size)


class _Job:
    """The downloads of one call."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.ranges: deque[tuple[FileDownload, int, int]] = deque()
        self.error: StorageError | None = None
        self._downloads: dict[str, FileDownload] = {}
        self._finished = threading.Event()
        self._left = 0
        self._counting = threading.Lock()  # guards _left and error

    def add(self, key: str, download: FileDownload) -> None:
        """Add the ranges of a file that are not here yet."""
        self._downloads[key] = download
        size = download.file.size
        ranges = download.missing(size if size <= _WHOLE_BYTES else _RANGE_BYTES)
        self.ranges.extend((download, start, end) for start, end in ranges)
        self._left += len(ranges)
        self.progress.add(size - sum(end - start for start, end in ranges))

    def wait(self, secs: float) -> bool:
        """Whether it is done, after at most this time."""
        return not self._left or self._finished.wait(secs)

    def blobs(self) -> dict[str, Path]:
        """The places of its files in the cache."""
        done = {key: download.blob for key, download in self._downloads.items()}
        return {key: blob for key, blob in done.items() if blob is not None}

    def fail(self, error: StorageError) -> None:
        """The first error counts; the other ranges are not read any more."""
        with self._counting:
            self.error = self.error or error

    def end_range(self) -> None:
        """One range was read, or is not going to be."""
        with self._counting:
            self._left -= 1
            if not self._left:
                self._finished.set()


def _take_local(source: Source, file: RemoteFile, cache: RepositoryCache, key: str) -> Path | None:
    """The content of a file that a source has on this machine, as a link in the cache."""
    path = source.local(file)
    if path is None:
        return None
    temporary = cache.temporary()
    with cache.writing():
        place_file(path, temporary, link_from_bytes=0)
    digest = digest_of(temporary, "sha256")
    if file.digest.startswith("sha256:") and file.digest.replace(":", "-") != digest:
        temporary.unlink(missing_ok=True)  # it was replaced or damaged since it was listed
        return None
    return cache.add(key, temporary, digest)


def _too_short(download: FileDownload, found: int, expected: int) -> ObjectDamaged:
    return ObjectDamaged(
        f"'{download.file.path}' of '{download.source.address}' has not the size that was listed: "
        f"{found} bytes arrived instead of {expected}"
    )


def _stopped(source: Source) -> StorageUnreachable:
    return StorageUnreachable(f"the download from '{source.address}' was stopped")
