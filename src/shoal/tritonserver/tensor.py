"""`tritonserver.Tensor`: a type, a shape and memory, from and to numpy and DLPack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.backends.python.api import dlpack
from shoal.core import bytes_tensor, dtypes
from shoal.core.tensor import Tensor as CoreTensor
from shoal.errors import InvalidArgument
from shoal.tritonserver import memory
from shoal.tritonserver.enums import DataType, DLDeviceType, MemoryType
from shoal.tritonserver.errors import InvalidArgumentError, UnsupportedError
from shoal.tritonserver.memory import DeviceOrMemoryType, MemoryBuffer

_CPU = (MemoryType.CPU, MemoryType.CPU_PINNED)


@dataclass
class Tensor:
    """An input or output. Elements of BYTES have a length of four bytes in front of each."""

    data_type: DataType
    shape: Sequence[int]
    memory_buffer: MemoryBuffer

    # ---- its memory

    @property
    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.memory_buffer.data_ptr

    @property
    def memory_type(self) -> MemoryType:
        """Where the elements are."""
        return self.memory_buffer.memory_type

    @property
    def memory_type_id(self) -> int:
        """The number of the device that has them."""
        return self.memory_buffer.memory_type_id

    @property
    def size(self) -> int:
        """How many bytes they take."""
        return self.memory_buffer.size

    # ---- DLPack

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """The elements for another library, without a copy. It keeps this tensor."""
        if self.memory_type not in _CPU:
            on_gpu = self._of_cupy()
            return on_gpu.__dlpack__(stream=stream)
        if stream not in (None, 0) or copy:
            raise UnsupportedError(
                f"DLPack stream synchronization on memory type {self.memory_type} and stream "
                f"{stream} not supported"
            )
        datatype = self._core_type()
        if datatype is dtypes.BYTES:
            raise InvalidArgumentError(
                f"Unsupported Triton server data type. Can't convert {self.data_type} to DLPack "
                f"data type"
            )
        array = memory.as_bytes(self.memory_buffer).view(datatype.numpy).reshape(self.shape)
        return dlpack.export(array, datatype, self)

    def __dlpack_device__(self) -> tuple[DLDeviceType, int]:
        kind = DLDeviceType.kDLCPU if self.memory_type in _CPU else DLDeviceType.kDLCUDA
        return kind, self.memory_type_id

    @staticmethod
    def from_dlpack(obj: Any) -> Tensor:
        """The memory of another library's tensor, without a copy."""
        if not hasattr(obj, "__dlpack__"):
            raise InvalidArgumentError("Object does not support DLpack protocol")
        content = memory.described(obj)
        datatype = DataType(content.datatype.number)
        return Tensor(datatype, list(content.shape), memory.buffer_of(obj, content))

    # ---- text

    def to_bytes_array(self) -> np.ndarray:
        """The elements of a BYTES tensor as `bytes` in an object array."""
        if self.data_type is not DataType.BYTES:
            raise InvalidArgumentError(
                f"Tensor has data type {self.data_type} not {DataType.BYTES}"
            )
        raw = memory.as_bytes(self.to_host().memory_buffer)
        count = int(np.prod(self.shape, dtype=np.int64))
        try:
            elements = bytes_tensor.decode(raw.data, count, "the tensor")
        except InvalidArgument as error:
            raise InvalidArgumentError(error.message) from None
        return elements.reshape(self.shape)

    def to_string_array(self) -> np.ndarray:
        """The elements of a BYTES tensor as text."""
        return self.to_bytes_array().astype(str)

    @staticmethod
    def from_bytes_array(bytes_array: list[Any] | np.ndarray) -> Tensor:
        """A BYTES tensor of text or `bytes`."""
        made = Tensor._from_object(bytes_array)
        if made.data_type is not DataType.BYTES:
            raise InvalidArgumentError(
                f"Unsupported conversion from {bytes_array} to Triton BYTES Tensor. Got "
                f"{made.data_type}"
            )
        return made

    @staticmethod
    def from_string_array(string_array: list[Any] | np.ndarray) -> Tensor:
        """A BYTES tensor of text."""
        return Tensor.from_bytes_array(string_array)

    # ---- devices

    def to_host(self) -> Tensor:
        """The tensor in the CPU's memory."""
        return self.to_device("cpu")

    def to_device(self, device: DeviceOrMemoryType) -> Tensor:
        """The tensor in the memory of a device: a copy, unless it is there."""
        kind, number = memory.parse_device_or_memory_type(device)
        if (kind, number) == (self.memory_type, self.memory_type_id):
            return self
        if kind in _CPU and self.memory_type in _CPU:
            return self
        try:
            library = memory.cupy()
            if kind in _CPU:
                moved = memory.of_array(library.asnumpy(self._of_cupy(as_bytes=True)))
            else:
                with library.cuda.Device(number):
                    copy = library.asarray(memory.as_bytes(self.memory_buffer))
                moved = MemoryBuffer(copy.data.ptr, MemoryType.GPU, number, copy.nbytes, copy)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"Conversion from {(self.memory_type, self.memory_type_id)} to {(kind, number)} "
                f"not supported: {error}"
            ) from None
        return Tensor(self.data_type, self.shape, moved)

    def _of_cupy(self, *, as_bytes: bool = False) -> Any:
        """Memory of a GPU as an array of cupy."""
        library = memory.cupy()
        buffer = self.memory_buffer
        unowned = library.cuda.UnownedMemory(
            buffer.data_ptr, buffer.size, self, buffer.memory_type_id
        )
        pointer = library.cuda.MemoryPointer(unowned, 0)
        if as_bytes:
            return library.ndarray((buffer.size,), np.uint8, pointer)
        return library.ndarray(tuple(self.shape), self._core_type().numpy, pointer)

    # ---- from and to the server's tensors

    def _core_type(self) -> dtypes.DataType:
        return dtypes.from_name(self.data_type.name)

    def _to_core(self, name: str) -> CoreTensor:
        """For the server, which reads the memory where it is."""
        on_cpu = self if self.memory_type in _CPU else self.to_host()
        raw = memory.as_bytes(on_cpu.memory_buffer)
        raw.flags.writeable = False
        return CoreTensor(name, self._core_type(), tuple(self.shape), raw=raw.data)

    @staticmethod
    def _from_core(core: CoreTensor) -> Tensor:
        """An output. Its memory is that of the response."""
        flat = np.frombuffer(core.raw, np.uint8) if core.nbytes else np.empty(0, np.uint8)
        return Tensor(DataType(core.datatype.number), list(core.shape), memory.of_array(flat))

    @staticmethod
    def _from_object(value: Any) -> Tensor:
        """A tensor of an array, a list, or what supports DLPack."""
        if isinstance(value, list):
            try:
                return _from_array(np.array(value))
            except ValueError as error:
                raise InvalidArgumentError(
                    f"Conversion from {value} to tensor not supported: {error}"
                ) from None
        if isinstance(value, (np.ndarray, np.generic)):
            return _from_array(np.asarray(value))
        if hasattr(value, "__dlpack__"):
            return Tensor.from_dlpack(value)
        raise InvalidArgumentError(
            f"Input type {type(value)} not supported. Must be a list, a numpy array, or the type "
            f"must support __dlpack__"
        )


def _from_array(array: np.ndarray) -> Tensor:
    try:
        datatype = dtypes.from_numpy(array.dtype)
    except InvalidArgument:
        if array.dtype.name != "bfloat16":  # of ml_dtypes
            raise InvalidArgumentError(
                f"Unsupported Numpy data type. Can't convert {array.dtype} to Triton server data "
                f"type"
            ) from None
        datatype = dtypes.BF16
    if datatype is dtypes.BYTES:
        elements = [
            each if isinstance(each, bytes) else str(each) for each in array.reshape(-1).tolist()
        ]
        content = np.frombuffer(bytes_tensor.encode(elements), np.uint8)
    else:
        content = np.ascontiguousarray(array)
    return Tensor(DataType(datatype.number), list(array.shape), memory.of_array(content))
