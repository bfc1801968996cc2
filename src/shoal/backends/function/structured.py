"""Values of JSON as Python objects: dicts, dataclasses, Pydantic models and what they consist of.

    {"text": "fine", "stars": 5}  --load-->  Review(text="fine", stars=5)  --dump-->  the same JSON

A converter is made of a type when the function is declared, so that a type that cannot be used is
an error then. Pydantic models are recognised by their methods and validate themselves; Pydantic is
imported only where the function's own file does that.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import enum
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import orjson

from shoal.backends.function import base64_text
from shoal.backends.function.field_errors import (
    joined,
    missing_fields,
    title,
    unknown_field,
    wrong_value,
)
from shoal.backends.function.validation import sentences_of
from shoal.core.interface import Schema, ValueForm
from shoal.errors import BackendFailure, InvalidArgument
from shoal.wire import json_limits

Load = Callable[[Any, str], Any]  # the value and where it is; raises InvalidArgument

_DEFINITIONS = "$defs"
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_SETS = (set, frozenset, collections.abc.Set)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_TEXTS: dict[type, tuple[Callable[[str], Any], str, str]] = {
    dt.datetime: (dt.datetime.fromisoformat, "date-time", "2026-01-31T12:00:00"),
    dt.date: (dt.date.fromisoformat, "date", "2026-01-31"),
    dt.time: (dt.time.fromisoformat, "time", "12:00:00"),
    uuid.UUID: (uuid.UUID, "uuid", "123e4567-e89b-12d3-a456-426614174000"),
}


class JsonConverter:
    """Between JSON and the values of one type; an `ElementCodec`."""

    form = ValueForm.JSON
    media = ""

    def __init__(self, annotation: Any) -> None:
        """InvalidArgument if the type has parts that JSON cannot describe."""
        maker = _ConverterMaker()
        self._load, self.schema = maker.make(annotation)
        if maker.definitions:
            self.schema = {**self.schema, _DEFINITIONS: maker.definitions}

    def decode(self, data: bytes, where: str) -> Any:
        """The value of a JSON document. Raises InvalidArgument."""
        try:
            json_limits.check_counts(data, 0)
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise InvalidArgument(f"{title(where)} is not JSON: {error}") from None
        except json_limits.TooMuch as error:
            raise InvalidArgument(f"{title(where)}: {error}") from None
        try:
            return self._load(value, where)
        except RecursionError:
            raise InvalidArgument(f"{title(where)} is nested too deeply") from None

    @staticmethod
    def encode(value: Any) -> bytes:
        """The JSON document of a value. Raises BackendFailure."""
        try:
            return orjson.dumps(
                value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
            )
        except orjson.JSONEncodeError as error:
            raise BackendFailure(f"the result cannot be written as JSON: {error}") from None


def is_pydantic(annotation: Any) -> bool:
    """Whether a type is a Pydantic model."""
    return isinstance(annotation, type) and all(
        hasattr(annotation, name)
        for name in ("model_validate", "model_json_schema", "model_fields")
    )


class _ConverterMaker:
    """Makes the converter and the schema of a type and of those that it consists of."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._made: dict[Any, Load] = {}  # of classes, which may refer to themselves

    def make(self, annotation: Any) -> tuple[Load, Schema]:
        """How to read values of the type, and their schema."""
        if isinstance(annotation, typing.NewType):
            return self.make(annotation.__supertype__)
        if annotation in (Any, object):
            return (lambda value, _where: value), {}
        if annotation in (None, types.NoneType):
            return _load_null, {"type": "null"}
        if annotation in _SIMPLE:
            return _SIMPLE[annotation]
        if annotation is bytes:
            return base64_text.decode, dict(base64_text.SCHEMA)
        if annotation in _TEXTS:
            return _text_loader(annotation)
        origin, arguments = get_origin(annotation), get_args(annotation)
        if hasattr(annotation, "__value__"):  # `type NDArray[T] = ...`, as in numpy from 2.5 on
            value = annotation.__value__
            return self.make(value[arguments] if arguments else value)
        if origin is Annotated:
            return self.make(arguments[0])
        if origin is Literal:
            return _choice_loader({value: value for value in arguments})
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if annotation is np.ndarray or origin is np.ndarray:
            return _array_loader(arguments)
        if isinstance(annotation, type) and not arguments:
            return self._class(annotation)
        if origin is tuple and Ellipsis not in arguments:
            return self._tuple(arguments)
        if origin in (*_LISTS, *_SETS, tuple):
            return self._list(
                set if origin in _SETS else tuple if origin is tuple else list, arguments[0]
            )
        if origin in _MAPPINGS:
            return self._mapping(arguments[1])
        raise _no_json(annotation)

    def _class(self, annotation: type) -> tuple[Load, Schema]:
        if issubclass(annotation, enum.Enum):
            return _choice_loader({member.value: member for member in annotation})
        if annotation in _LISTS or annotation in _SETS or annotation is tuple:
            kind: Any = annotation if annotation in (set, tuple) else list
            return self._list(kind, Any)
        if annotation in _MAPPINGS:
            return self._mapping(Any)
        if is_pydantic(annotation):
            return self._pydantic(annotation)
        if (
            typing.is_typeddict(annotation)
            or dataclasses.is_dataclass(annotation)
            or _is_named_tuple(annotation)
        ):
            return self._object(annotation)
        raise _no_json(annotation)

    # ---- several values

    def _union(self, arguments: Sequence[Any]) -> tuple[Load, Schema]:
        made = [self.make(argument) for argument in arguments]
        schemas = [schema for _, schema in made]

        def load(value: Any, where: str) -> Any:
            errors = []
            for one, _ in made:
                try:
                    return one(value, where)
                except InvalidArgument as error:
                    errors.append(error)
            if len(errors) == 2 and types.NoneType in arguments:  # that of the other type
                raise errors[0] if arguments[1] is types.NoneType else errors[1]
            raise wrong_value(where, " or ".join(map(_named, arguments)), value)

        if all(list(schema) == ["type"] for schema in schemas):
            return load, {"type": [schema["type"] for schema in schemas]}
        return load, {"anyOf": schemas}

    def _list(self, kind: Callable[[Any], Any], element: Any) -> tuple[Load, Schema]:
        load_one, schema = self.make(element)

        def load(value: Any, where: str) -> Any:
            if not isinstance(value, list):
                raise wrong_value(where, "a list", value)
            return kind([load_one(each, f"{where}[{n}]") for n, each in enumerate(value)])

        return load, {"type": "array", **({"items": schema} if schema else {})}

    def _tuple(self, elements: Sequence[Any]) -> tuple[Load, Schema]:
        made = [self.make(element) for element in elements]

        def load(value: Any, where: str) -> Any:
            if not isinstance(value, list) or len(value) != len(made):
                raise wrong_value(where, f"a list of {len(made)}", value)
            pairs = zip(made, value, strict=True)
            return tuple(one(each, f"{where}[{n}]") for n, ((one, _), each) in enumerate(pairs))

        count = len(made)
        items = [schema for _, schema in made]
        return load, {"type": "array", "prefixItems": items, "minItems": count, "maxItems": count}

    def _mapping(self, element: Any) -> tuple[Load, Schema]:
        load_one, schema = self.make(element)

        def load(value: Any, where: str) -> Any:
            if not isinstance(value, dict):
                raise wrong_value(where, "an object", value)
            return {key: load_one(each, joined(where, key)) for key, each in value.items()}

        return load, {"type": "object", **({"additionalProperties": schema} if schema else {})}

    # ---- classes

    def _object(self, kind: Any) -> tuple[Load, Schema]:
        """A dataclass, NamedTuple or TypedDict."""
        schema = {"$ref": f"#/{_DEFINITIONS}/{kind.__name__}"}
        if kind in self._made:
            return self._made[kind], schema
        fields: dict[str, Load] = {}
        required = _required(kind)

        def load(value: Any, where: str) -> Any:
            if not isinstance(value, dict):
                raise wrong_value(where, "an object", value)
            for name in value:
                if name not in fields:
                    raise unknown_field(name, list(fields), where)
            missing = [name for name in required if name not in value]
            if missing:
                raise missing_fields(missing, where)
            loaded = {name: fields[name](each, joined(where, name)) for name, each in value.items()}
            try:
                return kind(**loaded)
            except (ValueError, TypeError) as error:  # of its __post_init__
                raise InvalidArgument(f"{title(where)}: {sentences_of(error, where)}") from None

        self._made[kind] = load
        properties: dict[str, Schema] = {}
        self.definitions[kind.__name__] = {}
        try:
            hints = typing.get_type_hints(kind, include_extras=True)
        except Exception as error:  # noqa: BLE001 - whatever evaluating a type's text leads to
            raise _unreadable(kind, error) from None
        for name, hint in hints.items():
            if name in _names(kind):
                fields[name], properties[name] = self.make(_without_required(hint))
        self.definitions[kind.__name__] = {
            "type": "object",
            **_about(kind),
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }
        return load, schema

    def _pydantic(self, kind: Any) -> tuple[Load, Schema]:
        try:
            described_by: Schema = dict(kind.model_json_schema())
        except Exception as error:  # noqa: BLE001 - Pydantic has several for this
            raise _unreadable(kind, error) from None
        self.definitions.update(described_by.pop(_DEFINITIONS, {}))
        name = kind.__name__
        if "$ref" not in described_by:  # one that refers to itself is among the definitions
            self.definitions[name] = described_by

        def load(value: Any, where: str) -> Any:
            try:
                return kind.model_validate(value)
            except ValueError as error:  # which Pydantic's ValidationError is
                raise InvalidArgument(sentences_of(error, where, list(kind.model_fields))) from None

        return load, {"$ref": f"#/{_DEFINITIONS}/{name}"}


