"""Which files of remote models a load needs, and when they are on this machine.

    load_all: all models side by side --> each is loaded as soon as it is complete
    load:     the model itself

Only the versions are downloaded that the version policy selects, so the configuration comes first.
A repository of this machine needs none of this.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from shoal.errors import ShoalError
from shoal.repository import layout
from shoal.repository.folders import RepositoryFolders
from shoal.repository.namespaces import plain_name
from shoal.repository.preparation import Override, PreparationSettings, version_policy
from shoal.storage.errors import StorageError

_AT_ONCE = 32  # models; the requests of all of them together have a limit of their own


class ModelDownloads:
    """The downloads of a server's models. Any thread may call any method; all of them block."""

    def __init__(self, folders: RepositoryFolders, preparation: PreparationSettings) -> None:
        self._folders = folders
        self._preparation = preparation
        self._failed: dict[str, StorageError] = {}  # of those that were started: loads report them
        self._running: dict[str, Future[None]] = {}
        self._starting = threading.Lock()  # guards _running

    def config_folder(self, folder: Path) -> Path:
        """A folder with the configuration of the model with this folder, if there is one."""
        remote = self._folders.remote(folder)
        if remote is not None:
            with contextlib.suppress(StorageError):  # its load will report the error
                return remote.config_folder(folder)
        return folder

    def fetch_configs(self, keys: Iterable[str], found: Mapping[str, Sequence[Path]]) -> None:
        """Have the configurations of remote models on this machine, if possible."""
        folders = list(self._remote(keys, found).values())
        if folders:
            with ThreadPoolExecutor(min(_AT_ONCE, len(folders)), "shoal-fetch") as pool:
                list(pool.map(self.config_folder, folders))

    def fetch(self, key: str, folder: Path, override: Override | None) -> None:
        """Have the files of one model on this machine. Raises StorageError."""
        remote = self._folders.remote(folder)
        if remote is None:
            return
        failed = self._failed.pop(key, None)
        if failed is not None:
            raise failed

        def choose(available: Collection[int]) -> Collection[int]:
            name = plain_name(key)
            try:
                at = remote.config_folder(folder)
                policy = version_policy(name, at, self._preparation, override)
            except StorageError:
                raise
            except ShoalError:
                return ()  # the configuration is wrong: the load reports that
            return layout.select_versions(policy, available, name, quiet=True)

        remote.fetch(folder, choose)

    def start(self, keys: Iterable[str], found: Mapping[str, Sequence[Path]]) -> StartedDownloads:
        """Begin to download the models with these keys, side by side; those that are in download
        already are not begun again."""
        remote = self._remote(keys, found)
        with self._starting:
            new = [key for key in remote if key not in self._running]
            if new:
                pool = ThreadPoolExecutor(min(_AT_ONCE, len(new)), "shoal-fetch")
                for key in new:
                    self._running[key] = pool.submit(self._run, key, remote[key])
                pool.shutdown(wait=False)  # its threads end with the last of them
            return StartedDownloads({key: self._running[key] for key in remote})

    def _run(self, key: str, folder: Path) -> None:
        self._failed.pop(key, None)  # of a download for which no load has waited
        try:
            self.fetch(key, folder, None)
        except StorageError as error:
            self._failed[key] = error
        finally:
            with self._starting:
                del self._running[key]

    def _remote(self, keys: Iterable[str], found: Mapping[str, Sequence[Path]]) -> dict[str, Path]:
        """The folders of those that are in remote repositories."""
        first = {key: found[key][0] for key in keys if found.get(key)}
        return {key: at for key, at in first.items() if self._folders.remote(at) is not None}


class StartedDownloads:
    """Downloads in progress."""

    def __init__(self, started: Mapping[str, Future[None]]) -> None:
        self._started = started

    def as_complete(self, keys: Iterable[str], secs: float | None = None) -> Iterator[str]:
        """The keys, each when its model is complete or has failed; others at once. Without those
        that take longer than `secs`."""
        waiting: dict[Future[None], str] = {}
        for key in keys:
            started = self._started.get(key)
            if started is None:
                yield key
            else:
                waiting[started] = key
        with contextlib.suppress(futures.TimeoutError):
            for done in futures.as_completed(waiting, secs):
                yield waiting[done]
