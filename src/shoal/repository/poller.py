"""Poll mode: watch the repositories and load what has changed, once it has stopped changing.

A folder that is still being copied differs at every poll. A change takes effect when two polls in a
row agree; a load that failed is retried with a growing delay, because the copy may have been slower
than the polls. What cannot be read has not changed (`RepositoryFolders`): its models serve on. A
download that takes longer than a poll waits continues, and a later poll loads the model.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from shoal.repository.declared import DeclaredModels
from shoal.repository.folders import RepositoryFolders, Snapshot

if TYPE_CHECKING:  # the repository has a poller
    from shoal.repository.repository import ModelRepository

logger = logging.getLogger(__name__)

_SETTLE_SECS = 1.0
_LONGEST_RETRY_SECS = 600.0
_LOOK_SECS = 1.0  # between two looks at a read that takes long
_NOW_SECS = 0.1  # between two polls of `poll_now`: the caller says that the change is complete
_DOWNLOAD_WAIT_SECS = 10.0  # for which a poll waits for downloads that it has begun
_MOST_POLLS_NOW = 600  # of it, while files keep changing

Result = TypeVar("Result")


@dataclass(slots=True)
class _Retry:
    at_secs: float
    wait_secs: float


class ChangeDetector:
    """Decides from snapshots what to load and unload. It reads no clock."""

    def __init__(self, known: Snapshot, poll_secs: float) -> None:
        self._known = dict(known)
        self._seen: Snapshot = dict(known)
        self._poll_secs = poll_secs
        self._retries: dict[str, _Retry] = {}

    def unsettled(self, snapshot: Snapshot) -> bool:
        """Whether something differs from what is served, so that the next poll is due soon."""
        return snapshot != self._known

    def settled(self, snapshot: Snapshot) -> tuple[list[str], list[str]]:
        """Names to load and to unload: what changed and is the same as in the last snapshot."""
        changed = [
            name
            for name, prints in snapshot.items()
            if self._known.get(name) != prints and self._seen.get(name) == prints
        ]
        gone = [name for name in self._known if name not in snapshot and name not in self._seen]
        self._seen = dict(snapshot)
        for name in changed:
            self._known[name] = snapshot[name]
            self._retries.pop(name, None)
        for name in gone:
            del self._known[name]
            self._retries.pop(name, None)
        return changed, gone

    def failed(self, name: str, now_secs: float) -> None:
        """The load of `name` failed: retry later, with twice the delay each time."""
        last = self._retries.get(name)
        wait = self._poll_secs if last is None else min(last.wait_secs * 2, _LONGEST_RETRY_SECS)
        self._retries[name] = _Retry(now_secs + wait, wait)

    def postponed(self, name: str, now_secs: float) -> None:
        """The files of `name` are still being downloaded: load it at the next poll."""
        self._retries[name] = _Retry(now_secs, self._poll_secs)

    def loaded(self, name: str) -> None:
        """The load of `name` succeeded."""
        self._retries.pop(name, None)

    def due(self, now_secs: float) -> list[str]:
        """Names whose failed load should be retried now."""
        return [name for name, retry in self._retries.items() if now_secs >= retry.at_secs]


class RepositoryPoller:
    """A thread that polls every `poll_secs` and has the repository load changes."""

    def __init__(
        self,
        repository: ModelRepository,
        folders: RepositoryFolders,
        poll_secs: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        namespaced: bool = False,
        declared: DeclaredModels | None = None,
    ) -> None:
        self._repository = repository
        self._declared = declared or DeclaredModels()
        self._folders = folders
        self._namespaced = namespaced
        self._poll_secs = poll_secs
        self._clock = clock
        self._stop = threading.Event()
        self._polling = threading.Lock()  # held by the thread that polls
        self._thread: threading.Thread | None = None
        self._reading: _Read[Snapshot] | None = None
        self._loads = True
        self._changes = ChangeDetector({}, poll_secs)

    def start(self, known: Snapshot) -> None:
        """Start; `known` is what has just been loaded or tried.

        It must be from before those loads, so that changes since then are noticed.
        """
        self._changes = ChangeDetector(known, self._poll_secs)
        for name in known:
            if self._repository.has_failed(name):
                self._changes.failed(name, self._clock())
        self._start_thread()

    def watch(self) -> None:
        """Start, and load nothing: only note whether the repositories can be read."""
        self._loads = False
        self._start_thread()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name="shoal-poll", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, after a load in progress. A read in progress is not waited for: it may hang."""
        self._stop.set()
        if self._reading is not None:
            self._reading.done.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        settle_secs = min(_SETTLE_SECS, self._poll_secs / 2)
        wait_secs = self._poll_secs
        while not self._stop.wait(wait_secs):
            try:
                with self._polling:
                    unsettled = self.poll_once()
            except Exception:  # must not end the polling
                logger.exception("polling the model repositories failed")
                unsettled = False
            wait_secs = settle_secs if unsettled else self._poll_secs

    def poll_now(self) -> None:
        """Load and unload what has changed; returns when that has stopped changing."""
        with self._polling:
            for _ in range(_MOST_POLLS_NOW):
                if not self.poll_once() or self._stop.wait(_NOW_SECS):
                    return

    def poll_once(self) -> bool:
        """Poll once and act on settled changes; true if something is still changing."""
        snapshot = self._read()
        if snapshot is None or not self._loads:
            return False
        changes = self._changes
        changed, gone = changes.settled(snapshot)
        for name in gone:
            self._repository.folder_removed(name)
        retry = [name for name in changes.due(self._clock()) if name not in changed]
        downloading = {*changed, *retry}
        for name in self._repository.as_fetched([*changed, *retry], _DOWNLOAD_WAIT_SECS):
            downloading.discard(name)
            self._repository.folder_changed(name)
            if self._repository.has_failed(name):
                changes.failed(name, self._clock())
            else:
                changes.loaded(name)
        for name in downloading:
            changes.postponed(name, self._clock())
        return bool(downloading) or changes.unsettled(snapshot)

    def _read(self) -> Snapshot | None:
        """What the repositories contain, read by another thread; None if it does not get there.

        A dead network mount never returns from a read. The next poll then waits for the same one.
        """
        if self._reading is None:
            self._reading = _Read(self.snapshot if self._loads else self._look)
        reading = self._reading
        while not reading.done.wait(_LOOK_SECS):
            if self._stop.is_set() or self._folders.not_responding():
                return None
        if self._stop.is_set():
            return None
        self._reading = None
        return reading.result()

    def _look(self) -> Snapshot:
        self._folders.find()
        return {}

    def snapshot(self) -> Snapshot:
        """The current contents of the repositories."""
        snapshot = self._folders.contents()
        for name, files in self._declared.look(namespaced=self._namespaced).items():
            snapshot[name] = (*snapshot.get(name, ()), *files)
        return snapshot


class _Read(Generic[Result]):
    """A function that runs on a thread of its own, which may never end."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self.done = threading.Event()
        self._function = function
        self._outcome: Result | None = None
        self._failure: BaseException | None = None
        threading.Thread(target=self._run, name="shoal-poll-read", daemon=True).start()

    def _run(self) -> None:
        try:
            self._outcome = self._function()
        except BaseException as failure:  # noqa: BLE001 - raised by `result`
            self._failure = failure
        finally:
            self.done.set()

    def result(self) -> Result | None:
        """What it returned; raises what it raised."""
        if self._failure is not None:
            raise self._failure
        return self._outcome
