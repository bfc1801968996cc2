"""The contract of a remote repository, and which module implements it for each scheme.

    list  --> files with their identities: what a poll compares
    read  --> bytes of one file, or of a range of it
    put   --> store one file, for `shoal push`

A source does one request per call and raises a `StorageError` when it fails. It does not retry,
cache, limit or check anything: `transfer` and `cache` do, for all sources alike. Its methods block
and are called by several threads at once.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal.errors import Unsupported
from shoal.storage.address import Address

_PIECE_BYTES = 8 << 20  # that a source reads by one request if it cannot stream

# The module of each scheme, imported when the first address needs it. It has a function
# `open_source(address, workspace)`.
_MODULES = {
    "s3": "shoal.storage.object_store",
    "gs": "shoal.storage.object_store",
    "as": "shoal.storage.object_store",
    "az": "shoal.storage.object_store",
    "abfs": "shoal.storage.object_store",
    "abfss": "shoal.storage.object_store",
    "http": "shoal.storage.archive",
    "https": "shoal.storage.archive",
    "hf": "shoal.storage.hub",
}


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository, as a listing describes it."""

    path: str  # below the repository, "model/1/model.onnx"; not checked yet
    size: int
    identity: str  # another one whenever the content is: ETag without quotes, version id, digest
    digest: str = ""  # "md5:<hex>" or "sha256:<hex>" of the content, where the storage reports it


class Workspace(Protocol):
    """What a source may use on this machine."""

    folder: Path  # in the cache, of this source alone; other servers may use it at the same time

    def fetch(self, source: Source, file: RemoteFile) -> Path:
        """A file of `source` in the cache, downloaded if it is not there. Raises StorageError."""


class Source(ABC):
    """One remote repository."""

    address: Address

    @property
    def scope(self) -> str:
        """Within this, equal identities are equal contents: a bucket, say. Contains no secret."""
        return str(self.address)

    @abstractmethod
    def list(self) -> Sequence[RemoteFile]:
        """All files, in any order; as few requests as the storage allows.

        The first part of each path is the folder of a model. Files that cannot be served, such as
        the markers of empty folders, are left out. Raises ObjectMissing if there is no such
        repository, or StorageUnreachable or StorageRefused.
        """

    @abstractmethod
    def read(self, file: RemoteFile, start: int, end: int) -> bytes | memoryview:
        """The bytes from `start` to before `end` of a file: fewer only if the file is shorter.

        Raises ObjectChanged if the file is not `file` any more, where the storage can tell, and
        ObjectMissing if it was deleted.
        """

    def stream(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes | memoryview]:
        """The bytes from `start` to before `end` of a file, as chunks in order.

        Raises as `read`, at any chunk.
        """
        for begin in range(start, end, _PIECE_BYTES):
            yield self.read(file, begin, min(end, begin + _PIECE_BYTES))

    def put(self, path: str, content: Path) -> str:
        """Store the file `content` as `path`, replacing what is there, in one atomic step.

        Returns the identity with which it is listed from now on; empty if that is not known.
        """
        del path, content
        raise Unsupported(f"models cannot be stored at '{self.address}': it can only be read")

    def reports_digest(self, file: RemoteFile) -> bool:
        """Whether `file.digest`, which the content does not have, really is a digest.

        For storages that report something in its place that looks like one.
        """
        del file
        return True

    def local(self, file: RemoteFile) -> Path | None:
        """Where the content of a file is on this machine already; None if it must be read."""
        del file
        return None


def open_source(address: Address, workspace: Workspace) -> Source:
    """The source of an address; connects to nothing yet.

    Raises Unsupported for an unknown scheme or if a package is missing, InvalidArgument if the
    address or the credentials' files are wrong.
    """
    module = _MODULES.get(address.scheme)
    if module is None:
        raise Unsupported(
            f"'{address}' has a scheme that is not supported; those that are: "
            f"{', '.join(f'{scheme}://' for scheme in _MODULES)}, and local folders"
        )
    opened: Source = importlib.import_module(module).open_source(address, workspace)
    return opened
