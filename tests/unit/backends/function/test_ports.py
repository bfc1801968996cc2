"""What a function sees of a tensor, and what becomes of what it returns."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.backends.function.hints import ArgumentKind
from shoal.backends.function.ports import Port
from shoal.core.dtypes import BOOL, BYTES, FP32, INT64, UINT8
from shoal.errors import BackendFailure, InvalidArgument


def words(*elements):
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def test_an_array_is_the_functions_own():
    sent = np.frombuffer(np.arange(3, dtype="<f4").tobytes(), "<f4")
    got = Port("x", "x", FP32, (-1,)).receive(sent)
    got += 1
    assert sent.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("port", "sent", "seen"),
    [
        (
            Port("x", "x", BYTES, (1,), ArgumentKind.VALUE, True, True, True),
            words(b"a\xc3\xb6"),
            "aö",
        ),
        (
            Port("x", "x", BYTES, (1,), ArgumentKind.VALUE, False, True, True),
            words(b"\xff"),
            b"\xff",
        ),
        (Port("x", "x", BYTES, (-1,), ArgumentKind.LIST, True), words(b"a", b"b"), ["a", "b"]),
        (Port("x", "x", INT64, (1,), ArgumentKind.VALUE, False, True, True), np.array([7]), 7),
        (
            Port("x", "x", BYTES, (1,), ArgumentKind.LIST, True, False, True, True),
            words(b"a", b"b").reshape(2, 1),
            ["a", "b"],
        ),
        (
            Port("x", "x", FP32, (-1,), ArgumentKind.LIST, batched=True),
            np.ones((2, 3), np.float32),
            [[1.0] * 3] * 2,
        ),
    ],
)
def test_receive(port, sent, seen):
    got = port.receive(sent)
    assert got == seen
    assert type(got) is type(seen)


def test_text_in_arrays():
    got = Port("x", "x", BYTES, (-1,), text=True).receive(words(b"a", b"bcd"))
    assert got.dtype.kind == "U"
    assert got.tolist() == ["a", "bcd"]
    got = Port("x", "x", BYTES, (-1,)).receive(words(b"a", b"bcd"))
    assert got.tolist() == [b"a", b"bcd"]


def test_what_is_no_text_is_the_clients_mistake():
    with pytest.raises(InvalidArgument, match="input 'x' is not UTF-8 text"):
        Port("x", "x", BYTES, (-1,), text=True).receive(words(b"\xff"))


@pytest.mark.parametrize(
    ("port", "returned", "expected"),
    [
        (Port("y", "", FP32, (-1,)), [1, 2], [1, 2]),
        (Port("y", "", FP32, (1,)), 3, [3]),
        (Port("y", "", FP32, (-1,)), np.float64(3), [3]),
        (Port("y", "", UINT8, (-1,)), [1, 255], [1, 255]),
        (Port("y", "", BOOL, (1,)), True, [True]),
        (Port("y", "", BYTES, (1,)), "aö", [b"a\xc3\xb6"]),
        (Port("y", "", BYTES, (-1,)), np.array(["a", "b"]), [b"a", b"b"]),
        (Port("y", "", BYTES, (-1,)), [b"a", "b"], [b"a", b"b"]),
        (Port("y", "", BYTES, (1,), batched=True), ["a", "b"], [[b"a"], [b"b"]]),
        (Port("y", "", FP32, (-1,), batched=True), np.ones(2), [[1], [1]]),
        (Port("y", "", FP32, (2, 1), batched=True), np.ones((2, 2, 1)), [[[1], [1]]] * 2),
    ],
)
def test_give(port, returned, expected):
    given = port.give(returned, 2)
    assert given.tolist() == expected
    assert given.dtype == port.datatype.numpy


def test_what_was_returned_may_change_afterwards():
    mine = np.ones(3, np.float32)
    given = Port("y", "", FP32, (-1,)).give(mine, 1)
    mine[:] = 0
    assert given.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("port", "returned", "sentence"),
    [
        (
            Port("y", "", INT64, (-1,)),
            np.ones(2),
            "is INT64, but the function returned FP64; convert it, for instance with .astype(np.int64)",
        ),
        (Port("y", "", FP32, (-1,)), "text", "the function returned an object of type str"),
        (Port("y", "", FP32, (-1,)), None, "the function returned an object of type NoneType"),
        (Port("y", "", FP32, (-1,)), [[1], [2, 3]], "output 'y' is no array"),
        (Port("y", "", UINT8, (-1,)), [-1], "output 'y' has numbers that UINT8 cannot be"),
        (Port("y", "", BYTES, (-1,)), [1], "should hold text, but has an element of type int"),
        (
            Port("y", "", FP32, (3,)),
            np.ones(2),
            "output 'y' has shape [2], but [3] is declared; a shape is declared as Annotated",
        ),
        (Port("y", "", FP32, (-1,)), np.ones((2, 2)), "has shape [2,2], but [-1] is declared"),
        (
            Port("y", "", FP32, (3,), batched=True),
            np.ones((2, 3)),
            "output 'y' has 2 rows for a batch of 4: return one row for each row of the inputs",
        ),
    ],
)
def test_what_does_not_fit(port, returned, sentence):
    with pytest.raises(BackendFailure) as caught:
        port.give(returned, 4)
    assert sentence in caught.value.message
