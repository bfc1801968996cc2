"""Inputs whose bytes are somewhere else until they are used, such as shared memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoal.core.dtypes import DataType
from shoal.core.tensor import Buffer, Tensor


class LazyTensor(Tensor):
    """A tensor that reads its bytes at the first use, on the thread that uses it."""

    __slots__ = ("_nbytes", "_read")

    def __init__(
        self,
        name: str,
        datatype: DataType,
        shape: tuple[int, ...],
        nbytes: int,
        read: Callable[[], Buffer],
    ) -> None:
        """`read` returns the bytes, the same ones each time; it must not raise."""
        super().__init__(name, datatype, shape)
        self._nbytes = nbytes
        self._read = read

    @property
    def raw(self) -> Buffer:
        """The elements as bytes; the first call reads them."""
        if self._raw is None:
            self._raw = self._read()
        return self._raw

    @property
    def array(self) -> np.ndarray:
        """The elements as numpy; the first call reads them."""
        if self._array is None:
            self._raw = self.raw
        return super().array

    @property
    def has_raw(self) -> bool:
        """True: the elements exist as bytes and not as an array."""
        return True

    @property
    def nbytes(self) -> int:
        """How many bytes `raw` has; reads none."""
        return self._nbytes

    def renamed(self, name: str, shape: tuple[int, ...]) -> LazyTensor:
        """The same elements under another name, and a shape with as many of them."""
        tensor = LazyTensor(name, self.datatype, shape, self._nbytes, self._read)
        tensor._array = self._array
        return tensor

    def with_shape(self, shape: tuple[int, ...]) -> Tensor:
        """The same elements under another shape with as many of them."""
        return self.renamed(self.name, shape)
