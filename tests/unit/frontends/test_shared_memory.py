"""Regions that clients register: bounds, leases, and leaving while in use."""

from __future__ import annotations

from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory as System

import pytest

from shoal.errors import AlreadyExists, Internal, InvalidArgument, NotFound, Unsupported
from shoal.frontends.shared_memory import SharedMemory

SIZE = 256


@pytest.fixture
def region():
    system = System(create=True, size=SIZE)
    resource_tracker.unregister(system._name, "shared_memory")  # we unlink it ourselves
    yield system
    system.close()
    resource_tracker.register(system._name, "shared_memory")
    system.unlink()


@pytest.fixture
def memory():
    return SharedMemory()


def test_what_a_client_writes_is_what_a_lease_shows(memory, region):
    memory.register("r", region.name, 16, 64)
    region.buf[16:20] = b"fish"
    lease = memory.lease("r", 0, 4)
    assert bytes(lease.view) == b"fish"
    lease.view[:4] = b"crab"
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
        lambda: memory.register_cuda("r"),
        memory.unregister_cuda,
    ):
        with pytest.raises(
            Unsupported, match=r"Client shared memory is disabled\. Start the server"
        ):
            call()
    assert memory.status() == memory.cuda_status() == []


def test_there_is_no_gpu(memory):
    with pytest.raises(InvalidArgument, match="'r', GPUs not supported"):
        memory.register_cuda("r")
    with pytest.raises(NotFound):
        memory.cuda_status("r")
