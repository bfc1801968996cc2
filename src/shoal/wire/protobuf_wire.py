"""The few bytes of protobuf's wire format we read and write ourselves.

A message's large `bytes` fields can be found and written without copying them, which protobuf's
own classes do not offer; everything else is left to those classes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument

LENGTH_DELIMITED = 2
_VARINT = 0
_FIXED_SIZES = {1: 8, 5: 4}  # wire type -> bytes
_LONGEST_VARINT = 10


def varint(value: int) -> bytes:
    """A non-negative integer as a varint."""
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def signed(value: int) -> bytes:
    """An int64 as a varint; negative ones take ten bytes."""
    return varint(value if value >= 0 else value + (1 << 64))


def tag(field: int) -> int:
    """The number that stands in front of a length-delimited field."""
    return field << 3 | LENGTH_DELIMITED


def prefix(field: int, size: int) -> bytes:
    """What stands in front of `size` bytes of a length-delimited field."""
    return varint(tag(field)) + varint(size)


def delimited(field: int, content: bytes) -> bytes:
    """A length-delimited field with its content; nothing for empty content, the default."""
    if not content:
        return b""
    return prefix(field, len(content)) + content


def take_out(
    message: Buffer,
    wanted: Mapping[int, list[tuple[int, int]]],
    most_fields: int = sys.maxsize,
) -> bytes:
    """Take length-delimited fields out of a message; returns the rest of it.

    `wanted` has a list for the `tag` of each such field; where its contents start and end is added
    there, in order. The contents of the other fields are not read. Raises InvalidArgument when
    the bytes do not fall into fields, or into more than `most_fields`: a field takes about 0.3 µs
    here, and a hostile message could have one in every two bytes.
    """
    view = memoryview(message)
    size = len(view)
    kept: list[memoryview] = []
    position = keep_from = 0
    for _ in range(most_fields):
        if position >= size:
            break
        start = position
        found = view[position]
        position += 1
        if found >= 0x80:
            found, position = _read_varint(view, start)
        if found < 8:
            raise malformed(f"field 0 at byte {start}; fields are numbered from 1")
        kind = found & 7
        if kind == LENGTH_DELIMITED:
            length = view[position] if position < size else 0x80
            if length < 0x80:
                position += 1
            else:
                length, position = _read_varint(view, position)
            end = position + length
        elif kind == _VARINT:
            _, end = _read_varint(view, position)
        elif kind in _FIXED_SIZES:
            end = position + _FIXED_SIZES[kind]
        else:
            raise malformed(f"field {found >> 3} at byte {start} has wire type {kind}")
        if end > size:
            raise malformed(f"field {found >> 3} at byte {start} reaches beyond the end")
        taken = wanted.get(found)
        if taken is not None:
            taken.append((position, end))
            if keep_from < start:
                kept.append(view[keep_from:start])
            keep_from = end
        position = end
    if position < size:
        raise malformed(f"it has more than {most_fields} fields")
    if keep_from < size:
        kept.append(view[keep_from:])
    return b"".join(kept)


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """The varint at `position`, and where it ends."""
    value = shift = 0
    for index in range(position, min(position + _LONGEST_VARINT, len(view))):
        byte = view[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index + 1
        shift += 7
    raise malformed(f"no complete number at byte {position}")


def malformed(why: str) -> InvalidArgument:
    """The error for bytes that are no message."""
    return InvalidArgument(f"the request is not a valid protobuf message: {why}")
