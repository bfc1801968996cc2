"""A tensor whose elements lie on a device, such as a GPU; numpy's form of them is made on demand.

    one step of an ensemble --DeviceTensor--> the next, on the same device, without a copy

Only executors that say they can (`DeviceExecutor`) make these, and only for readers that can take
them. All other code may read one like any other tensor: the first access copies it to the CPU,
which waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from shoal.core.dtypes import DataType
from shoal.core.tensor import Buffer, Tensor


class DeviceArray(Protocol):
    """What a device's library calls a tensor or array: DLPack, and a little of numpy."""

    @property
    def shape(self) -> Any:
        """Its dimensions."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """Give another library access to the memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """The kind and number of the device."""

    def __getitem__(self, rows: slice) -> DeviceArray:
        """Some of its rows, in the same memory."""


class OnDevice(NamedTuple):
    """An output that stayed on its device, or some rows of one, and how to copy it to numpy."""

    array: DeviceArray
    to_host: Callable[[Any], np.ndarray]
    rows: slice | None = None  # None: all of it

    def on_host(self) -> np.ndarray:
        """A copy as numpy."""
        return self.to_host(self.array if self.rows is None else self.array[self.rows])


class DeviceTensor(Tensor):
    """A tensor on a device. What it refers to has been computed and is not written to any more."""

    __slots__ = ("content",)

    def __init__(
        self, name: str, datatype: DataType, shape: tuple[int, ...], content: OnDevice
    ) -> None:
        """Wrap `content`, which has as many elements as `shape`."""
        super().__init__(name, datatype, shape)
        self.content = content

    @property
    def array(self) -> np.ndarray:
        """The elements as numpy; the first call copies them."""
        if self._array is None:
            self._array = self.content.on_host()
        return super().array

    @property
    def raw(self) -> Buffer:
        """The elements as bytes; the first call copies them."""
        if self._raw is None and self._array is None:
            self._array = self.content.on_host()
        return super().raw

    def renamed(self, name: str, shape: tuple[int, ...]) -> DeviceTensor:
        """The same elements under another name, and a shape with as many of them."""
        return DeviceTensor(name, self.datatype, shape, self.content)

    def with_shape(self, shape: tuple[int, ...]) -> Tensor:
        """The same elements under another shape with as many of them."""
        return self.renamed(self.name, shape)


def adjacent(parts: Sequence[DeviceTensor]) -> list[tuple[OnDevice, tuple[int, ...]]]:
    """The contents and shapes of tensors that are to be joined in this order. Adjacent rows of one
    array are one of them, so that what was split for the requests of a batch is whole again."""
    found: list[tuple[OnDevice, tuple[int, ...]]] = []
    for part in parts:
        content, shape = part.content, part.shape
        if found and content.rows is not None:
            before, whole = found[-1]
            rows = before.rows
            if (
                before.array is content.array
                and rows is not None
                and rows.stop == content.rows.start
                and whole[1:] == shape[1:]
            ):
                content = content._replace(rows=slice(rows.start, content.rows.stop))
                found[-1] = content, (whole[0] + shape[0], *shape[1:])
                continue
        found.append((content, shape))
    return found
