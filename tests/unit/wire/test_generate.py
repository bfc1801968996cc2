"""Plain JSON to tensors and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core import dtypes
from shoal.core.response import Response
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument, ShoalError
from shoal.wire.generate import decode_generate, encode_generate

INPUTS = {
    "text": TensorSpec("text", dtypes.BYTES, (1,)),
    "ids": TensorSpec("ids", dtypes.INT32, (-1,)),
    "pairs": TensorSpec("pairs", dtypes.FP32, (-1, 2)),
    "flag": TensorSpec("flag", dtypes.BOOL, (1, 1)),
}
MOST = 1 << 20


def decode(document, batch=0, most=MOST):
    body = document if isinstance(document, (bytes, str)) else json.dumps(document)
    body = body.encode() if isinstance(body, str) else body
    return decode_generate(body, Signature("m", batch, INPUTS, {}), max_json_bytes=most)


@pytest.mark.parametrize(
    ("batch", "key", "value", "shape", "elements"),
    [
        (0, "text", "hi", (1,), [b"hi"]),
        (8, "text", "hi", (1, 1), [b"hi"]),
        (8, "text", ["a", "b"], (2, 1), [b"a", b"b"]),
        (0, "ids", 7, (1,), [7]),
        (8, "ids", [1, 2, 3], (1, 3), [1, 2, 3]),
        (0, "pairs", [1, 2, 3, 4], (2, 2), [1, 2, 3, 4]),
        (8, "pairs", [1, 2, 3, 4], (1, 2, 2), [1, 2, 3, 4]),
        (0, "flag", True, (1, 1), [True]),
        (0, "ids", [], (0,), []),
    ],
)
def test_shapes_are_filled_from_the_inside(batch, key, value, shape, elements):
    tensor = decode({key: value}, batch).inputs[key]
    assert tensor.shape == shape
    assert tensor.array.ravel().tolist() == elements


def test_other_keys_are_parameters_and_may_be_nested():
    body = decode({"id": "7", "temperature": 0.5, "parameters": {"text": "hi", "n": 3}})
    assert body.id == "7"
    assert body.parameters == {"temperature": 0.5, "n": 3}
    assert body.inputs["text"].array.tolist() == [b"hi"]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"text": 5}, "attempt to access JSON non-string as string"),
        ({"flag": "true"}, "attempt to access JSON non-boolean as boolean"),
        ({"flag": [True, False]}, "can not convert input 'flag' to tensor with proper shape"),
        ({"pairs": [1, 2, 3]}, "can not convert input 'pairs' to tensor with proper shape"),
        ('{"text": "a", "text": "b"}', "input 'text' already exists in request"),
        ({"id": 7}, "Unable to parse 'id'"),
        ({"parameters": 7}, "Expected JSON object for keyword: 'parameters'"),
        ({"odd": {"a": 1}}, "parameter 'odd' has invalid type"),
        ({"parameters": {"odd": []}}, "Converting keyword: 'parameters': parameter 'odd' has"),
        ({"triton_x": 1}, "reserved"),
        ([1], "is a JSON object"),
        (b"{", "failed to parse the request JSON buffer"),
        (b'{"text": "\xff"}', "failed to parse the request JSON buffer"),
    ],
)
def test_refused(document, text):
    with pytest.raises(InvalidArgument) as caught:
        decode(document)
    assert text in caught.value.message


def test_the_limits():
    with pytest.raises(InvalidArgument, match="exceeds the maximum allowed input size"):
        decode({"text": "x" * 100}, most=50)
    with pytest.raises(InvalidArgument, match="nesting"):
        decode(b'{"a":' + b"[" * 100_000)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body):
    try:
        decode(body)
    except ShoalError:
        return


def test_answers_are_flat():
    outputs = [
        Tensor.from_array("one", np.array([[7]], np.int32)),
        Tensor.from_array("more", np.array([[1.5], [2.5]], np.float32)),
        Tensor.from_array("word", np.array([b"hi"], dtype=object)),
        Tensor.from_array("none", np.empty((0,), np.int32)),
        Tensor.from_array("nan", np.array([np.nan], np.float32)),
    ]
    response = Response("m", 2, "7", outputs, {"p": 1})
    answer = json.loads(encode_generate(response))
    assert answer.pop("nan") != answer.get("nan")
    assert answer == {
        "id": "7",
        "model_name": "m",
        "model_version": "2",
        "p": 1,
        "one": 7,
        "more": [1.5, 2.5],
        "word": "hi",
        "none": [],
    }
    assert "id" not in json.loads(encode_generate(Response("m", 2)))
