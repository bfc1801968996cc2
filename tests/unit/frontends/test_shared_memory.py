"""Regions that clients register: bounds, leases, and leaving while in use."""

from __future__ import annotations

import sys
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory as System

import pytest

from shoal.core.dtypes import BYTES, UINT8
from shoal.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unsupported,
)
from shoal.frontends.shared_memory import SharedMemory

SIZE = 256
HANDLE = bytes(range(64))


@pytest.fixture
def region():
    system = System(create=True, size=SIZE)
    resource_tracker.unregister(system._name, "shared_memory")  # we unlink it ourselves
    yield system
    system.close()
    resource_tracker.register(system._name, "shared_memory")
    system.unlink()


def contents(lease):
    """What an input in the leased part holds."""
    tensor = lease.tensor("numbers", UINT8, (4,))
    assert tensor.nbytes == 4
    return tensor.raw


@pytest.fixture
def memory():
    return SharedMemory()


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_what_a_client_writes_is_what_a_lease_shows(memory, region, monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)  # where regions can be mapped only
    memory.register("r", region.name, 16, 64)
    region.buf[16:20] = b"fish"
    lease = memory.lease("r", 0, 4)
    assert bytes(contents(lease)) == b"fish"
    lease.write(b"crab")
    assert bytes(region.buf[16:20]) == b"crab"
    lease.release()


def test_the_status_says_what_was_registered(memory, region):
    memory.register("r", "/" + region.name, 16, 64)
    row = {"name": "r", "key": "/" + region.name, "offset": 16, "byte_size": 64}
    assert memory.status() == memory.status("r") == [row]
    with pytest.raises(NotFound, match="Unable to find system shared memory region: 'x'"):
        memory.status("x")


def test_a_name_is_registered_once(memory, region):
    memory.register("r", region.name, 0, 64)
    with pytest.raises(AlreadyExists, match="shared memory region 'r' already in manager"):
        memory.register("r", region.name, 0, 64)


@pytest.mark.parametrize(
    ("offset", "size"), [(0, SIZE * 20), (SIZE * 20, 1), (0, 0), (2**70, 1), (0, 2**70)]
)
def test_a_region_lies_within_what_the_system_has(memory, region, offset, size):
    with pytest.raises(
        InvalidArgument, match=r"failed to register shared memory region 'r'.*inval"
    ):
        memory.register("r", region.name, offset, size)
    assert memory.status() == []


@pytest.mark.parametrize("key", ["/", "///", "", "a/b", "/../etc/passwd", "..", "a\0b"])
def test_keys_that_are_none(memory, key):
    with pytest.raises(InvalidArgument, match="invalid shm key"):
        memory.register("r", key, 0, 1)


def test_keys_of_the_python_backend_are_refused(memory):
    with pytest.raises(InvalidArgument, match="reserved prefix"):
        memory.register("r", "//triton_python_backend_shm_region_1", 0, 1)


def test_a_key_that_is_not_there(memory):
    with pytest.raises(Internal, match="Unable to open shared memory region: 'not_there'"):
        memory.register("r", "not_there", 0, 1)


@pytest.mark.parametrize(
    ("offset", "size", "text"),
    [
        (64, 0, "Invalid offset for shared memory region: 'r'"),
        (0, 65, "Invalid offset \\+ byte size for shared memory region: 'r'"),
        (63, 2, "Invalid offset \\+ byte size"),
        (1, 2**64 - 1, "Integer overflow detected: byte_size"),
    ],
)
def test_leases_lie_within_their_region(memory, region, offset, size, text):
    memory.register("r", region.name, 0, 64)
    with pytest.raises(InvalidArgument, match=text):
        memory.lease("r", offset, size)
    with pytest.raises(NotFound, match="Unable to find shared memory region: 'x'"):
        memory.lease("x", 0, 1)


def test_a_region_in_use_leaves_with_its_last_lease(memory, region):
    memory.register("r", region.name, 0, 64)
    first, second = memory.lease("r", 0, 4), memory.lease("r", 0, 4)
    memory.unregister("r")
    assert len(memory.status()) == 1
    third = memory.lease("r", 0, 4)  # those who come before the end are still served
    first.release()
    first.release()  # once more does no harm
    second.release()
    assert len(memory.status()) == 1
    third.release()
    assert memory.status() == []


def test_all_regions_at_once_and_unknown_ones(memory, region):
    memory.register("a", region.name, 0, 64)
    memory.register("b", region.name, 64, 64)
    memory.unregister("nobody")
    memory.unregister()
    assert memory.status() == []


def test_it_can_be_switched_off(region):
    memory = SharedMemory(allowed=False)
    for call in (
        lambda: memory.register("r", region.name, 0, 64),
        lambda: memory.unregister("r"),
        lambda: memory.register_cuda("r", HANDLE, 0, 64),
        memory.unregister_cuda,
    ):
        with pytest.raises(
            Unsupported, match=r"Client shared memory is disabled\. Start the server"
        ):
            call()
    assert memory.status() == memory.cuda_status() == []


def test_there_is_no_gpu():
    memory = SharedMemory(find_cuda=lambda: None)
    with pytest.raises(InvalidArgument) as caught:
        memory.register_cuda("r", HANDLE, 0, 64)
    assert caught.value.message.startswith("failed to register shared memory region: invalid args")
    with pytest.raises(InvalidArgument, match="'raw_handle' must be a valid base64 encoded"):
        memory.register_cuda("r", b"junk", 0, 64)
    with pytest.raises(NotFound, match="Unable to find cuda shared memory region: 'r'"):
        memory.cuda_status("r")
    memory.unregister_cuda("r")


