"""The schema of config.pbtxt as plain data.

Only this module of the package reads protobuf's descriptors.
"""

from __future__ import annotations

import functools
import keyword
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.config import model
from shoal.wire.proto import schema

# FieldDescriptor's CPPTYPE_* numbers: the integers with their values, and the names of the rest.
_INTEGERS = {
    1: range(-(2**31), 2**31),
    2: range(-(2**63), 2**63),
    3: range(2**32),
    4: range(2**64),
}
_KINDS = {5: "double", 6: "float", 7: "bool", 8: "enum", 9: "string", 10: "message"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message. For a map, the kind is that of its values."""

    name: str
    attribute: str  # in model.py: the name, or `global_` for a Python keyword
    json_name: str  # the name in camelCase
    kind: str  # "integer", "float", "double", "bool", "string", "enum" or "message"
    values: range  # of an integer
    enum: Enum | None
    message: MessageType | None
    key: Field | None  # of a map
    repeated: bool
    group: str  # the "one of" group it belongs to, if any
    presence: bool  # whether "not set" differs from the default


@dataclass(frozen=True, slots=True)
class Enum:
    """The values of an enum by name, in the order of the schema."""

    name: str
    numbers: Mapping[str, int]

    @property
    def names(self) -> list[str]:
        """The valid names."""
        return list(self.numbers)

    def name_of(self, number: int) -> str | None:
        """The value with that number."""
        return next((name for name, known in self.numbers.items() if known == number), None)


@dataclass(frozen=True, slots=True)
class MessageType:
    """A message, its fields by name, and its class in `model.py`."""

    name: str
    fields: Mapping[str, Field]
    holder: Any


@functools.cache
def message_type(full_name: str = "inference.ModelConfig") -> MessageType:
    """A message of the schema. KeyError when there is none of that name."""
    return _message_type(schema.pool().FindMessageTypeByName(full_name))


def _message_type(descriptor: Any) -> MessageType:
    holder: Any = model
    for part in descriptor.full_name.split(".")[1:]:
        holder = getattr(holder, part)  # inference.ModelConfig is model.ModelConfig
    fields = {field.name: _field(field) for field in descriptor.fields}
    return MessageType(descriptor.name, fields, holder)


def _field(descriptor: Any) -> Field:
    entry = descriptor.message_type
    is_map = entry is not None and entry.GetOptions().map_entry
    value = entry.fields_by_name["value"] if is_map else descriptor
    name, kind = descriptor.name, value.cpp_type
    group = descriptor.containing_oneof
    return Field(
        name=name,
        attribute=name + "_" if keyword.iskeyword(name) else name,
        json_name=descriptor.json_name,
        kind="integer" if kind in _INTEGERS else _KINDS[kind],
        values=_INTEGERS.get(kind, range(0)),
        enum=_enum(value.enum_type) if value.enum_type is not None else None,
        message=message_type(value.message_type.full_name) if value.message_type else None,
        key=_field(entry.fields_by_name["key"]) if is_map else None,
        repeated=not is_map and _is_repeated(descriptor),
        group=group.name if group is not None else "",
        presence=descriptor.has_presence,
    )


def _enum(descriptor: Any) -> Enum:
    return Enum(descriptor.name, {value.name: value.number for value in descriptor.values})


def _is_repeated(descriptor: Any) -> bool:
    known = getattr(descriptor, "is_repeated", None)
    if known is None:  # protobuf before 6.31 has a label for it, which later versions warn about
        return bool(descriptor.label == descriptor.LABEL_REPEATED)
    return bool(known)
