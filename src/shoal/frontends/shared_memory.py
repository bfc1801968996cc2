"""Shared memory that clients register: tensors pass through it instead of the socket.

    client --register(name, key)--> regions --lease--> request --release--> regions

A region of system memory is mapped once, and read and written in place; one of GPU memory is opened
once, and its contents are copied. Requests that use a region hold a lease; unregistering it takes
effect when the last lease is released, so memory stays valid while a model uses it.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from shoal.core.tensor import Buffer
from shoal.errors import AlreadyExists, Internal, InvalidArgument, NotFound, Unsupported
from shoal.frontends import cuda_memory
from shoal.frontends.cuda_memory import Cuda, CudaBlock
from shoal.wire.regions import Lease

DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
RESERVED_PREFIX = "triton_python_backend_shm_region_"
_LARGEST = 2**64 - 1


@dataclass(slots=True)
class _Region:
    """One registered region; guarded by the lock of `SharedMemory`."""

    name: str
    byte_size: int
    memory: memoryview | CudaBlock
    status: dict[str, str | int]
    cuda: bool = False
    leases: int = 0
    unregistered: bool = False  # while in use


class SharedMemory:
    """The regions of one server. Any thread may call any method."""

    def __init__(
        self, *, allowed: bool = True, find_cuda: Callable[[], Cuda | None] | None = None
    ) -> None:
        """Without `allowed` regions cannot be registered; the status still works.

        `find_cuda` looks for GPUs when a client first registers memory of one.
        """
        self._allowed = allowed
        self._find_cuda = find_cuda or cuda_memory.find
        self._lock = threading.Lock()  # guards _regions and their fields
        self._regions: dict[str, _Region] = {}

    # ---- for clients

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map `byte_size` bytes from `offset` of the system's region `key` under `name`.

        Raises AlreadyExists for a name in use, InvalidArgument for an invalid key or bounds,
        Internal if the system has no such region; nothing is mapped then.
        """
        self._check_allowed()
        _check_key(name, key)
        with self._lock:
            self._check_free(name)
            view = _map(name, key, offset, byte_size)
            row: dict[str, str | int] = {"name": name, "key": key, "offset": offset}
            self._regions[name] = _Region(name, byte_size, view, {**row, "byte_size": byte_size})

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Open `byte_size` bytes of a GPU's memory, by its cudaIpcMemHandle_t, under `name`.

        Raises AlreadyExists for a name in use, InvalidArgument for a handle that cannot be opened
        or if there is no GPU; nothing is open then.
        """
        cuda = self._cuda(name)
        if len(handle) != cuda_memory.HANDLE_BYTES:
            raise InvalidArgument("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
        with self._lock:
            self._check_free(name)
            block = cuda.open(handle, device_id, byte_size, name)
            row: dict[str, str | int] = {"name": name, "device_id": device_id}
            row["byte_size"] = byte_size
            self._regions[name] = _Region(name, byte_size, block, row, cuda=True)

    def check_cuda(self, name: str) -> None:
        """Raise InvalidArgument if there is no GPU.

        The first call is slow on a machine that has one.
        """
        self._cuda(name)

    def _cuda(self, name: str) -> Cuda:
        self._check_allowed()
        cuda = self._find_cuda()
        if cuda is None:
            raise InvalidArgument(
                f"failed to register CUDA shared memory region: '{name}', GPUs not supported"
            )
        return cuda

    def unregister(self, name: str = "") -> None:
        """Unregister a region of system memory, or all of them. An unknown name is ignored."""
        self._unregister(name, cuda=False)

    def unregister_cuda(self, name: str = "") -> None:
        """Unregister a region of GPU memory, or all of them."""
        self._unregister(name, cuda=True)

    def _unregister(self, name: str, *, cuda: bool) -> None:
        self._check_allowed()
        with self._lock:
            for region in self._of_kind(name, cuda=cuda):
                if region.leases:
                    region.unregistered = True
                else:
                    self._remove(region)

    def status(self, name: str = "") -> list[dict[str, str | int]]:
        """The regions of system memory, or the one named `name`; NotFound if there is none."""
        return self._status(name, cuda=False)

    def cuda_status(self, name: str = "") -> list[dict[str, str | int]]:
        """The regions of GPU memory, or the one named `name`; NotFound if there is none."""
        return self._status(name, cuda=True)

    def _status(self, name: str, *, cuda: bool) -> list[dict[str, str | int]]:
        with self._lock:
            region = self._regions.get(name)
            if name and region is None:
                kind = "cuda" if cuda else "system"
                raise NotFound(f"Unable to find {kind} shared memory region: '{name}'")
            if region is not None and region.cuda is not cuda:
                found, requested = ("CUDA", "system") if region.cuda else ("system", "CUDA")
                raise NotFound(
                    f"The region named '{name}' is registered as {found} shared memory, not "
                    f"{requested} shared memory"
                )
            return [region.status for region in self._of_kind(name, cuda=cuda)]

    def _of_kind(self, name: str, *, cuda: bool) -> list[_Region]:
        """The regions of one kind, or the one named `name`. The lock is held."""
        return [r for r in self._regions.values() if r.cuda is cuda and name in ("", r.name)]

    def _check_free(self, name: str) -> None:
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")

    def _remove(self, region: _Region) -> None:
        """Remove a region without leases. The lock is held."""
        del self._regions[region.name]
        if not isinstance(region.memory, memoryview):
            region.memory.close()

    # ---- for requests

    def lease(self, name: str, offset: int, byte_size: int) -> Lease:
        """The bytes that a request names; they stay mapped until the lease is released.

        Raises NotFound for an unknown region, InvalidArgument for bounds outside of it.
        """
        with self._lock:
            region = self._regions.get(name)
            if region is None:
                raise NotFound(f"Unable to find shared memory region: '{name}'")
            if offset >= region.byte_size:
                raise InvalidArgument(f"Invalid offset for shared memory region: '{name}'")
            if offset + byte_size > _LARGEST:
                raise InvalidArgument(
                    f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) "
                    f"exceeds maximum value ({_LARGEST}) for region '{name}'"
                )
            if offset + byte_size > region.byte_size:
                raise InvalidArgument(
                    f"Invalid offset + byte size for shared memory region: '{name}'"
                )
            region.leases += 1
        if isinstance(region.memory, memoryview):
            return _RegionLease(self, region, region.memory[offset : offset + byte_size])
        return _CudaLease(self, region, region.memory, offset, byte_size)

    def _release(self, region: _Region) -> None:
        with self._lock:
            region.leases -= 1
            if region.unregistered and not region.leases:
                self._remove(region)

    def _check_allowed(self) -> None:
        if not self._allowed:
            raise Unsupported(DISABLED)


class _RegionLease:
    """A part of a region in use by one request."""

    __slots__ = ("_owner", "_region", "view")

    def __init__(self, owner: SharedMemory, region: _Region, view: memoryview) -> None:
        self._owner = owner
        self._region: _Region | None = region
        self.view = view

    def write(self, data: Buffer) -> None:
        """Write bytes at the start of the part."""
        self.view[: memoryview(data).nbytes] = data

    def release(self) -> None:
        """Release the part. A second call does nothing."""
        region, self._region = self._region, None
        if region is not None:
            self._owner._release(region)


class _CudaLease:
    """A part of a GPU's region in use by one request."""

    __slots__ = ("_byte_size", "_copy", "_memory", "_offset", "_owner", "_region")

    def __init__(
        self, owner: SharedMemory, region: _Region, memory: CudaBlock, offset: int, byte_size: int
    ) -> None:
        self._owner = owner
        self._region: _Region | None = region
        self._memory = memory
        self._offset = offset
        self._byte_size = byte_size
        self._copy: memoryview | None = None

    @property
    def view(self) -> memoryview:
        """A copy of the part, made at the first access."""
        if self._copy is None:
            self._copy = self._memory.read(self._offset, self._byte_size)
        return self._copy

    def write(self, data: Buffer) -> None:
        """Write bytes at the start of the part."""
        self._memory.write(self._offset, data)

    def release(self) -> None:
        """Release the part. A second call does nothing."""
        region, self._region = self._region, None
        if region is not None:
            self._owner._release(region)


