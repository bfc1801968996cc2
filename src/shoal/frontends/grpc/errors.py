"""Errors in gRPC: one table from code to status."""

from __future__ import annotations

import logging

from shoal.errors import Code, Internal, LimitExceeded, ShoalError
from shoal.frontends.grpc.call import Call
from shoal.frontends.grpc.status import RETRY_PUSHBACK, Metadata, StatusCode
from shoal.statistics.recent_errors import recent_errors

logger = logging.getLogger(__name__)

STATUS = {
    Code.UNKNOWN: StatusCode.UNKNOWN,
    Code.INTERNAL: StatusCode.INTERNAL,
    Code.NOT_FOUND: StatusCode.NOT_FOUND,
    Code.INVALID_ARGUMENT: StatusCode.INVALID_ARGUMENT,
    Code.UNAVAILABLE: StatusCode.UNAVAILABLE,
    Code.UNSUPPORTED: StatusCode.UNIMPLEMENTED,
    Code.ALREADY_EXISTS: StatusCode.ALREADY_EXISTS,
    Code.CANCELLED: StatusCode.CANCELLED,
    Code.FORBIDDEN: StatusCode.PERMISSION_DENIED,
    Code.UNAUTHENTICATED: StatusCode.UNAUTHENTICATED,
    Code.QUOTA_EXCEEDED: StatusCode.RESOURCE_EXHAUSTED,
    Code.DEADLINE_EXCEEDED: StatusCode.DEADLINE_EXCEEDED,
}
SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."


def status_of(error: ShoalError) -> StatusCode:
    """The status of an error."""
    if isinstance(error, LimitExceeded):
        return StatusCode.RESOURCE_EXHAUSTED
    return STATUS[error.code]


def fail(call: Call, error: BaseException, model: str = "") -> None:
    """End the call with the error's status and text; `model` is what it was about, if known."""
    known = as_shoal_error(error)
    code = status_of(known)
    note_error(call, code, known.message, model)
    call.finish(code, known.message, retry_metadata(known))


def retry_metadata(error: ShoalError) -> Metadata:
    """When to try again, for clients that read it and for the retries of gRPC itself."""
    secs = error.retry_secs
    return (("retry-after", str(secs)), (RETRY_PUSHBACK, str(1000 * secs))) if secs else ()


def note_error(call: Call, code: StatusCode, text: str, model: str = "") -> None:
    """Record an error that a client receives."""
    recent_errors.note("gRPC", call.path.rpartition("/")[2], code.name, text, model)


def as_shoal_error(error: BaseException) -> ShoalError:
    """The error itself, or an Internal one for a fault of ours, which is then in the log."""
    if isinstance(error, ShoalError):
        # The frames refer to what the client has sent, and often to the error: only a collection of
        # garbage would free it.
        error.__traceback__ = error.__context__ = None
        return error
    logger.error("a gRPC call failed in an unforeseen way", exc_info=error)
    return Internal(f"internal error: {type(error).__name__}: {error}")