class Gpu:
    """A machine with one GPU, whose memory is a bytearray."""

    def __init__(self):
        self.bytes = bytearray(range(SIZE))
        self.opened = []
        self.open_blocks = 0
        self.reads = 0

    def open(self, handle, device_id, byte_size, name):
        if byte_size > SIZE:
            raise InvalidArgument(f"failed to register shared memory region '{name}': invalid args")
        self.opened.append((handle, device_id))
        self.open_blocks += 1
        return self

    def read(self, offset, byte_size):
        self.reads += 1
        return memoryview(bytes(self.bytes[offset : offset + byte_size]))

    def write(self, offset, data):
        self.bytes[offset : offset + len(data)] = data

    def close(self):
        self.open_blocks -= 1


class TestRegionsOfAGpu:
    @pytest.fixture
    def gpu(self):
        return Gpu()

    @pytest.fixture
    def memory(self, gpu):
        return SharedMemory(find_cuda=lambda: gpu)

    def test_a_lease_reads_when_it_is_looked_at_and_writes_through(self, memory, gpu):
        memory.register_cuda("g", HANDLE, 0, 128)
        assert gpu.opened == [(HANDLE, 0)]
        lease = memory.lease("g", 16, 4)
        assert gpu.reads == 0  # it may be for an output
        assert bytes(contents(lease)) == bytes((16, 17, 18, 19))
        assert gpu.reads == 1
        lease.write(b"crab")
        assert gpu.bytes[16:20] == b"crab"
        lease.release()
        lease.release()

    def test_bounds_are_those_of_any_region(self, memory):
        memory.register_cuda("g", HANDLE, 0, 128)
        with pytest.raises(InvalidArgument, match="Invalid offset for shared memory region: 'g'"):
            memory.lease("g", 128, 1)
        with pytest.raises(InvalidArgument, match=r"Invalid offset \+ byte size"):
            memory.lease("g", 100, 29)

    def test_the_status_keeps_the_kinds_apart(self, memory, region):
        memory.register("s", region.name, 0, 64)
        memory.register_cuda("g", HANDLE, 1, 128)
        assert memory.cuda_status() == [{"name": "g", "device_id": 1, "byte_size": 128}]
        assert memory.cuda_status("g") == memory.cuda_status()
        assert [row["name"] for row in memory.status()] == ["s"]
        with pytest.raises(NotFound, match="'g' is registered as CUDA shared memory, not system"):
            memory.status("g")
        with pytest.raises(NotFound, match="'s' is registered as system shared memory, not CUDA"):
            memory.cuda_status("s")

    def test_a_name_is_registered_once_whatever_the_kind(self, memory, region, gpu):
        memory.register("s", region.name, 0, 64)
        with pytest.raises(AlreadyExists, match="'s' already in manager"):
            memory.register_cuda("s", HANDLE, 0, 64)
        assert gpu.opened == []

    @pytest.mark.parametrize("handle", [b"", b"x" * 63, b"x" * 65])
    def test_handles_have_a_size(self, memory, handle):
        with pytest.raises(InvalidArgument, match="'raw_handle' must be a valid base64"):
            memory.register_cuda("g", handle, 0, 64)

    def test_what_cannot_be_opened_is_not_registered(self, memory, gpu):
        with pytest.raises(InvalidArgument, match="invalid args"):
            memory.register_cuda("g", HANDLE, 0, SIZE + 1)
        assert memory.cuda_status() == []
        assert gpu.open_blocks == 0

    def test_a_region_in_use_is_closed_after_its_last_lease(self, memory, gpu):
        memory.register_cuda("g", HANDLE, 0, 64)
        first, second = memory.lease("g", 0, 4), memory.lease("g", 4, 4)
        memory.unregister_cuda("g")
        first.release()
        assert gpu.open_blocks == 1
        second.release()
        assert gpu.open_blocks == 0
        assert memory.cuda_status() == []

    def test_each_kind_is_unregistered_by_itself(self, memory, region, gpu):
        memory.register("s", region.name, 0, 64)
        memory.register_cuda("g", HANDLE, 0, 64)
        memory.unregister("g")
        memory.unregister_cuda("s")
        memory.unregister()
        assert memory.status() == []
        assert gpu.open_blocks == 1
        memory.unregister_cuda()
        assert gpu.open_blocks == 0


def test_large_inputs_are_read_ahead_within_a_limit():
    size = (4 << 20) + 1
    system = System(create=True, size=size)
    memory = SharedMemory(most_ahead_bytes=size + 10)
    try:
        memory.register("r", system.name, 0, size)
        first, second, small = [memory.lease("r", 0, count) for count in (size, size, 4)]
        tensor = first.tensor("numbers", UINT8, (size,))
        assert not small.is_large
        assert (second.is_large, first.is_large) == (False, True)  # it is no input yet
        second.tensor("numbers", UINT8, (size,))
        system.buf[:4] = b"fish"
        first.read_ahead()
        system.buf[:4] = b"crab"  # too late
        assert bytes(tensor.raw[:4]) == b"fish"
        with pytest.raises(Unavailable, match="--max-buffered-bytes"):
            second.read_ahead()
        first.release()
        second.read_ahead()
        second.release()
        assert memory._read_ahead._bytes == 0
    finally:
        system.close()
        system.unlink()


def test_strings_have_a_limit(memory, region):
    memory.register("r", region.name, 0, SIZE)
    lease = memory.lease("r", 0, SIZE)
    with pytest.raises(InvalidArgument, match="'texts' has 1000001 string elements, and at most"):
        lease.tensor("texts", BYTES, (1_000_001,))
    lease.tensor("texts", BYTES, (1_000_000,))
