"""The `data` field of a tensor in JSON: nested lists to numpy, and numpy to a flat list.

Reading flattens any nesting in row-major order, as clients send both forms. Integers lose the
bits their datatype has no room for, like a C cast; everything else that does not fit is refused.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import Any

import numpy as np

from shoal.core.dtypes import BF16, BOOL, BYTES, FP16, FP32, FP64, DataType
from shoal.core.tensor import Buffer, Tensor
from shoal.errors import InvalidArgument
from shoal.wire import json_text
from shoal.wire.json_arrays import LongArray

BINARY_ONLY = (FP16, BF16)  # half floats have no JSON form in the protocol

_PIECE = 1 << 16  # elements, written in a few milliseconds
_FLOATS = (FP32, FP64)
_NUMBERS = frozenset({int, float})
_INTEGERS = frozenset({int})
_PACKED = {"d": np.float64, "q": np.int64, "Q": np.uint64}
_STRING_EXPECTED = "attempt to access JSON non-string as string"
_ARRAY_EXPECTED = "attempt to access JSON non-array as array"


def read(
    name: str, datatype: DataType, shape: tuple[int, ...], count: int, data: Any, most_bytes: int
) -> Tensor:
    """Make the input `name` from its `data` field; `count` is the product of `shape`.

    Raises InvalidArgument when `data` does not hold exactly `count` elements of the datatype, or
    when the tensor would take more than `most_bytes`.
    """
    is_long = type(data) is LongArray
    if type(data) is not list and not is_long:
        raise _unreadable(name, _ARRAY_EXPECTED)
    if datatype in BINARY_ONLY and (count or data):
        raise InvalidArgument(
            f"receiving {datatype.name} data via JSON is not supported. Please use the binary "
            f"data format for input {name}"
        )
    _check_size(name, count * datatype.itemsize, most_bytes)
    if is_long:
        return Tensor(name, datatype, shape, array=_long(name, datatype, shape, count, data))
    elements, kinds = _flatten(data)
    if len(elements) != count:
        raise _wrong_count(name, shape, count, len(elements))
    array = _array(name, datatype, elements, kinds)
    if datatype is BYTES:
        _check_size(name, 4 * count + sum(map(len, array)), most_bytes)
    return Tensor(name, datatype, shape, array=array.reshape(shape))


def _long(
    name: str, datatype: DataType, shape: tuple[int, ...], count: int, data: LongArray
) -> np.ndarray:
    """The elements of a long list, of which one piece at a time is in memory as objects."""
    if datatype is BYTES:
        raise _unreadable(name, _STRING_EXPECTED)
    array = np.empty(count, datatype.numpy)
    found = 0
    fault: InvalidArgument | None = None
    for piece in data.pieces():
        elements, kinds = _flatten(piece)
        start, found = found, found + len(elements)
        if found > count:
            raise _wrong_count(name, shape, count, found, "at least ")
        if fault is None:  # a wrong number of elements is reported first
            try:
                array[start:found] = _array(name, datatype, elements, kinds)
            except InvalidArgument as error:
                fault = error
    if found != count:
        raise _wrong_count(name, shape, count, found)
    if fault is not None:
        raise fault
    return array.reshape(shape)


def write(tensor: Tensor) -> Any:
    """The elements of an output, flat, as `json_text.dumps_parts` takes them.

    Raises InvalidArgument for what JSON cannot carry; the text suggests binary data.
    """
    datatype = tensor.datatype
    if datatype in BINARY_ONLY:
        raise InvalidArgument(
            f"sending {datatype.name} data via JSON is not supported. Please use the binary data "
            f"format for output {tensor.name}"
        )
    flat = tensor.array.reshape(-1)
    if datatype is BYTES:
        return _in_pieces(_texts(tensor.name, flat.tolist()))
    if datatype in _FLOATS:
        # As doubles: the shortest decimal of a float, read as a double and rounded again, is not
        # always the same float.
        flat = np.ascontiguousarray(flat, np.float64)
        if not np.isfinite(flat).all():
            return json_text.non_finite(flat.tolist())
        return _in_pieces(flat)
    return _in_pieces(np.ascontiguousarray(flat, datatype.numpy))


def _in_pieces(elements: np.ndarray | list[str]) -> Any:
    """Many elements as JSON already: to write them at once would hold the GIL for long."""
    if len(elements) <= _PIECE:
        return elements
    starts = range(0, len(elements), _PIECE)
    return json_text.LongText.of_lists(elements[start : start + _PIECE] for start in starts)


def write_several(datatype: DataType, size: int, content: Buffer) -> list[bytes] | None:
    """The lists of equal tensors of `size` bytes each, as `write` and `dumps` write them, without
    the brackets; None if some elements are not finite.

    For datatypes of a fixed size that have a JSON form.
    """
    rows = np.frombuffer(content, datatype.numpy).reshape(-1, size // datatype.itemsize)
    if datatype in _FLOATS:
        rows = rows.astype(np.float64, copy=False)
        if not np.isfinite(rows).all():
            return None
    return json_text.dumps_each(rows)


def flatten(data: list[Any]) -> list[Any]:
    """The elements of nested lists in order; TooDeep when they are nested 100 deep or more."""
    return _flatten(data)[0]


def _flatten(data: list[Any]) -> tuple[list[Any], set[type]]:
    """As `flatten`, and the types of the elements: to collect them takes as long as to pack."""
    elements = data
    for _ in range(json_text.MOST_NESTED - 1):
        kinds = set(map(type, elements))
        if list not in kinds:
            return elements, kinds
        if len(kinds) > 1:
            elements = _flatten_uneven(data)
            return elements, set(map(type, elements))
        elements = list(chain.from_iterable(elements))
    if elements:
        raise json_text.TooDeep
    return elements, set()


def _flatten_uneven(data: list[Any]) -> list[Any]:
    """Flatten lists that hold lists and elements side by side, in one pass over them."""
    elements: list[Any] = []
    open_lists = [iter(data)]
    while open_lists:
        for item in open_lists[-1]:
            if type(item) is list:
                if len(open_lists) >= json_text.MOST_NESTED - 1 and item:
                    raise json_text.TooDeep
                open_lists.append(iter(item))
                break
            elements.append(item)
        else:
            open_lists.pop()
    return elements


def format_shape(shape: tuple[int, ...]) -> str:
    """A shape as Triton prints it: `[1,3]`."""
    return "[" + ",".join(map(str, shape)) + "]"


def _array(name: str, datatype: DataType, elements: list[Any], kinds: set[type]) -> np.ndarray:
    """The elements, which are of these types, as a flat array; each has to be of the kind that the
    datatype needs."""
    if datatype is BYTES:
        if not kinds <= {str}:
            raise _unreadable(name, _STRING_EXPECTED)
        array = np.empty(len(elements), dtype=object)
        array[:] = [text.encode() for text in elements]
        return array
    if datatype is BOOL:
        if not kinds <= {bool}:
            raise _unreadable(name, "attempt to access JSON non-boolean as boolean")
        return np.array(elements, dtype=datatype.numpy)
    if datatype in _FLOATS:
        code, kind, expected = "d", "number", "double"
    elif datatype.numpy.kind == "u":
        code, kind, expected = "Q", "unsigned-integer", "unsigned-integer"
    else:
        code, kind, expected = "q", "signed-integer", "signed-integer"
    try:
        if kinds <= (_NUMBERS if code == "d" else _INTEGERS):
            with np.errstate(over="ignore"):  # 1e300 as FP32 is infinity
                return _packed(code, elements).astype(datatype.numpy, copy=False)
    except (struct.error, OverflowError):  # beyond the range, or negative
        pass
    raise _unreadable(name, f"attempt to access JSON non-{kind} as {expected}")


def _packed(code: str, elements: list[Any]) -> np.ndarray:
    """Numbers as an array of 8 bytes each, in less than half of the time that numpy takes. Raises
    struct.error or OverflowError for those beyond the range."""
    array: np.ndarray = np.empty(len(elements), _PACKED[code])
    struct.pack_into(f"={len(elements)}{code}", array.data, 0, *elements)
    return array


def _texts(name: str, elements: list[Any]) -> list[str]:
    try:
        return [item if isinstance(item, str) else bytes(item).decode() for item in elements]
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"output '{name}' holds bytes that are not valid UTF-8 and cannot be written as JSON; "
            f"ask for it in binary with 'binary_data': true in the output's parameters"
        ) from None


def _check_size(name: str, byte_size: int, most_bytes: int) -> None:
    if byte_size > most_bytes:
        raise InvalidArgument(
            f"JSON input '{name}' has a byte_size ({byte_size} bytes) that exceeds the maximum "
            f"allowed value of {most_bytes} bytes. Use --http-max-input-size to increase the limit."
        )


def _wrong_count(
    name: str, shape: tuple[int, ...], count: int, found: int, about: str = ""
) -> InvalidArgument:
    if found > count:
        text = "Unable to parse 'data': Shape does not match true shape of 'data' field"
    else:
        text = "Failed to parse 'data' field: shape does not match true shape"
    return InvalidArgument(
        f"{text} for input '{name}': shape {format_shape(shape)} has {count} elements, but 'data' "
        f"holds {about}{found}"
    )


def _unreadable(name: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"Unable to parse 'data': {problem} for input '{name}'")
