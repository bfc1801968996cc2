"""Triton's conventions for the names of a PyTorch model's inputs and outputs."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from shoal.backends.pytorch.names import Slot, index_of, places, walk, warn_of_order
from shoal.errors import ConfigError

IMAGE_AND_MASK = (Slot(("image", "ARGS[0]")), Slot(("mask", "ARGS[1]")))


def found(written, slots=IMAGE_AND_MASK, kind="input"):
    return places(kind, written, slots, model="m", file="m/config.pbtxt")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["image", "mask"], (0, 1)),
        (["mask", "image"], (1, 0)),  # names go before the order
        (["mask"], (1,)),
        (["ARGS[1]", "image"], (1, 0)),
        (["INPUT__1", "INPUT__0"], (1, 0)),
        (["a__0", "b__1"], (0, 1)),
        (["one", "two"], (0, 1)),  # neither: the order
        (["mask", "INPUT__0"], (0, 1)),  # not one rule for both: the order, as in Triton
        (["a__b__1", "x"], (0, 1)),
    ],
)
def test_places(written, expected):
    assert found(written) == expected


@pytest.mark.parametrize(
    ("name", "index"),
    [("INPUT__0", 0), ("x__12", 12), ("INPUT_0", None), ("INPUT__", None), ("a__b", None)],
)
def test_index_of(name, index):
    assert index_of(name) == index


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (["INPUT__0", "INPUT__2"], "The input INPUT__2 in the model configuration refers to an "),
        (["INPUT__0", "other__0"], "the inputs 'INPUT__0' and 'other__0' stand for the same input"),
        (["image", "ARGS[0]"], "stand for the same input"),
        (["a", "b", "c"], "configuration expects 3 inputs, model provides 2"),
    ],
)
def test_names_that_do_not_fit(written, text):
    with pytest.raises(ConfigError) as raised:
        found(written)
    assert text in raised.value.message
    assert raised.value.fix


def test_the_choice_is_told():
    with pytest.raises(ConfigError, match=r"image, mask\), or INPUT__0 to INPUT__1"):
        found(["INPUT__7"])


def test_an_unknown_number_of_outputs():
    assert found(["OUTPUT__1", "OUTPUT__0"], None, "output") == (1, 0)
    assert found(["probability", "label"], None, "output") == (0, 1)


def test_order_is_warned_of(caplog):
    for written in (["image", "mask"], ["INPUT__0", "INPUT__1"], ["alone"]):
        warn_of_order("input", written, IMAGE_AND_MASK, model="m", file="f")
    assert not caplog.records
    warn_of_order("input", ["one", "two"], IMAGE_AND_MASK, model="m", file="f")
    assert "the inputs one, two of model 'm'" in caplog.text
    assert "in the order in which they are listed" in caplog.text


class Pair(NamedTuple):
    sum: int
    difference: int


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (1, [("RESULT",)]),
        (("a", "b"), [("RESULT[0]",), ("RESULT[1]",)]),
        ({"x": 1, "y": 2}, [("x", "RESULT[x]"), ("y", "RESULT[y]")]),
        ({"x": (1, {"k": 2})}, [("RESULT[x][0]",), ("RESULT[x][1][k]",)]),
        (Pair(1, 2), [("sum", "RESULT[0]"), ("difference", "RESULT[1]")]),
        (["two", "strings"], [("RESULT",)]),  # a list of strings is one value
        ([1, 2], [("RESULT[0]",), ("RESULT[1]",)]),
    ],
)
def test_walk(tree, expected):
    assert walk(tree, "RESULT") == expected


def test_keys_are_names_only_where_they_are_asked_for():
    assert walk({"x": 1}, "ARGS[0]", keys=False) == [("ARGS[0][x]",)]
