"""From the bytes of a photo to its pixels, the way up that the camera was held.

    first bytes: the kind --> head: size, orientation --> pixels, no more than needed

Only the formats named below are tried, and a file's size in pixels is known before anything is
decoded, so a small file cannot become a large picture. A JPEG much larger than needed is decoded
at a half, a quarter or an eighth of its size, which costs a fraction of the time.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

MOST_PIXELS = 50_000_000  # as many as the larger cameras of phones take; 200 MB while decoded
FORMATS = "JPEG, PNG, WebP, BMP or GIF"

Size = tuple[int, int]  # width, height

_SPARE = 2.0  # a JPEG is decoded at no less than this times the size it is made next
_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = MappingProxyType(
    {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
)
_LYING = frozenset((5, 6, 7, 8))  # width and height change places

_READERS: tuple[tuple[re.Pattern[bytes], str, type[ImageFile]], ...] = (
    (re.compile(rb"\xff\xd8\xff"), "JPEG", JpegImageFile),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "PNG", PngImageFile),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "WebP", WebPImageFile),
    (re.compile(rb"BM.{12}", re.DOTALL), "BMP", BmpImageFile),
    (re.compile(rb"GIF8[79]a"), "GIF", GifImageFile),
)
# What people send instead, so that the answer can say what it was.
_OTHERS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"%PDF"), "a PDF document"),
    (re.compile(rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?(<!DOCTYPE svg|<svg)", re.DOTALL), "SVG"),
    (re.compile(rb"II\*\0|MM\0\*"), "TIFF"),
    (re.compile(rb"....ftyp(hei|hev|mif1|msf1)", re.DOTALL), "HEIC"),
    (re.compile(rb"....ftypavi", re.DOTALL), "AVIF"),
    (re.compile(rb"....ftyp", re.DOTALL), "a video"),
    (re.compile(rb"PK\x03\x04"), "a ZIP archive"),
    (re.compile(rb"\x1f\x8b"), "a gzip archive"),
    (re.compile(rb"\s*<(!DOCTYPE )?html", re.IGNORECASE), "a web page"),
    (re.compile(rb"[\t\n\r\x20-\x7e]+\Z"), "text"),
)


class Photo:
    """A photo whose head was read, and whose pixels are not yet decoded."""

    def __init__(self, data: Buffer, title: str = "the image", most_pixels: int = 0) -> None:
        """Read the head of the file; `title` begins the sentences about it.

        Raises InvalidArgument for what is no image, is broken, or has more than `most_pixels`
        (0: MOST_PIXELS).
        """
        self.title = title
        self.kind, reader = _kind_of(data, title)
        most_pixels = most_pixels or MOST_PIXELS
        if self.kind == "WebP":  # its reader makes room for the pixels at once
            self._check_size(_webp_size(data), most_pixels)
            self._check_complete(data)
        try:
            self._image: Image.Image = reader(_file(data))
        except Exception as error:  # noqa: BLE001 - broken files raise anything in these readers
            self._broken(error)
        self._check_size(self._image.size, most_pixels)
        self.orientation = 1 if self.kind == "PNG" else orientation_of(self._image)

    @property
    def mode(self) -> str:
        """The kind of its pixels, in Pillow's words: L, RGB, CMYK and so on."""
        return self._image.mode

    @property
    def size(self) -> Size:
        """Width and height, the right way up. A PNG's orientation is known after its pixels."""
        width, height = self._image.size
        return (height, width) if self.orientation in _LYING else (width, height)

    def decode(
        self, wanted: Callable[[Size], Size] | None = None, *, grey: bool = False
    ) -> tuple[Image.Image, Size]:
        """The pixels, upright, of mode L, RGB or RGBA; and the size of the whole photo.

        `wanted` tells to which size a photo will be made; the pixels are enough for that, and may
        be fewer than the photo has. With `grey` the colours are not needed. Raises
        InvalidArgument for files that are cut off or broken.
        """
        size = self.size
        try:
            if wanted is not None and isinstance(self._image, JpegImageFile):
                self._reduce(wanted(size), grey=grey)
            self._image.load()
        except Exception as error:  # noqa: BLE001 - as above
            self._broken(error)
        if self.kind == "PNG":  # its EXIF may stand behind the pixels
            self.orientation = orientation_of(self._image)
            size = self.size
        return upright(self._image, self.orientation), size

    def _reduce(self, wanted: Size, *, grey: bool) -> None:
        width, height = wanted if self.orientation not in _LYING else (wanted[1], wanted[0])
        enough = (round(width * _SPARE), round(height * _SPARE))
        assert isinstance(self._image, JpegImageFile)
        self._image.draft("L" if grey else "RGB", enough)

    def _check_size(self, size: Size, most_pixels: int) -> None:
        width, height = size
        if width < 1 or height < 1:
            raise InvalidArgument(f"{self.title} has no pixels: its size is {width} x {height}")
        if width * height > most_pixels:
            raise InvalidArgument(
                f"{self.title} has {width:,} x {height:,} pixels, at most {most_pixels:,} are "
                f"taken in all; send it smaller"
            )

    def _check_complete(self, data: Buffer) -> None:
        """For WebP, whose head tells the length of the file."""
        whole = memoryview(data).cast("B")
        if _little(bytes(whole[4:8])) + 8 > len(whole):
            self._broken(EOFError())

    def _broken(self, error: Exception) -> NoReturn:
        text = str(error)
        if isinstance(error, EOFError) or "truncated" in text.lower() or "unpack" in text:
            raise InvalidArgument(
                f"{self.title} is cut off: its {self.kind} data ends too early. Send the whole file"
            ) from None
        raise InvalidArgument(f"{self.title} is a broken {self.kind} file: {text}") from None


