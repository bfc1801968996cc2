"""GPU memory that other processes share: opened by a handle, read and written by copying.

    client: cudaMalloc, cudaIpcGetMemHandle --64 bytes--> open --> CudaBlock: read, write, close

Uses the driver's library, which every machine with a usable GPU has, so no package has to be
installed. The handles of the runtime library are the same as the driver's.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Iterator

import numpy as np

from shoal.core.tensor import Buffer
from shoal.errors import Internal, InvalidArgument

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1
_NON_BLOCKING = 1  # our copies do not wait for other work on the device


class CudaFault(Exception):
    """A driver call failed; the text is the driver's."""


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * HANDLE_BYTES),)


class CudaBlock:
    """A piece of a GPU's memory, until it is closed. Any thread may use it."""

    def __init__(self, device: _Device, pointer: int) -> None:
        self._device = device
        self._pointer = pointer

    def read(self, offset: int, byte_size: int) -> memoryview:
        """A copy of these bytes. Internal if the device fails."""
        return self._device.read(self._pointer + offset, byte_size)

    def write(self, offset: int, data: Buffer) -> None:
        """Write bytes; complete when this returns. Internal if the device fails."""
        self._device.write(self._pointer + offset, data)

    def close(self) -> None:
        """Close it. Called once, after its last use."""
        self._device.close(self._pointer)


class Cuda:
    """The GPUs of this machine."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        """`driver` has been initialised and has at least one GPU."""
        self._driver = driver
        self._lock = threading.Lock()  # guards _devices
        self._devices: dict[int, _Device] = {}

    def open(self, handle: bytes, device_id: int, byte_size: int, name: str) -> CudaBlock:
        """The memory behind `handle`, at least `byte_size` bytes of it.

        Raises InvalidArgument for an invalid handle, device or size; nothing is open then. `name`
        is the region's name.
        """
        device = self._device(device_id, name)
        try:
            pointer = device.open(handle)
        except CudaFault as fault:
            raise InvalidArgument(
                f"failed to register CUDA shared memory region '{name}': failed to open CUDA IPC "
                f"handle: {fault}"
            ) from None
        try:
            size = device.size_from(pointer)
        except CudaFault:
            size = 0
        if not 0 < byte_size <= size:
            device.close(pointer)
            raise InvalidArgument(
                f"failed to register shared memory region '{name}': invalid args. byte_size "
                f"{byte_size} must be within the {size} bytes of the handle's allocation"
            )
        return CudaBlock(device, pointer)

    def _device(self, device_id: int, name: str) -> _Device:
        with self._lock:
            device = self._devices.get(device_id)
            if device is None:
                try:
                    device = self._devices[device_id] = _Device(self._driver, device_id)
                except CudaFault as fault:
                    raise InvalidArgument(
                        f"failed to register CUDA shared memory region '{name}': GPU {device_id} "
                        f"cannot be used: {fault}"
                    ) from None
            return device


class _Device:
    """One GPU, in the context that every runtime in this process shares."""

    def __init__(self, driver: ctypes.CDLL, number: int) -> None:
        self._driver = driver
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._stream = ctypes.c_void_p()
        with self._current():
            self._call("cuStreamCreate", ctypes.byref(self._stream), ctypes.c_uint(_NON_BLOCKING))

    def open(self, handle: bytes) -> int:
        """The address behind a handle."""
        pointer = ctypes.c_uint64()
        with self._current():
            self._call(
                "cuIpcOpenMemHandle_v2",
                ctypes.byref(pointer),
                _Handle.from_buffer_copy(handle),
                ctypes.c_uint(_LAZY_PEER_ACCESS),
            )
        return pointer.value

    def size_from(self, pointer: int) -> int:
        """The number of bytes from an address to the end of its allocation."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        with self._current():
            self._call(
                "cuMemGetAddressRange_v2",
                ctypes.byref(base),
                ctypes.byref(size),
                ctypes.c_uint64(pointer),
            )
        return base.value + size.value - pointer

    def read(self, pointer: int, byte_size: int) -> memoryview:
        copy = np.empty(byte_size, np.uint8)
        if byte_size:
            target = ctypes.c_void_p(copy.ctypes.data)
            self._copy("cuMemcpyDtoHAsync_v2", target, ctypes.c_uint64(pointer), byte_size)
        return copy.data

    def write(self, pointer: int, data: Buffer) -> None:
        if not memoryview(data).nbytes:
            return
        source = np.frombuffer(data, np.uint8)
        origin = ctypes.c_void_p(source.ctypes.data)
        self._copy("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(pointer), origin, source.nbytes)

    def close(self, pointer: int) -> None:
        with self._current(), contextlib.suppress(CudaFault):  # its owner may have exited
            self._call("cuIpcCloseMemHandle", ctypes.c_uint64(pointer))

    def _copy(self, function: str, target: object, source: object, byte_size: int) -> None:
        try:
            with self._current():
                self._call(function, target, source, ctypes.c_size_t(byte_size), self._stream)
                self._call("cuStreamSynchronize", self._stream)
        except CudaFault as fault:
            raise Internal(f"failed to copy CUDA shared memory: {fault}") from None

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make the context current for this thread, and restore the previous one afterwards."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._driver, function)(*arguments)
        if code:
            raise CudaFault(_error_text(self._driver, code))


@functools.cache
def find() -> Cuda | None:
    """The GPUs, or None if there is none, or no driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return None
    return Cuda(driver)


def _error_text(driver: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    if driver.cuGetErrorString(code, ctypes.byref(text)) or text.value is None:
        return f"error {code}"
    return text.value.decode()
