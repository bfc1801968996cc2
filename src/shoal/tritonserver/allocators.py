"""Memory for outputs that the program allocates, as in the first versions of Triton's bindings."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from shoal.tritonserver import memory
from shoal.tritonserver.enums import MemoryType
from shoal.tritonserver.memory import MemoryBuffer


class MemoryAllocator(ABC):
    """Allocates the memory of outputs."""

    @abstractmethod
    def allocate(
        self, size: int, memory_type: MemoryType, memory_type_id: int, tensor_name: str
    ) -> MemoryBuffer:
        """Memory of `size` bytes, of the given type if possible."""


class CPUAllocator(MemoryAllocator):
    """Memory of the CPU."""

    def allocate(
        self, size: int, memory_type: MemoryType, memory_type_id: int, tensor_name: str
    ) -> MemoryBuffer:
        """Memory of the CPU, whatever type is asked for."""
        del memory_type, memory_type_id, tensor_name
        return memory.of_array(np.empty(size, np.uint8))


class GPUAllocator(MemoryAllocator):
    """Memory of a GPU; needs cupy."""

    def allocate(
        self, size: int, memory_type: MemoryType, memory_type_id: int, tensor_name: str
    ) -> MemoryBuffer:
        """Memory of the GPU with the number `memory_type_id`."""
        del memory_type, tensor_name
        library = memory.cupy()
        with library.cuda.Device(memory_type_id):
            array = library.empty(size, np.uint8)
        return MemoryBuffer(array.data.ptr, MemoryType.GPU, memory_type_id, size, array)


default_memory_allocators: dict[MemoryType, MemoryAllocator] = {
    MemoryType.CPU: CPUAllocator(),
    MemoryType.GPU: GPUAllocator(),
}
