"""Photos of all kinds become upright pixels; what is none gets a sentence."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from shoal.errors import InvalidArgument
from shoal.tasks.images.decode import Photo, flat


def pixels(data, *, grey=False, **options):
    image, _ = Photo(data, **options).decode()
    return np.asarray(flat(image, grey=grey)).astype(int)


@pytest.mark.parametrize(
    ("kind", "options", "off"),
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("JPEG", {"quality": 95, "subsampling": 0}, 8),
        ("WEBP", {"quality": 95}, 16),
    ],
)
def test_formats(gradient, encode, kind, options, off):
    image = gradient()
    found = pixels(encode(image, kind, **options))
    assert found.shape == (48, 64, 3)
    assert np.abs(found - np.asarray(image).astype(int)).max() <= off


def test_the_first_frame_of_an_animation(gradient, encode):
    first, second = gradient().quantize(256), Image.new("P", (64, 48))
    for kind in ("GIF", "WEBP"):
        moving = encode(
            first.convert("RGB"), kind, save_all=True, append_images=[second.convert("RGB")]
        )
        assert np.abs(pixels(moving) - np.asarray(gradient()).astype(int)).mean() < 12


def test_grey_and_palette_and_one_bit(gradient, encode):
    grey = gradient().convert("L")
    assert (pixels(encode(grey)) == np.asarray(grey)[:, :, None]).all()
    palette = gradient().quantize(32)
    assert (pixels(encode(palette)) == np.asarray(palette.convert("RGB"))).all()
    black = Image.new("1", (8, 8))
    assert (pixels(encode(black)) == 0).all()
    assert pixels(encode(gradient()), grey=True).shape == (48, 64)


def test_sixteen_bits_of_grey(encode):
    values = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    assert (pixels(encode(Image.fromarray(values)))[:, :, 0] == values >> 8).all()


def test_sixteen_bits_of_colour():
    values = np.linspace(0, 65535, 8 * 8 * 3).astype(">u2").reshape(8, 8, 3)
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    found = pixels(png_of(8, 8, 16, 2, rows))
    assert np.abs(found - (values.astype(int) >> 8)).max() <= 1


def png_of(width, height, bits, colour_type, rows):
    """A PNG that Pillow does not write."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + data + chunk(b"IEND", b"")


def test_what_shines_through_is_white(encode):
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    clear.putpixel((0, 0), (255, 0, 0, 255))
    clear.putpixel((1, 0), (0, 0, 0, 128))
    for kind in ("PNG", "WEBP"):
        found = pixels(encode(clear, kind, **({"lossless": True} if kind == "WEBP" else {})))
        assert found[0, 0].tolist() == [255, 0, 0]
        assert found[0, 1].tolist() == [127, 127, 127]
        assert found[3, 3].tolist() == [255, 255, 255]


def test_a_palette_with_a_transparent_colour(encode):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((0, 0), 0)
    found = pixels(encode(image, transparency=1))
    assert found[0, 0].tolist() == [10, 20, 30]
    assert found[1, 1].tolist() == [255, 255, 255]


