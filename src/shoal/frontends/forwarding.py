"""Header forwarding: request headers whose names match a pattern become request parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.core.response import ParameterValue
from shoal.errors import InvalidArgument
from shoal.frontends.http.message import Header

RESERVED = frozenset(
    {
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
    }
)
_CASE_SENSITIVE = "(?-i)"  # the prefix of a case-sensitive pattern


class HeaderForwarding:
    """One pattern, searched for anywhere in a header's name. It ignores case unless it begins with
    `(?-i)`; names arrive in lower case."""

    def __init__(self, pattern: str, hidden: frozenset[str] = frozenset()) -> None:
        """Headers in `hidden` are never forwarded.

        Raises InvalidArgument for an invalid regular expression.
        """
        self._hidden = hidden
        case_sensitive = pattern.startswith(_CASE_SENSITIVE)
        expression = pattern[len(_CASE_SENSITIVE) :] if case_sensitive else pattern
        try:
            self._pattern = re.compile(expression, 0 if case_sensitive else re.IGNORECASE)
        except re.error as error:
            raise InvalidArgument(
                f"the header forward pattern {pattern!r} is not a regular expression: {error}"
            ) from None

    def forward(self, headers: Sequence[Header], parameters: dict[str, ParameterValue]) -> None:
        """Add the matching headers to `parameters`; InvalidArgument for a name Triton reserves."""
        for raw_name, raw_value in headers:
            name = raw_name.decode("latin-1")
            if not self._pattern.search(name) or name in self._hidden:
                continue
            if name in RESERVED or name.startswith("triton_"):
                raise InvalidArgument(
                    f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                )
            parameters[name] = _text(raw_value)


def _text(value: bytes) -> str:
    """A header's value: UTF-8, or Latin-1 if it is not valid UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
