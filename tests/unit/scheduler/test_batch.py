"""Joining inputs and handing out outputs."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core import dtypes
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure
from shoal.scheduler.batch import join, split, wanted_outputs
from shoal.testing.fakes import make_request

SIGNATURE = Signature(
    "m",
    8,
    {"x": TensorSpec("x", dtypes.INT32, (2,)), "t": TensorSpec("t", dtypes.BYTES, (1,))},
    {"y": TensorSpec("y", dtypes.INT32, (2,)), "z": TensorSpec("z", dtypes.INT32, (2,))},
)


def ints(*rows):
    return Tensor("x", dtypes.INT32, (len(rows), 2), raw=np.array(rows, np.int32).tobytes())


def request(*rows, outputs=()):
    return make_request(ints(*rows), rows=len(rows), requested_outputs=outputs)[0]


def test_a_batch_of_one_is_not_copied():
    one = request([1, 2])
    assert np.shares_memory(join([one], SIGNATURE)["x"], one.inputs["x"].array)


def test_rows_are_joined_in_order():
    joined = join([request([1, 2]), request([3, 4], [5, 6])], SIGNATURE)["x"]
    assert joined.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert joined.dtype == np.int32


def test_strings_and_arrays_are_joined_too():
    def text(value):
        array = np.array([[value]], dtype=object)
        return make_request(Tensor("t", dtypes.BYTES, (1, 1), array=array), rows=1)[0]

    assert join([text(b"a"), text(b"b")], SIGNATURE)["t"].tolist() == [[b"a"], [b"b"]]


def test_each_request_gets_its_rows_as_views():
    requests = [request([1, 2]), request([3, 4], [5, 6])]
    array = np.arange(6, dtype=np.int32).reshape(3, 2)
    first, second = split(requests, ["y", "z"], [array, array * 2], SIGNATURE)
    assert [t.name for t in first] == ["y", "z"]
    assert first[0].array.tolist() == [[0, 1]]
    assert second[1].array.tolist() == [[4, 6], [8, 10]]
    assert np.shares_memory(second[0].array, array)


def test_everybody_gets_what_they_asked_for():
    requests = [request([1, 2], outputs=("z",)), request([1, 2], outputs=("z", "y"))]
    names = wanted_outputs(requests, SIGNATURE)
    assert names == ["y", "z"]
    y, z = np.zeros((2, 2), np.int32), np.ones((2, 2), np.int32)
    first, second = split(requests, names, [y, z], SIGNATURE)
    assert [t.name for t in first] == ["z"]
    assert [t.name for t in second] == ["z", "y"]
    assert wanted_outputs([requests[0]], SIGNATURE) == ["z"]
    assert wanted_outputs([requests[0], request([1, 2])], SIGNATURE) == ["y", "z"]


@pytest.mark.parametrize("shape", [(), (1, 2), (3, 2)])
def test_an_output_without_the_batch_dimension_is_the_models_fault(shape):
    requests = [request([1, 2]), request([3, 4])]
    with pytest.raises(BackendFailure, match="its first dimension must be"):
        split(requests, ["y", "z"], [np.zeros(shape, np.int32)] * 2, SIGNATURE)


def test_output_reshape_is_undone():
    spec = TensorSpec("y", dtypes.FP32, (-1,), reshape=(1, -1, 1))
    signature = Signature("m", 8, SIGNATURE.inputs, {"y": spec})
    ((tensor,),) = split([request([1, 2])], ["y"], [np.zeros((1, 1, 5, 1))], signature)
    assert tensor.shape == (1, 5)
    with pytest.raises(BackendFailure, match="reshape"):
        split([request([1, 2])], ["y"], [np.zeros((1, 2, 5, 1))], signature)
