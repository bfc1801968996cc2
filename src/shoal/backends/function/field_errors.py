"""The sentences for fields that do not fit, in the terms of those who sent them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shoal.config.suggest import near_match
from shoal.errors import InvalidArgument

_MOST_SHOWN = 40  # characters of a value
_MOST_LISTED = 30


def unknown_field(name: str, known: Sequence[str], within: str = "") -> InvalidArgument:
    """A field that the function does not have; `within` is the object that it is in."""
    found = near_match(name, known)
    advice = f"did you mean `{joined(within, found)}`?" if found is not None else listed(known)
    return InvalidArgument(f"unknown field `{joined(within, shortened(name))}`: {advice}")


def missing_fields(names: Sequence[str], within: str = "") -> InvalidArgument:
    """Fields that are required and were not sent."""
    shown = ", ".join(f"`{joined(within, name)}`" for name in names)
    return InvalidArgument(f"missing field{'s' if len(names) > 1 else ''} {shown}")


def wrong_value(where: str, expected: str, value: Any) -> InvalidArgument:
    """A value of another type; `where` is empty for the body itself."""
    return InvalidArgument(f"{title(where)} must be {expected}, not {described(value)}")


def title(where: str) -> str:
    """A field, or the whole body."""
    return f"field `{where}`" if where else "the request body"


def joined(within: str, name: str | None) -> str:
    """The path of a member."""
    return f"{within}.{name}" if within else str(name)


def listed(known: Iterable[str]) -> str:
    """The fields that there are."""
    names = [f"`{name}`" for name in known]
    if not names:
        return "there are no fields"
    shown = ", ".join(names[:_MOST_LISTED]) + (", …" if len(names) > _MOST_LISTED else "")
    return f"the field{'s are' if len(names) > 1 else ' is'} {shown}"


def described(value: Any) -> str:
    """A value of JSON, short enough for a sentence."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {shortened(str(value))}"
    if isinstance(value, str):
        return f'the text "{shortened(value)}"'
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, dict) else f"an object of type {type(value).__name__}"


def shortened(text: str) -> str:
    """The beginning of a text."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
