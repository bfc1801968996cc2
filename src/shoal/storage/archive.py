"""A repository in an archive on a web server: `https://host/models.tar.gz`.

    look at the file --> new? fetch it through the cache, unpack it --> list what was unpacked

Its files are known by their digests, so a new archive changes only the models whose files differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from shoal.errors import InvalidArgument
from shoal.storage import contents, unpacking
from shoal.storage.address import Address
from shoal.storage.errors import (
    CacheUnusable,
    ContentRefused,
    ObjectChanged,
    StorageUnreachable,
)
from shoal.storage.http_file import FileState, HttpFile
from shoal.storage.locks import open_lock, try_lock
from shoal.storage.source import RemoteFile, Source, Workspace

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz", ".zip")
_INDEX = "contents.json"
_FILES = "files"
_LOCK = "lock"  # held while the folder is made
_NEW = "new-"  # begins the names of folders that are not complete; `cache` knows it, too
_LOCKED_SECS = 10.0  # after which such a folder is locked, if its server runs


class ArchiveSource(Source):
    """One archive, and where it is unpacked."""

    def __init__(self, address: Address, workspace: Workspace) -> None:
        """Raises InvalidArgument if this cannot be the address of an archive."""
        self.address = address
        self._workspace = workspace
        self._file = HttpFile(address.text)
        self._name = unquote(posixpath.basename(urlsplit(address.text).path))
        suffix = next((suffix for suffix in SUFFIXES if self._name.endswith(suffix)), "")
        self._model = self._name.removesuffix(suffix)
        if not suffix or not self._model:
            raise InvalidArgument(
                f"'{address}' is not the address of an archive: it has to end with "
                f"{', '.join(SUFFIXES)}"
            )
        self._unpacking = threading.Lock()
        self._listed: Mapping[str, Path] = {}  # the files of the last listing

    def list(self) -> Sequence[RemoteFile]:
        """The files in the archive as it is now; downloads and unpacks it if it is new."""
        state = self._file.look()
        with self._unpacking:
            folder = self._unpacked(state)
        try:
            index = json.loads((folder / _INDEX).read_text("utf-8"))
        except OSError:
            raise StorageUnreachable(  # the retry unpacks it again
                f"another server has removed what was unpacked from '{self.address}'"
            ) from None
        located = contents.locate(index, self._model)
        if not located:
            raise ContentRefused(
                f"'{self.address}' contains no models: it needs folders as in "
                "resnet/1/model.onnx, or one model file"
            )
        self._listed = {path: folder / _FILES / given for path, given in located.items()}
        return [
            RemoteFile(path, size, digest, f"sha256:{digest}")
            for path, given in located.items()
            for size, digest in [index[given]]
        ]

    def read(self, file: RemoteFile, start: int, end: int) -> bytes:
        """A part of the archive, or of a file in it."""
        if file.path == self._name:
            return self._file.read(start, end, file.identity)
        path = self.local(file)
        if path is None:
            raise ObjectChanged(f"'{file.path}' is no longer in '{self.address}'")
        with path.open("rb") as content:
            content.seek(start)
            return content.read(end - start)

    def local(self, file: RemoteFile) -> Path | None:
        """Where a file was unpacked."""
        path = self._listed.get(file.path)
        return path if path is not None and path.exists() else None

    def _unpacked(self, state: FileState) -> Path:
        """The folder with this state of the archive. Another server may be making it, too."""
        home = self._workspace.folder  # the cache may delete what is in it
        folder = home / hashlib.sha256(state.identity.encode()).hexdigest()[:32]
        if (folder / _INDEX).exists():
            return folder
        try:
            home.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned(home)
            new = Path(tempfile.mkdtemp(prefix=_NEW, dir=home))
            lock = open_lock(new / _LOCK)
            try_lock(lock)
        except OSError as error:
            raise CacheUnusable(f"'{home}' cannot be written: {error.strerror}") from None
        try:
            self._make(state, new)
            try:
                new.rename(folder)
            except OSError:  # another server was faster
                if not (folder / _INDEX).exists():
                    raise
        except OSError as error:
            raise CacheUnusable(f"'{home}' cannot be written: {error.strerror}") from None
        finally:
            shutil.rmtree(new, ignore_errors=True)
            os.close(lock)
        self._remove_older(folder)
        return folder

    @staticmethod
    def _remove_abandoned(home: Path) -> None:
        """Remove what servers that were killed have unpacked in part: a server that is restarted
        again and again would fill the disk."""
        before = time.time() - _LOCKED_SECS
        for path in home.glob(f"{_NEW}*"):
            with contextlib.suppress(OSError):  # another server removes it
                lock = open_lock(path / _LOCK)
                try:
                    if path.stat().st_ctime < before and try_lock(lock, if_unsupported=False):
                        shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(lock)

    def _make(self, state: FileState, new: Path) -> None:
        if state.ranges:
            archive = self._workspace.fetch(
                self, RemoteFile(self._name, state.size, state.identity)
            )
        else:  # as with `python -m http.server`
            archive = new / "archive"
            self._file.download(archive)
        files = new / _FILES
        files.mkdir()
        unpacked = unpacking.unpack(archive, files, str(self.address))
        (new / _INDEX).write_text(json.dumps(unpacked), "utf-8")
        if not state.ranges:
            archive.unlink()

    def _remove_older(self, current: Path) -> None:
        """Remove earlier states. What a server needs of them is in the cache."""
        with contextlib.suppress(OSError):  # another server removes them, too
            made = current.stat().st_mtime
            for path in current.parent.iterdir():
                is_other = path.name != current.name and not path.name.startswith(_NEW)
                if is_other and path.stat().st_mtime < made:
                    shutil.rmtree(path, ignore_errors=True)


def open_source(address: Address, workspace: Workspace) -> Source:
    """The source of an archive's address."""
    return ArchiveSource(address, workspace)
