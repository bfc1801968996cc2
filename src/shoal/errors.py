"""The error tree, independent of protocols: each frontend maps `code` with one table.

ShoalError
├── InvalidArgument      the request (or the config) is wrong: change it
│   ├── ConfigError      a model's configuration is wrong: file, field, found, what to write
│   └── LimitExceeded    larger than a limit of the server; RESOURCE_EXHAUSTED over gRPC
├── NotFound             no such model, version or region
├── AlreadyExists        the name is taken
├── Unavailable          not now: unloading, queue full, timed out; a retry may succeed
│   └── QueueRejected    refused by a queue (full, too long, expired); counted as REJECTED
├── Unsupported          understood, but not supported by this server
├── Forbidden            this client may not do that
├── Unauthenticated      no key, or one that is not valid
├── QuotaExceeded        a quota is used up; a retry after some time may succeed
├── Cancelled            the client cancelled the request
├── DeadlineExceeded     too late: an execution took longer than its model's limit (counted as
│                        BACKEND), or a caller in this process did not wait longer
├── Internal             an error of the server or the model
│   └── BackendFailure   the model raised during execution; counted as BACKEND
│       └── ProcessEnded the process that ran the model ended during execution
└── Unknown              an error that cannot be classified
"""

from __future__ import annotations

import copy
import enum

_MOST_QUOTED = 200  # characters of a client's text in a message
_MOST_CHARACTERS = 8192  # of a message: some of them contain what a client has sent
_KEPT_AT_END = 2048


class Code(enum.Enum):
    """Triton's eight error codes, three of clients that may not do what they ask for, and one of
    executions that take too long."""

    UNKNOWN = "Unknown"
    INTERNAL = "Internal"
    NOT_FOUND = "Not found"
    INVALID_ARGUMENT = "Invalid argument"
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"
    ALREADY_EXISTS = "Already exists"
    CANCELLED = "Cancelled"
    FORBIDDEN = "Forbidden"
    UNAUTHENTICATED = "Unauthenticated"
    QUOTA_EXCEEDED = "Quota exceeded"
    DEADLINE_EXCEEDED = "Deadline exceeded"


class ShoalError(Exception):
    """Base of every error that a client or operator may see. Its text is written for them."""

    code = Code.UNKNOWN
    retry_secs = 0  # after which a retry may succeed; 0: not known

    def __init__(self, message: str) -> None:
        message = _bounded(message)
        super().__init__(message)
        self.message = message

    def prefixed(self, prefix: str) -> ShoalError:
        """A copy of this error whose message begins with `prefix`."""
        error = copy.copy(self)
        error.message = _bounded(prefix + self.message)
        error.args = (error.message,)
        return error


class InvalidArgument(ShoalError):
    """The caller must change something before a retry."""

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


class LimitExceeded(InvalidArgument):
    """Larger than the server allows; where an option allows more, the text names it."""


class NotFound(ShoalError):
    """There is no such object."""

    code = Code.NOT_FOUND


class AlreadyExists(ShoalError):
    """There is such an object already."""

    code = Code.ALREADY_EXISTS


class Unavailable(ShoalError):
    """Not now; the same request may succeed later."""

    code = Code.UNAVAILABLE


class QueueRejected(Unavailable):
    """A queue rejected the request: it was full, too long for the target latency, or the request
    timed out."""

    def __init__(self, reason: str, retry_secs: int = 1, *, prefix: str = "") -> None:
        """`prefix` is what the message has before the reason, which is the same for all requests
        that are refused at a time."""
        super().__init__(prefix + reason)
        self.reason = reason
        self.retry_secs = retry_secs


class Unsupported(ShoalError):
    """Understood, but not supported by this server or this build of it."""

    code = Code.UNSUPPORTED


class Forbidden(ShoalError):
    """This client may not do that; the text names the option that decides."""

    code = Code.FORBIDDEN


class Unauthenticated(ShoalError):
    """The request has no key, or one that is not valid; the text says how to send one."""

    code = Code.UNAUTHENTICATED


class QuotaExceeded(ShoalError):
    """This client has used up a quota, until `retry_secs` have passed."""

    code = Code.QUOTA_EXCEEDED

    def __init__(self, message: str, retry_secs: int) -> None:
        super().__init__(message)
        self.retry_secs = retry_secs


class Cancelled(ShoalError):
    """The client cancelled the request before it ran."""

    code = Code.CANCELLED


class DeadlineExceeded(ShoalError):
    """An execution took longer than its model's `execution_timeout_ms`, or the response to a caller
    in this process longer than its `timeout_secs`."""

    code = Code.DEADLINE_EXCEEDED


class Internal(ShoalError):
    """A failure that the caller could not have prevented."""

    code = Code.INTERNAL


class BackendFailure(Internal):
    """The model itself failed while executing."""


class ProcessEnded(BackendFailure):
    """The process that ran the model ended; it may have been any request of the batch."""


class Unknown(ShoalError):
    """An error that is not classified."""


def quoted(text: str) -> str:
    """What a client sent, short enough for a message that quotes it."""
    return text if len(text) <= _MOST_QUOTED else text[:_MOST_QUOTED] + "…"


def _bounded(message: str) -> str:
    """The message as UTF-8 can have it (names of files may be otherwise); the middle of a very long
    one is left out, which is what it quotes."""
    if not message.isascii():
        message = message.encode(errors="backslashreplace").decode()
    if len(message) <= _MOST_CHARACTERS:
        return message
    head = _MOST_CHARACTERS - _KEPT_AT_END
    left_out = len(message) - _MOST_CHARACTERS
    return f"{message[:head]} … ({left_out} characters left out) … {message[-_KEPT_AT_END:]}"
