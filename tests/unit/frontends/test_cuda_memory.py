"""Memory of a GPU, with a driver that a test plays: its memory is that of this process."""

from __future__ import annotations

import ctypes
from functools import partial

import pytest

from shoal.errors import Internal, InvalidArgument
from shoal.frontends import cuda_memory
from shoal.frontends.cuda_memory import Cuda

SIZE = 256
HANDLE = bytes(range(64))
CONTEXT, STREAM = 0xC0, 0x57


class Driver:
    """As much of libcuda as is used. `failing` are the functions that answer with error 2."""

    def __init__(self):
        self.memory = ctypes.create_string_buffer(bytes(range(SIZE)), SIZE)
        self.base = ctypes.addressof(self.memory)
        self.contexts = []
        self.open = 0
        self.handles = []
        self.failing = set()
        self.calls = []

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if not name.startswith("cu") or name == "cuGetErrorString":
            return found

        def call(*arguments):
            self.calls.append(name)
            if name in self.failing:
                return 2
            if name.startswith(("cuMem", "cuIpc", "cuStream")):
                assert self.contexts == [CONTEXT]
            return found(*arguments) or 0

        return call

    def cuDeviceGet(self, device, number):
        device._obj.value = number.value
        return 101 if number.value > 0 else 0

    def cuDevicePrimaryCtxRetain(self, context, _device):
        context._obj.value = CONTEXT

    def cuCtxPushCurrent_v2(self, context):
        self.contexts.append(context.value)

    def cuCtxPopCurrent_v2(self, _context):
        self.contexts.pop()

    def cuStreamCreate(self, stream, flags):
        assert flags.value == 1
        stream._obj.value = STREAM

    def cuStreamSynchronize(self, stream):
        assert stream.value == STREAM

    def cuIpcOpenMemHandle_v2(self, pointer, handle, flags):
        assert flags.value == 1
        self.handles.append(bytes(handle.bytes))
        self.open += 1
        pointer._obj.value = self.base + 16  # handles may point into an allocation

    def cuIpcCloseMemHandle(self, pointer):
        assert pointer.value == self.base + 16
        self.open -= 1

    def cuMemGetAddressRange_v2(self, base, size, _pointer):
        base._obj.value, size._obj.value = self.base, SIZE

    def cuMemcpyDtoHAsync_v2(self, target, source, size, stream):
        assert stream.value == STREAM
        ctypes.memmove(target, source.value, size.value)

    def cuMemcpyHtoDAsync_v2(self, target, source, size, stream):
        assert stream.value == STREAM
        ctypes.memmove(target.value, source, size.value)

    def cuGetErrorString(self, code, text):
        text._obj.value = {2: b"out of memory", 101: b"invalid device ordinal"}.get(code)
        return 0


@pytest.fixture
def driver():
    made = Driver()
    yield made
    assert made.contexts == []  # whatever happened, the thread has its own again


@pytest.fixture
def cuda(driver):
    return Cuda(driver)


def test_reading_and_writing(cuda, driver):
    block = cuda.open(HANDLE, 0, 240, "g")
    assert driver.handles == [HANDLE]
    assert bytes(block.read(0, 4)) == bytes((16, 17, 18, 19))
    block.write(8, b"crab")
    block.write(100, memoryview(bytearray(b"whale")))
    assert bytes(block.read(8, 4)) == b"crab"
    assert bytes(block.read(100, 5)) == b"whale"
    assert bytes(block.read(4, 0)) == b""
    block.write(0, b"")
    assert bytes(driver.memory)[24:28] == b"crab"
    block.close()
    assert driver.open == 0


def test_a_device_is_made_ready_once(cuda, driver):
    cuda.open(HANDLE, 0, 8, "a")
    cuda.open(HANDLE, 0, 8, "b")
    assert driver.calls.count("cuDevicePrimaryCtxRetain") == 1


@pytest.mark.parametrize("size", [0, 241, 2**40])
def test_a_region_lies_within_its_allocation(cuda, driver, size):
    with pytest.raises(
        InvalidArgument, match="failed to register shared memory region 'g': invalid args"
    ):
        cuda.open(HANDLE, 0, size, "g")
    assert driver.open == 0


def test_devices_that_are_not_there(cuda):
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="GPU 3 cannot be used: invalid device ordinal"):
            cuda.open(HANDLE, 3, 8, "g")


def test_handles_that_cannot_be_opened(cuda, driver):
    driver.failing.add("cuIpcOpenMemHandle_v2")
    with pytest.raises(InvalidArgument) as caught:
        cuda.open(HANDLE, 0, 8, "g")
    assert caught.value.message == (
        "failed to register CUDA shared memory region 'g': failed to open CUDA IPC handle: "
        "out of memory"
    )


def test_an_allocation_nobody_knows(cuda, driver):
    driver.failing.add("cuMemGetAddressRange_v2")
    with pytest.raises(InvalidArgument, match="invalid args"):
        cuda.open(HANDLE, 0, 8, "g")
    assert driver.open == 0


@pytest.mark.parametrize(
    "function", ["cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"]
)
def test_a_device_that_fails(cuda, driver, function):
    block = cuda.open(HANDLE, 0, 8, "g")
    driver.failing.add(function)
    use = partial(block.read, 0, 8) if "DtoH" in function else partial(block.write, 0, b"x")
    with pytest.raises(Internal, match="failed to copy CUDA shared memory: out of memory"):
        use()


def test_a_client_that_is_gone_is_let_go_of(cuda, driver):
    block = cuda.open(HANDLE, 0, 8, "g")
    driver.failing.add("cuIpcCloseMemHandle")
    block.close()


def test_machines_without_a_gpu(monkeypatch):
    def load(_name):
        raise OSError("no such library")

    cuda_memory.find.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert cuda_memory.find() is None
    cuda_memory.find.cache_clear()


@pytest.mark.parametrize(("code", "count", "there"), [(0, 1, True), (100, 0, False), (0, 0, False)])
def test_what_the_driver_says(monkeypatch, code, count, there):
    class Counting:
        def cuInit(self, _flags):
            return code

        def cuDeviceGetCount(self, found):
            found._obj.value = count
            return 0

    cuda_memory.find.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: Counting())
    assert (cuda_memory.find() is not None) is there
    cuda_memory.find.cache_clear()
