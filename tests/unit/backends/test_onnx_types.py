"""Strings on their way to the runtime and back; what the runtime's words mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.backends.onnx_types import describe, strings_from_runtime, strings_to_runtime
from shoal.core.dtypes import BF16, FP32
from shoal.errors import InvalidArgument


def objects(elements, shape=None):
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(array.shape if shape is None else shape)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_text_survives_both_ways(texts):
    sent = objects([text.encode() for text in texts])
    there = strings_to_runtime(sent, "a")
    assert there.tolist() == texts
    assert strings_from_runtime(there).tolist() == sent.tolist()


def test_the_shape_stays():
    sent = objects([b"a", b"b", b"c", b"d"], (2, 1, 2))
    assert strings_to_runtime(sent, "a").shape == (2, 1, 2)
    assert strings_from_runtime(strings_to_runtime(sent, "a")).shape == (2, 1, 2)
    assert strings_to_runtime(objects([], (0, 3)), "a").shape == (0, 3)
    assert strings_to_runtime(objects([b"a"], ()), "a").shape == ()


def test_elements_of_one_length_pass_as_they_are():
    there = strings_to_runtime(objects([b"\xff\x00", b"\x00\xfe"]), "a")
    assert there.dtype == "V2"
    assert [item.tobytes() for item in there] == [b"\xff\x00", b"\x00\xfe"]


def test_other_bytes_are_refused():
    with pytest.raises(InvalidArgument, match=r"BYTES input 'a' is not UTF-8 text.*UINT8 tensor"):
        strings_to_runtime(objects([b"\xff", b"ab"]), "a")


@pytest.mark.parametrize(
    ("onnx_type", "shape", "datatype", "dims", "optional"),
    [
        ("tensor(float)", ["n", None, -1, 3], FP32, (-1, -1, -1, 3), False),
        ("tensor(bfloat16)", [], BF16, (), False),
        ("optional(tensor(float))", [2], FP32, (2,), True),
        ("tensor(float8e4m3fn)", [2], None, (2,), False),
        ("seq(tensor(float))", [], None, (), False),
        ("map(int64,tensor(float))", [], None, (), False),
        ("sparse_tensor(float)", [2], None, (2,), False),
    ],
)
def test_describe(onnx_type, shape, datatype, dims, optional):
    tensor = describe("a", onnx_type, shape)
    assert tensor.datatype is datatype
    assert (tensor.dims, tensor.optional) == (dims, optional)
