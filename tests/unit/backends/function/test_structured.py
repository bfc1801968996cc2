"""JSON as Python objects: what is read, what is written, and the sentences about the rest."""

from __future__ import annotations

import datetime as dt
import enum
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NewType, TypedDict

import numpy as np
import numpy.typing as npt
import pytest

from shoal.backends.function.structured import JsonConverter, is_pydantic
from shoal.errors import BackendFailure, InvalidArgument

UserId = NewType("UserId", int)


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


class Options(TypedDict, total=False):
    top: int


class Point(NamedTuple):
    x: float
    y: float = 0.0


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)
    point: Point | None = None
    given: int = field(default=0, init=False)

    def __post_init__(self):
        if self.name == "bad":
            raise ValueError("a bad name")


def load(annotation, value, where="f"):
    return JsonConverter(annotation).decode(json.dumps(value).encode(), where)


@pytest.mark.parametrize(
    ("annotation", "sent", "value"),
    [
        (Any, {"a": [1]}, {"a": [1]}),
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Mapping[str, list[int]], {"a": [1]}, {"a": [1]}),
        (list[dict], [{}], [{}]),
        (Sequence[str], ["a"], ["a"]),
        (set[int], [1, 1], {1}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (tuple[int, ...], [1, 2], (1, 2)),
        (int | None, None, None),
        (int | str, "a", "a"),
        (float, 1, 1.0),
        (int, 2.0, 2),
        (UserId, 7, 7),
        (bytes, "AAE=", b"\0\1"),
        (Literal["a", 1], 1, 1),
        (Size, 2, Size.LARGE),
        (Options, {"top": 3}, {"top": 3}),
        (Point, {"x": 1}, Point(1.0)),
        (dt.date, "2026-01-31", dt.date(2026, 1, 31)),
        (uuid.UUID, str(uuid.UUID(int=1)), uuid.UUID(int=1)),
        (
            Node,
            {"name": "a", "children": [{"name": "b", "point": {"x": 1, "y": 2}}]},
            Node("a", [Node("b", point=Point(1, 2))]),
        ),
    ],
)
def test_values_are_read(annotation, sent, value):
    loaded = load(annotation, sent)
    assert loaded == value
    assert type(loaded) is type(value)


def test_arrays_are_read():
    assert load(npt.NDArray[np.float32], [[1, 2]]).dtype == np.float32


def test_names_of_types():
    """`type Numbers = list[int]`, which is also how numpy 2.5 defines NDArray."""
    extensions = pytest.importorskip("typing_extensions")
    element = extensions.TypeVar("element")
    numbers = extensions.TypeAliasType("numbers", list[int])
    some = extensions.TypeAliasType("some", list[element], type_params=(element,))
    assert load(numbers, [1, 2]) == [1, 2]
    assert load(some[UserId], [1]) == [1]
    with pytest.raises(InvalidArgument, match="must be a whole number"):
        load(some[int], ["a"])


@pytest.mark.parametrize(
    ("annotation", "sent", "text"),
    [
        (dict, [1], "field `f` must be an object, not a list of 1"),
        (list[int], ["a"], 'field `f[0]` must be a whole number, not the text "a"'),
        (int, True, "field `f` must be a whole number, not true"),
        (bool, 1, "field `f` must be true or false, not the number 1"),
        (float, None, "field `f` must be a number, not null"),
        (int | str, [], "field `f` must be a whole number or a text, not a list of 0"),
        (Node | None, {"nam": 1}, "unknown field `f.nam`: did you mean `f.name`?"),
        (Literal["a", "b"], "c", 'field `f` must be one of "a", "b", not the text "c"'),
        (Literal[1], True, "must be one of 1, not true"),
        (Size, 3, "field `f` must be one of 1, 2, not the number 3"),
        (tuple[int, str], [1], "field `f` must be a list of 2, not a list of 1"),
        (dt.date, "today", "must be a date such as 2026-01-31, not the text"),
        (Options, {"tip": 3}, "unknown field `f.tip`: the field is `top`"),
        (Point, {"y": 1}, "missing field `f.x`"),
        (Node, {"name": "bad"}, "field `f`: a bad name"),
        (Node, {"name": "a", "given": 1}, "unknown field `f.given`"),
        (Node, {"name": "a", "children": [{}]}, "missing field `f.children[0].name`"),
        (npt.NDArray[np.float32], [[1], [1, 2]], "nested lists of numbers, as long as each other"),
    ],
)
def test_what_does_not_fit_is_named(annotation, sent, text):
    with pytest.raises(InvalidArgument) as caught:
        load(annotation, sent)
    assert text in caught.value.message


def test_types_that_cannot_be_described():
    @dataclass
    class Unknown:
        x: nowhere  # noqa: F821

    with pytest.raises(InvalidArgument, match="the types of Unknown cannot be read: NameError"):
        JsonConverter(Unknown)
    with pytest.raises(InvalidArgument, match="the type complex describes neither a tensor nor"):
        JsonConverter(dict[str, complex])