# ---- single values


def _load_null(value: Any, where: str) -> None:
    if value is not None:
        raise wrong_value(where, "null", value)


def _load_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise wrong_value(where, "a text", value)
    return value


def _load_integer(value: Any, where: str) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_value(where, "a whole number", value)
    return value


def _load_number(value: Any, where: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise wrong_value(where, "a number", value)
    return float(value)


def _load_flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise wrong_value(where, "true or false", value)
    return value


_SIMPLE: dict[Any, tuple[Load, Schema]] = {
    str: (_load_text, {"type": "string"}),
    int: (_load_integer, {"type": "integer"}),
    float: (_load_number, {"type": "number"}),
    bool: (_load_flag, {"type": "boolean"}),
}


def _text_loader(kind: type) -> tuple[Load, Schema]:
    parse, form, example = _TEXTS[kind]

    def load(value: Any, where: str) -> Any:
        try:
            return parse(_load_text(value, where))
        except ValueError:
            raise wrong_value(where, f"a {form} such as {example}", value) from None

    return load, {"type": "string", "format": form}


def _choice_loader(choices: Mapping[Any, Any]) -> tuple[Load, Schema]:
    listed = ", ".join(orjson.dumps(value, default=str).decode() for value in choices)

    def load(value: Any, where: str) -> Any:
        for choice, member in choices.items():
            if type(choice) is type(value) and choice == value:
                return member
        raise wrong_value(where, f"one of {listed}", value)

    kinds = {type(value) for value in choices}
    kind = (
        {"type": _SIMPLE[only][1]["type"]}
        if len(kinds) == 1 and (only := next(iter(kinds))) in _SIMPLE
        else {}
    )
    return load, {**kind, "enum": list(choices)}


def _array_loader(arguments: Sequence[Any]) -> tuple[Load, Schema]:
    dtype = arguments[1] if len(arguments) > 1 else Any
    element = get_args(dtype)[0] if get_origin(dtype) is np.dtype else None
    known = element if isinstance(element, type) else None

    def load(value: Any, where: str) -> Any:
        try:
            return np.asarray(value, dtype=known)
        except (ValueError, TypeError):
            raise wrong_value(
                where, "nested lists of numbers, as long as each other", value
            ) from None

    return load, {"type": "array"}


# ---- helpers


def _plain(value: Any) -> Any:
    """What orjson cannot write itself, in terms of what it can."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if _is_named_tuple(type(value)):
        return value._asdict()
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64_text.encode(bytes(value))
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"there is an object of type {type(value).__name__} in it")


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _names(kind: Any) -> list[str]:
    """The fields of a class that its values are made of."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.init]
    return list(getattr(kind, "_fields", None) or typing.get_type_hints(kind))


def _required(kind: Any) -> list[str]:
    if dataclasses.is_dataclass(kind):
        empty = dataclasses.MISSING
        return [
            field.name
            for field in dataclasses.fields(kind)
            if field.init and field.default is empty and field.default_factory is empty
        ]
    if _is_named_tuple(kind):
        return [name for name in kind._fields if name not in kind._field_defaults]
    return [name for name in typing.get_type_hints(kind) if name in kind.__required_keys__]


def _without_required(hint: Any) -> Any:
    """The type in `Required[...]` or `NotRequired[...]` of a TypedDict."""
    named = getattr(get_origin(hint), "_name", "")
    return get_args(hint)[0] if named in ("Required", "NotRequired") else hint


def _about(kind: Any) -> Schema:
    """The description of a class; dataclasses have their signature where there is none."""
    text = (vars(kind).get("__doc__") or "").strip()
    return {"description": text} if text and not text.startswith(f"{kind.__name__}(") else {}


def _named(annotation: Any) -> str:
    """A type in the words of JSON."""
    words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    if annotation is types.NoneType:
        return "null"
    return words.get(annotation) or str(getattr(annotation, "__name__", annotation))


def _unreadable(kind: Any, error: Exception) -> InvalidArgument:
    return InvalidArgument(
        f"the types of {kind.__name__} cannot be read: {type(error).__name__}: {error}"
    )


def _no_json(annotation: Any) -> InvalidArgument:
    shown = getattr(annotation, "__name__", None) if isinstance(annotation, type) else None
    return InvalidArgument(f"the type {shown or annotation} describes neither a tensor nor JSON")
