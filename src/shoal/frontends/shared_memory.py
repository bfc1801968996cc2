"""Shared memory that clients register: tensors pass through it instead of the socket.

    client --register(name, key)--> regions --lease--> request --release--> regions

A region is mapped once. Requests that use it hold a lease; unregistering a region in use takes
effect when the last lease is given back, so nobody's memory goes away under a running model.
"""

from __future__ import annotations

import mmap
import os
import threading
from dataclasses import dataclass, field

from shoal.errors import AlreadyExists, Internal, InvalidArgument, NotFound, Unsupported
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
    key: str
    offset: int
    byte_size: int
    view: memoryview
    leases: int = 0
    leaving: bool = False  # unregistered while in use
    status: dict[str, str | int] = field(init=False)

    def __post_init__(self) -> None:
        self.status = {
            "name": self.name,
            "key": self.key,
            "offset": self.offset,
            "byte_size": self.byte_size,
        }


class SharedMemory:
    """The regions of one server. Any thread may call any method."""

    def __init__(self, *, allowed: bool = True) -> None:
        """Without `allowed` nobody can register anything; asking for the status still works."""
        self._allowed = allowed
        self._lock = threading.Lock()  # guards _regions and what is in them
        self._regions: dict[str, _Region] = {}

    # ---- what clients ask for

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map `byte_size` bytes from `offset` of the system's region `key` under `name`.

        Raises AlreadyExists for a name in use, InvalidArgument for a key or bounds that cannot
        be, Internal when the system has no such region. Nothing stays mapped then.
        """
        self._check_allowed()
        _check_key(name, key)
        with self._lock:
            if name in self._regions:
                raise AlreadyExists(f"shared memory region '{name}' already in manager")
            view = _map(name, key, offset, byte_size)
            self._regions[name] = _Region(name, key, offset, byte_size, view)

    def register_cuda(self, name: str) -> None:
        """Refuse a region of a GPU, in the words of a server without one."""
        self._check_allowed()
        raise InvalidArgument(
            f"failed to register CUDA shared memory region: '{name}', GPUs not supported"
        )

    def unregister(self, name: str = "") -> None:
        """Let go of a region, or of all of them. An unknown name is nothing to let go of."""
        self._check_allowed()
        with self._lock:
            for region in [r for r in self._regions.values() if name in ("", r.name)]:
                if region.leases:
                    region.leaving = True
                else:
                    del self._regions[region.name]

    def unregister_cuda(self) -> None:
        """There is never a region of a GPU to let go of."""
        self._check_allowed()

    def status(self, name: str = "") -> list[dict[str, str | int]]:
        """The regions, or the one called `name`; NotFound when there is none."""
        with self._lock:
            if name and name not in self._regions:
                raise NotFound(f"Unable to find system shared memory region: '{name}'")
            return [r.status for r in self._regions.values() if name in ("", r.name)]

    def cuda_status(self, name: str = "") -> list[dict[str, str | int]]:
        """The regions of GPUs: none."""
        if name:
            raise NotFound(f"Unable to find cuda shared memory region: '{name}'")
        return []

    # ---- what requests need

    def lease(self, name: str, offset: int, byte_size: int) -> Lease:
        """The bytes a request names; they stay mapped until the lease is given back.

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
        return _RegionLease(self, region, region.view[offset : offset + byte_size])

    def _give_back(self, region: _Region) -> None:
        with self._lock:
            region.leases -= 1
            if region.leaving and not region.leases:
                self._regions.pop(region.name, None)

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

    def release(self) -> None:
        """Give the part back; once is enough, more often does nothing."""
        region, self._region = self._region, None
        if region is not None:
            self._owner._give_back(region)


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
    """The bytes of a region of the system, shared for reading and writing."""
    descriptor = _open(key)
    try:
        size = os.fstat(descriptor).st_size
        if byte_size <= 0 or offset < 0 or offset + byte_size > size:
            raise InvalidArgument(
                f"failed to register shared memory region '{name}': invalid args. Offset {offset} "
                f"and byte_size {byte_size} must lie within the {size} bytes of '{key}'"
            )
        # Mapped from the start: an offset into a mapping would have to be a multiple of a page.
        whole = memoryview(mmap.mmap(descriptor, offset + byte_size))
    except (OSError, ValueError) as error:
        raise Internal(f"failed to register shared memory region '{name}': {error}") from None
    finally:
        os.close(descriptor)
    return whole[offset:]


def _open(key: str) -> int:
    """A descriptor of a POSIX shared memory object."""
    try:
        # What multiprocessing.shared_memory is made of; that itself would unlink regions at exit.
        from _posixshmem import shm_open  # type: ignore[import-not-found]
    except ImportError:
        raise Unsupported("system shared memory is not available on this platform") from None
    try:
        descriptor: int = shm_open("/" + key.lstrip("/"), os.O_RDWR, mode=0o600)
    except (OSError, ValueError):
        raise Internal(f"Unable to open shared memory region: '{key}'") from None
    return descriptor
