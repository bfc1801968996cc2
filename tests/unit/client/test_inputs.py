"""Values as tensors, and bytes as arrays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client import Input, InvalidInput
from shoal.client.inputs import Placed, bfloat16_bits, decoded, needs_spec, tensor
from shoal.errors import InvalidArgument


def raw(made):
    return bytes(made.raw)


def test_a_plain_array():
    made = tensor("x", np.arange(3, dtype=np.int16))
    assert (made.datatype, made.shape, made.nbytes) == ("INT16", (3,), 6)
    assert raw(made) == b"\x00\x00\x01\x00\x02\x00"


def test_a_large_array_is_not_copied():
    array = np.zeros(100_000, np.float32)
    made = tensor("x", array)
    array[0] = 1
    assert np.frombuffer(made.raw, np.float32)[0] == 1


@pytest.mark.parametrize(
    ("value", "spec", "datatype", "expected"),
    [
        ([1, 2], "FP32", "FP32", np.array([1, 2], np.float32)),
        ([1.0, 2.5], "", "FP32", np.array([1, 2.5], np.float32)),
        ([1, 2], "", "INT64", np.array([1, 2])),
        ([1, 2], "UINT8", "UINT8", np.array([1, 2], np.uint8)),
        ([True], "BOOL", "BOOL", np.array([True])),
        (3, "INT32", "INT32", np.array(3, np.int32)),
        ((1, 2), "INT8", "INT8", np.array([1, 2], np.int8)),
        (np.float32(1), "", "FP32", np.array(1, np.float32)),
        (np.array([1], ">u4"), "", "UINT32", np.array([1], np.uint32)),
    ],
)
def test_values_become_what_the_model_takes(value, spec, datatype, expected):
    made = tensor("x", value, spec)
    assert made.datatype == datatype
    assert made.shape == expected.shape
    assert raw(made) == expected.tobytes()


def test_text_keeps_its_zero_bytes():
    made = tensor("x", [[b"a\x00", "é"]], "BYTES")
    assert made.shape == (1, 2)
    assert raw(made) == b"\x02\x00\x00\x00a\x00\x02\x00\x00\x00\xc3\xa9"
    assert raw(tensor("x", "ab")) == b"\x02\x00\x00\x00ab"


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        ([1.5], "INT32", "takes INT32, found numbers"),
        ([300], "UINT8", "takes UINT8"),
        (["a"], "FP32", "takes FP32, found text"),
        ([1], "BYTES", "element of type int"),
        ([[1], [1, 2]], "FP32", "rows of equal length"),
        (np.array([1j]), "", "complex128"),
        (Input([1], "WHAT"), "", "known ones are"),
        (Input([1, 2], "INT8", (3,)), "", "do not match the shape"),
        (Input(b"12345", "FP32", (1,)), "", "takes 4 bytes, found 5"),
        (["\ud800"], "BYTES", "not valid Unicode"),
    ],
)
def test_values_that_are_no_input(value, spec, text):
    with pytest.raises(InvalidInput, match=text) as caught:
        tensor("x", value, spec)
    assert "'x'" in str(caught.value)


def test_who_needs_the_model_to_say_the_type():
    assert needs_spec([1])
    assert needs_spec(Input([1]))
    assert not needs_spec(Input([1], "FP32"))
    assert not needs_spec(np.zeros(1))
    assert not needs_spec(Placed("r", 0, 4, "FP32", (1,)))


@given(st.lists(st.floats(width=32), max_size=20))
def test_bfloat16_is_rounded_as_others_do(numbers):
    array = np.array(numbers, np.float32)
    ours = bfloat16_bits(array).view(ml_dtypes.bfloat16).astype(np.float32)
    with np.errstate(all="ignore"):
        theirs = array.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(ours, theirs)


def test_bfloat16_in_all_its_forms():
    numbers = np.array([1.5, -2.0], np.float32)
    bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    for value in (Input(bits, "BF16"), numbers.astype(ml_dtypes.bfloat16), Input(numbers, "BF16")):
        made = tensor("x", value)
        assert made.datatype == "BF16"
        assert raw(made) == bits.tobytes()
    assert raw(tensor("x", [1.5, -2], "BF16")) == bits.tobytes()
    np.testing.assert_array_equal(decoded("BF16", [2], bits.tobytes(), "x"), numbers)


def test_what_was_received():
    assert decoded("BYTES", [2], b"\x01\x00\x00\x00a\x00\x00\x00\x00", "x").tolist() == [b"a", b""]
    odd = memoryview(bytearray(b"\xff" + np.array([1.5, 2.5]).tobytes()))[1:]
    array = decoded("FP64", [2], odd, "x")
    assert array.flags.aligned
    assert array.tolist() == [1.5, 2.5]
    with pytest.raises(InvalidArgument, match="takes 8"):
        decoded("FP32", [2], b"abc", "x")
