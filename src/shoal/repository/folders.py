"""The repositories of a server: their model folders now, and whether they can be read.

    find()      the folders of models, for loads and the index
    contents()  the same with fingerprints, for the poller: what cannot be read stays as it was
    fetch()     have the files of a model of a remote repository in its folder

A folder that is lost must not look like one whose models were deleted. A mount that has gone leaves
a path that is missing, or one that cannot be listed, or an empty folder on another device; a dead
network mount may not respond at all. Each change of that is logged once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from shoal.core.readiness import Problem
from shoal.errors import AlreadyExists, InvalidArgument
from shoal.repository import layout
from shoal.repository.layout import Fingerprint, Listing
from shoal.repository.namespaces import plain_name
from shoal.repository.remote import RemoteSource
from shoal.repository.source import WHOLE, ModelSource
from shoal.storage.progress import Progress

logger = logging.getLogger(__name__)

Snapshot = dict[str, tuple[tuple[Path, Fingerprint], ...]]

_LISTING_WAIT_SECS = 5.0  # for which a thread waits while another lists the same repository
_SILENT_SECS = 20.0  # after which a repository that has not responded counts as unreadable
_NO_ANSWER = "it does not respond"
_UNMOUNTED = "it is empty and not the folder that it was; is its file system mounted?"


class RepositoryFolders:
    """All repositories of a server. Any thread may call any method."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        remote: Sequence[RemoteSource] = (),
        namespaced: bool = False,
        strict: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `namespaced` the keys of models are the paths of their folders, else their names.

        With `strict` the server is not ready while something cannot be read.
        """
        self._strict = strict
        self._namespaced = namespaced
        self._clock = clock
        self._registering = threading.Lock()  # guards the replacement of _repositories
        self._remote = tuple(remote)
        self._repositories: list[ModelSource] = [
            *(_FolderSource(path, namespaced, clock) for path in paths),
            *self._remote,
        ]

    def register(self, path: Path, names: Mapping[str, str]) -> None:
        """Add a repository, whose models have other names than their folders: `names` by folder.

        Raises AlreadyExists for a repository or a name that is registered.
        """
        with self._registering:
            if any(one.path == path for one in self._repositories):
                raise AlreadyExists(f"model repository '{path}' has already been registered")
            for name in names.values():
                if self.registered_as(name) is not None:
                    raise AlreadyExists(
                        f"failed to register '{name}', there is a conflicting mapping for '{name}'"
                    )
            added = _FolderSource(path, self._namespaced, self._clock, names)
            self._repositories = [*self._repositories, added]

    def unregister(self, path: Path) -> set[str]:
        """Remove a repository; returns the keys of its models. Raises InvalidArgument if there is
        none with this path."""
        with self._registering:
            removed = [one for one in self._repositories if one.path == path]
            if not removed:
                raise InvalidArgument(f"failed to unregister '{path}', repository not found")
            self._repositories = [one for one in self._repositories if one.path != path]
        return {key for one in removed for key in one.models()}

    def registered_as(self, name: str) -> str | None:
        """The key of the model that was given this name when its repository was registered."""
        keys = (one.given_keys.get(name) for one in self._repositories)
        return next((key for key in keys if key is not None), None)

    def find(self) -> dict[str, list[Path]]:
        """Every model folder by key; more than one path means the name is not unique.

        Blocks. A repository that cannot be read has no models.
        """
        found: dict[str, list[Path]] = {}
        for repository in self._repositories:
            given = repository.given_keys.values()
            for key, folder in repository.models().items():
                if key in given:  # before folders of that name in other repositories
                    found[key] = [folder]
                else:
                    found.setdefault(key, []).append(folder)
        return found

    def contents(self) -> Snapshot:
        """The folders and their fingerprints by key. Blocks; only one thread may call it."""
        snapshot: Snapshot = {}
        for repository in self._repositories:
            for key, content in repository.contents().items():
                snapshot[key] = (*snapshot.get(key, ()), content)
        return snapshot

    def had(self, key: str) -> bool:
        """Whether a model had a folder when `contents` was last called."""
        return any(key in one.known for one in self._repositories)

    def problems(self) -> dict[str, list[Problem]]:
        """For each repository, why it or models in it cannot be read; reads nothing itself."""
        return {
            one.shown: [
                Problem(sentence, plain_name(key), blocks=self._strict, repository=True)
                for key, sentence in one.problems().items()
            ]
            for one in self._repositories
        }

    def why_missing(self, key: str) -> str:
        """Why there may be no folder for a model that is expected; empty if none is known."""
        reasons = [one.why_missing(key) for one in self._repositories]
        return "; ".join(reason for reason in reasons if reason)

    def why_kept(self, key: str, folder: Path) -> str:
        """Why the model that was loaded from `folder` does not follow it; empty if it does."""
        reasons = [one.why_kept(key) for one in self._repositories if one.path == folder.parent]
        return "; ".join(reason for reason in reasons if reason)

    def not_responding(self) -> bool:
        """Whether a read has been under way for too long without progress."""
        return any(one.note_silence() for one in self._repositories)

    # ---- remote repositories

    def open(self) -> dict[str, str]:
        """List the remote repositories for the first time, side by side. Blocks.

        Returns those that cannot be used, and why.
        """
        if not self._remote:
            return {}
        with ThreadPoolExecutor(len(self._remote), "shoal-list") as pool:
            reasons = pool.map(lambda one: one.open(), self._remote)
            return {
                one.shown: reason
                for one, reason in zip(self._remote, reasons, strict=True)
                if reason
            }

    def refresh(self, older_than_secs: float = 0.0) -> None:
        """List the remote repositories whose last listing is older. Blocks."""
        old = [one for one in self._remote if one.is_older(older_than_secs)]
        if old:
            with ThreadPoolExecutor(len(old), "shoal-list") as pool:
                list(pool.map(lambda one: one.refresh(), old))

    def refresh_later(self, older_than_secs: float) -> None:
        """List remote repositories on other threads, if that is longer ago."""
        for one in self._remote:
            one.refresh_later(older_than_secs)

    def remote(self, folder: Path) -> RemoteSource | None:
        """The remote repository that a model's folder is filled from; None for a local one."""
        return next((one for one in self._remote if one.path == folder.parent), None)

    def remote_models(self, name: str) -> dict[str, Path]:
        """The folders of models called `name` in remote repositories, by key; does not block."""
        return {
            key: folder
            for one in self._remote
            for key, folder in one.models().items()
            if folder.name == name
        }

    def downloads(self) -> dict[str, Progress]:
        """The downloads in progress, by key of the model."""
        return {key: one for source in self._remote for key, one in source.downloads().items()}


