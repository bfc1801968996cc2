"""What the targets share: the result of a call that may refuse its input, and inputs in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Outcome: TypeAlias = tuple[str, Any]


def outcome(function: Callable[[], Any], *refusals: type[Exception]) -> Outcome:
    """What `function` returns, or which of `refusals` it raises and with which text.

    Any other exception is a bug, and is raised.
    """
    try:
        return "returned", function()
    except refusals as refusal:
        return type(refusal).__name__, str(refusal)


def pieces(data: bytes) -> Iterator[bytes]:
    """The input less its first byte, in pieces of a size that this byte gives."""
    size = 1 + data[0] % 64 if data else 1
    for start in range(1, len(data), size):
        yield data[start : start + size]
