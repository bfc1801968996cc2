"""Photos of all kinds: those that the decoder of a GPU takes, those that it leaves to Pillow."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

LABELS = ("red", "green", "blue")
UNDECODABLE = b"undecodable"  # in a comment: the tests' own backend leaves it to the CPU


def photo(colour="red", size=(160, 120), noise=60) -> Image.Image:
    """Noise, so that the file has some size, on a colour, with a dark corner."""
    pixels = np.random.default_rng(size[0]).integers(0, noise, (size[1], size[0], 3))
    pixels[:, :, LABELS.index(colour)] += 150
    pixels[: size[1] // 3, : size[0] // 2] //= 4
    return Image.fromarray(pixels.astype(np.uint8))


def encode(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **{"quality": 95, **options} if kind == "JPEG" else options)
    return file.getvalue()


def exif(orientation):
    made = Image.Exif()
    made[0x0112] = orientation
    return made


ON_GPU = {
    "4:2:0": encode(photo()),
    "4:2:2": encode(photo("green"), subsampling=1),
    "4:4:4": encode(photo("blue"), subsampling=0),
    "grey": encode(photo().convert("L")),
    "restarts": encode(photo(), restart_marker_rows=1),
    "turned": encode(photo("green", (90, 160)), exif=exif(6)),
    "large": encode(photo("blue", (500, 420))),
}
ON_CPU = {
    "progressive": encode(photo("green"), progressive=True),
    "CMYK": encode(photo().convert("CMYK")),
    "RGB": encode(photo("green"), keep_rgb=True),
    "PNG": encode(photo("blue"), "PNG"),
    "WebP": encode(photo("green"), "WEBP"),
    "GIF": encode(photo().quantize(8), "GIF"),
    "tiny": encode(photo("blue", (40, 30))),
    "undecodable": encode(photo("green"), comment=UNDECODABLE),
}
WRONG = {
    "cut": ON_GPU["4:2:0"][:3000],
    "empty": b"",
    "text": b"hello",
    "many pixels": encode(Image.new("RGB", (800, 800))),  # than test servers accept
    "many bytes": encode(photo("red", (600, 500), noise=99)),
}
