import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core import dtypes
from shoal.core.dtypes import BY_NAME
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument
from shoal.wire import json_data, json_text

MOST = 1 << 20


def read(datatype, shape, data, most=MOST):
    return json_data.read("x", BY_NAME[datatype], shape, math.prod(shape), data, most)


def nested(depth, value):
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("BOOL", [True, False], [True, False]),
        ("UINT8", [255, 256], [255, 0]),  # the low bits stay, as in C
        ("UINT16", [65537, 0], [1, 0]),
        ("UINT32", [2**64 - 1, 2**32], [2**32 - 1, 0]),
        ("UINT64", [2**64 - 1, 0], [2**64 - 1, 0]),
        ("INT8", [200, -129], [-56, 127]),
        ("INT16", [32768, -1], [-32768, -1]),
        ("INT32", [2**31, 2**63 - 1], [-(2**31), -1]),
        ("INT64", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        ("FP32", [1, 0.5], [1.0, 0.5]),
        ("FP32", [1e300, -math.inf], [math.inf, -math.inf]),
        ("FP64", [2**64 - 1, 1e300], [float(2**64 - 1), 1e300]),
        ("BYTES", ["é", ""], ["é".encode(), b""]),
    ],
)
@pytest.mark.parametrize("nest", [lambda d: d, lambda d: [d], lambda d: [[x] for x in d]])
def test_elements_are_read(datatype, data, expected, nest):
    tensor = read(datatype, (2,), nest(data))
    assert tensor.array.dtype == BY_NAME[datatype].numpy
    assert tensor.array.tolist() == expected


def test_nan_is_an_element():
    assert math.isnan(read("FP32", (1,), [math.nan]).array[0])


@pytest.mark.parametrize(
    ("datatype", "data", "problem"),
    [
        ("BOOL", [1, 0], "non-boolean as boolean"),
        ("BOOL", [True, None], "non-boolean as boolean"),
        ("UINT8", [-1, 1], "non-unsigned-integer as unsigned-integer"),
        ("UINT8", [1.0, 1], "non-unsigned-integer as unsigned-integer"),
        ("UINT64", [True, 1], "non-unsigned-integer as unsigned-integer"),
        ("INT8", [1.5, 1], "non-signed-integer as signed-integer"),
        ("INT64", [2**63, 1], "non-signed-integer as signed-integer"),
        ("INT64", [-(2**63) - 1, 1], "non-signed-integer as signed-integer"),
        ("UINT64", [2**64, 1], "non-unsigned-integer as unsigned-integer"),
        ("FP64", [10**400, 1], "non-number as double"),
        ("INT32", [math.nan, 1], "non-signed-integer as signed-integer"),
        ("INT32", ["1", 1], "non-signed-integer as signed-integer"),
        ("FP32", ["1", 1], "non-number as double"),
        ("FP32", [True, 1], "non-number as double"),
        ("FP64", [{}, 1], "non-number as double"),
        ("BYTES", ["a", 1], "non-string as string"),
        ("BYTES", ["a", None], "non-string as string"),
        ("INT32", 1, "non-array as array"),
        ("INT32", "12", "non-array as array"),
        ("INT32", {"0": 1}, "non-array as array"),
        ("INT32", None, "non-array as array"),
    ],
)
def test_wrong_elements_are_refused(datatype, data, problem):
    with pytest.raises(InvalidArgument) as caught:
        read(datatype, (2,), data)
    expected = f"Unable to parse 'data': attempt to access JSON {problem} for input 'x'"
    assert caught.value.message == expected


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_are_refused_unless_empty(datatype):
    with pytest.raises(InvalidArgument) as caught:
        read(datatype, (1,), [1.0])
    assert caught.value.message == (
        f"receiving {datatype} data via JSON is not supported. Please use the binary data format "
        f"for input x"
    )
    assert read(datatype, (0, 2), []).array.shape == (0, 2)


