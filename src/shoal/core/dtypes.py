"""Datatypes: one row per type, with its name on the wire, in config.pbtxt and in numpy.

BF16 has no numpy type; its elements travel as the raw 16 bits in `uint16`. BYTES elements are
Python `bytes` in object arrays; they have no fixed size, so `itemsize` is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.errors import InvalidArgument


@dataclass(frozen=True, slots=True, eq=False)
class DataType:
    """One KServe datatype. There is exactly one object per type, so compare with `is`."""

    name: str
    config_name: str
    number: int
    numpy: np.dtype[np.generic]
    itemsize: int

    def __repr__(self) -> str:
        return self.name


def _row(number: int, name: str, numpy: str, itemsize: int, config: str = "") -> DataType:
    return DataType(name, "TYPE_" + (config or name), number, np.dtype(numpy), itemsize)


BOOL = _row(1, "BOOL", "?", 1)
UINT8 = _row(2, "UINT8", "<u1", 1)
UINT16 = _row(3, "UINT16", "<u2", 2)
UINT32 = _row(4, "UINT32", "<u4", 4)
UINT64 = _row(5, "UINT64", "<u8", 8)
INT8 = _row(6, "INT8", "<i1", 1)
INT16 = _row(7, "INT16", "<i2", 2)
INT32 = _row(8, "INT32", "<i4", 4)
INT64 = _row(9, "INT64", "<i8", 8)
FP16 = _row(10, "FP16", "<f2", 2)
FP32 = _row(11, "FP32", "<f4", 4)
FP64 = _row(12, "FP64", "<f8", 8)
BYTES = _row(13, "BYTES", "O", 0, config="STRING")
BF16 = _row(14, "BF16", "<u2", 2)

ALL: tuple[DataType, ...] = (
    *(BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64),
    *(FP16, FP32, FP64, BYTES, BF16),
)
BY_NAME = {datatype.name: datatype for datatype in ALL}
BY_CONFIG_NAME = {datatype.config_name: datatype for datatype in ALL}
_BY_NUMPY = {datatype.numpy: datatype for datatype in ALL if datatype is not BF16}


def from_name(name: str) -> DataType:
    """The type a client named; InvalidArgument lists the known names when there is none."""
    try:
        return BY_NAME[name]
    except (KeyError, TypeError):
        known = ", ".join(BY_NAME)
        raise InvalidArgument(f"invalid datatype {name!r}, expected one of {known}") from None


def from_numpy(dtype: np.dtype[np.generic]) -> DataType:
    """The type that carries `dtype`; numpy strings of any kind are BYTES."""
    if dtype.kind in "SUO":
        return BYTES
    try:
        return _BY_NUMPY[dtype.newbyteorder("<")]
    except KeyError:
        raise InvalidArgument(f"numpy dtype {dtype} has no counterpart in the protocol") from None