def _check_key(name: str, key: str) -> None:
    bare = key.lstrip("/")
    if not bare or "/" in bare or "\0" in bare or bare in (".", ".."):
        raise InvalidArgument(
            f"cannot register shared memory region '{name}' - invalid shm key '{key}'"
        )
    if bare.startswith(RESERVED_PREFIX):
        raise InvalidArgument(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains "
            f"the reserved prefix '{RESERVED_PREFIX}'"
        )


def _map(name: str, key: str, offset: int, byte_size: int) -> memoryview:
    """The bytes of a region of system memory, shared for reading and writing."""
    descriptor = _open(key)
    try:
        size = os.fstat(descriptor).st_size
        if byte_size <= 0 or offset < 0 or offset + byte_size > size:
            raise InvalidArgument(
                f"failed to register shared memory region '{name}': invalid args. Offset {offset} "
                f"and byte_size {byte_size} must lie within the {size} bytes of '{key}'"
            )
        # Mapped from the start: the offset of a mapping must be a multiple of the page size.
        whole = memoryview(mmap.mmap(descriptor, offset + byte_size))
    except (OSError, ValueError) as error:
        raise Internal(f"failed to register shared memory region '{name}': {error}") from None
    finally:
        os.close(descriptor)
    return whole[offset:]


def _open(key: str) -> int:
    """A descriptor of a POSIX shared memory object."""
    try:
        # Not multiprocessing.shared_memory, which would unlink regions at exit.
        from _posixshmem import shm_open  # type: ignore[import-not-found]
    except ImportError:
        raise Unsupported("system shared memory is not available on this platform") from None
    try:
        descriptor: int = shm_open("/" + key.lstrip("/"), os.O_RDWR, mode=0o600)
    except (OSError, ValueError):
        raise Internal(f"Unable to open shared memory region: '{key}'") from None
    return descriptor
