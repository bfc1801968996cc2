"""System memory of other processes (POSIX): opened by its key, read and written by system calls.

    open_block(name, key, offset, size) --> SystemBlock --read, write--> bytes

It is not mapped, because its owner may truncate it at any time: see `shared_memory`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys

import numpy as np

from shoal.core.buffers import pool
from shoal.errors import Internal, InvalidArgument, Unsupported

RESERVED_PREFIX = "triton_python_backend_shm_region_"
_POOLED_BYTES = 32 << 10  # from here on inputs are read into memory from a pool


def check_key(name: str, key: str) -> None:
    """Raise InvalidArgument for a key that no region of the system can have, or that Python models
    use."""
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


class SystemBlock:
    """System memory of another process: a file of which a system call reads and writes parts."""

    def __init__(self, descriptor: int, start: int) -> None:
        """Owns the descriptor, which is closed when nothing refers to this any more."""
        self._descriptor = descriptor
        self._start = start

    def __del__(self) -> None:
        os.close(self._descriptor)

    def duplicate(self) -> int:
        """Another descriptor of it, for other processes."""
        return os.dup(self._descriptor)

    def available(self, offset: int) -> int:
        """How many bytes there are from `offset` on, at this moment."""
        return os.fstat(self._descriptor).st_size - self._start - offset

    def read(self, offset: int, byte_size: int) -> tuple[memoryview, int]:
        """A copy of these bytes, and how many there were; the others are zeros. Never raises."""
        pooled = byte_size >= _POOLED_BYTES
        copy = pool.take(byte_size) if pooled else memoryview(bytearray(byte_size))
        done = 0
        with contextlib.suppress(OSError):
            while done < byte_size:
                place = self._start + offset + done
                count = os.preadv(self._descriptor, [copy[done:]], place)
                if not count:
                    break
                done += count
        if done < byte_size:
            np.frombuffer(copy[done:], np.uint8).fill(0)
        return copy, done

    def write(self, offset: int, data: memoryview) -> None:
        """Write these bytes. Raises OSError when the system has no memory for them."""
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], self._start + offset + done)


class _MappedBlock(SystemBlock):
    """As `SystemBlock`, where system calls cannot read shared memory, as on macOS; there it cannot
    be truncated either."""

    def __init__(self, descriptor: int, start: int, byte_size: int) -> None:
        super().__init__(descriptor, start)
        # Mapped from the start: the offset of a mapping must be a multiple of the page size.
        self._view = memoryview(mmap.mmap(descriptor, start + byte_size))[start:]

    def read(self, offset: int, byte_size: int) -> tuple[memoryview, int]:
        """A copy of these bytes, and how many there were."""
        return memoryview(bytearray(self._view[offset : offset + byte_size])), byte_size

    def write(self, offset: int, data: memoryview) -> None:
        """Write these bytes."""
        self._view[offset : offset + len(data)] = data


def open_block(name: str, key: str, offset: int, byte_size: int) -> SystemBlock:
    """The bytes of a region of system memory, shared for reading and writing.

    Raises InvalidArgument for bounds outside of it, Internal if the system has no such region,
    Unsupported where there is no such memory; nothing is open then.
    """
    descriptor = _open(key)
    try:
        size = os.fstat(descriptor).st_size
        if byte_size <= 0 or offset < 0 or offset + byte_size > size:
            raise InvalidArgument(
                f"failed to register shared memory region '{name}': invalid args. Offset {offset} "
                f"and byte_size {byte_size} must lie within the {size} bytes of '{key}'"
            )
    except BaseException:
        os.close(descriptor)
        raise
    if hasattr(os, "preadv") and sys.platform != "darwin":
        return SystemBlock(descriptor, offset)
    try:
        return _MappedBlock(descriptor, offset, byte_size)
    except (OSError, ValueError) as error:
        raise Internal(f"failed to register shared memory region '{name}': {error}") from None


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
