"""Checks the log settings that clients change, for all protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import InvalidArgument, ShoalError, Unsupported
from shoal.logs import FORMATS

_SWITCHES = ("log_info", "log_warning", "log_error")
_LEVEL = "log_verbose_level"
_FORMAT = "log_format"
_MOST_VERBOSE = 2**31 - 1


def read_log_changes(
    given: Mapping[str, Any], bad_format: Callable[[str], ShoalError]
) -> dict[str, Any]:
    """The requested changes, checked; None leaves a setting as it is.

    Raises Unsupported for the file, `bad_format(text)` for an unknown format, InvalidArgument for
    other errors.
    """
    changes = {name: value for name, value in given.items() if value is not None}
    if "log_file" in changes:
        raise Unsupported("log file location can not be updated through network protocol")
    for name, value in changes.items():
        if name in _SWITCHES:
            if type(value) is not bool:
                raise InvalidArgument(f"expect boolean for '{name}'")
        elif name == _LEVEL:
            if type(value) is not int or not 0 <= value <= _MOST_VERBOSE:
                raise InvalidArgument(f"expect int32 for '{name}', 0 or more")
        elif name == _FORMAT:
            if type(value) is not str:
                raise InvalidArgument(f"expect string for '{name}'")
            if value not in FORMATS:
                raise bad_format(value)
        else:
            known = ", ".join((*_SWITCHES, _LEVEL, _FORMAT))
            raise InvalidArgument(
                f"log setting '{name}' does not exist or cannot be changed; these can: {known}"
            )
    return changes
