"""Shared memory as the codecs see it: named regions that lend out bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shoal.core.bytes_tensor import SLOW_ELEMENTS
from shoal.core.dtypes import BYTES, DataType
from shoal.core.tensor import Buffer, Tensor
from shoal.errors import Internal


class Lease(Protocol):
    """Bytes of a region, in use until they are given back."""

    def tensor(self, name: str, datatype: DataType, shape: tuple[int, ...]) -> Tensor:
        """An input with these bytes, which may be read only when it is used. Raises a ShoalError
        when they cannot be had."""

    @property
    def is_large(self) -> bool:
        """Whether to read the input takes milliseconds, so that a thread should `read_ahead`."""

    def read_ahead(self) -> None:
        """Read the input before it is used. Any thread may call this. Raises Unavailable if too
        much is read ahead already."""

    def check(self) -> None:
        """Raise a ShoalError if bytes could not be read when the input was used."""

    def write(self, data: Buffer) -> None:
        """Put bytes at the start of them. Raises a ShoalError when they do not arrive."""

    def release(self) -> None:
        """Give the bytes back. More than once does no harm."""


class Regions(Protocol):
    """Where leases come from."""

    def lease(self, name: str, offset: int, byte_size: int) -> Lease:
        """Bytes of the region `name`. Raises a ShoalError when there are none such."""


LARGE_BYTES = 4 << 20  # take milliseconds to copy; what is smaller costs less than a thread


def copies_slowly(tensor: Tensor) -> bool:
    """Whether to write the tensor to a region takes milliseconds."""
    if tensor.datatype is BYTES:
        return tensor.element_count > SLOW_ELEMENTS
    return tensor.element_count * tensor.datatype.itemsize > LARGE_BYTES


@dataclass(frozen=True, slots=True)
class RegionSlice:
    """Where in shared memory an output goes."""

    name: str
    offset: int
    byte_size: int
    lease: Lease

    def write(self, tensor: Tensor) -> int:
        """Put the tensor's bytes there; returns how many. Internal when they do not fit."""
        raw = tensor.raw
        size = tensor.nbytes
        if size > self.byte_size:
            raise Internal(
                f"shared memory size specified with the request for output '{tensor.name}' "
                f"({self.byte_size} bytes) should be at least {size} bytes to hold the results"
            )
        self.lease.write(raw)
        return size
