"""Shared memory over gRPC: register, unregister, status of regions.

Each method takes the bytes of a request and returns those of its response, or raises.
"""

from __future__ import annotations

from shoal.core.tensor import Buffer
from shoal.frontends.shared_memory import SharedMemory
from shoal.wire.grpc_request import parse
from shoal.wire.proto import messages


class MemoryMethods:
    """Serves the six methods of both kinds of memory."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    def asks_process(self, _message: Buffer) -> bool:
        """Whether regions are registered in other processes, too: that blocks."""
        return self._memory.asks_process

    def system_status(self, message: Buffer) -> bytes:
        """SystemSharedMemoryStatus: every region, or the one that is named."""
        request = parse(messages.SystemSharedMemoryStatusRequest, message)
        response = messages.SystemSharedMemoryStatusResponse()
        for row in self._memory.status(request.name):
            region = response.regions[row["name"]]
            region.name, region.key = row["name"], row["key"]
            region.offset, region.byte_size = row["offset"], row["byte_size"]
        content: bytes = response.SerializeToString()
        return content

    def system_register(self, message: Buffer) -> bytes:
        """SystemSharedMemoryRegister: make a region known under a name."""
        request = parse(messages.SystemSharedMemoryRegisterRequest, message)
        self._memory.register(request.name, request.key, request.offset, request.byte_size)
        return b""

    def system_unregister(self, message: Buffer) -> bytes:
        """SystemSharedMemoryUnregister: let go of the named region, or of all of them."""
        request = parse(messages.SystemSharedMemoryUnregisterRequest, message)
        self._memory.unregister(request.name)
        return b""

    def cuda_status(self, message: Buffer) -> bytes:
        """CudaSharedMemoryStatus: every region, or the one that is named."""
        request = parse(messages.CudaSharedMemoryStatusRequest, message)
        response = messages.CudaSharedMemoryStatusResponse()
        for row in self._memory.cuda_status(request.name):
            region = response.regions[row["name"]]
            region.name, region.device_id = row["name"], row["device_id"]
            region.byte_size = row["byte_size"]
        content: bytes = response.SerializeToString()
        return content

    def cuda_register(self, message: Buffer) -> bytes:
        """CudaSharedMemoryRegister: make a region of a GPU known under a name."""
        request = parse(messages.CudaSharedMemoryRegisterRequest, message)
        self._memory.register_cuda(
            request.name, request.raw_handle, request.device_id, request.byte_size
        )
        return b""

    def cuda_unregister(self, message: Buffer) -> bytes:
        """CudaSharedMemoryUnregister: let go of the named region, or of all of them."""
        request = parse(messages.CudaSharedMemoryUnregisterRequest, message)
        self._memory.unregister_cuda(request.name)
        return b""
