"""Tensors in both forms, and BYTES elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core import bytes_tensor, dtypes
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument


@pytest.mark.parametrize("datatype", [d for d in dtypes.ALL if d.itemsize], ids=repr)
def test_bytes_and_numpy_are_two_views_of_one_thing(datatype):
    raw = bytes(range(datatype.itemsize * 6)) if datatype is not dtypes.BOOL else b"\0\1" * 3
    there = Tensor("x", datatype, (2, 3), raw=raw)
    assert there.array.shape == (2, 3)
    back = Tensor("x", datatype, (2, 3), array=there.array)
    assert bytes(back.raw) == raw
    assert back.nbytes == len(raw)


def test_received_bytes_are_not_copied():
    buffer = bytearray(12)
    array = Tensor("x", dtypes.INT32, (3,), raw=memoryview(buffer)).array
    assert np.shares_memory(array, np.frombuffer(buffer, np.uint8))


def test_results_are_not_copied():
    array = np.arange(4, dtype=np.int32)
    raw = Tensor.from_array("x", array).raw
    assert np.shares_memory(np.frombuffer(raw, np.uint8), array)


def test_rows_of_a_batch_that_are_not_contiguous_still_come_out_right():
    array = np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2]
    assert bytes(Tensor.from_array("x", array).raw) == array.tobytes()


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_bytes_round_trip(elements):
    raw = bytes_tensor.encode(elements)
    assert bytes_tensor.decode(raw, len(elements), "x").tolist() == elements


@given(st.binary(max_size=40), st.integers(0, 50))
def test_any_bytes_decode_or_are_refused(raw, count):
    try:
        elements = bytes_tensor.decode(raw, count, "x")
    except InvalidArgument:
        return
    assert bytes_tensor.encode(elements.tolist()) == raw


def test_a_huge_count_allocates_nothing():
    with pytest.raises(InvalidArgument):
        bytes_tensor.decode(b"\0\0\0\0", 2**60, "x")


@pytest.mark.parametrize("dtype", ["S3", "U3", object])
def test_numpy_strings_are_bytes(dtype):
    assert dtypes.from_numpy(np.array(["abc"], dtype=dtype).dtype) is dtypes.BYTES


def test_unknown_datatypes_are_named():
    with pytest.raises(InvalidArgument, match="FP8"):
        dtypes.from_name("FP8")
    with pytest.raises(InvalidArgument):
        dtypes.from_numpy(np.dtype("complex64"))


@pytest.mark.parametrize(
    ("raw", "count", "text"),
    [
        (b"\1\0\0\0a" * 3, 2, "unexpected number of string elements 3 for x, expecting 2"),
        (b"\4\0\0\0abcd" * 2, 3, "expected 3 string elements for x, got 2"),
        (b"\0\0\0\0", 2, "expected 2 string elements for x, got 1"),
        (b"\4\0\0\0abcd\1\0\0", 2, "length indicator for x, expecting 4 bytes but only 3 bytes"),
        (b"\4\0\0\0abc", 1, "expecting string of length 4 but only 3 bytes available"),
        (b"\7\0\0\0abc" + bytes(3), 2, "expecting string of length 7 but only 6 bytes available"),
        (b"\1\0\0\0", 2, "incomplete string data for x, expecting 2 elements"),
    ],
)
def test_strings_that_do_not_fit_their_number(raw, count, text):
    with pytest.raises(InvalidArgument, match=text):
        bytes_tensor.decode(raw, count, "x")


def test_more_strings_than_are_copied_at_once():
    elements = [b"%d" % number for number in range((1 << 16) + 3)]
    raw = bytes_tensor.encode(elements)
    assert bytes_tensor.decode(raw, len(elements), "x").tolist() == elements
    with pytest.raises(
        InvalidArgument, match=f"expected {len(elements) + 1} .* got {len(elements)}"
    ):
        bytes_tensor.decode(raw, len(elements) + 1, "x")


@pytest.mark.parametrize(
    ("count", "size", "slow"),
    [(100_000, 400_000, True), (1 << 40, 100, False), (1, 2 << 20, True), (1000, 100_000, False)],
)
def test_what_takes_long_to_decode(count, size, slow):
    assert bytes_tensor.is_slow(count, size) is slow
