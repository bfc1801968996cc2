"""Between a `ModelConfig` and its protobuf and JSON forms.

    protobuf message <--to_message / from_message--> ModelConfig --to_dict--> GET /config
                                                          ^--parse_json-- "config" of a model load

Each direction is one traversal of the schema, so a field that is added to the schema and
`model.py` needs no change here.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from shoal.config.model import ModelConfig
from shoal.config.schema import Enum, Field, MessageType, message_type
from shoal.config.suggest import did_you_mean
from shoal.errors import ConfigError
from shoal.wire import json_limits, json_text
from shoal.wire.proto import messages

if TYPE_CHECKING:
    from google.protobuf.message import Message

_WRITTEN_INTEGER = re.compile(r"-?[0-9]{1,20}")
_MOST_SHOWN = 60  # characters of what was found
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


# ---- protobuf


def to_message(config: ModelConfig) -> Message:
    """`config` as an `inference.ModelConfig` message.

    ValueError or TypeError when a value does not fit the schema, or when two members of a "one of"
    group are set.
    """
    message: Message = messages.ModelConfig()
    _write(config, message_type(), message)
    return message


def from_message(message: Message, *, file: str = "") -> ModelConfig:
    """The config a message holds. ConfigError names `file` and the field it cannot read."""
    config = _read(message, message_type(), file, "")
    assert isinstance(config, ModelConfig)
    return config


def _write(source: object, kind: MessageType, message: Any) -> None:
    for field in kind.fields.values():
        value = getattr(source, field.attribute)
        if value is None:
            continue
        other = message.WhichOneof(field.group) if field.group else None
        if other is not None:
            raise ValueError(f"{field.name} and {other} exclude each other, but both are set")
        if field.key is not None:
            target = getattr(message, field.name)
            for key, entry in value.items():
                if field.message is not None:
                    _write(entry, field.message, target[key])
                else:
                    target[key] = _to_wire(field, entry)
        elif field.repeated:
            target = getattr(message, field.name)
            for entry in value:
                if field.message is not None:
                    _write(entry, field.message, target.add())
                else:
                    target.append(_to_wire(field, entry))
        elif field.message is not None:
            target = getattr(message, field.name)
            target.SetInParent()
            _write(value, field.message, target)
        else:
            setattr(message, field.name, _to_wire(field, value))


def _to_wire(field: Field, value: Any) -> Any:
    if field.enum is None:
        return value
    if value not in field.enum.numbers:
        raise ValueError(f"{field.name} has no value {value!r}")
    return field.enum.numbers[value]


def _read(message: Any, kind: MessageType, file: str, path: str) -> object:
    values: dict[str, object] = {}
    for field in kind.fields.values():
        if field.presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        where = _join(path, field.name)
        if field.key is not None:
            values[field.attribute] = {
                key: _from_wire(field, value[key], file, f"{where}[{key}]") for key in sorted(value)
            }
        elif field.repeated:
            values[field.attribute] = tuple(
                _from_wire(field, entry, file, f"{where}[{index}]")
                for index, entry in enumerate(value)
            )
        else:
            values[field.attribute] = _from_wire(field, value, file, where)
    return kind.holder(**values)


def _from_wire(field: Field, value: Any, file: str, path: str) -> object:
    if field.message is not None:
        return _read(value, field.message, file, path)
    if field.enum is not None:
        return _enum_name(field.enum, value, file, path)
    return shortest_float(value) if field.kind == "float" else value


def _enum_name(enum: Enum, number: int, file: str, path: str) -> str:
    found = enum.name_of(number)
    if found is None:
        fix = f"Write one of {', '.join(enum.names)}"
        raise ConfigError(f"{enum.name} has no value {number}", file=file, field=path, fix=fix)
    return found


# ---- JSON


def to_dict(config: ModelConfig) -> dict[str, Any]:
    """The response of GET /v2/models/M/config.

    Fields and enums have the schema's names, 64-bit integers are numbers. Every plain, repeated
    and map field is included, even if empty; message fields and "one of" members that are not set
    are omitted.
    """
    return _plain_fields(config)


def _plain_fields(source: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(source):
        value = getattr(source, field.name)
        if value is not None:
            plain[field.name.rstrip("_")] = _plain(value)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no numbers for these
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return _plain_fields(value) if dataclasses.is_dataclass(value) else value


def parse_json(text: str, where: str) -> ModelConfig:
    """Read a config written as JSON, as `to_dict` gives it or in protobuf's own JSON mapping.

    Field names may be snake_case or camelCase, integers numbers or strings, enums names in any
    case or numbers; null leaves a field unset. Anything else raises a ConfigError that begins
    with `where` and names the field.
    """
    try:
        json_limits.check_counts(text.encode("utf-8", "replace"), 0)
        value = json.loads(text, object_pairs_hook=_JsonPairs)
    except json_limits.TooMuch:
        raise ConfigError("the JSON has too many values to be a config", file=where) from None
    except (RecursionError, json_text.TooDeep):
        raise ConfigError("the JSON is nested too deeply to be a config", file=where) from None
    except ValueError as error:  # bad syntax, or an integer with thousands of digits
        fix = 'Write an object such as {"backend": "onnxruntime"}'
        raise ConfigError(f"not valid JSON: {error}", file=where, fix=fix) from None
    config = _JsonReader(where).message(message_type(), value, "")
    assert isinstance(config, ModelConfig)
    return config


class _JsonPairs(list[tuple[str, Any]]):
    """The members of a JSON object as written, so that duplicates are detected."""


class _JsonReader:
    """Reads JSON values by the schema; `path` is the position of a value in the document."""

    def __init__(self, where: str) -> None:
        self._where = where

    def message(self, kind: MessageType, value: Any, path: str) -> object:
        """A JSON object as the class of its message."""
        camel_case = {field.json_name: field for field in kind.fields.values()}
        values: dict[str, object] = {}
        groups: dict[str, str] = {}
        for key, entry in self._members(value, path):
            where = _join(path, key)
            field = kind.fields.get(key) or camel_case.get(key)
            if field is None:
                fix = did_you_mean(key, list(kind.fields), "fields")
                self._refuse(where, f"unknown field '{key}' in {kind.name}", fix)
            if entry is None:
                continue
            if field.attribute in values:
                self._refuse(where, f"'{field.name}' is written twice", "Keep one of them")
            other = groups.setdefault(field.group, field.name) if field.group else field.name
            if other != field.name:
                message = f"'{field.name}' excludes '{other}', but both are set"
                self._refuse(where, message, "Keep one of them")
            values[field.attribute] = self._field(field, entry, where)
        return kind.holder(**values)

    def _field(self, field: Field, value: Any, path: str) -> object:
        if field.key is not None:
            entries: dict[Any, object] = {}
            for key, entry in self._members(value, path):
                where = f"{path}[{key}]"
                entries[self._value(field.key, key, where)] = self._value(field, entry, where)
            return dict(sorted(entries.items()))
        if not field.repeated:
            return self._value(field, value, path)
        if isinstance(value, _JsonPairs) or not isinstance(value, list):
            self._expected("a list", value, path)
        return tuple(
            self._value(field, entry, f"{path}[{index}]") for index, entry in enumerate(value)
        )

    def _value(self, field: Field, value: Any, path: str) -> object:
        if field.message is not None:
            return self.message(field.message, value, path)
        if field.enum is not None:
            return self._enum(field.enum, value, path)
        if field.kind == "integer":
            return self._integer(value, field.values, path)
        if field.kind in ("double", "float"):
            return self._float(value, path, single=field.kind == "float")
        if field.kind == "string":
            return self._string(value, path)
        if not isinstance(value, bool):
            self._expected("true or false", value, path)
        return value

    def _enum(self, enum: Enum, value: Any, path: str) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            return _enum_name(enum, value, self._where, path)
        if not isinstance(value, str):
            self._expected("the name of a value", value, path)
        if value.upper() not in enum.numbers:
            fix = did_you_mean(value, enum.names, "values")
            self._refuse(path, f"{enum.name} has no value {_shown(value)}", fix)
        return value.upper()

    def _integer(self, value: Any, values: range, path: str) -> int:
        written = isinstance(value, str) and _WRITTEN_INTEGER.fullmatch(value)
        whole = isinstance(value, float) and value.is_integer()
        number = int(value) if written or whole else value
        if not isinstance(number, int) or isinstance(number, bool):
            self._expected("an integer", value, path)
        if number not in values:
            fix = f"Write {values.start} to {values.stop - 1}"
            self._refuse(path, f"{_shown(value)} is out of range", fix)
        return number

    def _float(self, value: Any, path: str, *, single: bool) -> float:
        if isinstance(value, str) and value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._expected("a number", value, path)
        try:
            return shortest_float(value) if single else float(value)
        except OverflowError:
            self._refuse(path, f"{_shown(value)} is out of range", "Write a smaller number")

    def _string(self, value: Any, path: str) -> str:
        if not isinstance(value, str):
            self._expected("a string", value, path)
        try:
            value.encode()
        except UnicodeEncodeError:
            message = f"{_shown(value)} contains half of a surrogate pair"
            self._refuse(path, message, "Write valid Unicode")
        return value

    def _members(self, value: Any, path: str) -> _JsonPairs:
        if not isinstance(value, _JsonPairs):
            self._expected("an object", value, path)
        seen: set[str] = set()
        for key, _ in value:
            self._string(key, path)
            if key in seen:
                self._refuse(_join(path, key), f"'{key}' is written twice", "Keep one of them")
            seen.add(key)
        return value

    def _expected(self, wanted: str, value: Any, path: str) -> NoReturn:
        self._refuse(path, f"expected {wanted}, found {_shown(value)}", f"Write {wanted} here")

    def _refuse(self, path: str, message: str, fix: str) -> NoReturn:
        raise ConfigError(message, file=self._where, field=path, fix=fix)


def _shown(value: Any) -> str:
    """A JSON value in an error, truncated."""
    if isinstance(value, list):
        return "an object" if isinstance(value, _JsonPairs) else "a list"
    text = json.dumps(value)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def shortest_float(value: float) -> float:
    """The number with the fewest digits that is the same 32-bit float: 0.1, not 0.10000000149.

    OverflowError when the value is beyond all of them.
    """
    packed = struct.pack("<f", value)
    (single,) = struct.unpack("<f", packed)
    for digits in range(6, 9):
        short = float(f"{single:.{digits}g}")
        if struct.pack("<f", short) == packed:
            return short
    return float(f"{single:.9g}")  # nine digits distinguish any two
