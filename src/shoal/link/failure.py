"""Errors as plain values, so that a message from another process is the same error again."""

from __future__ import annotations

from typing import Any

from shoal import errors
from shoal.errors import BackendFailure, Internal, ShoalError

PackedError = tuple[str, dict[str, Any]]  # the class, and the fields


def pack(error: BaseException) -> PackedError:
    """An error for a message; what is no ShoalError becomes Internal with its type and text."""
    if not isinstance(error, ShoalError):
        error = Internal(f"{type(error).__name__}: {error}")
    names = [kind.__name__ for kind in type(error).__mro__]
    name = next(name for name in names if hasattr(errors, name))
    plain = (str, int, float, bool, type(None))
    return name, {key: value for key, value in vars(error).items() if isinstance(value, plain)}


def pack_execution(error: BaseException) -> PackedError:
    """As `pack`, for what an execution raised."""
    if isinstance(error, ShoalError):
        return pack(error)
    return pack(BackendFailure(f"{type(error).__name__}: {error}"))


def unpack(packed: PackedError | str) -> ShoalError:
    """The error of a message; a text is an Internal one."""
    if isinstance(packed, str):
        return Internal(packed)
    name, fields = packed
    kind: type[ShoalError] = getattr(errors, name)
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    error.args = (error.message,)
    return error