def orientation_of(image: Image.Image) -> int:
    """How the camera was held, from 1 to 8 as EXIF has it; 1 where nothing says so."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - a broken note about the photo does not spoil the photo
        return 1
    return orientation if orientation in _UPRIGHT else 1


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """Decoded pixels, the right way up and of a mode that can be resized: L, RGB or RGBA."""
    image = _plain(image)
    operation = _UPRIGHT.get(orientation)
    return image if operation is None else image.transpose(operation)


def flat(image: Image.Image, *, grey: bool = False) -> Image.Image:
    """The image without alpha, in colours or grey. What shines through is white, as on a page."""
    if image.mode == "RGBA":
        page = Image.new("RGBA", image.size, (255, 255, 255, 255))
        page.alpha_composite(image)
        image = page
    mode = "L" if grey else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _plain(image: Image.Image) -> Image.Image:
    """L, RGB or RGBA: what can be resized."""
    if image.mode.startswith("I"):  # 16 bits of grey; Pillow would cut them off at 255
        values = np.asarray(image).astype(np.uint16)
        return Image.fromarray((values >> 8).astype(np.uint8))
    if "transparency" in image.info or image.mode in ("LA", "PA", "RGBA"):
        return image if image.mode == "RGBA" else image.convert("RGBA")
    if image.mode in ("L", "RGB"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _kind_of(data: Buffer, title: str) -> tuple[str, type[ImageFile]]:
    start = bytes(memoryview(data).cast("B")[:1024])
    for pattern, kind, reader in _READERS:
        if pattern.match(start):
            return kind, reader
    if not start:
        raise InvalidArgument(f"{title} is empty. Send a {FORMATS} file")
    found = next((f"is {name}" for pattern, name in _OTHERS if pattern.match(start)), None)
    what = found or f"is no image that is known here (it begins with {start[:8].hex(' ')})"
    raise InvalidArgument(f"{title} {what}. Send a {FORMATS} file")


def _file(data: Buffer) -> io.BytesIO:
    return io.BytesIO(memoryview(data).cast("B"))


def _webp_size(data: Buffer) -> Size:
    """What the head of a WebP file says; (1, 1) where it is one that its reader will refuse."""
    head = bytes(memoryview(data).cast("B")[12:30])
    kind = head[:4]
    if len(head) < 18:
        return 1, 1
    if kind == b"VP8X":
        return _little(head[12:15]) + 1, _little(head[15:18]) + 1
    if kind == b"VP8L":
        bits = _little(head[9:13])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return _little(head[14:16]) & 0x3FFF, _little(head[16:18]) & 0x3FFF
    return 1, 1


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
