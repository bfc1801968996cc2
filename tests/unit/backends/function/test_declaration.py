"""What a decorated function becomes, and the sentence where it cannot become anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

import shoal
from shoal.backends.function import declaration as declarations
from shoal.errors import ConfigError, InvalidArgument

Floats = npt.NDArray[np.float32]


def config_of(function):
    found = declarations.of(function)
    assert found is not None
    return found.config


def tensors(entries):
    return [(t.name, t.data_type.removeprefix("TYPE_"), t.dims) for t in entries]


# ---- types


def test_an_alias_means_the_type_it_stands_for():
    """`type Array[T] = ...`: numpy's NDArray is one from 2.5 on."""
    typing_extensions = pytest.importorskip("typing_extensions")
    scalar = TypeVar("scalar")
    array = typing_extensions.TypeAliasType(
        "Array", np.ndarray[Any, np.dtype[scalar]], type_params=(scalar,)
    )
    floats = typing_extensions.TypeAliasType("FloatArray", array[np.float32])

    def double(x):
        return x * 2.0

    double.__annotations__ = {"x": floats, "return": array[np.float64]}
    config = config_of(shoal.model(double))
    assert tensors(config.input) == [("x", "FP32", (-1,))]
    assert tensors(config.output) == [("output", "FP64", (-1,))]


class Sums(NamedTuple):
    sum: Floats
    difference: Floats


class Scores(TypedDict):
    label: npt.NDArray[np.str_]
    score: Floats


@dataclass
class Box:
    corners: Annotated[npt.NDArray[np.int32], (4,)]


def one_array(x: Floats) -> Floats: ...
def one_value(name: str) -> str: ...
def numbers(a: float, b: int, c: bool, d: np.float32) -> float: ...
def lists(words: list[str], numbers: list[list[float]]) -> list[bytes]: ...
def rank(x: np.ndarray[tuple[int, Literal[3]], np.dtype[np.int8]]) -> Floats: ...
def shaped(x: Annotated[Floats, (3, None)]) -> Annotated[Floats, shoal.Tensor(shape=(7,))]: ...
def several(x: Floats) -> tuple[Floats, npt.NDArray[np.int64]]: ...
def named(x: Floats) -> Sums: ...
def typed_dict(x: Floats) -> Scores: ...
def data_class(x: Floats) -> Box: ...
def renamed(x: Annotated[Floats, shoal.Tensor(name="INPUT0")]) -> Floats: ...
def scalar(x: np.ndarray[tuple[()], np.dtype[np.int16]]) -> int: ...


