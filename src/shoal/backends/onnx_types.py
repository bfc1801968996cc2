"""Tensors between Shoal and ONNX Runtime: what a graph declares, and the two special datatypes.

Numbers need no conversion. Strings do: the runtime's Python interface uses `str`, Shoal uses
`bytes`. For BF16 the runtime has no numpy type; Shoal uses `uint16`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import numpy as np

from shoal.backends.graph import Graph, GraphTensor
from shoal.core import dtypes
from shoal.errors import InvalidArgument

DATATYPES = MappingProxyType(
    {
        "bool": dtypes.BOOL,
        "uint8": dtypes.UINT8,
        "uint16": dtypes.UINT16,
        "uint32": dtypes.UINT32,
        "uint64": dtypes.UINT64,
        "int8": dtypes.INT8,
        "int16": dtypes.INT16,
        "int32": dtypes.INT32,
        "int64": dtypes.INT64,
        "float16": dtypes.FP16,
        "float": dtypes.FP32,
        "double": dtypes.FP64,
        "string": dtypes.BYTES,
        "bfloat16": dtypes.BF16,
    }
)
BF16_ELEMENT_TYPE = 16  # its number in TensorProto.DataType

_TENSOR = re.compile(r"(optional\()?tensor\((\w+)\)\)?")


def graph_of(session: Any) -> Graph:
    """The inputs and outputs of an InferenceSession."""
    return Graph(
        inputs=_tensors(session.get_inputs()),
        outputs=_tensors(session.get_outputs()),
        defaults=_tensors(session.get_overridable_initializers()),
    )


def axis_names(session: Any) -> dict[str, tuple[str | None, ...]]:
    """The names that the model file has for its variable dimensions, by input and output."""
    return {
        argument.name: tuple(dim if isinstance(dim, str) else None for dim in argument.shape)
        for argument in (*session.get_inputs(), *session.get_outputs())
    }


def describe(name: str, onnx_type: str, shape: Iterable[int | str | None]) -> GraphTensor:
    """A GraphTensor from the runtime's description: `tensor(float)`, `['batch', 3, None]`."""
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in shape)
    match = _TENSOR.fullmatch(onnx_type)
    if match is None:
        return GraphTensor(name, onnx_type, None, dims)
    datatype = DATATYPES.get(match[2])
    return GraphTensor(name, onnx_type, datatype, dims, optional=match[1] is not None)


def _tensors(arguments: Iterable[Any]) -> dict[str, GraphTensor]:
    return {arg.name: describe(arg.name, arg.type, arg.shape) for arg in arguments}


def strings_to_runtime(array: np.ndarray, name: str) -> np.ndarray:
    """Object array of `bytes` to what the runtime takes, so that the model sees the same bytes.

    The runtime encodes `str` elements as UTF-8. Bytes that are not UTF-8 can only be passed
    if all elements have one length; otherwise InvalidArgument says so.
    """
    elements = array.reshape(-1).tolist()
    try:
        converted: list[str] = [
            element if isinstance(element, str) else str(element, "utf-8") for element in elements
        ]
    except UnicodeDecodeError:
        lengths = {len(element) for element in elements}
        if len(lengths) == 1 and not any(isinstance(element, str) for element in elements):
            # Raw items of one size reach the model untouched, zero bytes included.
            return np.array(elements, dtype=f"V{lengths.pop()}").reshape(array.shape)
        raise InvalidArgument(
            f"an element of the BYTES input '{name}' is not UTF-8 text, and ONNX Runtime takes "
            "other bytes only where all elements of the input have the same length. Send text as "
            "UTF-8 and binary data as a UINT8 tensor"
        ) from None
    flat = np.empty(len(converted), dtype=object)
    flat[:] = converted
    return flat.reshape(array.shape)


def strings_from_runtime(array: np.ndarray) -> np.ndarray:
    """The runtime's array of `str` as an object array of `bytes`."""
    elements: list[str] = array.reshape(-1).tolist()
    flat = np.empty(len(elements), dtype=object)
    flat[:] = [element.encode() for element in elements]
    return flat.reshape(array.shape)


def bf16_from_runtime(value: Any) -> np.ndarray:
    """A copy of the 16-bit patterns in a BF16 OrtValue, which numpy cannot be given directly."""
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:  # there may be no memory to look at
        return np.empty(shape, np.uint16)
    memory = (ctypes.c_uint16 * count).from_address(value.data_ptr())
    return np.array(memory, dtype=np.uint16).reshape(shape)
