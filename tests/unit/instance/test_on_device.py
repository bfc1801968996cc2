"""Batches whose tensors lie on a device."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.backends.base import DeviceExecutor
from shoal.core import dtypes
from shoal.core.device_tensor import DeviceTensor, OnDevice
from shoal.core.request import Request, StepRequest
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure
from shoal.instance import on_device
from shoal.instance.execution import Execution
from shoal.statistics.model import ModelStatistics

SIGNATURE = Signature(
    "m",
    8,
    {"x": TensorSpec("x", dtypes.FP32, (2,))},
    {name: TensorSpec(name, dtypes.FP32, (2,)) for name in ("y", "z")},
)


class Reply:
    def __init__(self):
        self.response = None

    def send(self, response):
        self.response = response


def there(rows):
    array = np.float32(rows)
    return DeviceTensor("x", dtypes.FP32, array.shape, OnDevice(array, np.array))


def here(rows):
    return Tensor.from_array("x", np.float32(rows))


def request(tensor, keep=None, outputs=()):
    make = Request if keep is None else StepRequest
    made = make("m", {"x": tensor}, Reply(), requested_outputs=outputs)
    made.rows = tensor.shape[0]
    if keep is not None:
        made.device_outputs = frozenset(keep)
    return made


class Doubler(DeviceExecutor):
    """Its device is the memory of this process."""

    def __init__(self):
        self.given = None
        self.kept = None

    def run(self, inputs, outputs):
        raise AssertionError("not in this test")

    def run_on_device(self, inputs, outputs, keep):
        self.given, self.kept = inputs["x"], keep
        parts = self.given if isinstance(self.given, list) else [self.given]
        arrays = [part if isinstance(part, np.ndarray) else part.content.array for part in parts]
        whole = np.concatenate(arrays) * 2
        return [OnDevice(whole, np.array) if name in keep else whole for name in outputs]


def run(*requests):
    executor = Doubler()
    execution = Execution(SIGNATURE, 1, ModelStatistics("m", 1), takes_device_tensors=True)
    execution.run(executor, requests)
    answers = [
        {tensor.name: tensor for tensor in request.reply.response.outputs} for request in requests
    ]
    return executor, answers


def test_one_request():
    executor, ((answer,)) = run(request(there([[1, 2]]), keep={"y"}))
    assert isinstance(executor.given[0], DeviceTensor)
    assert isinstance(answer["y"], DeviceTensor)
    assert type(answer["z"]) is Tensor
    assert answer["y"].array.tolist() == answer["z"].array.tolist() == [[2, 4]]


def test_a_batch_is_handed_out_in_parts():
    one = request(there([[1, 1]]), keep={"y", "z"})
    two = request(there([[2, 2], [3, 3]]), keep={"y"}, outputs=("y",))
    executor, (first, second) = run(one, two)
    assert executor.kept == {"y"}
    assert len(executor.given) == 2
    assert isinstance(first["y"], DeviceTensor)
    assert first["y"].shape == (1, 2)
    assert second["y"].array.tolist() == [[4, 4], [6, 6]]
    assert list(second) == ["y"]
    assert type(first["z"]) is Tensor


def test_a_client_among_them_gets_its_answer_here():
    executor, (first, second) = run(request(there([[1, 1]]), keep={"y"}), request(here([[2, 2]])))
    assert isinstance(executor.given, np.ndarray)
    assert executor.kept == frozenset()
    assert type(first["y"]) is type(second["y"]) is Tensor
    assert second["y"].array.tolist() == [[4, 4]]


def test_an_output_without_rows():
    result = OnDevice(np.zeros((3, 2), np.float32), np.array)
    with pytest.raises(BackendFailure, match=r"has shape \[3,2\] for a batch of 1"):
        on_device.split([request(there([[1, 2]]), {"y"}, ("y",))], ["y"], [result], SIGNATURE)


def test_a_reshaped_output():
    spec = TensorSpec("y", dtypes.FP32, (2, 1), reshape=(2,))
    signature = Signature("m", 8, dict(SIGNATURE.inputs), {"y": spec})
    result = OnDevice(np.zeros((1, 2), np.float32), np.array)
    ((tensor,),) = on_device.split([request(there([[1, 2]]), {"y"})], ["y"], [result], signature)
    assert tensor.shape == (1, 2, 1)
    assert tensor.array.shape == (1, 2, 1)
