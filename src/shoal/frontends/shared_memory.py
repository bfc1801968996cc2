"""Shared memory that clients register: tensors pass through it instead of the socket.

    client --register(name, key)--> regions --lease--> request --release--> regions

A region is opened once, and its contents are copied: see `region_leases`. System memory is not
mapped: its owner may truncate it at any time, and touching a page that is gone would kill the
server (SIGBUS), while a system call says so. Requests that use a region hold a lease; unregistering
it takes effect when the last lease is released.

Where there are several front-end processes, a region that one of them has opened is passed on to
all of them (`SharedNames`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from shoal.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    Unsupported,
)
from shoal.frontends import cuda_memory
from shoal.frontends.cuda_memory import Cuda, CudaBlock
from shoal.frontends.region_leases import CudaLease, ReadAheadBudget, SystemLease, truncated
from shoal.frontends.shared_names import SharedNames
from shoal.frontends.system_memory import SystemBlock, check_key, open_block
from shoal.link.counters import ServerCounter
from shoal.wire.regions import Lease

DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
_REGION = "region"  # a kind of names
_LARGEST = 2**64 - 1


@dataclass(slots=True)
class _Region:
    """One registered region; guarded by the lock of `SharedMemory`."""

    name: str
    byte_size: int
    memory: SystemBlock | CudaBlock
    status: dict[str, str | int]
    cuda: bool = False
    leases: int = 0
    unregistered: bool = False  # while in use
    unused: Callable[[], None] | None = None  # tells the other front ends that it no longer is


class SharedMemory:
    """The regions of one server. Any thread may call any method."""

    def __init__(
        self,
        *,
        allowed: bool = True,
        most_input_bytes: int = _LARGEST,
        most_ahead_bytes: int = _LARGEST,
        find_cuda: Callable[[], Cuda | None] | None = None,
        names: SharedNames | None = None,
        read_ahead: ServerCounter | None = None,
    ) -> None:
        """Without `allowed` regions cannot be registered; the status still works.

        `most_input_bytes` bounds one input: it is copied, and its region may be larger than memory.
        `most_ahead_bytes` bounds all that are copied before their models run.
        `find_cuda` looks for GPUs when a client first registers memory of one.
        `names` are those of all front ends: what clients call blocks then. `read_ahead` counts what
        all of them copy ahead.
        """
        self._allowed = allowed
        self._most_input_bytes = most_input_bytes
        self._find_cuda = find_cuda or cuda_memory.find
        self._read_ahead = ReadAheadBudget(most_ahead_bytes, read_ahead)
        self._lock = threading.Lock()  # guards _regions and their fields
        self._regions: dict[str, _Region] = {}
        self._names = names
        if names is not None:
            names.attach(_REGION, _Regions(self))

    # ---- for clients

    @property
    def asks_process(self) -> bool:
        """Whether regions are registered in other processes, too: that blocks."""
        return self._names is not None

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open `byte_size` bytes from `offset` of the system's region `key` under `name`.

        Raises AlreadyExists for a name in use, InvalidArgument for an invalid key or bounds,
        Internal if the system has no such region; nothing is open then.
        """
        self._check_allowed()
        check_key(name, key)
        self._remove_unused(name)
        with self._lock:
            self._check_free(name)
            block = open_block(name, key, offset, byte_size)
            if self._names is None:
                self._add(name, byte_size, block, {"key": key, "offset": offset})
                return
        value = ("system", key, offset, byte_size)
        if not self._names.register(_REGION, name, value, block.duplicate()):
            raise _taken(name)

    def _add(
        self,
        name: str,
        byte_size: int,
        memory: SystemBlock | CudaBlock,
        described: dict[str, str | int],
    ) -> None:
        """Keep a region. The lock is held."""
        status = {"name": name, **described, "byte_size": byte_size}
        cuda = not isinstance(memory, SystemBlock)
        self._regions[name] = _Region(name, byte_size, memory, status, cuda=cuda)

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Open `byte_size` bytes of a GPU's memory, by its cudaIpcMemHandle_t, under `name`.

        Raises AlreadyExists for a name in use, InvalidArgument for a handle that cannot be opened
        or if there is no GPU; nothing is open then.
        """
        self._check_allowed()
        if len(handle) != cuda_memory.HANDLE_BYTES:
            raise InvalidArgument("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
        if self._names is None:
            self._open_cuda(name, handle, device_id, byte_size)
            return
        self._remove_unused(name)
        with self._lock:
            self._check_free(name)
        if not self._names.register(_REGION, name, ("cuda", handle, device_id, byte_size)):
            raise _taken(name)

    def _open_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        cuda = self._find_cuda()  # the first call is slow on a machine that has a GPU
        with self._lock:
            self._check_free(name)
            if cuda is None:  # with the text of a Triton that could use a GPU
                raise InvalidArgument(
                    "failed to register shared memory region: invalid args (there is no GPU that "
                    "this server can use)"
                )
            block = cuda.open(handle, device_id, byte_size, name)
            self._add(name, byte_size, block, {"device_id": device_id})

    def unregister(self, name: str = "") -> None:
        """Unregister a region of system memory, or all of them. An unknown name is ignored."""
        self._unregister(name, cuda=False)

    def unregister_cuda(self, name: str = "") -> None:
        """Unregister a region of GPU memory, or all of them."""
        self._unregister(name, cuda=True)

    def _unregister(self, name: str, *, cuda: bool) -> None:
        self._check_allowed()
        with self._lock:
            regions = self._of_kind(name, cuda=cuda)
            if self._names is None:
                for region in regions:
                    region.unregistered = True
                    if not region.leases:
                        self._remove(region)
                return
        if regions:
            self._names.unregister(_REGION, [region.name for region in regions])

    def _remove_unused(self, name: str) -> None:
        """Remove regions, or one, that were unregistered while requests used them, if the last one
        has just ended: its client may look through another front end."""
        if self._names is None:
            return
        with self._lock:
            left = [
                region.name
                for region in self._regions.values()
                if region.unregistered and name in ("", region.name)
            ]
        if left:
            self._names.unregister(_REGION, left)

    def _leave(self, name: str, unused: Callable[[], None]) -> bool:
        """A region is to be unregistered in all processes; see `NameTaker`."""
        with self._lock:
            region = self._regions.get(name)
            if region is None:
                return False
            region.unregistered, region.unused = True, unused
            return region.leases > 0

    def _forget(self, name: str) -> None:
        """A region was unregistered in all processes: its name is free."""
        with self._lock:
            region = self._regions.pop(name, None)
            if region is not None:
                region.unregistered, region.unused = True, None
                if not region.leases:
                    self._remove(region)

    def status(self, name: str = "") -> list[dict[str, str | int]]:
        """The regions of system memory, or the one named `name`; NotFound if there is none."""
        return self._status(name, cuda=False)

    def cuda_status(self, name: str = "") -> list[dict[str, str | int]]:
        """The regions of GPU memory, or the one named `name`; NotFound if there is none."""
        return self._status(name, cuda=True)

    def _status(self, name: str, *, cuda: bool) -> list[dict[str, str | int]]:
        self._remove_unused(name)
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
            raise _taken(name)

    def _remove(self, region: _Region) -> None:
        """Remove a region without leases. The lock is held."""
        if self._regions.get(region.name) is region:
            del self._regions[region.name]
        if not isinstance(region.memory, SystemBlock):
            region.memory.close()

    # ---- for requests

    def lease(self, name: str, offset: int, byte_size: int) -> Lease:
        """The bytes that a request names; they stay registered until the lease is released.

        Raises NotFound for an unknown region, InvalidArgument for bounds outside of it and for a
        region that has been truncated.
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
            if isinstance(region.memory, SystemBlock):
                left = region.memory.available(offset)
                if left < byte_size:
                    raise truncated(name, left, byte_size)
            region.leases += 1
        release = partial(self._release, region)
        if isinstance(region.memory, SystemBlock):
            return SystemLease(
                name,
                region.memory,
                offset,
                byte_size,
                most_bytes=self._most_input_bytes,
                budget=self._read_ahead,
                release=release,
            )
        return CudaLease(region.memory, offset, byte_size, release=release)

    def _release(self, region: _Region) -> None:
        with self._lock:
            region.leases -= 1
            unused = None
            if region.unregistered and not region.leases:
                unused = region.unused
                if unused is None:
                    self._remove(region)
        if unused is not None:  # the supervisor removes it, in all processes
            unused()

    def _check_allowed(self) -> None:
        if not self._allowed:
            raise Unsupported(DISABLED)


class _Regions:
    """Regions that any front end has registered, for `SharedNames`."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    def is_slow(self, value: Any) -> bool:
        """See `NameTaker`."""
        return bool(value[0] == "cuda")  # to wake a GPU takes a while

    def add(self, name: str, value: Any, file: int) -> None:
        """See `NameTaker`."""
        kind, place, offset_or_device, byte_size = value
        if kind == "cuda":
            self._memory._open_cuda(name, place, offset_or_device, byte_size)
            return
        block = SystemBlock(file, offset_or_device)
        with self._memory._lock:
            described = {"key": place, "offset": offset_or_device}
            self._memory._add(name, byte_size, block, described)

    def leave(self, name: str, unused: Callable[[], None]) -> bool:
        """See `NameTaker`."""
        return self._memory._leave(name, unused)

    def remove(self, name: str) -> None:
        """See `NameTaker`."""
        self._memory._forget(name)


def _taken(name: str) -> AlreadyExists:
    return AlreadyExists(f"shared memory region '{name}' already in manager")
