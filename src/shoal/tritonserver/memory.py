"""Memory of tensors: where it is, how large, and the object that owns it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.backends.python.api import dlpack
from shoal.backends.python.api.errors import TritonModelException
from shoal.tritonserver.enums import DLDeviceType, MemoryType
from shoal.tritonserver.errors import InvalidArgumentError, UnsupportedError

DeviceOrMemoryType = tuple[MemoryType, int] | MemoryType | tuple[DLDeviceType, int] | str

_OF_DEVICE: Mapping[int, MemoryType] = {
    dlpack.CPU: MemoryType.CPU,
    dlpack.CUDA_HOST: MemoryType.CPU_PINNED,
    dlpack.CUDA: MemoryType.GPU,
}


def cupy() -> Any:
    """The library for GPU memory; UnsupportedError if it is not installed."""
    try:
        return importlib.import_module("cupy")
    except ImportError:
        raise UnsupportedError(
            "tensors in the memory of a GPU need the package cupy, which is not installed"
        ) from None


def parse_device_or_memory_type(wanted: DeviceOrMemoryType) -> tuple[MemoryType, int]:
    """The memory that is meant by "gpu:0", a memory type, or a pair of one or of DLPack's device
    type and a number. InvalidArgumentError for anything else."""
    if isinstance(wanted, MemoryType):
        return wanted, 0
    if isinstance(wanted, tuple) and len(wanted) == 2:
        kind, number = wanted
        if isinstance(kind, MemoryType):
            return kind, number
        if isinstance(kind, DLDeviceType) and int(kind) in _OF_DEVICE:
            return _OF_DEVICE[int(kind)], number
    if isinstance(wanted, str):
        name, _, text = wanted.partition(":")
        if name.upper() in MemoryType.__members__ and (not text or text.isdecimal()):
            return MemoryType.__members__[name.upper()], int(text or 0)
    raise InvalidArgumentError(
        f"Invalid memory type {wanted!r}: use 'cpu', 'gpu:0', a MemoryType, or a pair of a "
        f"MemoryType or DLDeviceType and a number"
    )


@dataclass
class MemoryBuffer:
    """Memory that `owner` keeps allocated."""

    data_ptr: int
    memory_type: MemoryType
    memory_type_id: int
    size: int
    owner: Any

    @staticmethod
    def from_dlpack(owner: Any) -> MemoryBuffer:
        """The memory of a tensor of another library."""
        if not hasattr(owner, "__dlpack__"):
            raise InvalidArgumentError("Object does not support DLpack protocol")
        return buffer_of(owner, described(owner))


def described(owner: Any) -> dlpack.Described:
    """Type, shape and memory of a tensor of another library, which keeps it."""
    try:
        if owner.__dlpack_device__()[0] == dlpack.CUDA:
            with cupy().cuda.Device(owner.__dlpack_device__()[1]):
                return dlpack.peek(owner.__dlpack__(stream=1))  # the legacy default stream
        return dlpack.peek(owner.__dlpack__())
    except (TritonModelException, BufferError, RuntimeError, TypeError) as error:
        raise InvalidArgumentError(f"Object does not support DLPack protocol: {error}") from None


def buffer_of(owner: Any, content: dlpack.Described) -> MemoryBuffer:
    """The memory that DLPack describes."""
    kind, number = content.device
    return MemoryBuffer(content.address, _OF_DEVICE[kind], number, content.nbytes, owner)


def of_array(array: np.ndarray) -> MemoryBuffer:
    """The memory of a contiguous array."""
    return MemoryBuffer(array.ctypes.data, MemoryType.CPU, 0, array.nbytes, array)


def as_bytes(buffer: MemoryBuffer) -> np.ndarray:
    """Memory of the CPU as an array of bytes, which keeps the buffer."""
    return dlpack.memory_at(buffer.data_ptr, buffer.size, buffer)
