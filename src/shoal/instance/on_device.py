"""Batches of tensors that stay on a device, between the steps of an ensemble.

    DeviceTensors --join--> an executor on the device --split--> DeviceTensors

An output stays there when every request of the batch comes from an ensemble that keeps it there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.core.device_tensor import DeviceTensor, OnDevice
from shoal.core.request import Request, StepRequest
from shoal.core.signature import Signature
from shoal.core.tensor import Tensor
from shoal.scheduler.batch import WholeOutput, check_rows, join_tensors, reshaped, split_whole


def join(requests: Sequence[Request]) -> dict[str, np.ndarray | Sequence[DeviceTensor]]:
    """The inputs of all requests: those that lie on a device in parts, the others joined."""
    joined: dict[str, np.ndarray | Sequence[DeviceTensor]] = {}
    for name in requests[0].inputs:
        parts = [request.inputs[name] for request in requests]
        there = [part for part in parts if isinstance(part, DeviceTensor)]
        if len(there) == len(parts):
            joined[name] = there
        else:
            joined[name] = parts[0].array if len(parts) == 1 else join_tensors(parts)
    return joined


def kept(requests: Sequence[Request]) -> frozenset[str]:
    """The outputs that all requests keep on the device."""
    keeps = [
        request.device_outputs if isinstance(request, StepRequest) else frozenset()
        for request in requests
    ]
    return keeps[0].intersection(*keeps[1:])


def split(
    requests: Sequence[Request],
    names: Sequence[str],
    results: Sequence[np.ndarray | OnDevice],
    signature: Signature,
) -> list[list[Tensor]]:
    """Each request's outputs, in the order it requested them. Raises as `batch.split` does."""
    total = sum(request.rows for request in requests) if signature.max_batch_size else 1
    whole: dict[str, WholeOutput | _DeviceOutput] = {
        name: _DeviceOutput(signature, name, result, total)
        if isinstance(result, OnDevice)
        else WholeOutput(signature, name, result, total)
        for name, result in zip(names, results, strict=True)
        if name in signature.outputs
    }
    return split_whole(requests, whole, signature)


class _DeviceOutput:
    """One output of a whole batch, on the device."""

    def __init__(self, signature: Signature, name: str, result: OnDevice, total: int) -> None:
        shape = tuple(result.array.shape)
        batched = signature.max_batch_size > 0
        check_rows(signature, name, shape, total)
        spec = signature.outputs[name]
        self._shape = shape if spec.reshape is None else reshaped(spec, shape, batched=batched)
        self._spec = spec
        self._result = result

    def tensor(self) -> Tensor:
        """All of it, for a batch of one request."""
        return DeviceTensor(self._spec.name, self._spec.datatype, self._shape, self._result)

    def part(self, row: int, rows: int) -> Tensor:
        """The part of one request of several."""
        shape = (rows, *self._shape[1:])
        content = self._result._replace(rows=slice(row, row + rows))
        return DeviceTensor(self._spec.name, self._spec.datatype, shape, content)
