"""BYTES elements as Triton lays them out: a little-endian uint32 length, then that many bytes.

Both directions live here because validation needs them as much as the wire does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

from shoal.errors import InvalidArgument

_LENGTH = struct.Struct("<I")
_PIECE = 1 << 16  # elements, whose references are copied into the array while the GIL is held
# Of a tensor that took few bytes to send: in shared memory, or compressed. 0.2 s to decode.
MOST_UNSENT = 1_000_000
# Tensors beyond one of these are decoded and encoded on threads: that takes milliseconds.
SLOW_ELEMENTS = 1 << 14
_SLOW_BYTES = 1 << 20


def encode(elements: Iterable[bytes | str]) -> bytes:
    """Lay `elements` out one after the other; text becomes UTF-8."""
    blobs = [
        each if type(each) is bytes else each.encode() if isinstance(each, str) else bytes(each)
        for each in elements
    ]
    pack = _LENGTH.pack
    return b"".join([part for blob in blobs for part in (pack(len(blob)), blob)])


def is_slow(count: int, size: int) -> bool:
    """Whether it takes milliseconds to decode `size` bytes that should be `count` elements."""
    return size > _SLOW_BYTES or min(count, size // 4) > SLOW_ELEMENTS


def check_unsent(name: str, count: int, how: str) -> None:
    """Refuse an input with too many elements for what was sent; `how` says how it was sent."""
    if count > MOST_UNSENT:
        raise InvalidArgument(
            f"input '{name}' has {count} string elements, and at most {MOST_UNSENT} are read "
            f"{how}; send them uncompressed in the request itself, or in several requests"
        )


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
    unpack = _LENGTH.unpack_from
    start = end = 0
    elements: list[bytes] = []
    try:
        for first in range(0, count, _PIECE):
            elements = []
            for _ in range(min(_PIECE, count - first)):
                (length,) = unpack(blob, end)
                start = end + 4
                end = start + length
                elements.append(blob[start:end])
            array[first : first + _PIECE] = elements
    except struct.error:  # fewer than 4 bytes are left, or the last element went beyond the end
        if end == size:
            found = first + len(elements)
            raise InvalidArgument(
                f"expected {count} string elements for {where}, got {found}"
            ) from None
        if end < size:
            raise InvalidArgument(
                f"incomplete string length indicator for {where}, expecting 4 bytes but only "
                f"{size - end} bytes available"
            ) from None
    if end > size:
        raise InvalidArgument(
            f"incomplete string data for {where}, expecting string of length {end - start} but "
            f"only {size - start} bytes available"
        )
    if end < size:
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
