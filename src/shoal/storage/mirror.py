"""A remote repository with folders of this machine: what a listing names and a load needs.

    refresh --> models --> config_folder(model): only its configuration, for those that run others
                       --> fetch(model): its folder, complete, when everything is downloaded

A model's folder changes only when all its new files are in the cache, and file by file with
renames; what a backend has written into it stays.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.storage import listing
from shoal.storage.address import Address
from shoal.storage.cache import RepositoryCache
from shoal.storage.errors import ObjectChanged, ObjectMissing, StorageError
from shoal.storage.files import place_file
from shoal.storage.listing import ModelFiles
from shoal.storage.progress import Progress, megabytes
from shoal.storage.retries import RetryPolicy, with_retries
from shoal.storage.source import RemoteFile, Source
from shoal.storage.transfer import Transfer

logger = logging.getLogger(__name__)

_CHANGED_TRIES = 3

ChooseVersions = Callable[[Collection[int]], Collection[int]]


@dataclass(slots=True)
class _Placed:
    """What is in the folder of a model now."""

    files: dict[str, RemoteFile] = field(default_factory=dict)
    changing: threading.Lock = field(default_factory=threading.Lock)  # one fetch at a time


class Mirror:
    """One remote repository. Any thread may call any method; all but the properties block."""

    def __init__(
        self, source: Source, cache: RepositoryCache, transfer: Transfer, folder: Path
    ) -> None:
        """`folder` is where its model folders are made; of this mirror alone."""
        self.source = source
        self.models: Mapping[str, ModelFiles] = {}  # as last listed
        self.listed_at: float | None = None
        self.folder = folder / "models"
        self._configs = folder / "configs"
        self._cache = cache
        self._transfer = transfer
        self._incomplete: set[str] = set()  # the models of that listing that are being stored
        self._listing = threading.Lock()  # held by the thread that lists
        self._placed: dict[str, _Placed] = {}
        self._progress: dict[str, Progress] = {}

    @property
    def address(self) -> Address:
        """Where it is."""
        return self.source.address

    def refresh(self, retries: RetryPolicy | None = None) -> None:
        """List the repository, unless another thread does at this moment. Raises StorageError."""
        asked_at = time.monotonic()
        with self._listing:
            if self.listed_at is not None and self.listed_at > asked_at:
                return  # another thread began to list after this one had asked for it
            began = time.monotonic()
            policy = retries or self._transfer.retries
            files = with_retries(self.source.list, policy, self._transfer.stopped)
            if listing.is_one_model(files):
                raise StorageError(
                    f"'{self.address}' is the folder of one model, not of models; serve its parent"
                )
            found = self._complete(listing.by_model(files))
            if found != self.models:
                self._cache.save_listing(str(self.address), listing.to_rows(found))
            self.models, self.listed_at = found, began

    def _complete(self, found: Mapping[str, ModelFiles]) -> Mapping[str, ModelFiles]:
        """Without models that `shoal push` is storing: they stay as they were."""
        incomplete = {name for name, model in found.items() if model.incomplete}
        for name in sorted(incomplete - self._incomplete):
            logger.warning(
                "model '%s' in '%s' is being stored, or 'shoal push' was interrupted: it stays as "
                "it was until that ends",
                name,
                self.address,
            )
        self._incomplete = incomplete
        if not incomplete:
            return found
        return listing.without_incomplete(found, self.models or self._saved())

    def _saved(self) -> Mapping[str, ModelFiles]:
        return listing.from_rows(self._cache.saved_listing(str(self.address)))

    def restore(self) -> bool:
        """Use the listing of an earlier run; false if there is none."""
        found = self._saved()
        if found:
            self.models = found
        return bool(found)

    def progress(self, name: str) -> Progress | None:
        """Of the download of a model; None if there is none at this moment."""
        return self._progress.get(name)

    def config_folder(self, name: str) -> Path:
        """A folder with the configuration of a model and nothing else. Raises StorageError."""
        model = self._model(name)
        files = model.configs()
        folder = self._configs / name
        with self._placing(f"configs/{name}") as placed:
            if placed.files != files or not folder.is_dir():
                found = self._transfer.fetch(self.source, list(files.values()), self._cache)
                self._assemble(folder, files, found, frozenset(), placed)
        return folder

    def fetch(self, name: str, choose: ChooseVersions) -> Path:
        """The folder of a model, with the versions that `choose` selects from those there are.

        Downloads what is missing. Raises StorageError; the folder is as it was then.
        """
        with self._placing(name) as placed:
            for tries_left in reversed(range(_CHANGED_TRIES)):
                try:
                    return self._fetch(name, choose, placed)
                except (ObjectChanged, ObjectMissing) as error:
                    if not tries_left:
                        raise
                    logger.info("%s; listing it again", error.message)
                    self.refresh()
            raise AssertionError

    def close(self) -> None:
        """Remove the folders."""
        shutil.rmtree(self.folder.parent, ignore_errors=True)

    def _model(self, name: str) -> ModelFiles:
        model = self.models.get(name)
        if model is None:
            raise ObjectMissing(f"there is no model '{name}' in '{self.address}'")
        if model.refused:
            raise StorageError(f"model '{name}' of '{self.address}': {model.refused}")
        return model

    @contextlib.contextmanager
    def _placing(self, name: str) -> Iterator[_Placed]:
        placed = self._placed.setdefault(name, _Placed())
        with placed.changing:
            yield placed

    def _fetch(self, name: str, choose: ChooseVersions, placed: _Placed) -> Path:
        model, folder = self._model(name), self.folder / name
        versions = model.versions
        chosen = choose(versions)
        files = model.needed(chosen)
        folders = model.folders | {str(version) for version in versions}
        if placed.files == files and all((folder / one).is_dir() for one in ("", *folders)):
            return folder
        progress = Progress(time.monotonic(), f"model '{name}' from '{self.address}'")
        self._progress[name] = progress
        try:
            found = self._transfer.fetch(self.source, list(files.values()), self._cache, progress)
            self._assemble(folder, files, found, folders, placed)
        finally:
            del self._progress[name]
        _log(name, str(self.address), progress)
        return folder

    def _assemble(
        self,
        folder: Path,
        files: Mapping[str, RemoteFile],
        found: Mapping[RemoteFile, Path],
        folders: Collection[str],
        placed: _Placed,
    ) -> None:
        """Make `folder` contain `files` and `folders`, besides what others have put there."""
        is_new = not placed.files
        with self._cache.writing():
            made = {f"{folder}/{one}" for one in folders} | {
                os.path.dirname(f"{folder}/{path}")  # noqa: PTH120 - for each file of each model
                for path in files
            }
            for path in [path for path in placed.files if path not in files]:
                (folder / path).unlink(missing_ok=True)
                del placed.files[path]
            for one in (str(folder), *made):
                os.makedirs(one, exist_ok=True)  # noqa: PTH103
            for entry in () if is_new else folder.iterdir():
                if listing.is_version(entry.name) and entry.name not in folders:
                    shutil.rmtree(entry, ignore_errors=True)  # with what is left in it
            for path, file in files.items():
                if is_new:
                    self._place(found[file], folder / path)
                elif placed.files.get(path) != file:
                    temporary = (folder / path).with_name(f".{secrets.token_hex(4)}")
                    self._place(found[file], temporary)
                    if (folder / path).is_dir():  # it was a folder until now
                        shutil.rmtree(folder / path, ignore_errors=True)
                    temporary.replace(folder / path)
                placed.files[path] = file

    def _place(self, content: Path, path: Path) -> None:
        try:
            place_file(content, path)
        except FileNotFoundError:
            raise ObjectMissing(
                f"a file of '{self.address}' was deleted from the repository cache before it was "
                "used; is --repository-cache-size too small?"
            ) from None


def _log(name: str, address: str, progress: Progress) -> None:
    if progress.total_files:
        secs = max(time.monotonic() - progress.started, 1e-3)
        count, size = progress.total_files, progress.total_bytes
        logger.info(
            "downloaded %s of model '%s' from '%s': %s in %.3g s, %s/s",
            "1 file" if count == 1 else f"{count} files",
            name,
            address,
            megabytes(size),
            secs,
            megabytes(size / secs),
        )
