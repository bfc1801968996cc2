"""The request for a task, whatever protocol it came by: files and named values.

    -F image=@cat.jpg, ?top=5, {"question": "…"}  -->  TaskRequest(files, values)

Forms and queries contain only text, JSON has types; the readers below accept both. Their errors say
what is missing or invalid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument

_YES = frozenset(("true", "1", "yes", "on"))
_NO = frozenset(("false", "0", "no", "off"))


@dataclass(frozen=True, slots=True)
class File:
    """One uploaded file. `field` is the name of its form field, empty for a bare body."""

    data: Buffer
    field: str = ""
    name: str = ""
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """One call of a task. Every reader raises InvalidArgument."""

    files: Sequence[File] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether a value of that name was sent."""
        return self.values.get(name) is not None

    def text(self, name: str, *, longest: int, default: str | None = None) -> str:
        """A text of at most `longest` characters, required unless there is a default."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise InvalidArgument(f"'{name}' is missing: send it as a text")
        if type(value) is not str:
            raise InvalidArgument(f"'{name}' must be a text, not {_kind(value)}")
        if len(value) > longest:
            raise InvalidArgument(
                f"'{name}' has {len(value):,} characters, at most {longest:,} are allowed"
            )
        return value

    def integer(self, name: str, default: int, *, lowest: int, highest: int) -> int:
        """A whole number within bounds, or the default if none was sent."""
        value = self.values.get(name)
        if value is None:
            return default
        number = value if type(value) is int else _integer(value)
        if number is None or not lowest <= number <= highest:
            raise InvalidArgument(
                f"'{name}' must be a whole number from {lowest} to {highest}, not {_shown(value)}"
            )
        return number

    def number(self, name: str, default: float, *, lowest: float, highest: float) -> float:
        """A number within bounds, or the default if none was sent."""
        value = self.values.get(name)
        if value is None:
            return default
        try:
            number = float(value) if type(value) in (int, float, str) else None
        except ValueError:
            number = None
        if number is None or not lowest <= number <= highest:  # NaN fails every comparison
            raise InvalidArgument(
                f"'{name}' must be a number from {lowest:g} to {highest:g}, not {_shown(value)}"
            )
        return number

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false, or the default if none was sent."""
        value = self.values.get(name)
        if value is None or type(value) is bool:
            return default if value is None else value
        word = value.lower() if type(value) is str else ""
        if word not in _YES and word not in _NO:
            raise InvalidArgument(f"'{name}' must be true or false, not {_shown(value)}")
        return word in _YES


def _integer(value: object) -> int | None:
    try:
        return int(value) if type(value) is str else None
    except ValueError:
        return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _kind(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return kinds.get(type(value), "an object")