@pytest.mark.parametrize(
    ("function", "inputs", "outputs"),
    [
        (one_array, [("x", "FP32", (-1,))], [("output", "FP32", (-1,))]),
        (one_value, [("name", "STRING", (1,))], [("output", "STRING", (1,))]),
        (
            numbers,
            [
                ("a", "FP64", (1,)),
                ("b", "INT64", (1,)),
                ("c", "BOOL", (1,)),
                ("d", "FP32", (1,)),
            ],
            [("output", "FP64", (1,))],
        ),
        (
            lists,
            [("words", "STRING", (-1,)), ("numbers", "FP64", (-1, -1))],
            [("output", "STRING", (-1,))],
        ),
        (rank, [("x", "INT8", (-1, 3))], [("output", "FP32", (-1,))]),
        (shaped, [("x", "FP32", (3, -1))], [("output", "FP32", (7,))]),
        (
            several,
            [("x", "FP32", (-1,))],
            [("output0", "FP32", (-1,)), ("output1", "INT64", (-1,))],
        ),
        (
            named,
            [("x", "FP32", (-1,))],
            [("sum", "FP32", (-1,)), ("difference", "FP32", (-1,))],
        ),
        (
            typed_dict,
            [("x", "FP32", (-1,))],
            [("label", "STRING", (-1,)), ("score", "FP32", (-1,))],
        ),
        (data_class, [("x", "FP32", (-1,))], [("corners", "INT32", (4,))]),
        (renamed, [("INPUT0", "FP32", (-1,))], [("output", "FP32", (-1,))]),
        (scalar, [("x", "INT16", (1,))], [("output", "INT64", (1,))]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_types_say_what_a_model_takes_and_gives(function, inputs, outputs):
    config = shoal.model(function) and config_of(function)
    assert tensors(config.input) == inputs
    assert tensors(config.output) == outputs
    assert config.max_batch_size == 0
    assert config.dynamic_batching is None
    assert config.backend == "function"


def batched_array(x: Floats) -> Floats: ...
def batched_list(text: list[str]) -> list[float]: ...
def batched_nested(x: list[list[int]]) -> Floats: ...
def batched_rank(x: np.ndarray[tuple[int, int, Literal[3]], np.dtype[np.uint8]]) -> Floats: ...
def batched_flat(x: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Floats: ...
def batched_shape(x: Annotated[Floats, (3, 8)]) -> Floats: ...


@pytest.mark.parametrize(
    ("function", "dims"),
    [
        (batched_array, (-1,)),
        (batched_list, (1,)),
        (batched_nested, (-1,)),
        (batched_rank, (-1, 3)),
        (batched_flat, (1,)),
        (batched_shape, (3, 8)),
    ],
)
def test_with_a_batch_the_first_dimension_is_not_part_of_the_config(function, dims):
    shoal.model(batch=16, max_delay_ms=1.5, instances=2)(function)
    config = config_of(function)
    assert config.input[0].dims == dims
    assert config.max_batch_size == 16
    assert config.dynamic_batching.max_queue_delay_microseconds == 1500
    assert config.instance_group[0].count == 2


def test_types_may_be_said_outright():
    @shoal.model(
        name="other",
        inputs={"x": shoal.Tensor(np.float32, (3, -1), name="IN"), "y": "FP16", "z": (str, (2,))},
        outputs={"a": np.int32, "b": shoal.Tensor("TYPE_STRING", labels="labels.txt")},
    )
    def function(x, y: np.ndarray, z): ...

    config = config_of(function)
    assert config.name == "other"
    assert tensors(config.input) == [
        ("IN", "FP32", (3, -1)),
        ("y", "FP16", (-1,)),
        ("z", "STRING", (2,)),
    ]
    assert tensors(config.output) == [("a", "INT32", (-1,)), ("b", "STRING", (-1,))]
    assert config.output[1].label_filename == "labels.txt"


def test_names_may_be_listed_beside_types():
    @shoal.model(inputs=["INPUT0", "INPUT1"], outputs=["SUM", "DIFFERENCE"])
    def function(a: Floats, b: Floats) -> tuple[Floats, Floats]: ...

    config = config_of(function)
    assert [tensor.name for tensor in config.input] == ["INPUT0", "INPUT1"]
    assert [tensor.name for tensor in config.output] == ["SUM", "DIFFERENCE"]


def test_a_dict_needs_only_its_names():
    @shoal.model(outputs=["a", "b"])
    def function(x: Floats) -> dict[str, Floats]: ...

    assert tensors(config_of(function).output) == [("a", "FP32", (-1,)), ("b", "FP32", (-1,))]


def test_any_inputs_by_name():
    @shoal.model(inputs={"a": "FP32", "b": "INT8"}, outputs={"c": "FP32"})
    def function(**inputs): ...

    assert tensors(config_of(function).input) == [("a", "FP32", (-1,)), ("b", "INT8", (-1,))]


def test_what_has_a_default_is_optional():
    @shoal.model
    def function(a: str, b: int = 3, c: Optional[str] = None, d: str | None = None) -> str: ...  # noqa: UP045

    assert [tensor.optional for tensor in config_of(function).input] == [False, True, True, True]


def test_a_function_without_inputs():
    @shoal.model
    def function() -> float: ...

    assert config_of(function).input == ()


# ---- kinds


def test_generators_are_decoupled():
    @shoal.model
    def stream(n: int) -> Iterator[str]:
        yield ""

    @shoal.model
    async def later(n: int) -> AsyncIterator[int]:
        yield 1

    for function in (stream, later):
        assert config_of(function).model_transaction_policy.decoupled
    assert tensors(config_of(later).output) == [("output", "INT64", (1,))]


def test_async_functions_may_wait_many_at_a_time():
    @shoal.model
    async def waits(n: int) -> int: ...

    @shoal.model(instances=3)
    async def three(n: int) -> int: ...

    @shoal.model(batch=8)
    async def batches(n: list[int]) -> list[int]: ...

    counts = [config_of(function).instance_group[0].count for function in (waits, three, batches)]
    assert counts == [32, 3, 1]


def test_a_class_is_known_by_its_method():
    @shoal.model(batch=4)
    class Model:
        def __call__(self, x: Floats) -> Floats: ...

    @shoal.model
    class Predictor:
        def predict(self, text: str) -> float: ...

    assert config_of(Model).name == "Model"
    assert config_of(Model).max_batch_size == 4
    assert tensors(config_of(Predictor).input) == [("text", "STRING", (1,))]


def test_a_decorated_function_can_still_be_called():
    @shoal.model(batch=8)
    def double(x: Floats) -> Floats:
        return 2 * x

    assert double(21) == 42


def test_a_method_of_an_object_is_a_model():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        def times(self, x: float) -> float:
            return self.factor * x

    triple = shoal.model(Scale(3).times, name="triple")
    assert config_of(triple).name == "triple"
    assert triple(2.0) == 6.0


def test_one_function_may_be_two_models():
    def echo(x: str) -> str:
        return x

    one, two = shoal.model(echo, name="one"), shoal.model(echo, name="two")
    assert config_of(one).name == "one"
    assert config_of(two).name == "two"


def test_everything_else_is_text_of_a_config():
    @shoal.model(
        batch=4,
        config="""
            response_cache { enable: true }
            dynamic_batching { preferred_batch_size: [ 2 ] }
            parameters { key: "k" value: { string_value: "v" } }
        """,
    )
    def function(x: Floats) -> Floats: ...

    config = config_of(function)
    assert config.response_cache.enable
    assert config.dynamic_batching.preferred_batch_size == (2,)
    assert config.parameters["k"].string_value == "v"
    assert config.max_batch_size == 4


# ---- mistakes


def test_the_sentence_names_file_function_argument_and_fix():
    with pytest.raises(ConfigError) as caught:

        @shoal.model
        def broken(x) -> Floats: ...

    file, line, rest = caught.value.message.split(":", 2)
    assert file.endswith("test_declaration.py")
    assert line.isdecimal()
    assert rest == (
        " broken(x): the argument has no type. Write npt.NDArray[np.float32], list[str], float, "
        "bytes or dict, or declare it with inputs="
    )


def no_return(x: Floats): ...
def no_element_type(x: np.ndarray) -> Floats: ...
def wrong_type(x: dict[str, complex]) -> Floats: ...
def wrong_union(x: str | complex) -> Floats: ...
def positional(x: Floats, /) -> Floats: ...
def rest(*x: Floats) -> Floats: ...
def needed(x: Floats | None) -> Floats: ...
def good(x: Floats) -> Floats: ...
def value(x: str) -> str: ...
def unknown_name(x: NoSuchType) -> Floats: ...  # noqa: F821


def yields(x: Floats) -> Iterator[Floats]:
    yield x


def yields_untyped(x: Floats):
    yield x


class Methodless:
    pass


@pytest.mark.parametrize(
    ("function", "settings", "sentence"),
    [
        (no_return, {}, "no_return(return): nothing says what it returns. Write ->"),
        (yields_untyped, {}, "nothing says what it yields. Write -> Iterator"),
        (no_element_type, {}, "no_element_type(x): the type of its elements is unknown"),
        (wrong_type, {}, "wrong_type(x): the type complex describes neither a tensor nor JSON"),
        (wrong_union, {}, "wrong_union(x): the type complex describes neither a tensor nor JSON"),
        (positional, {}, "inputs are passed by name"),
        (rest, {}, "inputs are passed by name"),
        (needed, {}, "clients may leave it out, but the function needs it. Give it a default"),
        (unknown_name, {}, "its types cannot be read: NameError"),
        (value, {"batch": 8}, "value(x): with batch= the function gets the rows of many requests"),
        (yields, {"batch": 8}, "it cannot have batch=. Remove batch="),
        (good, {"batch": True}, "batch= is True. Write the largest number of rows"),
        (good, {"batch": -1}, "batch= is -1"),
        (good, {"max_delay_ms": 3}, "there is no batch=. Add batch=32"),
        (good, {"batch": 2, "max_delay_ms": -1}, "max_delay_ms= is -1"),
        (good, {"instances": -1}, "instances= is -1"),
        (good, {"name": "a/b"}, "'a/b' cannot be a model's name"),
        (good, {"inputs": {"y": "FP32"}}, "names 'y', which is not an argument of the function"),
        (good, {"inputs": {"x": "FP64"}}, "the type is FP32, but the declaration says FP64"),
        (
            good,
            {"inputs": {"x": "FLOAT33"}},
            "'FLOAT33' is not a type of tensors; use a numpy type",
        ),
        (good, {"inputs": {"x": (np.float32, (0,))}}, "has the size 0"),
        (good, {"inputs": ["a", "b"]}, "inputs= lists 2 tensors, but the function has 1 argument"),
        (good, {"inputs": 3}, "inputs= is 3"),
        (good, {"outputs": "scores"}, "which could be a name or a type"),
        (good, {"outputs": ["a", "b"]}, "outputs= lists 2 tensors, but the type of what it"),
        (good, {"outputs": {}}, "outputs= is empty"),
        (good, {"outputs": [3]}, "a list of tensors has 3 in it"),
        (good, {"config": "max_batch_sise: 3"}, "unknown field 'max_batch_sise'"),
        (Methodless, {}, "the class has neither __call__ nor predict. Add def __call__"),
    ],
)
def test_mistakes(function, settings, sentence):
    with pytest.raises(ConfigError) as caught:
        shoal.model(**settings)(function)
    assert sentence in caught.value.message


def test_two_inputs_of_one_name():
    def function(a: Floats, b: Floats) -> Floats: ...

    with pytest.raises(ConfigError, match="two of its inputs are called 'IN'"):
        shoal.model(inputs=["IN", "IN"])(function)


def test_only_what_can_be_called_is_decorated():
    with pytest.raises(ConfigError, match="was given an object of type int"):
        shoal.model(32)


def test_two_models_of_one_name():
    first = shoal.model(lambda x: x, name="a", inputs={"x": "FP32"}, outputs={"y": "FP32"})
    second = shoal.model(lambda x: x, name="a", inputs={"x": "FP32"}, outputs={"y": "FP32"})
    with pytest.raises(ConfigError, match="another model is called 'a'"):
        declarations.of_all([first, second])
    assert list(declarations.of_all([first, first])) == ["a"]


def test_a_function_without_the_decorator_is_no_model():
    with pytest.raises(InvalidArgument, match=r"good is not a model; write @shoal\.model above it"):
        declarations.of_all([good])


def unpacked(outputs: Any, returned: Any):
    function = shoal.model(lambda: None, name="f", outputs=outputs)
    return declarations.of(function).unpack(returned)


@pytest.mark.parametrize(
    "returned", [(1, 2), [1, 2], {"b": 2, "a": 1}, {"a": 1, "b": 2, "c": 3}, Sums(1, 2)]
)
def test_what_a_function_returns_is_taken_apart(returned):
    assert unpacked({"a": "FP32", "b": "FP32"}, returned) == [1, 2]


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (3, "returned an object of type int; it has 2 outputs (a, b), so return a tuple or a dict"),
        ((1, 2, 3), "returned an object of type tuple"),
        ({"a": 1}, "returned a dict without its output 'b'; there is: a"),
    ],
)
def test_what_cannot_be_taken_apart(returned, sentence):
    with pytest.raises(shoal.ShoalError) as caught:
        unpacked({"a": "FP32", "b": "FP32"}, returned)
    assert sentence in caught.value.message
