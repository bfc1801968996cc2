"""Converts protobuf messages to plain Python and back, where speed does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.client.errors import InvalidInput, ProtocolError
from shoal.client.inputs import InputTensor

_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def plain(message: Any) -> dict[str, Any]:
    """A message as in the JSON of the HTTP protocol: all fields that are set.

    Numbers stay numbers and enums are their names.
    """
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        nested = field.message_type
        if nested is not None and nested.GetOptions().map_entry:
            found[field.name] = {
                key: plain(each) if nested.fields_by_name["value"].message_type else each
                for key, each in value.items()
            }
        elif field.is_repeated:
            found[field.name] = [_value(field, each) for each in value]
        else:
            found[field.name] = _value(field, value)
    return found


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value


def contents_of(tensor: InputTensor, contents: Any) -> None:
    """Write a tensor's elements into an InferTensorContents."""
    name = _FIELDS.get(tensor.datatype)
    if name is None or tensor.array is None:
        raise InvalidInput(
            f"input '{tensor.name}' of datatype {tensor.datatype} cannot be sent as a list of "
            f"numbers; leave binary=True"
        )
    elements = tensor.array.reshape(-1).tolist()
    if tensor.datatype == "BYTES":
        elements = [each.encode() if isinstance(each, str) else each for each in elements]
    getattr(contents, name).extend(elements)


def array_of_contents(contents: Any, datatype: str, shape: Sequence[int]) -> np.ndarray:
    """The array in an InferTensorContents."""
    name = _FIELDS.get(datatype)
    if name is None:
        raise ProtocolError(f"the server sent {datatype} as a list of numbers")
    elements = list(getattr(contents, name))
    try:
        if datatype == "BYTES":
            made = np.empty(len(elements), dtype=object)
            made[:] = elements
            return made.reshape(shape)
        from shoal.core import dtypes

        return np.array(elements, dtypes.from_name(datatype).numpy).reshape(shape)
    except ValueError as error:
        raise ProtocolError(f"the server's response is malformed: {error}") from None