@pytest.mark.parametrize("datatype", ["INT32", "BYTES"])
@pytest.mark.parametrize(
    ("count", "text"),
    [
        (3, "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        (1, "Failed to parse 'data' field: shape does not match true shape"),
        (0, "Failed to parse 'data' field: shape does not match true shape"),
    ],
)
def test_element_count_must_match(datatype, count, text):
    with pytest.raises(InvalidArgument) as caught:
        read(datatype, (1, 2), [1 if datatype == "INT32" else "1"] * count)
    detail = f" for input 'x': shape [1,2] has 2 elements, but 'data' holds {count}"
    assert caught.value.message == text + detail


def test_scalars_and_empty_tensors():
    assert read("INT32", (), [7]).array.shape == ()
    assert read("INT32", (2, 0), [[], []]).array.shape == (2, 0)


@pytest.mark.parametrize("value", ["a", 5])
def test_nesting_has_a_limit(value):
    datatype = "BYTES" if value == "a" else "INT64"
    assert read(datatype, (1,), nested(99, value)).element_count == 1
    with pytest.raises(InvalidArgument) as caught:
        read(datatype, (1,), nested(100, value))
    assert caught.value.message == "JSON nesting depth exceeds maximum allowed limit (100)"


def test_uneven_nesting_has_the_same_limit():
    assert read("INT64", (2,), [1, nested(98, 2)]).array.tolist() == [1, 2]
    with pytest.raises(InvalidArgument, match="nesting depth"):
        read("INT64", (2,), [1, nested(99, 2)])


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "size"),
    [("INT64", (3,), [1, 2, 3], 24), ("BYTES", (2,), ["abcd", "é"], 14)],
)
def test_size_has_a_limit(datatype, shape, data, size):
    read(datatype, shape, data, most=size)
    with pytest.raises(InvalidArgument) as caught:
        read(datatype, shape, data, most=size - 1)
    assert caught.value.message == (
        f"JSON input 'x' has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
        f"{size - 1} bytes. Use --http-max-input-size to increase the limit."
    )


def test_a_huge_shape_allocates_nothing():
    with pytest.raises(InvalidArgument, match="exceeds the maximum allowed value"):
        read("INT64", (2**50,), [1])


trees = st.recursive(st.integers(), st.lists, max_leaves=30).filter(lambda t: isinstance(t, list))


def leaves(tree):
    return [leaf for branch in tree for leaf in leaves(branch)] if type(tree) is list else [tree]


@given(trees)
def test_flatten_keeps_the_order_of_any_nesting(tree):
    assert json_data.flatten(tree) == leaves(tree)
    assert json_data._flatten_uneven(tree) == leaves(tree)


def written(array, datatype=None):
    return json_text.dumps(json_data.write(Tensor.from_array("y", array, datatype)))


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array([[True], [False]]), b"[true,false]"),
        (np.array([[1, 2], [3, 4]], np.uint8), b"[1,2,3,4]"),
        (np.array([2**64 - 1], np.uint64), b"[18446744073709551615]"),
        (np.array([-(2**63)], np.int64), b"[-9223372036854775808]"),
        (np.array(1.5, np.float32), b"[1.5]"),
        (np.array([0.1], np.float32), b"[0.10000000149011612]"),
        (np.array([0.1], np.float64), b"[0.1]"),
        (np.array([math.nan, math.inf, -math.inf, 1], np.float32), b"[NaN,Infinity,-Infinity,1.0]"),
        (np.array([math.nan], np.float64), b"[NaN]"),
        (np.array([b"a", "é", b""], object), '["a","é",""]'.encode()),
        (np.zeros((0, 2), np.int32), b"[]"),
        (np.zeros((0,), object), b"[]"),
        (np.arange(6, dtype=np.int16).reshape(2, 3).T, b"[0,3,1,4,2,5]"),
        (np.array([1, 2], ">i4"), b"[1,2]"),
    ],
)
def test_outputs_are_written_flat(array, text):
    assert written(array) == text


@pytest.mark.parametrize(
    ("array", "datatype"),
    [(np.zeros(1, np.float16), dtypes.FP16), (np.zeros(1, np.uint16), dtypes.BF16)],
)
def test_half_floats_are_not_written(array, datatype):
    with pytest.raises(InvalidArgument) as caught:
        written(array, datatype)
    assert caught.value.message == (
        f"sending {datatype.name} data via JSON is not supported. Please use the binary data "
        f"format for output y"
    )


def test_bytes_that_are_no_text_ask_for_binary():
    with pytest.raises(InvalidArgument, match=r"output 'y' .* not valid UTF-8 .* 'binary_data': t"):
        written(np.array([b"\xff"], object))


def test_floats_survive_the_text():
    # The shortest decimal of this float, read as a double, rounds to its neighbour.
    array = np.array([0x15AE43FD], np.uint32).view(np.float32)
    assert np.float32(float(str(array[0]))) != array[0]
    (value,) = json_text.loads(written(array))
    assert np.float32(value) == array[0]


@pytest.mark.parametrize(
    "array",
    [
        np.arange((1 << 16) + 2, dtype=np.int32),
        np.linspace(0, 1, (2 << 16) + 1, dtype=np.float32),
        np.array([b"a", b'"'] * (1 << 16), object),
    ],
    ids=["integers", "floats", "texts"],
)
def test_many_elements_are_written_in_pieces(array):
    parts = json_text.dumps_parts({"data": json_data.write(tensor(array)), "more": [1]})
    assert len(parts) > 3
    read_back = json_text.loads(b"".join(parts))["data"]
    expected = [e.decode() for e in array] if array.dtype == object else array.tolist()
    assert read_back == expected


def tensor(array):
    return Tensor.from_array("x", array, dtypes.BYTES if array.dtype == object else None)
