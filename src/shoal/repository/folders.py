"""The repositories of a server: their model folders now, and whether they can be read.

    find()      the folders of models, for loads and the index
    contents()  the same with fingerprints, for the poller: what cannot be read stays as it was

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
from pathlib import Path
from types import MappingProxyType

from shoal.core.readiness import Problem
from shoal.errors import AlreadyExists, InvalidArgument
from shoal.repository import layout
from shoal.repository.layout import Fingerprint, Listing
from shoal.repository.namespaces import plain_name

logger = logging.getLogger(__name__)

Snapshot = dict[str, tuple[tuple[Path, Fingerprint], ...]]

_LISTING_WAIT_SECS = 5.0  # for which a thread waits while another lists the same repository
_SILENT_SECS = 20.0  # after which a repository that has not responded counts as unreadable
_NO_ANSWER = "it does not respond"
_UNMOUNTED = "it is empty and not the folder that it was; is its file system mounted?"
_WHOLE = ""  # in place of a model's key: the repository itself


class RepositoryFolders:
    """All repositories of a server. Any thread may call any method."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
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
        self._repositories = [_Repository(path, namespaced, clock) for path in paths]

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
            added = _Repository(path, self._namespaced, self._clock, names)
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
            str(one.path): [
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


def looks_unmounted(before: Listing | None, now: Listing) -> bool:
    """Whether a file system has gone rather than the models in it.

    All of them are gone at once and the folder is another one: the mount point that was hidden. An
    update that swaps a link brings other models, and deleting all models leaves the folder itself.
    """
    if before is None or not before.models or now.models or now.unreadable:
        return False
    return before.identity != now.identity


class _Repository:
    """One folder of models."""

    def __init__(
        self,
        path: Path,
        namespaced: bool,
        clock: Callable[[], float],
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`names` are those of models that are not called as their folders, by folder."""
        self.path = path
        self._namespaced = namespaced
        self._clock = clock
        self._names = names
        self.given_keys = {name: self._key(folder) for folder, name in names.items()}
        self._listed: Listing | None = None  # when it could last be read
        self.known: Mapping[str, tuple[Path, Fingerprint]] = {}  # as `contents` last said
        self._reading = threading.Lock()  # held while the folder is listed: one thread may hang
        self._progress: dict[int, float] = {}  # of reads under way, by thread
        self._noting = threading.Lock()  # guards _problems, and the order of what is logged
        self._problems: Mapping[str, str] = {}  # by key of a model; _WHOLE: the repository

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

    def problems(self) -> dict[str, str]:
        """Why it or models in it cannot be read, as sentences by key of the model."""
        self.note_silence()
        return {key: self._sentence(key, reason) for key, reason in self._problems.items()}

    def why_missing(self, key: str) -> str:
        """Why it may not have a model that is expected in it."""
        problem = self._problems.get(_WHOLE)
        if problem is not None:
            return self._sentence(_WHOLE, problem)
        listed, name = self._listed, plain_name(key)
        reason = listed.unreadable.get(name) if listed is not None else None
        return self._sentence(key, reason) if reason and key in (name, self._key(name)) else ""

    def why_kept(self, key: str) -> str:
        """Why a model that was loaded from it does not follow its folder."""
        problems = self._problems
        for what in (_WHOLE, key):
            if what in problems:
                return self._sentence(what, problems[what])
        return ""

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

    def _key(self, folder: str) -> str:
        name = self._names.get(folder, folder)
        return f"{self.path.as_posix()}/{name}" if self._namespaced else name

    # ---- what is known to be wrong

    def _note_whole(self, reason: str) -> None:
        """The repository can be read, or not and why; what is known of models stays."""
        if not reason and _WHOLE not in self._problems:
            return
        with self._noting:
            now = {key: text for key, text in self._problems.items() if key != _WHOLE}
            self._replace({_WHOLE: reason, **now} if reason else now)

    def _note(self, problems: Mapping[str, str]) -> None:
        """The models that cannot be read, after all of them were."""
        with self._noting:
            whole = self._problems.get(_WHOLE)
            self._replace({_WHOLE: whole, **problems} if whole is not None else problems)

    def _replace(self, now: Mapping[str, str]) -> None:
        before, self._problems = self._problems, now
        for key, reason in now.items():
            if before.get(key) != reason:
                logger.error("%s; what is loaded continues to serve", self._sentence(key, reason))
        for key in before:
            if key not in now:
                logger.info("%s can be read again", self._what(key))

    def _sentence(self, key: str, reason: str) -> str:
        return f"{self._what(key)} cannot be read: {reason}"

    def _what(self, key: str) -> str:
        if key == _WHOLE:
            return f"the model repository '{self.path}'"
        return f"the folder of model '{plain_name(key)}' in '{self.path}'"
