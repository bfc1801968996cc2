"""Tensors on a device: read like others, and copied only when somebody does."""

from __future__ import annotations

import numpy as np

from shoal.core import dtypes
from shoal.core.device_tensor import DeviceTensor, OnDevice, adjacent
from shoal.core.request import Request, StepRequest
from shoal.core.tensor import Tensor
from shoal.scheduler.ensemble_tensors import hand_on


class Device:
    """Counts the copies to the CPU."""

    def __init__(self):
        self.copies = 0

    def tensor(self, array, name="x", shape=None):
        return DeviceTensor(
            name, dtypes.from_numpy(array.dtype), shape or array.shape, OnDevice(array, self.copy)
        )

    def copy(self, array):
        self.copies += 1
        return np.array(array)


def test_it_is_copied_when_it_is_read():
    device = Device()
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor = device.tensor(values)
    assert not tensor.has_raw
    assert device.copies == 0
    assert np.array_equal(tensor.array, values)
    assert bytes(tensor.raw) == values.tobytes()
    assert device.copies == 1
    assert tensor.nbytes == values.nbytes


def test_bytes_first():
    device = Device()
    tensor = device.tensor(np.float32([1, 2]))
    assert bytes(tensor.raw) == np.float32([1, 2]).tobytes()
    assert tensor.has_raw
    assert tensor.array.tolist() == [1, 2]
    assert device.copies == 1


def test_it_stays_where_it_is_under_other_names_and_shapes():
    device = Device()
    tensor = device.tensor(np.float32([[1, 2], [3, 4]]))
    for other in (tensor.with_shape((4,)), hand_on(tensor, "y", (4,)), tensor.renamed("z", (1, 4))):
        assert isinstance(other, DeviceTensor)
        assert other.content is tensor.content
        assert device.copies == 0
    assert hand_on(tensor, "y", (4,)).array.tolist() == [1, 2, 3, 4]


def test_plain_tensors_are_handed_on_as_before():
    tensor = Tensor("x", dtypes.FP32, (2,), array=np.float32([1, 2]))
    assert type(hand_on(tensor, "y", (2,))) is Tensor


def test_only_steps_carry_a_wish():
    assert not hasattr(Request("m", {}, None), "device_outputs")
    step = StepRequest("m", {}, None)
    step.device_outputs = frozenset({"y"})
    assert step.device_outputs == {"y"}


def test_adjacent_rows_of_one_array_are_joined_as_one():
    device = Device()
    whole = OnDevice(np.arange(12).reshape(6, 2), device.copy)
    other = OnDevice(np.zeros((1, 2)), device.copy)

    def part(start, stop, shape=None, of=whole):
        content = of._replace(rows=slice(start, stop))
        return DeviceTensor("x", dtypes.INT64, shape or (stop - start, 2), content)

    def joined(*parts):
        return [(found.array is whole.array, found.rows, shape) for found, shape in adjacent(parts)]

    everything = part(0, 1), part(1, 3), part(3, 6)
    assert joined(*everything) == [(True, slice(0, 6), (6, 2))]
    assert joined(*everything[::-1])[0] == (True, slice(3, 6), (3, 2))
    assert len(joined(*everything[::-1])) == 3
    assert len(joined(part(0, 1), part(2, 3))) == 2  # a row between them belongs to another batch
    assert len(joined(part(0, 1), part(1, 2, (1, 1, 2)))) == 2
    assert len(joined(part(0, 1), part(0, 1, of=other))) == 2
    alone = DeviceTensor("x", dtypes.FP32, (1, 2), other)
    assert joined(alone, alone) == [(False, None, (1, 2))] * 2
    assert part(1, 3).array.tolist() == [[2, 3], [4, 5]]
