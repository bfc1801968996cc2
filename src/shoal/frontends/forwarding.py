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
_MIND_CASE = "(?-i)"  # how a pattern asks for what is off by default


class HeaderForwarding:
    """One pattern, searched for anywhere in a header's name. Case does not matter, unless the
    pattern begins with `(?-i)`; names arrive in lower case."""

    def __init__(self, pattern: str) -> None:
        """Raises InvalidArgument for a pattern that is no regular expression."""
        minds_case = pattern.startswith(_MIND_CASE)
        expression = pattern[len(_MIND_CASE) :] if minds_case else pattern
        try:
            self._pattern = re.compile(expression, 0 if minds_case else re.IGNORECASE)
        except re.error as error:
            raise InvalidArgument(
                f"the header forward pattern {pattern!r} is not a regular expression: {error}"
            ) from None

    def forward(self, headers: Sequence[Header], parameters: dict[str, ParameterValue]) -> None:
        """Add the matching headers to `parameters`; InvalidArgument for a name Triton reserves."""
        for raw_name, raw_value in headers:
            name = raw_name.decode("latin-1")
            if not self._pattern.search(name):
                continue
            if name in RESERVED or name.startswith("triton_"):
                raise InvalidArgument(
                    f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                )
            parameters[name] = _text(raw_value)


def _text(value: bytes) -> str:
    """A header's value: UTF-8 as people send it, else Latin-1 as HTTP once had it."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
