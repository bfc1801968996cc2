"""Reads the weights of a checkpoint: a .safetensors file, by name, without its library.

    [ 8 bytes: length ][ JSON: name -> dtype, shape, offsets ][ the numbers ]

Weights are views of the mapped file until they are changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from shoal.errors import InvalidArgument

Array = np.ndarray[Any, Any]

_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
_BF16 = "BF16"  # the upper half of an F32, which numpy does not have


def read_weights(path: Path) -> dict[str, Array]:
    """Every tensor of the file. InvalidArgument if it is not such a file or truncated."""
    try:
        data = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError) as error:  # numpy cannot map what is empty
        raise InvalidArgument(f"'{path}' cannot be read: {error}") from None
    length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    start = _LENGTH_BYTES + length
    if len(data) < _LENGTH_BYTES or length > _LONGEST_HEADER or start > len(data):
        raise InvalidArgument(f"'{path}' is not a .safetensors file")
    try:
        header = orjson.loads(data[_LENGTH_BYTES:start].tobytes())
        return {
            name: _tensor(data[start:], entry)
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"'{path}' is damaged or not a .safetensors file: {error}") from None


def _tensor(data: Array, entry: Mapping[str, Any]) -> Array:
    begin, end = entry["data_offsets"]
    raw = data[begin:end]
    if len(raw) != end - begin:
        raise ValueError("it ends before its weights do")
    kind, shape = entry["dtype"], entry["shape"]
    if kind == _BF16:
        halves = raw.view("<u2").astype(np.uint32) << 16
        return np.asarray(halves.view(np.float32).reshape(shape))
    values = raw.view(_DTYPES[kind])
    if len(values) != math.prod(shape):
        raise ValueError(f"a tensor of shape {shape} has {len(values)} elements")
    return np.asarray(values.reshape(shape))
