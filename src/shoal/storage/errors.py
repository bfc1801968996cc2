"""What may go wrong with a remote repository.

StorageError
├── StorageUnreachable  no connection, a time-out, an error of the server: a retry may succeed
│   └── StorageBusy     it asks for fewer requests (429, 503): a retry must wait
├── StorageRefused      the credentials are missing, wrong or not sufficient (401, 403)
├── ObjectMissing       no such bucket, container, repository or file (404)
├── ObjectChanged       a file was replaced while it was read: list again
├── ContentRefused      an archive or a hub's repository must not or cannot be used as models
├── ObjectDamaged       a file has not the size or the checksum that it should have
└── CacheUnusable       the cache folder cannot be written: the disk is full, it is read-only ...

Their texts name the address without its secrets (`str(address)`, `redacted`).
"""

from __future__ import annotations

from shoal.errors import Code, ShoalError


class StorageError(ShoalError):
    """Base of all of them."""

    code = Code.UNAVAILABLE
    retryable = False  # whether the same call may succeed in some seconds


class StorageUnreachable(StorageError):
    """The storage does not respond, or with an error of its own."""

    retryable = True


class StorageBusy(StorageUnreachable):
    """The storage wants fewer requests."""

    def __init__(self, message: str, retry_secs: int = 0) -> None:
        """`retry_secs` is what it asked to wait for; 0 if it did not say."""
        super().__init__(message)
        self.retry_secs = retry_secs


class StorageRefused(StorageError):
    """The storage does not allow this."""


class ObjectMissing(StorageError):
    """There is no such repository or file."""

    code = Code.NOT_FOUND


class ObjectChanged(StorageError):
    """A file is not the one that was listed."""


class ContentRefused(StorageError):
    """What is there is whole, and is no models, or must not become files of this machine."""


class ObjectDamaged(StorageError):
    """What was read is not what is stored. A retry may read it whole."""

    retryable = True


class CacheUnusable(StorageError):
    """The cache folder cannot be used."""
