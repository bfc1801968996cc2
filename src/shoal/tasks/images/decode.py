"""Decodes a photo to upright pixels.

    first bytes: the format --> header: size, orientation --> pixels, no more than needed

Only the formats below are accepted, and the size in pixels is checked before anything is decoded,
so a small file cannot expand to a huge image. A JPEG that is much larger than needed is decoded at
a half, a quarter or an eighth of its size, which is much faster.
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

MOST_PIXELS = 50_000_000  # of the larger phone cameras; 200 MB when decoded
FORMATS = "JPEG, PNG, WebP, BMP or GIF"

Size = tuple[int, int]  # width, height

_SPARE = 2.0  # a JPEG is decoded at least this many times larger than its final size
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
_SWAPPED = frozenset((5, 6, 7, 8))  # width and height are swapped

_READERS: tuple[tuple[re.Pattern[bytes], str, type[ImageFile]], ...] = (
    (re.compile(rb"\xff\xd8\xff"), "JPEG", JpegImageFile),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "PNG", PngImageFile),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "WebP", WebPImageFile),
    (re.compile(rb"BM.{12}", re.DOTALL), "BMP", BmpImageFile),
    (re.compile(rb"GIF8[79]a"), "GIF", GifImageFile),
)
# Other formats, so that the error can name them.
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
    """A photo whose header is read and whose pixels are not decoded yet."""

    def __init__(self, data: Buffer, title: str = "the image", most_pixels: int = 0) -> None:
        """Read the header of the file; `title` names it in errors.

        Raises InvalidArgument if it is not an image, is corrupt, or has more than `most_pixels`
        (0: MOST_PIXELS).
        """
        self.title = title
        self.kind, reader = _kind_of(data, title)
        most_pixels = most_pixels or MOST_PIXELS
        if self.kind == "WebP":  # its reader allocates the pixels at once
            self._check_size(_webp_size(data), most_pixels)
            self._check_complete(data)
        try:
            self._image: Image.Image = reader(_file(data))
        except Exception as error:  # noqa: BLE001 - these readers raise anything
            self._broken(error)
        self._check_size(self._image.size, most_pixels)
        self.orientation = 1 if self.kind == "PNG" else orientation_of(self._image)

    @property
    def mode(self) -> str:
        """Pillow's name for the kind of its pixels: L, RGB, CMYK and so on."""
        return self._image.mode

    @property
    def size(self) -> Size:
        """Width and height when upright. A PNG's orientation is known after decoding."""
        width, height = self._image.size
        return (height, width) if self.orientation in _SWAPPED else (width, height)

    def decode(
        self, target_size: Callable[[Size], Size] | None = None, *, grey: bool = False
    ) -> tuple[Image.Image, Size]:
        """The pixels, upright, of mode L, RGB or RGBA; and the size of the whole photo.

        `target_size` is the size to which the photo will be resized; there may be fewer pixels
        than in the photo, but enough for that. With `grey` the colours are not needed. Raises
        InvalidArgument if the file is truncated or corrupt.
        """
        size = self.size
        try:
            if target_size is not None and isinstance(self._image, JpegImageFile):
                self._reduce(target_size(size), grey=grey)
            self._image.load()
        except Exception as error:  # noqa: BLE001 - as above
            self._broken(error)
        if self.kind == "PNG":  # its EXIF data may follow the pixels
            self.orientation = orientation_of(self._image)
            size = self.size
        return upright(self._image, self.orientation), size

    def _reduce(self, size: Size, *, grey: bool) -> None:
        width, height = size if self.orientation not in _SWAPPED else (size[1], size[0])
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
                f"allowed in all; send a smaller one"
            )

    def _check_complete(self, data: Buffer) -> None:
        """For WebP, whose header has the length of the file."""
        whole = memoryview(data).cast("B")
        if _little(bytes(whole[4:8])) + 8 > len(whole):
            self._broken(EOFError())

    def _broken(self, error: Exception) -> NoReturn:
        text = str(error)
        if isinstance(error, EOFError) or "truncated" in text.lower() or "unpack" in text:
            raise InvalidArgument(
                f"{self.title} is truncated: its {self.kind} data ends too early. Send all of it"
            ) from None
        raise InvalidArgument(f"{self.title} is a corrupt {self.kind} file: {text}") from None


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation, from 1 to 8; 1 if there is none."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - a photo with corrupt EXIF data is still usable
        return 1
    return orientation if orientation in _UPRIGHT else 1


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """Decoded pixels, upright and in a mode that can be resized: L, RGB or RGBA."""
    image = _plain(image)
    operation = _UPRIGHT.get(orientation)
    return image if operation is None else image.transpose(operation)


def flat(image: Image.Image, *, grey: bool = False) -> Image.Image:
    """The image without alpha, in colour or grey. Transparent areas become white."""
    if image.mode == "RGBA":
        page = Image.new("RGBA", image.size, (255, 255, 255, 255))
        page.alpha_composite(image)
        image = page
    mode = "L" if grey else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _plain(image: Image.Image) -> Image.Image:
    """The image in a mode that can be resized: L, RGB or RGBA."""
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip at 255
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
    what = found or f"is not an image in a known format (it begins with {start[:8].hex(' ')})"
    raise InvalidArgument(f"{title} {what}. Send a {FORMATS} file")


def _file(data: Buffer) -> io.BytesIO:
    return io.BytesIO(memoryview(data).cast("B"))


def _webp_size(data: Buffer) -> Size:
    """The size in the header of a WebP file; (1, 1) if the header is invalid."""
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
