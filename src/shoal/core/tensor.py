"""A named tensor that is bytes or numpy, whichever came first; the other form is made on demand.

Requests arrive as bytes and many of them are joined as bytes; results leave a model as numpy and
many of them are sent as bytes. Making the other form on demand keeps numpy objects off
the path of small requests.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from shoal.core import bytes_tensor
from shoal.core.dtypes import BYTES, DataType, from_numpy

Buffer: TypeAlias = bytes | bytearray | memoryview


class Tensor:
    """One input or output. `shape` includes the batch dimension where there is one."""

    __slots__ = ("_array", "_raw", "datatype", "name", "shape")

    def __init__(
        self,
        name: str,
        datatype: DataType,
        shape: tuple[int, ...],
        *,
        raw: Buffer | None = None,
        array: np.ndarray | None = None,
    ) -> None:
        """Wrap `raw` (row-major, little-endian) or `array`; the caller vouches for its size."""
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self._raw = raw
        self._array = array

    @classmethod
    def from_array(cls, name: str, array: np.ndarray, datatype: DataType | None = None) -> Tensor:
        """Wrap a numpy array; its dtype gives the datatype unless `datatype` is given."""
        return cls(name, datatype or from_numpy(array.dtype), tuple(array.shape), array=array)

    @property
    def element_count(self) -> int:
        """The product of the shape."""
        return math.prod(self.shape)

    @property
    def array(self) -> np.ndarray:
        """The elements as numpy, shaped; a view of the received bytes where that is possible."""
        if self._array is None:
            assert self._raw is not None
            if self.datatype is BYTES:
                count = self.element_count
                flat = bytes_tensor.decode(self._raw, count, f"tensor '{self.name}'")
            else:
                flat = np.frombuffer(self._raw, self.datatype.numpy)
            self._array = flat.reshape(self.shape)
        elif self._array.shape != self.shape:
            self._array = self._array.reshape(self.shape)
        return self._array

    @property
    def raw(self) -> Buffer:
        """The elements as row-major little-endian bytes; a view where that is possible."""
        if self._raw is None:
            assert self._array is not None
            array = self._array
            if self.datatype is BYTES:
                self._raw = bytes_tensor.encode(array.reshape(-1).tolist())
            else:
                contiguous = np.ascontiguousarray(array, dtype=self.datatype.numpy)
                self._raw = contiguous.reshape(-1).view(np.uint8).data
        return self._raw

    def adopt(self, array: np.ndarray) -> None:
        """Keep `array` as the decoded form of the bytes, so that they are decoded only once."""
        self._array = array

    def with_shape(self, shape: tuple[int, ...]) -> Tensor:
        """The same elements under another shape with as many of them."""
        return Tensor(self.name, self.datatype, shape, raw=self._raw, array=self._array)

    @property
    def has_raw(self) -> bool:
        """Whether the bytes exist already, so that `raw` costs nothing."""
        return self._raw is not None

    @property
    def nbytes(self) -> int:
        """How many bytes `raw` has."""
        raw = self.raw
        return raw.nbytes if isinstance(raw, memoryview) else len(raw)

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype}, {list(self.shape)})"