def test_text_that_is_no_json():
    with pytest.raises(InvalidArgument, match="field `f` is not JSON"):
        JsonConverter(dict).decode(b"{", "f")


def test_json_that_is_nested_too_deeply():
    deep = b'{"name":"a","children":[' * 500 + b'{"name":"a"}' + b"]}" * 500
    with pytest.raises(InvalidArgument, match="field `f` is nested too deeply"):
        JsonConverter(Node).decode(deep, "f")


def test_json_with_more_values_than_a_request_needs():
    many = b"[" + b"[]," * 60_000 + b"[]]"
    with pytest.raises(InvalidArgument, match="field `f`: the JSON has more than 50000 lists"):
        JsonConverter(list).decode(many, "f")


def test_values_are_written():
    value = {
        "node": Node("a", point=Point(1, 2)),
        "size": Size.LARGE,
        "numbers": np.arange(2, dtype=np.float32),
        "one": np.float32(1),
        "bytes": b"\0",
        "set": {1},
        1: "keys are texts",
    }
    assert json.loads(JsonConverter.encode(value)) == {
        "node": {"name": "a", "children": [], "point": {"x": 1, "y": 2}},
        "size": 2,
        "numbers": [0.0, 1.0],
        "one": 1.0,
        "bytes": "AA==",
        "set": [1],
        "1": "keys are texts",
    }
    with pytest.raises(BackendFailure, match="the result cannot be written as JSON"):
        JsonConverter.encode({"a": object()})


def test_schemas():
    schema = JsonConverter(Node).schema
    node = schema["$defs"]["Node"]
    assert schema["$ref"] == "#/$defs/Node"
    assert node["required"] == ["name"]
    assert node["properties"]["children"] == {"type": "array", "items": {"$ref": "#/$defs/Node"}}
    assert node["properties"]["point"]["anyOf"][1] == {"type": "null"}
    assert "given" not in node["properties"]
    assert JsonConverter(int | None).schema == {"type": ["integer", "null"]}
    assert JsonConverter(Literal["a", "b"]).schema == {"type": "string", "enum": ["a", "b"]}


# ---- Pydantic


@pytest.fixture(scope="module")
def models():
    pydantic = pytest.importorskip("pydantic")

    class Inner(pydantic.BaseModel):
        tag: str = ""

    class Review(pydantic.BaseModel, extra="forbid"):
        text: str
        stars: int = pydantic.Field(ge=1, le=5)
        inner: Inner = Inner()

        @pydantic.field_validator("text")
        @classmethod
        def not_empty(cls, value):
            if not value:
                raise ValueError("the text is empty")
            return value

    return Review, Inner


def test_pydantic_models_validate_themselves(models):
    review, inner = models
    assert is_pydantic(review)
    assert not is_pydantic(Node)
    loaded = load(list[review], [{"text": "a", "stars": 3, "inner": {"tag": "t"}}])
    assert loaded == [review(text="a", stars=3, inner=inner(tag="t"))]
    assert json.loads(JsonConverter.encode(loaded))[0]["inner"] == {"tag": "t"}
    assert set(JsonConverter(list[review]).schema["$defs"]) == {"Review", "Inner"}


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ({"stars": 3}, "missing field `f.text`"),
        ({"stars": 3, "txt": 1}, "missing field `f.text` (sent as `txt`?)"),
        ({"text": "a", "stars": 9}, "`f.stars` must be less than or equal to 5, not the number 9"),
        ({"text": "a", "stars": "x"}, 'field `f.stars` must be a valid integer, not the text "x"'),
        ({"text": "", "stars": 3}, "field `f.text`: the text is empty"),
        ({"text": "a", "stars": 3, "star": 1}, "unknown field `f.star`: did you mean `f.stars`?"),
        ({"stars": 9}, "missing field `f.text`; field `f.stars` must be less than"),
        (5, "field `f` must be a valid dictionary or instance of Review, not the number 5"),
    ],
)
def test_pydantic_errors_are_ours(models, sent, text):
    with pytest.raises(InvalidArgument) as caught:
        load(models[0], sent)
    assert text in caught.value.message


def test_pydantic_models_without_a_schema(models):
    pydantic = pytest.importorskip("pydantic")

    class Odd(pydantic.BaseModel, arbitrary_types_allowed=True):
        x: threading.Thread

    with pytest.raises(InvalidArgument, match="the types of Odd cannot be read: Pydantic"):
        JsonConverter(Odd)


def test_pydantic_is_not_imported_by_us(models):
    code = (
        "import sys, shoal\n"
        "@shoal.model\n"
        "def f(x: dict) -> dict: ...\n"
        "assert not {'pydantic', 'PIL', 'starlette', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
