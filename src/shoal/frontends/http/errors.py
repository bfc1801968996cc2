"""Errors as HTTP responses: the status of each code, and the body."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from shoal.errors import (
    Code,
    Internal,
    ShoalError,
    Unauthenticated,
    Unavailable,
)
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.message import Header, error_body
from shoal.statistics.recent_errors import recent_errors

logger = logging.getLogger(__name__)

STATUS = {
    Code.UNKNOWN: 400,
    Code.INTERNAL: 500,
    Code.NOT_FOUND: 404,
    Code.INVALID_ARGUMENT: 400,
    Code.UNAVAILABLE: 503,
    Code.UNSUPPORTED: 501,
    Code.ALREADY_EXISTS: 400,
    Code.CANCELLED: 400,
    Code.FORBIDDEN: 403,
    Code.UNAUTHENTICATED: 401,
    Code.QUOTA_EXCEEDED: 429,
    Code.DEADLINE_EXCEEDED: 504,
}
JSON: Header = (b"Content-Type", b"application/json")
OPENAI = "/v1/"
_CHALLENGE: Header = (b"WWW-Authenticate", b'Bearer realm="shoal"')


def send_error(exchange: Exchange, error: ShoalError, headers: Sequence[Header] = ()) -> None:
    """Respond with the error's status and text; in OpenAI's format below /v1."""
    headers = [*headers, *error_headers(error)]
    if exchange.request.path.startswith(OPENAI):
        from shoal.frontends.http.openai import errors as openai  # not at start-up

        openai.send_error(exchange, error, headers)
        return
    send_refusal(exchange, STATUS[error.code], error.message, headers)


def send_refusal(
    exchange: Exchange, status: int, text: str, headers: Sequence[Header] = ()
) -> None:
    """Respond with a status of HTTP itself, in the format of every other error."""
    note_error(exchange, status, text)
    body = refusal_body(exchange.request.path, status, text)
    exchange.respond(status, [JSON, *headers], [body])


def refusal_body(path: str, status: int, text: str) -> bytes:
    """The body of an error for a request of `path`: in OpenAI's format below /v1."""
    if path.startswith(OPENAI):
        from shoal.frontends.http.openai import errors as openai  # not at start-up

        return openai.refusal_body(status, text)
    return error_body(text)


def error_headers(error: ShoalError) -> list[Header]:
    """The headers that HTTP requires beside the status of an error."""
    if isinstance(error, Unauthenticated):
        return [_CHALLENGE]
    if error.retry_secs:
        return [(b"Retry-After", b"%d" % error.retry_secs)]
    return []


def note_error(exchange: Exchange, status: int, text: str) -> None:
    """Record an error that is sent to a client."""
    request = exchange.request
    recent_errors.note("HTTP", f"{request.method} {request.path}", str(status), text)


def as_shoal_error(error: BaseException) -> ShoalError:
    """The error itself, or an Internal one for an unexpected exception, which is logged."""
    if isinstance(error, ShoalError):
        # The frames refer to what the client has sent, and often to the error: only a collection of
        # garbage would free it.
        error.__traceback__ = error.__context__ = None
        return error
    if isinstance(error, asyncio.CancelledError):
        return Unavailable("Server exiting")
    logger.error("an HTTP request failed with an unexpected error", exc_info=error)
    return Internal(f"internal error: {type(error).__name__}: {error}")
