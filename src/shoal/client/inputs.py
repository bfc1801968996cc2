"""Converts input values to tensors that can be sent.

    array | list | Input(…) | Placed  --tensor-->  InputTensor (name, datatype, shape, bytes)

Arrays have a datatype. Lists take the datatype of the model's input, so the client reads the
metadata first (`needs_spec`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.client.errors import InvalidInput
from shoal.core import bytes_tensor, dtypes
from shoal.core.casting import cast_to
from shoal.core.dtypes import BF16, BYTES, DataType
from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument

SMALL_BYTES = 16_384  # up to this size, a copy is cheaper than a view
_BY_DTYPE: dict[np.dtype[Any], DataType] = {
    datatype.numpy: datatype for datatype in dtypes.ALL if datatype not in (BYTES, BF16)
}
_BYTES_LIKE = (bytes, bytearray, memoryview)


class Input:
    """A value with an explicit datatype, for types that numpy does not have.

    `Input(bits, "BF16")` with bits in uint16 or numbers in float32; `Input([[1, 2]], "FP32")`;
    `Input(raw, "FP32", shape=(1, 2))` sends the bytes `raw` as they are.
    """

    __slots__ = ("data", "datatype", "shape")

    def __init__(self, data: Any, datatype: str = "", shape: Sequence[int] | None = None) -> None:
        self.data = data
        self.datatype = datatype
        self.shape = None if shape is None else tuple(shape)


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor in shared memory: only its location is sent."""

    region: str
    offset: int
    byte_size: int
    datatype: str
    shape: tuple[int, ...]


