"""Errors in OpenAI's format: the status selects the client's exception, the body is one object.

{"error": {"message": …, "type": "invalid_request_error", "param": "model", "code": …}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.errors import Code, InvalidArgument, QueueRejected, ShoalError
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.message import Header
from shoal.wire import json_text

_JSON: Header = (b"Content-Type", b"application/json")
_INVALID = "invalid_request_error"
_FAILED = "server_error"

# Clients retry after 409, 429 and from 500 on, so errors that a retry cannot fix are below that.
_STATUS = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNSUPPORTED: 400,
    Code.ALREADY_EXISTS: 400,
    Code.CANCELLED: 400,
    Code.FORBIDDEN: 403,
    Code.UNAUTHENTICATED: 401,
    Code.QUOTA_EXCEEDED: 429,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.UNAVAILABLE: 503,
    Code.INTERNAL: 500,
    Code.UNKNOWN: 500,
}
_CODES = {
    Code.UNAVAILABLE: "unavailable",
    Code.UNSUPPORTED: "unsupported",
    Code.CANCELLED: "cancelled",
    Code.UNAUTHENTICATED: "invalid_api_key",
    Code.QUOTA_EXCEEDED: "rate_limit_exceeded",
    Code.DEADLINE_EXCEEDED: "timeout",
}
_TOO_MANY = 429
_KINDS = {401: "authentication_error", 403: "permission_error", _TOO_MANY: "rate_limit_error"}


class OpenAiError(InvalidArgument):
    """An error with the field of the request that caused it, if one did."""

    def __init__(self, message: str, param: str = "", code: str = "", status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.reason = code
        self.status = status


def no_such_model(name: str) -> OpenAiError:
    """The error for a model that is not loaded."""
    return OpenAiError(
        f"the model '{name}' does not exist here; GET /v1/models lists those that do",
        "model",
        "model_not_found",
        404,
    )


def status_of(error: ShoalError) -> int:
    """The status, from which the client chooses its exception."""
    if isinstance(error, OpenAiError):
        return error.status
    return _TOO_MANY if isinstance(error, QueueRejected) else _STATUS[error.code]


def described(error: ShoalError) -> dict[str, Any]:
    """The error as it is in a body or in an event."""
    param = error.param if isinstance(error, OpenAiError) else ""
    code = error.reason if isinstance(error, OpenAiError) else _CODES.get(error.code, "")
    if isinstance(error, QueueRejected):
        code = "rate_limit_exceeded"
    return _object(status_of(error), error.message, param, code)


def refusal_body(status: int, text: str) -> bytes:
    """The body of an error of HTTP itself, as 404 and 405."""
    return json_text.dumps(_object(status, text, "", ""))


def error_body(error: ShoalError) -> bytes:
    """The body of a response that is the error."""
    return json_text.dumps(described(error))


def send_error(exchange: Exchange, error: ShoalError, headers: Sequence[Header] = ()) -> None:
    """Respond with the error."""
    exchange.respond(status_of(error), [_JSON, *headers], [error_body(error)])


def _object(status: int, message: str, param: str, code: str) -> dict[str, Any]:
    kind = _KINDS.get(status, _INVALID if status < 500 else _FAILED)
    named = {"param": param or None, "code": code or None}
    return {"error": {"message": message, "type": kind, **named}}
