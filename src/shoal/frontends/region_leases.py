"""Parts of shared memory that requests use: an input is read from one, an output is written to one.

A part of system memory is read when the model uses the input. A large one is read before, on a
thread, as far as the `ReadAheadBudget` allows. A part of a GPU's memory is read with the request.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from shoal.core import bytes_tensor
from shoal.core.dtypes import BYTES, DataType
from shoal.core.lazy_tensor import LazyTensor
from shoal.core.tensor import Buffer, Tensor
from shoal.errors import Internal, InvalidArgument, Unavailable
from shoal.frontends.cuda_memory import CudaBlock
from shoal.frontends.system_memory import SystemBlock
from shoal.link.counters import ServerCounter
from shoal.wire.regions import LARGE_BYTES


class ReadAheadBudget:
    """The bytes that are copied before their models run. Any thread may call any method."""

    def __init__(self, most_bytes: int, shared: ServerCounter | None = None) -> None:
        """`shared` counts those of all front ends together."""
        self._most_bytes = most_bytes
        self._shared = shared
        self._lock = threading.Lock()  # guards _bytes
        self._bytes = 0

    def reserve(self, size: int) -> None:
        """Count an input that is about to be copied. Unavailable beyond the limit."""
        with self._lock:
            ahead_bytes = self._bytes if self._shared is None else self._shared.total()
            if ahead_bytes + size > self._most_bytes:
                raise Unavailable(
                    f"the server has copied as much shared memory as it may, "
                    f"{self._most_bytes} bytes; try again later, or raise the limit with "
                    f"--max-buffered-bytes"
                )
            self._add(size)

    def free(self, size: int) -> None:
        """The copy is no longer used."""
        with self._lock:
            self._add(-size)

    def _add(self, size: int) -> None:
        self._bytes += size
        if self._shared is not None:
            self._shared.set(self._bytes)


class SystemLease:
    """A part of a region of system memory, in use by one request."""

    __slots__ = (
        *("_ahead_bytes", "_budget", "_byte_size", "_copy", "_memory", "_most_bytes", "_name"),
        *("_offset", "_read_bytes", "_release", "is_large"),
    )

    def __init__(
        self,
        name: str,
        memory: SystemBlock,
        offset: int,
        byte_size: int,
        *,
        most_bytes: int,
        budget: ReadAheadBudget,
        release: Callable[[], None],
    ) -> None:
        """Of the region `name`. `most_bytes` bounds what is read; `release` is called once."""
        self._name = name
        self._memory = memory
        self._offset = offset
        self._byte_size = byte_size
        self._most_bytes = most_bytes
        self._budget = budget
        self._release: Callable[[], None] | None = release
        self._copy: memoryview | None = None
        self._read_bytes = byte_size
        self._ahead_bytes = 0
        self.is_large = False

    def tensor(self, name: str, datatype: DataType, shape: tuple[int, ...]) -> Tensor:
        """An input that reads the part when the model uses it; `check` says whether it could."""
        if self._byte_size > self._most_bytes:
            raise InvalidArgument(
                f"input '{name}' has {self._byte_size} bytes in shared memory region "
                f"'{self._name}', at most {self._most_bytes} are read (--http-max-body-size)"
            )
        if datatype is BYTES:
            bytes_tensor.check_unsent(name, math.prod(shape), "from shared memory")
        self.is_large = self._byte_size > LARGE_BYTES
        return LazyTensor(name, datatype, shape, self._byte_size, self._read)

    def read_ahead(self) -> None:
        """Read a large part now. Unavailable if too much is read ahead already."""
        if self.is_large and not self._ahead_bytes:
            self._budget.reserve(self._byte_size)
            self._ahead_bytes = self._byte_size
            self._read()

    def _read(self) -> memoryview:
        """A copy of the part, made once; zeros stand for what is no longer there."""
        if self._copy is None:
            self._copy, self._read_bytes = self._memory.read(self._offset, self._byte_size)
        return self._copy

    def check(self) -> None:
        """Raise InvalidArgument if the region was truncated before the input was read."""
        if self._read_bytes < self._byte_size:
            raise truncated(self._name, self._read_bytes, self._byte_size)

    def write(self, data: Buffer) -> None:
        """Write bytes at the start of the part. InvalidArgument if the region was truncated,
        Internal if the system has no memory for it."""
        view = memoryview(data).cast("B")
        left = self._memory.available(self._offset)
        if left < len(view):  # writing would extend it again
            raise truncated(self._name, left, len(view))
        try:
            self._memory.write(self._offset, view)
        except OSError as error:
            raise Internal(
                f"failed to write to shared memory region '{self._name}': {error.strerror}"
            ) from None

    def release(self) -> None:
        """Release the part. A second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            if self._ahead_bytes:
                self._budget.free(self._ahead_bytes)
            release()


class CudaLease:
    """A part of a region of a GPU's memory, in use by one request."""

    __slots__ = ("_byte_size", "_memory", "_offset", "_release")

    is_large = False  # the part was read when the request was

    def __init__(
        self, memory: CudaBlock, offset: int, byte_size: int, *, release: Callable[[], None]
    ) -> None:
        """`release` is called once."""
        self._memory = memory
        self._offset = offset
        self._byte_size = byte_size
        self._release: Callable[[], None] | None = release

    def tensor(self, name: str, datatype: DataType, shape: tuple[int, ...]) -> Tensor:
        """An input with a copy of the part. Internal if the device fails."""
        raw = self._memory.read(self._offset, self._byte_size)
        return Tensor(name, datatype, shape, raw=raw)

    def read_ahead(self) -> None:
        """Nothing, as `check`."""

    def check(self) -> None:
        """Nothing: the part was read when the request was."""

    def write(self, data: Buffer) -> None:
        """Write bytes at the start of the part."""
        self._memory.write(self._offset, data)

    def release(self) -> None:
        """Release the part. A second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()


def truncated(name: str, left: int, needed: int) -> InvalidArgument:
    """The error for a region that has only `left` of the `needed` bytes."""
    return InvalidArgument(
        f"shared memory region '{name}' was truncated: it has {max(0, left)} of the {needed} bytes "
        f"that the request uses; register it again with its new size"
    )
