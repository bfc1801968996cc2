"""What a person sent: values of forms and JSON alike, and what is said where one is wrong."""

import math

import pytest

from shoal.errors import InvalidArgument
from shoal.tasks.request import TaskRequest


def asked(**values):
    return TaskRequest(values=values)


def test_a_text_is_taken_as_it_is():
    assert asked(question="Wer?").text("question", longest=10) == "Wer?"
    assert asked().text("question", longest=10, default="-") == "-"
    assert asked(question="").text("question", longest=10) == ""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "'question' is missing"),
        (7, "'question' must be a text, not a number"),
        (True, "'question' must be a text, not true or false"),
        (["a"], "'question' must be a text, not a list"),
        ({"a": 1}, "'question' must be a text, not an object"),
        ("x" * 1001, "'question' has 1,001 characters, at most 1,000 are allowed"),
    ],
)
def test_what_is_not_such_a_text_is_told(value, said):
    with pytest.raises(InvalidArgument, match=said):
        asked(question=value).text("question", longest=1000)


@pytest.mark.parametrize("value", [3, "3", " 3 ", "+3"])
def test_whole_numbers_come_as_numbers_and_as_text(value):
    assert asked(top=value).integer("top", 5, lowest=1, highest=10) == 3


@pytest.mark.parametrize("value", [0, 11, "0", "", "three", 3.0, "3.0", True, [3], math.inf])
def test_other_than_whole_numbers_within_bounds_are_refused(value):
    with pytest.raises(InvalidArgument, match="'top' must be a whole number from 1 to 10, not "):
        asked(top=value).integer("top", 5, lowest=1, highest=10)


@pytest.mark.parametrize(("value", "number"), [(None, 0.5), (1, 1.0), ("0.25", 0.25), (0.0, 0.0)])
def test_numbers(value, number):
    assert asked(score=value).number("score", 0.5, lowest=0, highest=1) == number


@pytest.mark.parametrize("value", [-0.1, 1.1, "nan", math.nan, "much", True, [], "inf"])
def test_other_than_numbers_within_bounds_are_refused(value):
    with pytest.raises(InvalidArgument, match="'score' must be a number from 0 to 1, not "):
        asked(score=value).number("score", 0.5, lowest=0, highest=1)


@pytest.mark.parametrize(
    ("value", "flag"), [(None, True), (False, False), ("no", False), ("ON", True), ("1", True)]
)
def test_flags(value, flag):
    assert asked(stream=value).flag("stream", default=True) is flag


@pytest.mark.parametrize("value", ["maybe", "", 1, 0, []])
def test_other_than_flags_are_refused(value):
    with pytest.raises(InvalidArgument, match="'stream' must be true or false, not "):
        asked(stream=value).flag("stream")


def test_a_long_wrong_value_is_not_repeated_in_full():
    with pytest.raises(InvalidArgument) as caught:
        asked(top="x" * 10_000).integer("top", 5, lowest=1, highest=10)
    assert len(caught.value.message) < 200
