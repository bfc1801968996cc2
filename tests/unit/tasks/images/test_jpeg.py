"""Which JPEGs the decoder of a GPU gets, and how they are turned."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as some
from PIL import Image

from shoal.tasks.images.decode import Photo
from shoal.tasks.images.jpeg import JpegFrame, read_frame
from tests.support.photos import ON_CPU, ON_GPU, encode, exif, photo

PLAIN = encode(photo())


@pytest.mark.parametrize("kind", list(ON_GPU))
def test_decoded_by_a_gpu(kind):
    frame = read_frame(ON_GPU[kind])
    assert frame is not None
    stored = Image.open(io.BytesIO(ON_GPU[kind]))
    assert (frame.width, frame.height) == stored.size
    assert frame.orientation == Photo(ON_GPU[kind]).orientation
    assert frame.sampling == {"grey": 0, "4:4:4": 1, "4:2:2": 2}.get(kind, 3)


@pytest.mark.parametrize("kind", [kind for kind in ON_CPU if kind != "undecodable"])
def test_left_to_pillow(kind):
    assert read_frame(ON_CPU[kind]) is None


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("endian", ["<", ">"])
def test_orientation(orientation, endian):
    made = exif(orientation)
    made.endian = endian
    made[0x010F] = "a camera"  # before it in the directory
    assert read_frame(encode(photo(), exif=made)) == JpegFrame(160, 120, orientation, 3)


def segment(marker, content):
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(content) + 2) + content


def with_segment(marker, content, data=PLAIN):
    """The segment after JFIF's."""
    end = 4 + struct.unpack(">H", data[4:6])[0]
    return data[:end] + segment(marker, content) + data[end:]


def tiff(tag=0x0112, kind=3, count=1, value=6):
    return b"Exif\0\0II*\0" + struct.pack("<IHHHIHHI", 8, 1, tag, kind, count, value, 0, 0)


@pytest.mark.parametrize(
    ("marker", "content", "orientation"),
    [
        (0xE1, tiff(), 6),
        (0xE1, tiff(tag=0x0110), 1),
        (0xE1, tiff(kind=4), None),
        (0xE1, tiff(count=2), None),
        (0xE1, tiff(value=9), None),
        (0xE1, tiff()[:20], None),
        (0xE1, b"Exif\0\0XX*\0", None),
        (0xE1, b"http://ns.adobe.com/xap/1.0/\0<tiff:Orientation>6<", None),
        (0xE1, b"http://ns.adobe.com/xap/1.0/\0<x>", 1),
        (0xEE, b"Adobe\0\x64\0\0\0\0\x01", 1),
        (0xEE, b"Adobe\0\x64\0\0\0\0\x00", None),  # no transform: it is RGB
        (0xEE, b"Adobe\0\x64\0\0\0\0\x02", None),
        (0xDB, b"\x10" + bytes(128), None),  # 16 bits
        (0xFE, b"a comment", 1),
    ],
)
def test_segments(marker, content, orientation):
    """Pillow decides where anything is unusual; where it does not, it agrees."""
    data = with_segment(marker, content)
    frame = read_frame(data)
    assert frame == (None if orientation is None else (160, 120, orientation, 3))
    if frame is not None:
        assert Photo(data).orientation == frame.orientation


def test_two_orientations():
    assert read_frame(with_segment(0xE1, tiff(), with_segment(0xE1, tiff()))) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\xff\xc0\x00\x11\x08", b"\xff\xc1\x00\x11\x08"),  # extended
        (b"\xff\xc0\x00\x11\x08", b"\xff\xc9\x00\x11\x08"),  # arithmetic
        (b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),  # twelve bits
        (b"\x00\x78\x00\xa0\x03\x01\x22", b"\x00\x78\x00\xa0\x03\x01\x41"),  # 4:1:1
        (b"\x00\x78\x00\xa0\x03\x01\x22", b"\x00\x78\x00\xa0\x03\x01\x12"),  # 4:4:0
        (b"\x00\x78\x00\xa0", b"\x00\x00\x00\xa0"),  # the height follows later
        (b"\x00\x78\x00\xa0", b"\x00\x78\x50\x00"),  # too wide
        (b"\xff\xda\x00\x0c\x03", b"\xff\xda\x00\x0c\x01"),  # the first of several scans
    ],
)
def test_frames(old, new):
    assert PLAIN.count(old) == 1
    assert read_frame(PLAIN.replace(old, new)) is None


@pytest.mark.parametrize("end", [0, 1, 3, 20, 200, 1000, -1])
def test_cut(end):
    assert read_frame(PLAIN[:end]) is None


@given(some.binary(max_size=400), some.integers(2, 700))
def test_any_bytes(content, position):
    """Nothing is raised, whatever a client sends; and a segment never ends before it begins."""
    read_frame(b"\xff\xd8\xff" + content + b"\xff\xd9")
    read_frame(PLAIN[:position] + content + PLAIN[position:])
