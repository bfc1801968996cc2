"""Memory for tensors that are copied between the CPU and a GPU together.

    array --> host: page-locked ==one copy==> device --> tensor, and the same way back

`Block` is for batches of one shape and stays; `Staging` is for batches of any shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from shoal.backends.pytorch.library import to_array

_ALIGNMENT = 256  # of tensors in a block: what the GPU reads at once, and every element's size
_FIRST_BYTES = 64 << 10


class Form(NamedTuple):
    """The shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return math.prod(self.shape) * int(self.dtype.itemsize)


def block_bytes(forms: Mapping[str, Form]) -> int:
    """How many bytes a block of these tensors has."""
    return sum(-(-form.nbytes // _ALIGNMENT) * _ALIGNMENT for form in forms.values())


class Block:
    """Tensors that are adjacent in memory, on the CPU and on the device."""

    def __init__(self, forms: Mapping[str, Form], device: torch.device, *, pinned: bool) -> None:
        """The memory on the device is all zeros."""
        total = block_bytes(forms)
        self.tensors: dict[str, torch.Tensor] = {}
        self.arrays: dict[str, np.ndarray] = {}  # of the host's memory
        with torch.inference_mode(False):  # so that they may be written to in any mode
            self.host = torch.zeros(total, dtype=torch.uint8, pin_memory=pinned)
            self.device = torch.zeros(total, dtype=torch.uint8, device=device)
            self._memory: Any = self.host.numpy().data
            self._starts: dict[str, int] = {}
            start = 0
            for name, form in forms.items():
                self.tensors[name] = _part(self.device, start, form)
                self.arrays[name] = to_array(_part(self.host, start, form))
                self._starts[name] = start
                start += -(-form.nbytes // _ALIGNMENT) * _ALIGNMENT

    def write(self, name: str, array: np.ndarray) -> None:
        """Copy an array to the host's memory of a tensor, which has at least as many rows."""
        _write(self._memory, self._starts[name], array)

    def to_device(self) -> None:
        """Start the copy of everything to the device, on the current stream."""
        self.device.copy_(self.host, non_blocking=True)

    def to_host(self) -> None:
        """Start the copy of everything from the device, on the current stream."""
        self.host.copy_(self.device, non_blocking=True)


class Staging:
    """Page-locked memory through which the small inputs of each batch reach the device.

    It is written again for the next batch, so the copies of the last one must have ended.
    """

    def __init__(self, device: torch.device, *, pinned: bool) -> None:
        """Without `pinned`, ordinary memory."""
        self._device = device
        self._pinned = pinned
        self._host = torch.empty(0, dtype=torch.uint8)
        self._memory: Any = self._host.numpy().data

    def upload(
        self, arrays: Mapping[str, np.ndarray], types: Mapping[str, torch.dtype]
    ) -> dict[str, torch.Tensor]:
        """Start one copy of all arrays, on the current stream; the tensors are the caller's own."""
        forms = {name: Form(array.shape, types[name]) for name, array in arrays.items()}
        total = block_bytes(forms)
        if total > len(self._memory):
            size = max(total, 2 * len(self._memory), _FIRST_BYTES)
            self._host = torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)
            self._memory = self._host.numpy().data
        start = 0
        starts: dict[str, int] = {}
        for name, array in arrays.items():
            _write(self._memory, start, array)
            starts[name] = start
            start += -(-forms[name].nbytes // _ALIGNMENT) * _ALIGNMENT
        device = torch.empty(total, dtype=torch.uint8, device=self._device)
        device.copy_(self._host[:total], non_blocking=True)
        return {name: _part(device, starts[name], form) for name, form in forms.items()}


def _write(memory: Any, start: int, array: np.ndarray) -> None:
    """Copy an array with the GIL held. numpy would release it, and while the event loop is busy it
    takes milliseconds to get it back."""
    if array.size:
        whole = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memory[start : start + array.nbytes] = whole.data


def _part(block: torch.Tensor, start: int, form: Form) -> torch.Tensor:
    return block[start : start + form.nbytes].view(form.dtype).view(form.shape)
