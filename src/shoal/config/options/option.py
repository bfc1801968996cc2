"""One option: its row in the table, and the group that writes it.

A field made by a group is an ordinary dataclass field whose metadata hold the rest of the row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from shoal.errors import InvalidArgument

Value = TypeVar("Value")
Limits = tuple[float, float | None]


class OptionError(InvalidArgument):
    """The command line is invalid; the text says what to write instead."""


class NamedSetting(NamedTuple):
    """One `[<name>,]<key>=<value>`; an empty name means all."""

    name: str
    key: str
    value: str


@dataclass(frozen=True)
class Option:
    """One row of the table, for the parser, the help and the documentation."""

    attribute: str
    type: str  # as annotated: bool, int, float, str, tuple[str, ...] or tuple[NamedSetting, ...]
    default: Any
    group: str
    help: str
    form: str = ""  # the format of a value, if the type does not show it: "<name>,<key>=<value>"
    pattern: str = ""  # what a value must match; its groups are those of a NamedSetting
    choices: tuple[str, ...] = ()
    limits: Limits | None = None
    words: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # words for values
    aliases: tuple[str, ...] = ()
    bare: bool = False  # a switch: it never takes the following word as its value
    empty: bool = True  # whether the empty text is a value
    no_effect: str = ""  # why it has no effect
    honoured: Any = None  # the value without a warning: Shoal's behaviour
    instead: str = ""  # deprecated: what to write instead

    @property
    def flag(self) -> str:
        """The name as typed, with its dashes."""
        return "--" + self.attribute.replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        """All its names; the one to show first."""
        return (self.flag, *self.aliases)

    @property
    def repeatable(self) -> bool:
        """Whether each use adds a value; otherwise the last one counts."""
        return self.type.startswith("tuple")


class Group:
    """Makes the options of one group, so that a field reads `http_port: int = _http(8000, "…")`."""

    def __init__(self, title: str, *, no_effect: str = "") -> None:
        self.title = title
        self._no_effect = no_effect

    def __call__(self, default: Value, help: str, **rules: Any) -> Value:
        """A dataclass field with this default; `rules` are fields of `Option`."""
        rules.setdefault("no_effect", self._no_effect)
        metadata = {"group": self.title, "help": help, **rules}
        made: Value = dataclasses.field(default=default, metadata=metadata)
        return made
