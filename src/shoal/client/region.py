"""A piece of shared memory: tensors are laid into it, one after the other, and read from it.

    put(array) -> Placed, an input that need not travel      place(size) -> Place, for an output

Registering it with a server is the client's part (`shared_memory`). The memory goes when nobody
looks at it any more; its name goes as soon as the server knows it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.client.errors import ClientError, InvalidInput
from shoal.client.inputs import Placed, decoded, tensor

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Room for an output in a region."""

    region: Region
    offset: int
    byte_size: int

    def read(self, datatype: str, shape: Sequence[int], byte_size: int | None = None) -> np.ndarray:
        """A copy of what lies there, as an array."""
        size = self.byte_size if byte_size is None else byte_size
        raw = self.region.memory[self.offset : self.offset + size]
        return decoded(datatype, shape, bytearray(raw), "the output in shared memory")


class Region:
    """Shared memory of this machine. Any thread may call any method."""

    def __init__(self, name: str, byte_size: int) -> None:
        """Make it; ClientError when the system refuses."""
        if byte_size < 1:
            raise InvalidInput(f"a region has at least 1 byte, found {byte_size}")
        if not name:
            raise InvalidInput("a region of shared memory needs a name")
        self.name = name
        self.key = f"/shoal-{os.getpid()}-{os.urandom(8).hex()}"
        self.byte_size = byte_size
        self._lock = threading.Lock()  # guards _used
        self._used = 0
        self._memory = _created(self.key, byte_size)
        self.memory = memoryview(self._memory)

    @property
    def free(self) -> int:
        """How many bytes are left for more tensors."""
        return self.byte_size - self._used

    def put(self, value: Any, datatype: str = "") -> Placed:
        """Copy an array into the region; what it returns is an input for `infer`.

        `datatype` as with `Input`. InvalidInput when there is no room left.
        """
        from shoal.client.inputs import Input

        made = tensor("shared", Input(value, datatype) if datatype else value)
        if made.placed is not None:
            raise InvalidInput("this tensor lies in shared memory already")
        offset = self._take(made.nbytes)
        raw = memoryview(made.raw)
        self.memory[offset : offset + made.nbytes] = raw.cast("B") if raw.nbytes else b""
        return Placed(self.name, offset, made.nbytes, made.datatype, made.shape)

    def place(self, byte_size: int) -> Place:
        """Room for an output of up to `byte_size` bytes: `infer(…, outputs={"prob": place})`."""
        if byte_size < 1:
            raise InvalidInput(f"an output takes at least 1 byte, found {byte_size}")
        return Place(self, self._take(byte_size), byte_size)

    def clear(self) -> None:
        """Use the memory for other tensors; those in it are overwritten."""
        with self._lock:
            self._used = 0

    def unlink(self) -> None:
        """Take the name away; whoever has opened the memory keeps it. Again does no harm."""
        _unlink(self.key)

    def close(self) -> None:
        """Let go of the memory; arrays that were read from it are copies and stay."""
        self.unlink()
        with contextlib.suppress(BufferError):  # somebody looks at it: it goes when they are done
            self.memory.release()
            self._memory.close()

    def _take(self, byte_size: int) -> int:
        with self._lock:
            offset = -(-self._used // ALIGNMENT) * ALIGNMENT
            if offset + byte_size > self.byte_size:
                raise InvalidInput(
                    f"region '{self.name}' has {max(0, self.byte_size - offset)} of "
                    f"{self.byte_size} bytes left, this takes {byte_size}; make it larger, or "
                    f"clear() it"
                )
            self._used = offset + byte_size
        return offset


def _created(key: str, byte_size: int) -> mmap.mmap:
    try:
        import _posixshmem  # type: ignore[import-not-found]
    except ImportError:
        raise ClientError(
            "this system has no POSIX shared memory; send the tensors themselves"
        ) from None
    try:
        file = _posixshmem.shm_open(key, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
    except OSError as error:
        raise ClientError(f"shared memory cannot be made: {error.strerror}") from None
    try:
        os.ftruncate(file, byte_size)
        return mmap.mmap(file, byte_size)
    except (OSError, ValueError) as error:
        _unlink(key)
        raise ClientError(f"{byte_size} bytes of shared memory cannot be had: {error}") from None
    finally:
        os.close(file)


def _unlink(key: str) -> None:
    import _posixshmem

    with contextlib.suppress(FileNotFoundError):
        _posixshmem.shm_unlink(key)