def looks_unmounted(before: Listing | None, now: Listing) -> bool:
    """Whether a file system has gone rather than the models in it.

    All of them are gone at once and the folder is another one: the mount point that was hidden. An
    update that swaps a link brings other models, and deleting all models leaves the folder itself.
    """
    if before is None or not before.models or now.models or now.unreadable:
        return False
    return before.identity != now.identity


class _FolderSource(ModelSource):
    """One folder of models."""

    def __init__(
        self,
        path: Path,
        namespaced: bool,
        clock: Callable[[], float],
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`names` are those of models that are not called as their folders, by folder."""
        super().__init__(path.as_posix(), path, namespaced=namespaced, names=names)
        self._clock = clock
        self._listed: Listing | None = None  # when it could last be read
        self._reading = threading.Lock()  # held while the folder is listed: one thread may hang
        self._progress: dict[int, float] = {}  # of reads under way, by thread

    def models(self) -> dict[str, Path]:
        """The folders of models by key; none if the repository cannot be read."""
        listing = self._list()
        if listing is None:
            return {}
        return {self._key(name): folder for name, folder in listing.models.items()}

    def contents(self) -> Mapping[str, tuple[Path, Fingerprint]]:
        """The folders and fingerprints of models by key, with those that can be read no more."""
        listing = self._list()
        if listing is None:
            return self.known
        before, now = self.known, dict[str, tuple[Path, Fingerprint]]()
        problems: dict[str, str] = {}
        for name, folder in listing.models.items():
            key = self._key(name)
            with self._under_way():
                prints = layout.fingerprint(folder)
            earlier = before.get(key)
            reason = layout.became_unreadable(earlier[1], prints) if earlier is not None else ""
            if earlier is not None and reason:
                now[key], problems[key] = earlier, reason
            else:
                now[key] = (folder, prints)
        for name, reason in listing.unreadable.items():
            key = self._key(name)
            if key in before:
                now[key], problems[key] = before[key], reason
        if not self._is_still(listing):  # lost meanwhile: folders looked as if they were empty
            return before
        self.known = now
        self._note(problems)
        return now

    def why_missing(self, key: str) -> str:
        """Why it may not have a model that is expected in it."""
        problem = self._problems.get(WHOLE)
        if problem is not None:
            return self._sentence(WHOLE, problem)
        listed, name = self._listed, plain_name(key)
        reason = listed.unreadable.get(name) if listed is not None else None
        return self._sentence(key, reason) if reason and key in (name, self._key(name)) else ""

    def note_silence(self) -> bool:
        """Whether a read has made no progress for a while, which is a problem then."""
        silent = self._is_silent()
        if silent:
            self._note_whole(_NO_ANSWER)
        return silent

    def _is_silent(self) -> bool:
        since = min(list(self._progress.values()), default=None)
        return since is not None and self._clock() - since >= _SILENT_SECS

    def _list(self) -> Listing | None:
        """Its entries; None, with the reason noted, if it cannot be read."""
        try:
            listing = self._read()
            if looks_unmounted(self._listed, listing):
                self._note_whole(_UNMOUNTED)
                return None
        except OSError as error:
            self._note_whole(error.strerror or str(error))
            return None
        self._listed = listing
        self._note_whole(_NO_ANSWER if self._is_silent() else "")
        return listing

    def _is_still(self, listing: Listing) -> bool:
        """Whether the folder is the one that was listed."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == listing.identity

    def _read(self) -> Listing:
        if not self._reading.acquire(timeout=0 if self._is_silent() else _LISTING_WAIT_SECS):
            raise TimeoutError(errno.ETIMEDOUT, _NO_ANSWER)
        try:
            with self._under_way():
                return layout.list_models(self.path)
        finally:
            self._reading.release()

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        """This thread reads from the repository now, which may take for ever."""
        thread = threading.get_ident()
        self._progress[thread] = self._clock()
        try:
            yield
        finally:
            del self._progress[thread]