class InputTensor:
    """One encoded input: its bytes, or their location in shared memory."""

    __slots__ = ("array", "datatype", "name", "nbytes", "placed", "raw", "shape")

    def __init__(
        self,
        name: str,
        datatype: str,
        shape: tuple[int, ...],
        raw: Buffer,
        nbytes: int,
        array: np.ndarray | None = None,
        placed: Placed | None = None,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.raw = raw
        self.nbytes = nbytes
        self.array = array
        self.placed = placed


def needs_spec(value: Any) -> bool:
    """Whether the datatype of `value` depends on the model."""
    if isinstance(value, (np.ndarray, Placed)):
        return False
    if isinstance(value, Input):
        return not value.datatype and needs_spec(value.data)
    return not hasattr(value, "__array__")


def tensor(name: str, value: Any, spec: str = "") -> InputTensor:
    """`value` as a tensor; `spec` is the datatype of the model's input, if known.

    Raises InvalidInput with the name of the input.
    """
    if type(value) is np.ndarray:
        datatype = _BY_DTYPE.get(value.dtype)
        if datatype is not None:
            return _plain(name, datatype, value)
        return _odd_array(name, value)
    if isinstance(value, Placed):
        return InputTensor(name, value.datatype, value.shape, b"", 0, placed=value)
    if isinstance(value, Input):
        return _declared(name, value, spec)
    if needs_spec(value):
        return _from_list(name, value, spec)
    return tensor(name, np.asarray(value))


def _plain(name: str, datatype: DataType, array: np.ndarray) -> InputTensor:
    """An array whose memory layout is that of the protocol."""
    nbytes = array.nbytes
    if nbytes <= SMALL_BYTES:
        return InputTensor(name, datatype.name, array.shape, array.tobytes(), nbytes, array)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return InputTensor(name, datatype.name, array.shape, flat.data, nbytes, array)


def _odd_array(name: str, array: np.ndarray) -> InputTensor:
    if array.dtype.kind in "SUO":
        return _bytes(name, array)
    if array.dtype.name == "bfloat16":  # of ml_dtypes
        return _bits(name, array.view(np.uint16))
    swapped = array.dtype.newbyteorder("<")
    if swapped in _BY_DTYPE:  # big-endian
        return _plain(name, _BY_DTYPE[swapped], array.astype(swapped))
    known = ", ".join(str(dtype) for dtype in _BY_DTYPE)
    raise InvalidInput(
        f"input '{name}' is an array of {array.dtype}, which the protocol does not support; "
        f"convert it to one of {known}, text or bytes"
    )


def _bits(name: str, array: np.ndarray) -> InputTensor:
    made = _plain(name, dtypes.UINT16, array)
    made.datatype, made.array = BF16.name, None
    return made


def _bytes(name: str, array: np.ndarray) -> InputTensor:
    elements: list[Any] = array.reshape(-1).tolist()
    for element in elements:
        if not isinstance(element, (str, *_BYTES_LIKE)):
            raise InvalidInput(
                f"input '{name}' has an element of type {type(element).__name__} among its "
                f"objects; give text or bytes, or an array of numbers"
            )
    try:
        raw = bytes_tensor.encode(elements)
    except UnicodeEncodeError as error:
        raise InvalidInput(f"input '{name}' has text that is not valid Unicode: {error}") from None
    return InputTensor(name, BYTES.name, array.shape, raw, len(raw), array)


def _declared(name: str, value: Input, spec: str) -> InputTensor:
    if value.datatype not in dtypes.BY_NAME:
        if not value.datatype:
            return _shaped(tensor(name, value.data, spec), value.shape)
        known = ", ".join(dtypes.BY_NAME)
        raise InvalidInput(
            f"input '{name}' is of datatype {value.datatype!r}; known ones are {known}"
        )
    datatype = dtypes.BY_NAME[value.datatype]
    if isinstance(value.data, _BYTES_LIKE) and value.shape is not None:
        return _raw(name, datatype, value.data, value.shape)
    return _shaped(_as_type(name, _array(name, value.data), datatype), value.shape)


def _raw(name: str, datatype: DataType, data: Buffer, shape: tuple[int, ...]) -> InputTensor:
    nbytes = memoryview(data).nbytes
    expected = math.prod(shape) * datatype.itemsize
    if datatype is not BYTES and nbytes != expected:
        raise InvalidInput(
            f"input '{name}' of shape {list(shape)} and datatype {datatype} takes {expected} "
            f"bytes, found {nbytes}"
        )
    return InputTensor(name, datatype.name, shape, data, nbytes)


def _shaped(made: InputTensor, shape: tuple[int, ...] | None) -> InputTensor:
    if shape is not None and shape != made.shape:
        if math.prod(shape) != math.prod(made.shape):
            raise InvalidInput(
                f"input '{made.name}' has {math.prod(made.shape)} elements, which do not match the "
                f"shape {list(shape)}"
            )
        made.shape = shape
    return made


def _from_list(name: str, value: Any, spec: str) -> InputTensor:
    array = _array(name, value)
    if spec:
        return _as_type(name, array, dtypes.BY_NAME[spec])
    if array.dtype == np.float64:  # without metadata: most models take this
        array = array.astype(np.float32)
    return tensor(name, array)


def _array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(
            f"input '{name}' is not a regular array: {error}; use rows of equal length"
        ) from None
    if array.dtype.kind in "SU":  # numpy would strip trailing zero bytes
        return _objects(value, array.shape)
    return array


def _objects(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    made = np.empty(math.prod(shape), dtype=object)
    elements = [value]
    for _ in shape:
        elements = [element for row in elements for element in row]
    made[:] = elements
    return made.reshape(shape)


def _as_type(name: str, array: np.ndarray, target: DataType) -> InputTensor:
    if target is BYTES:
        return _bytes(name, array)
    if target is BF16:
        if array.dtype == np.uint16 or array.dtype.name == "bfloat16":
            return _bits(name, array.view(np.uint16))
        if array.dtype.kind in "fiu":
            return _bits(name, bfloat16_bits(array.astype(np.float32)))
        cast = None
    elif array.dtype == target.numpy:
        cast = array
    else:
        cast = None if array.dtype.kind in "SUO" else cast_to(array, target.numpy)
    if cast is None:
        raise InvalidInput(
            f"input '{name}' takes {target}, found {_found(array)} that cannot be converted "
            f"without loss"
        )
    return _plain(name, target, cast)


def _found(array: np.ndarray) -> str:
    if array.dtype.kind in "SUO":
        return "text or objects"
    return f"numbers ({array.dtype})" if array.dtype.kind != "b" else "truth values"


def bfloat16_bits(array: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest bfloat16, ties to even, as uint16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40  # rounding could turn a NaN into infinity
    made: np.ndarray = np.where(np.isnan(array), quiet, rounded).astype(np.uint16)
    return made


def decoded(datatype: str, shape: Sequence[int], raw: Buffer, where: str) -> np.ndarray:
    """Decode received bytes; bfloat16 is converted to float32.

    A view of `raw` if its alignment allows. Raises InvalidArgument when the size does not match
    the shape.
    """
    known = dtypes.from_name(datatype)
    count = math.prod(shape)
    if known is BYTES:
        return bytes_tensor.decode(raw, count, where).reshape(shape)
    if memoryview(raw).nbytes != count * known.itemsize:
        raise InvalidArgument(
            f"{where} has {memoryview(raw).nbytes} bytes, its shape {list(shape)} of {known} "
            f"takes {count * known.itemsize}"
        )
    array: np.ndarray = np.frombuffer(raw, known.numpy).reshape(shape)
    if known is BF16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array if array.flags.aligned else array.copy()
