"""Reads the header of a JPEG, to decide whether the decoder of a GPU can decode it.

    markers up to the first scan --> size, orientation, sampling; None: Pillow decodes it

The decoders of NVIDIA's GPUs decode baseline JPEGs of one scan in grey or YCbCr. Everything else is
left to Pillow, and so is a header that is unusual in any way: then errors and orientation are the
same with and without a GPU.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from shoal.core.tensor import Buffer

_START, _END = b"\xff\xd8\xff", b"\xff\xd9"
_SIDES = range(64, 16385)  # that the decoders accept
_BASELINE, _SCAN, _TABLES = 0xC0, 0xDA, 0xDB
_OTHER_FRAMES = frozenset({*range(0xC1, 0xD0)} - {0xC4})  # C4: Huffman tables
_EXIF, _XMP = b"Exif\0\0", b"tiff:Orientation"
_ADOBE = b"Adobe"
_YCBCR = 1  # the colour transform in Adobe's segment
_RGB_NAMES = b"RGB"  # of components without a colour transform
# How many colours there are: none; as many as pixels (4:4:4); half as many in each line (4:2:2); in
# each second line only (4:2:0).
GREY, COLOURS, COLOURS_NARROW, COLOURS_HALVED = range(4)
# By the factors of the components, each horizontal and vertical.
_SAMPLINGS = {
    b"\x11\x11\x11": COLOURS,
    b"\x21\x11\x11": COLOURS_NARROW,
    b"\x22\x11\x11": COLOURS_HALVED,
}
_ORIENTATION, _SHORT = 0x0112, 3
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_MOST_ENTRIES = 64  # of an image file directory
_MOST_SEGMENTS = 64


class JpegFrame(NamedTuple):
    """What the header of a JPEG says."""

    width: int  # as stored
    height: int
    orientation: int  # EXIF: 1 is upright, from 5 on width and height are swapped
    sampling: int


def read_frame(data: Buffer) -> JpegFrame | None:
    """The header of a JPEG that a GPU can decode; None if Pillow has to decode or to refuse it."""
    view = memoryview(data).cast("B")
    if view[:3] != _START or view[-2:] != _END:
        return None
    try:
        return _read(view)
    except (IndexError, struct.error):  # it ends too early
        return None


def _read(view: memoryview) -> JpegFrame | None:
    segments = _segments(view)
    if segments is None or segments.keys() & _OTHER_FRAMES:
        return None
    frames, tables = segments.get(_BASELINE, ()), segments.get(_TABLES, ())
    if len(frames) != 1 or any(table[0] >> 4 for table in tables):  # 16 bits
        return None
    frame = frames[0]
    size = frame[3] << 8 | frame[4], frame[1] << 8 | frame[2]
    count, components = frame[5], bytes(frame[6:])
    sampling = _sampling(count, components)
    if frame[0] != 8 or sampling is None or size[0] not in _SIDES or size[1] not in _SIDES:
        return None
    transforms = {part[11] for part in segments.get(0xEE, ()) if part[:5] == _ADOBE}
    if segments[_SCAN][0][0] != count or (count == 3 and transforms - {_YCBCR}):
        return None
    orientation = _orientation_of(segments.get(0xE1, ()))
    return None if orientation is None else JpegFrame(*size, orientation, sampling)


def _segments(view: memoryview) -> dict[int, list[memoryview]] | None:
    """The contents of the segments up to the first scan, by their markers; None if they are not as
    usual."""
    segments: dict[int, list[memoryview]] = {}
    position = 2
    for _ in range(_MOST_SEGMENTS):
        if view[position] != 0xFF:
            return None
        marker = view[position + 1]
        length = view[position + 2] << 8 | view[position + 3]
        segments.setdefault(marker, []).append(view[position + 4 : position + 2 + length])
        if marker == _SCAN:
            return segments
        position += 2 + length
    return None


def _sampling(count: int, components: bytes) -> int | None:
    """How many colours there are; None if they are not YCbCr, or sampled in another way."""
    if len(components) != 3 * count or components[0::3] == _RGB_NAMES:
        return None
    if count == 1:
        return GREY
    return _SAMPLINGS.get(components[1::3]) if count == 3 else None


def _orientation_of(segments: Sequence[memoryview]) -> int | None:
    """The orientation in EXIF data, 1 without one; None if Pillow has to decide what it is."""
    found = [segment[6:] for segment in segments if segment[:6] == _EXIF]
    if len(found) > 1 or any(_XMP in bytes(segment) for segment in segments):
        return None
    return _orientation(found[0]) if found else 1


def _orientation(tiff: memoryview) -> int | None:
    order = _ORDERS.get(bytes(tiff[:4]))
    if order is None:
        return None
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    (count,) = struct.unpack_from(order + "H", tiff, start)
    if count > _MOST_ENTRIES:
        return None
    for index in range(count):
        tag, kind, values, value = struct.unpack_from(order + "HHIH", tiff, start + 2 + 12 * index)
        if tag == _ORIENTATION:
            return value if kind == _SHORT and values == 1 and 1 <= value <= 8 else None
    return 1
