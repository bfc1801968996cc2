"""The exceptions of Triton's bindings, and those of the server as one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shoal.errors import Code, ShoalError


class TritonError(Exception):
    """The base of all errors."""


class UnknownError(TritonError):
    """An error that is not classified."""


class InternalError(TritonError):
    """The server or the model failed."""


class NotFoundError(TritonError):
    """There is no such object."""


class InvalidArgumentError(TritonError):
    """The caller must change something."""


class UnavailableError(TritonError):
    """Not now; a retry may succeed."""


class UnsupportedError(TritonError):
    """The server does not support that."""


class AlreadyExistsError(TritonError):
    """There is such an object already."""


for _error in (TritonError, *TritonError.__subclasses__()):
    _error.__module__ = "tritonserver"  # the name that programs and tracebacks use

# Codes without an exception in Triton's bindings are unknown errors, as there.
_KINDS: dict[Code, type[TritonError]] = {
    Code.INTERNAL: InternalError,
    Code.NOT_FOUND: NotFoundError,
    Code.INVALID_ARGUMENT: InvalidArgumentError,
    Code.UNAVAILABLE: UnavailableError,
    Code.UNSUPPORTED: UnsupportedError,
    Code.ALREADY_EXISTS: AlreadyExistsError,
}


def converted(error: ShoalError) -> TritonError:
    """An error of the server as an exception of the bindings."""
    return _KINDS.get(error.code, UnknownError)(str(error))


@contextlib.contextmanager
def triton_errors() -> Iterator[None]:
    """Errors of the server are raised as exceptions of the bindings."""
    try:
        yield
    except ShoalError as error:
        raise converted(error) from error
