"""The remote repositories of one server or command: settings, caches, downloads and folders."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from shoal.storage.address import Address, parse
from shoal.storage.cache import RepositoryCache, slug
from shoal.storage.locks import open_lock, try_lock
from shoal.storage.mirror import Mirror
from shoal.storage.progress import SizeCallback
from shoal.storage.retries import RetryPolicy
from shoal.storage.source import RemoteFile, Source, open_source
from shoal.storage.transfer import Transfer

logger = logging.getLogger(__name__)

# Triton's variables for the folder of the local copies, by scheme.
_MOUNT_DIRECTORIES = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "as": "TRITON_AZURE_MOUNT_DIRECTORY",
    "az": "TRITON_AZURE_MOUNT_DIRECTORY",
    "abfs": "TRITON_AZURE_MOUNT_DIRECTORY",
    "abfss": "TRITON_AZURE_MOUNT_DIRECTORY",
}


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """How remote repositories are read."""

    cache: str = ""  # the folder; empty: Triton's variables, or the user's cache folder
    cache_bytes: int = 0  # 0: no limit
    bytes_per_sec: int = 0  # of all downloads together; 0: no limit
    threads: int = 32  # requests at a time
    offline: bool = False  # start from the cache if a repository cannot be reached
    retries: RetryPolicy | None = None  # None: the usual one


class Mirrors:
    """The remote repositories of a process. `close` removes their folders and keeps the cache."""

    def __init__(
        self,
        settings: StorageSettings,
        environ: Mapping[str, str] = os.environ,
        **callbacks: SizeCallback,
    ) -> None:
        """Creates nothing yet. `callbacks` are those of `Transfer`."""
        self.settings = settings
        self._environ = environ
        self._transfer = Transfer(
            threads=settings.threads,
            bytes_per_sec=settings.bytes_per_sec,
            retries=settings.retries,
            **callbacks,
        )
        self._opening = threading.Lock()  # guards the tables
        self._caches: dict[Path, tuple[RepositoryCache, _ServerFolder]] = {}
        self._mirrors: dict[Address, Mirror] = {}

    def __enter__(self) -> Mirrors:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self, text: str) -> Mirror:
        """The repository at an address; lists nothing yet. Raises as `open_source`."""
        address = parse(text)
        with self._opening:
            mirror = self._mirrors.get(address)
            if mirror is None:
                cache, server = self._cache(address.scheme)
                source = open_source(address, _Workspace(address, cache, self._transfer))
                # Addresses may differ in what is not shown of them.
                folder = server.path / f"{len(self._mirrors)}-{slug(str(address))}"
                mirror = self._mirrors[address] = Mirror(source, cache, self._transfer, folder)
            return mirror

    def local(self, text: str) -> Path:
        """A folder of this machine with all models of a repository, whole, until `close`.

        Blocks; raises the first StorageError.
        """
        mirror = self.open(text)
        mirror.refresh()
        with ThreadPoolExecutor(self.settings.threads, "shoal-fetch") as pool:
            list(pool.map(lambda name: mirror.fetch(name, lambda all_: all_), mirror.models))
        with contextlib.suppress(OSError):
            mirror.folder.mkdir(parents=True, exist_ok=True)
        return mirror.folder

    def stop_downloads(self) -> None:
        """Have downloads in progress fail, and all others."""
        self._transfer.close()

    def close(self) -> None:
        """Stop downloads and remove the folders."""
        self.stop_downloads()
        with self._opening:
            for mirror in self._mirrors.values():
                mirror.close()
            for _, server in self._caches.values():
                server.close()
            self._mirrors.clear()
            self._caches.clear()

    def _cache(self, scheme: str) -> tuple[RepositoryCache, _ServerFolder]:
        folder = self._cache_folder(scheme)
        if folder not in self._caches:
            cache = RepositoryCache(folder, self.settings.cache_bytes)
            with cache.writing():
                self._caches[folder] = cache, _ServerFolder(folder / "servers")
        return self._caches[folder]

    def _cache_folder(self, scheme: str) -> Path:
        if self.settings.cache:
            return Path(self.settings.cache).expanduser().absolute()
        mounted = self._environ.get(_MOUNT_DIRECTORIES.get(scheme, ""))
        if mounted:
            return Path(mounted).absolute()
        caches = self._environ.get("XDG_CACHE_HOME")
        return (Path(caches) if caches else Path("~/.cache").expanduser()) / "shoal/repositories"


class _ServerFolder:
    """The folder of one running server; those of servers that were killed are deleted."""

    def __init__(self, servers: Path) -> None:
        for lock in servers.glob("*.lock"):
            with contextlib.suppress(OSError):
                descriptor = open_lock(lock)
                try:
                    if try_lock(descriptor, if_unsupported=False):
                        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                        lock.unlink(missing_ok=True)
                finally:
                    os.close(descriptor)
        for (
            folder
        ) in servers.iterdir():  # made by a download that had not ended when its server did
            if folder.is_dir() and not folder.with_name(f"{folder.name}.lock").exists():
                shutil.rmtree(folder, ignore_errors=True)
        self.path = servers / f"{os.getpid()}-{secrets.token_hex(4)}"
        self._lock = servers / f"{self.path.name}.lock"
        new = servers / f".{self.path.name}"
        self._descriptor = open_lock(new)
        try_lock(self._descriptor)
        new.rename(self._lock)  # locked before other servers see it
        self.path.mkdir()

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.unlink(missing_ok=True)
        os.close(self._descriptor)


class _Workspace:
    """What one source may use."""

    def __init__(self, address: Address, cache: RepositoryCache, transfer: Transfer) -> None:
        self.folder = cache.folder / "sources" / slug(str(address))
        self._cache = cache
        self._transfer = transfer
        with cache.writing():
            self.folder.mkdir(parents=True, exist_ok=True)

    def fetch(self, source: Source, file: RemoteFile) -> Path:
        """As `Workspace` has it."""
        return self._transfer.fetch(source, [file], self._cache)[file]
