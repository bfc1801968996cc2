"""A region of shared memory: inputs are copied into it, outputs are read from it.

    put(array) -> Placed, an input that is not sent      place(size) -> Place, for an output

The client registers it with a server (`shared_memory`). The memory is freed when it has no more
users; its name is removed as soon as it is registered.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.client.errors import ClientError, InvalidInput
from shoal.client.inputs import Placed, decoded, tensor
from shoal.client.result import Result
from shoal.core import dtypes

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Space for an output in a region."""

    region: Region
    offset: int
    byte_size: int

    def read(self, datatype: str, shape: Sequence[int], byte_size: int | None = None) -> np.ndarray:
        """A copy of the output as an array."""
        size = self.byte_size if byte_size is None else byte_size
        raw = self.region.memory[self.offset : self.offset + size]
        return decoded(datatype, shape, bytearray(raw), "the output in shared memory")


def fill_from_places(result: Result, places: Mapping[str, Place]) -> None:
    """Set the arrays of the outputs in `places`."""
    for name, place in places.items():
        output = result.outputs.get(name)
        if output is None or output.raw:
            continue
        size = output.parameters.get("shared_memory_byte_size")
        if output.datatype != "BYTES" or not isinstance(size, int):
            known = dtypes.from_name(output.datatype)
            size = math.prod(output.shape) * known.itemsize or place.byte_size
        output.array = place.read(output.datatype, output.shape, size)


class Region:
    """Shared memory of this machine. Thread-safe."""

    def __init__(self, name: str, byte_size: int) -> None:
        """Create it. Raises ClientError when the system refuses."""
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
        """The number of free bytes."""
        return self.byte_size - self._used

    def put(self, value: Any, datatype: str = "") -> Placed:
        """Copy an array into the region; returns an input for `infer`.

        `datatype` as with `Input`. Raises InvalidInput when there is not enough space.
        """
        from shoal.client.inputs import Input

        made = tensor("shared", Input(value, datatype) if datatype else value)
        if made.placed is not None:
            raise InvalidInput("this tensor is in shared memory already")
        offset = self._take(made.nbytes)
        raw = memoryview(made.raw)
        self.memory[offset : offset + made.nbytes] = raw.cast("B") if raw.nbytes else b""
        return Placed(self.name, offset, made.nbytes, made.datatype, made.shape)

    def place(self, byte_size: int) -> Place:
        """Space for an output of up to `byte_size` bytes: `infer(…, outputs={"prob": place})`."""
        if byte_size < 1:
            raise InvalidInput(f"an output takes at least 1 byte, found {byte_size}")
        return Place(self, self._take(byte_size), byte_size)

    def clear(self) -> None:
        """Free all space; later tensors overwrite the present ones."""
        with self._lock:
            self._used = 0

    def unlink(self) -> None:
        """Remove the name; processes that have it open keep the memory. May be repeated."""
        _unlink(self.key)

    def close(self) -> None:
        """Close the memory; arrays that were read from it are copies and stay valid."""
        self.unlink()
        with contextlib.suppress(BufferError):  # it is still in use and freed later
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
        raise ClientError(f"shared memory cannot be created: {error.strerror}") from None
    try:
        os.ftruncate(file, byte_size)
        return mmap.mmap(file, byte_size)
    except (OSError, ValueError) as error:
        _unlink(key)
        raise ClientError(
            f"{byte_size} bytes of shared memory cannot be allocated: {error}"
        ) from None
    finally:
        os.close(file)


def _unlink(key: str) -> None:
    import _posixshmem

    with contextlib.suppress(FileNotFoundError):
        _posixshmem.shm_unlink(key)