def test_printers_colours(encode):
    image = Image.new("RGB", (16, 16), (200, 40, 90)).convert("CMYK")
    found = pixels(encode(image, "JPEG", quality=95))
    assert np.abs(found - [200, 40, 90]).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_photo_stands_as_the_camera_was_held(gradient, encode, orientation, kind):
    """Whatever way a picture is stored, with the note that says so it looks the same."""
    stored = {
        1: (),
        2: (Image.Transpose.FLIP_LEFT_RIGHT,),
        3: (Image.Transpose.ROTATE_180,),
        4: (Image.Transpose.FLIP_TOP_BOTTOM,),
        5: (Image.Transpose.TRANSPOSE,),
        6: (Image.Transpose.ROTATE_90,),
        7: (Image.Transpose.TRANSVERSE,),
        8: (Image.Transpose.ROTATE_270,),
    }[orientation]
    image = gradient()
    for operation in stored:
        image = image.transpose(operation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}, "PNG": {}}[kind]
    photo = Photo(encode(image, kind, exif=exif, **options))
    upright, whole = photo.decode()
    assert whole == upright.size == (64, 48)
    found = np.asarray(upright).astype(int)
    assert np.abs(found - np.asarray(gradient()).astype(int)).mean() < 3


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_broken_note_about_the_photo_does_not_spoil_it(gradient, encode):
    photo = Photo(encode(gradient(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff nonsense"))
    assert photo.decode()[1] == (64, 48)


def test_a_large_jpeg_is_decoded_smaller(gradient, encode):
    data = encode(gradient(1600, 1200), "JPEG", quality=95)
    image, whole = Photo(data).decode(lambda size: (size[0] // 10, size[1] // 10))
    assert whole == (1600, 1200)
    assert image.size == (400, 300)  # a quarter: at least twice what is wanted
    full, _ = Photo(data).decode()
    assert full.size == (1600, 1200)
    small = np.asarray(full.resize((160, 120))).astype(int)
    assert np.abs(np.asarray(image.resize((160, 120))) - small).max() <= 4


def test_a_large_jpeg_that_lies_on_its_side(gradient, encode):
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = Photo(encode(gradient(1600, 800), "JPEG", exif=exif))
    assert photo.size == (800, 1600)
    image, whole = photo.decode(lambda size: (size[0] // 8, size[1] // 16))
    assert whole == (800, 1600)
    assert image.size == (200, 400)


def test_grey_is_all_that_a_grey_model_decodes(gradient, encode):
    photo = Photo(encode(gradient(), "JPEG"))
    assert photo.decode(lambda size: size, grey=True)[0].mode == "L"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "the image is empty. Send a JPEG, PNG, WebP, BMP or GIF file"),
        (b"%PDF-1.7\n...", "the image is a PDF document. Send"),
        (b"just words\n", "the image is text. Send"),
        (b"<?xml version='1.0'?><svg xmlns='x'/>", "the image is SVG. Send"),
        (b"<!DOCTYPE html><html>", "the image is a web page. Send"),
        (b"II*\0\x08\0\0\0", "the image is TIFF. Send"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "the image is HEIC. Send"),
        (b"\0\0\0\x18ftypavif\0\0\0\0", "the image is AVIF. Send"),
        (b"\0\0\0\x18ftypisom\0\0\0\0", "the image is a video. Send"),
        (b"PK\x03\x04....", "the image is a ZIP archive. Send"),
        (b"\x01\x02\x03\x04\x05\x06\x07\x08\x09", "begins with 01 02 03 04 05 06 07 08). Send"),
        (b"\xff\xd8\xff\xe0nonsense", "the image is truncated: its JPEG data ends too early"),
        (b"\xff\xd8\xff\xd9" + bytes(40), "the image is a corrupt JPEG file"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\x01!!!!" + bytes(40), "the image is a corrupt PNG file"),
        (b"GIF89a", "the image is truncated: its GIF data ends too early"),
        (b"BM" + bytes(12), "the image is truncated: its BMP data ends too early"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "the image is truncated: its WebP data ends too early"),
        (b"RIFF\x20\0\0\0WEBPVP8 " + bytes(40), "the image has no pixels: its size is 0 x 0"),
        (b"RIFF\x20\0\0\0WEBPNOPE" + bytes(40), "the image is a corrupt WebP file"),
    ],
    ids=lambda value: repr(value[:12]) if type(value) is bytes else "",
)
def test_what_is_no_image(data, sentence):
    with pytest.raises(InvalidArgument) as raised:
        Photo(data).decode()
    assert sentence in raised.value.message


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_files_that_are_cut_off(gradient, encode, kind, share):
    data = encode(gradient(200, 200), kind)
    with pytest.raises(InvalidArgument, match=r"'cat' is (truncated|a corrupt)"):
        Photo(data[: max(20, int(len(data) * share))], "'cat'").decode()


def test_no_more_pixels_than_are_taken(gradient, encode):
    for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF"):
        data = encode(gradient(), kind)
        Photo(data, most_pixels=64 * 48)
        with pytest.raises(
            InvalidArgument, match="64 x 48 pixels, at most 3,071 are allowed in all"
        ):
            Photo(data, most_pixels=64 * 48 - 1)


def test_a_bomb_is_refused_before_it_is_decoded():
    """The head says how large it is; nothing else is looked at."""
    rows = b"\0" * 100
    frame = b"," + struct.pack("<HHHH", 0, 0, 60_000, 60_000) + b"\0\x02\0;"
    bombs = [
        png_of(60_000, 60_000, 8, 2, rows),
        b"RIFF\xff\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\xff\x3f\0\xff\x3f\0" + bytes(300),
        b"RIFF\xff\0\0\0WEBPVP8L\x0a\0\0\0\x2f\xff\xff\xff\xff" + bytes(300),
        b"RIFF\xff\0\0\0WEBPVP8 \x0a\0\0\0\0\0\0\x9d\x01\x2a\xff\x3f\xff\x3f" + bytes(300),
        b"BM" + bytes(12) + struct.pack("<IiiHH", 40, 50_000, 50_000, 1, 24) + bytes(24),
        b"GIF89a" + struct.pack("<HH", 60_000, 60_000) + b"\x80\0\0" + bytes(6) + frame,
    ]
    for bomb in bombs:
        with pytest.raises(InvalidArgument, match=r"[\d,]+ x [\d,]+ pixels, at most 50,000,000"):
            Photo(bomb)


def test_memoryviews_are_taken(gradient, encode):
    data = memoryview(bytearray(encode(gradient())))
    assert Photo(data).decode()[1] == (64, 48)
    assert Photo(io.BytesIO(data).getbuffer()).kind == "PNG"
