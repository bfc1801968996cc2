"""What callers of a function know of it: fields of JSON, forms and files instead of tensors.

    def greet(name: str, times: int = 1) -> str   -->   FunctionInterface(inputs, outputs, …)

A function's backend makes it, and frontends use it: to read requests, to write responses, to
describe the function, and to name what is wrong in the caller's terms. It consists of plain values,
because a frontend may be in another process than the function.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

Schema = dict[str, Any]  # a JSON schema; definitions that it refers to are in its `$defs`


class ValueForm(enum.Enum):
    """What the elements of a field's tensor are."""

    NUMBERS = "numbers"  # or true and false
    TEXT = "text"
    BINARY = "binary"  # base64 in JSON, or a file
    JSON = "json"  # each element is a JSON document


class ResultForm(enum.Enum):
    """What the outputs of a function are together, in the response of its own route."""

    VALUE = "value"  # the only output itself
    OBJECT = "object"  # an object with a member for each output
    LIST = "list"  # a list of them


@dataclass(frozen=True, slots=True)
class FunctionField:
    """One argument or result of a function, as one request has it: without a batch dimension."""

    name: str
    form: ValueForm
    datatype: str
    dims: tuple[int, ...]
    is_single: bool  # one value rather than a list of them; dims are [1]
    schema: Schema
    optional: bool = False
    media: str = ""  # the media type of a binary result


@dataclass(frozen=True, slots=True)
class FunctionInterface:
    """A function, or an ASGI application, which has no fields."""

    inputs: tuple[FunctionField, ...] = ()
    outputs: tuple[FunctionField, ...] = ()
    result: ResultForm = ResultForm.VALUE
    batched: bool = False
    streams: bool = False
    method: str = ""  # of its own route, if it has one
    path: str = ""  # with {arguments}
    summary: str = ""
    description: str = ""
    is_application: bool = False  # an ASGI application

    @property
    def whole_body(self) -> FunctionField | None:
        """The argument that the JSON body itself may be: the only one that is an object."""
        objects = [field for field in self.inputs if is_object(field.schema)]
        return objects[0] if len(objects) == 1 else None

    def field(self, name: str) -> FunctionField | None:
        """The argument of that name."""
        return next((field for field in self.inputs if field.name == name), None)

    def to_plain(self) -> dict[str, Any]:
        """Numbers, texts, lists and dicts, for another process."""
        plain = asdict(self)
        for field in (*plain["inputs"], *plain["outputs"]):
            field["form"] = field["form"].value
        plain["result"] = self.result.value
        return plain

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> FunctionInterface:
        """The interface that `to_plain` was called for."""
        return cls(
            **{
                **plain,
                "inputs": _fields(plain["inputs"]),
                "outputs": _fields(plain["outputs"]),
                "result": ResultForm(plain["result"]),
            }
        )


@dataclass(frozen=True, slots=True)
class FunctionRoute:
    """The route of a function, or of an ASGI application, whose path is empty."""

    model: str
    method: str
    path: str


def _fields(plain: Sequence[dict[str, Any]]) -> tuple[FunctionField, ...]:
    return tuple(
        FunctionField(**{**field, "form": ValueForm(field["form"]), "dims": tuple(field["dims"])})
        for field in plain
    )


def is_object(schema: Schema) -> bool:
    """Whether a schema describes JSON objects alone."""
    return bool(_resolved(schema).get("type") == "object")


def members_of(schema: Schema) -> set[str]:
    """The members of objects that a schema names."""
    return set(_resolved(schema).get("properties", ()))


def _resolved(schema: Schema) -> Schema:
    found = str(schema.get("$ref", ""))
    if not found:
        return schema
    definition: Schema = schema.get("$defs", {}).get(found.rpartition("/")[2], {})
    return definition
