"""How models report errors: an error in a response, or an exception."""

from __future__ import annotations

import enum

from shoal import errors
from shoal.backends.python.api import arguments


class ErrorCode(enum.IntEnum):
    """Triton's error codes, by Triton's numbers."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonError:
    """The error of a response, instead of tensors."""

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    __slots__ = ("_code", "_message")

    def __init__(self, message: str | bytes, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        message = arguments.text("a TritonError's message", message)
        if type(code) is not ErrorCode and type(code) is not int:
            raise TypeError(f"TritonError needs one of its codes, such as INTERNAL, not {code!r}")
        self._message = printable(message)
        self._code = ErrorCode(code)

    def code(self) -> ErrorCode:
        """One of the constants of this class."""
        return self._code

    def message(self) -> str:
        """The text for the client."""
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, {self._code.name})"


def printable(text: str) -> str:
    """The text, with lone surrogates escaped."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


class TritonModelException(Exception):
    """Raised by models, and by this module when it is used wrongly."""


_CLASSES: dict[ErrorCode, type[errors.ShoalError]] = {
    ErrorCode.UNKNOWN: errors.Unknown,
    ErrorCode.INTERNAL: errors.BackendFailure,
    ErrorCode.NOT_FOUND: errors.NotFound,
    ErrorCode.INVALID_ARG: errors.InvalidArgument,
    ErrorCode.UNAVAILABLE: errors.Unavailable,
    ErrorCode.UNSUPPORTED: errors.Unsupported,
    ErrorCode.ALREADY_EXISTS: errors.AlreadyExists,
    ErrorCode.CANCELLED: errors.Cancelled,
}
_CODES: dict[errors.Code, ErrorCode] = {kind.code: code for code, kind in _CLASSES.items()}


def to_shoal(error: TritonError) -> errors.ShoalError:
    """A model's error as one of the server's."""
    return _CLASSES[error.code()](error.message())


def from_shoal(error: errors.ShoalError) -> TritonError:
    """A server's error as one for the model; codes that Triton does not have are internal."""
    return TritonError(error.message, _CODES.get(error.code, ErrorCode.INTERNAL))
