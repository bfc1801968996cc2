"""What can go wrong, with no word about HTTP or gRPC: each frontend maps `code` with one table.

ShoalError
├── InvalidArgument      the request (or the config) is wrong: change it
│   └── ConfigError      a model's configuration is wrong: file, field, found, what to write
├── NotFound             no such model, version or region
├── AlreadyExists        the name is taken
├── Unavailable          not now: unloading, queue full, timed out; trying again may help
│   └── QueueRejected    refused by a queue policy (full or expired); counted as REJECTED
├── Unsupported          understood, but this server does not do it
├── Cancelled            the client took the request back
├── Internal             our fault, or the model's
│   └── BackendFailure   the model raised while it ran; counted as BACKEND
└── Unknown              an error of other code that we cannot classify
"""

from __future__ import annotations

import enum


class Code(enum.Enum):
    """Triton's eight error codes."""

    UNKNOWN = "Unknown"
    INTERNAL = "Internal"
    NOT_FOUND = "Not found"
    INVALID_ARGUMENT = "Invalid argument"
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"
    ALREADY_EXISTS = "Already exists"
    CANCELLED = "Cancelled"


class ShoalError(Exception):
    """Base of every error a client or operator may see. Its text is meant for them."""

    code = Code.UNKNOWN

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidArgument(ShoalError):
    """The caller must change something before trying again."""

    code = Code.INVALID_ARGUMENT


class ConfigError(InvalidArgument):
    """A model's configuration cannot be served as it is written.

    The text names the file and field, what was found there and what to write instead.
    """

    def __init__(self, message: str, *, file: str = "", field: str = "", fix: str = "") -> None:
        where = ": ".join(part for part in (file, field) if part)
        text = f"{where}: {message}" if where else message
        super().__init__(f"{text}. {fix}" if fix else text)
        self.file = file
        self.field = field
        self.fix = fix


class NotFound(ShoalError):
    """There is no such thing."""

    code = Code.NOT_FOUND


class AlreadyExists(ShoalError):
    """There is one already."""

    code = Code.ALREADY_EXISTS


class Unavailable(ShoalError):
    """Not now; the same request may succeed later."""

    code = Code.UNAVAILABLE


class QueueRejected(Unavailable):
    """A queue policy turned the request away: the queue was full or its time ran out."""


class Unsupported(ShoalError):
    """Understood, but not done by this server or this build of it."""

    code = Code.UNSUPPORTED


class Cancelled(ShoalError):
    """The client cancelled the request before it ran."""

    code = Code.CANCELLED


class Internal(ShoalError):
    """Something failed that the caller could not have prevented."""

    code = Code.INTERNAL


class BackendFailure(Internal):
    """The model itself failed while executing."""


class Unknown(ShoalError):
    """An error that is not classified."""
