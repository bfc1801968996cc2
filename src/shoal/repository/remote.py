"""A remote repository as the server sees it: folders of models that are filled when models load.

    open, contents, refresh --> one listing --> models, fingerprints
    config_folder, fetch    --> downloads   --> folders

A listing that fails changes nothing: what is known of the repository stays, and its models serve.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from shoal.repository.layout import Fingerprint
from shoal.repository.source import ModelSource
from shoal.storage.errors import StorageError
from shoal.storage.mirror import ChooseVersions, Mirror
from shoal.storage.progress import Progress
from shoal.storage.retries import RetryPolicy

_POLL_RETRIES = RetryPolicy(attempts=2)  # the next poll is the next retry


class RemoteSource(ModelSource):
    """One remote repository."""

    def __init__(self, mirror: Mirror, *, namespaced: bool = False, offline: bool = False) -> None:
        """With `offline` it starts from what an earlier run has cached, if it must."""
        super().__init__(str(mirror.address), mirror.folder, namespaced=namespaced)
        self._mirror = mirror
        self._offline = offline
        self._from_cache = False  # it could not be listed yet
        self._just_listed = False  # by `open`: the first poll needs no other listing
        self._refreshing = threading.Lock()  # held by the thread that refreshes in the background

    def open(self) -> str:
        """List it for the first time; returns why it cannot be used, empty if it can."""
        try:
            self._mirror.refresh()
        except StorageError as error:
            if self._offline and self._mirror.restore():
                self._from_cache = True
                self._note_whole(self._reason(error))
                self._know()
                return ""
            self._note_whole(self._reason(error))
            return error.message
        self._just_listed = True
        return ""

    def _reason(self, error: StorageError) -> str:
        """What the sentence about an unreadable repository does not say already."""
        reason = error.message.removeprefix(f"'{self.shown}' cannot be read: ")
        return f"{reason}; its models are those in the cache" if self._from_cache else reason

    def refresh(self, retries: RetryPolicy = _POLL_RETRIES) -> bool:
        """List it now; false if that fails, which is noted."""
        try:
            self._mirror.refresh(retries)
        except StorageError as error:
            self._note_whole(self._reason(error))
            return False
        self._from_cache = False
        self._note_whole("")
        return True

    def is_older(self, secs: float) -> bool:
        """Whether the last listing is older than this, or there is none."""
        listed = self._mirror.listed_at
        return listed is None or time.monotonic() - listed >= secs

    def refresh_later(self, older_than_secs: float) -> None:
        """List it on another thread if the last listing is older than this."""
        if self.is_older(older_than_secs) and self._refreshing.acquire(blocking=False):

            def work() -> None:
                try:
                    self.refresh()
                finally:
                    self._refreshing.release()

            threading.Thread(target=work, name="shoal-list", daemon=True).start()

    def models(self) -> dict[str, Path]:
        """The folders of the models of the last listing by key; they may not exist yet."""
        return {self._key(name): self.path / name for name in self._mirror.models}

    def contents(self) -> Mapping[str, tuple[Path, Fingerprint]]:
        """The folders and fingerprints by key, from a new listing if there can be one."""
        just_listed, self._just_listed = self._just_listed, False
        if just_listed or self.refresh():
            self._know()
        return self.known

    def _know(self) -> None:
        self.known = {
            self._key(name): (self.path / name, files.fingerprint())
            for name, files in self._mirror.models.items()
        }

    def versions(self, folder: Path) -> Collection[int]:
        """The versions of the model with this folder."""
        files = self._mirror.models.get(folder.name)
        return [] if files is None else files.versions

    def size(self, folder: Path, version: int) -> int:
        """The size in bytes of the files of a version."""
        model = self._mirror.models.get(folder.name)
        files = {} if model is None else model.files
        return sum(file.size for path, file in files.items() if path.startswith(f"{version}/"))

    def config_folder(self, folder: Path) -> Path:
        """A folder with the configuration of the model with this folder. Raises StorageError."""
        return self._mirror.config_folder(folder.name)

    def fetch(self, folder: Path, choose: ChooseVersions) -> None:
        """Have all files of a model in its folder. Blocks; raises StorageError."""
        self._mirror.fetch(folder.name, choose)

    def downloads(self) -> dict[str, Progress]:
        """The downloads in progress, by key of the model."""
        found = {self._key(name): self._mirror.progress(name) for name in self._mirror.models}
        return {key: progress for key, progress in found.items() if progress is not None}
