"""BYTES elements as Triton lays them out: a little-endian uint32 length, then that many bytes.

Both directions live here because validation needs them as much as the wire does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

from shoal.errors import InvalidArgument

_LENGTH = struct.Struct("<I")


def encode(elements: Iterable[bytes | str]) -> bytes:
    """Lay `elements` out one after the other; text becomes UTF-8."""
    parts: list[bytes] = []
    for element in elements:
        blob = element.encode() if isinstance(element, str) else bytes(element)
        parts.append(_LENGTH.pack(len(blob)))
        parts.append(blob)
    return b"".join(parts)


def decode(raw: bytes | bytearray | memoryview, count: int, where: str) -> np.ndarray:
    """Read exactly `count` elements into a flat object array of `bytes`.

    `where` names the tensor in the error, e.g. "inference input 'a' for model 'm'".
    Raises InvalidArgument when the layout is cut short or holds another number of elements;
    nothing is allocated from a length the buffer cannot hold.
    """
    blob = bytes(raw)
    size = len(blob)
    if count * 4 > size:
        found = _count_elements(blob)
        raise InvalidArgument(
            f"expected {count} string elements for {where}, got {found}"
            if found is not None
            else f"incomplete string data for {where}, expecting {count} elements"
        )
    array = np.empty(count, dtype=object)
    position = 0
    for index in range(count):
        if position + 4 > size:
            if position == size:
                raise InvalidArgument(f"expected {count} string elements for {where}, got {index}")
            raise InvalidArgument(
                f"incomplete string length indicator for {where}, expecting 4 bytes but only "
                f"{size - position} bytes available"
            )
        (length,) = _LENGTH.unpack_from(blob, position)
        end = position + 4 + length
        if end > size:
            raise InvalidArgument(
                f"incomplete string data for {where}, expecting string of length {length} but "
                f"only {size - position - 4} bytes available"
            )
        array[index] = blob[position + 4 : end]
        position = end
    if position != size:
        raise InvalidArgument(
            f"unexpected number of string elements {count + 1} for {where}, expecting {count}"
        )
    return array


def _count_elements(blob: bytes) -> int | None:
    """How many whole elements `blob` holds, or None when it is cut short."""
    position = found = 0
    while position + 4 <= len(blob):
        position += 4 + int(_LENGTH.unpack_from(blob, position)[0])
        found += 1
    return found if position == len(blob) else None
