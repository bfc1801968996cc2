r"""Elements of BYTES tensors that are more than bytes for the function: files, images, JSON.

b"\xff\xd8…" --decode--> PIL.Image.Image --function--> PIL.Image.Image --encode--> b"\x89PNG…"
"""

from __future__ import annotations

import io
import typing
from typing import Any, Protocol

from shoal.backends.function import base64_text
from shoal.backends.function.field_errors import title
from shoal.core.interface import Schema, ValueForm
from shoal.errors import BackendFailure

PNG = "image/png"
_FILES = (typing.BinaryIO, typing.IO, io.BytesIO, io.IOBase, io.RawIOBase, io.BufferedIOBase)


class ElementCodec(Protocol):
    """Between the bytes of an element and the function's value."""

    form: ValueForm
    media: str  # of results
    schema: Schema

    def decode(self, data: bytes, where: str) -> Any:
        """The value; `where` names it in errors. Raises InvalidArgument."""

    def encode(self, value: Any) -> bytes:
        """The bytes. Raises BackendFailure."""


class FileCodec:
    """A file that is open for reading, in memory."""

    form = ValueForm.BINARY
    media = ""
    schema: Schema = base64_text.SCHEMA

    def decode(self, data: bytes, where: str) -> io.BytesIO:
        """The file."""
        del where
        return io.BytesIO(data)

    def encode(self, value: Any) -> bytes:
        """What a file has from its position on; bytes are taken as they are."""
        if isinstance(value, io.BytesIO):
            return value.getvalue()
        content = value.read() if hasattr(value, "read") else value
        if isinstance(content, (bytes, bytearray, memoryview)):
            return bytes(content)
        raise BackendFailure(
            f"the result is an object of type {type(value).__name__}; return a binary file or bytes"
        )


class ImageCodec:
    """An image of Pillow's: JPEG, PNG, WebP, BMP or GIF in, PNG out."""

    form = ValueForm.BINARY
    media = PNG
    schema: Schema = base64_text.SCHEMA

    def decode(self, data: bytes, where: str) -> Any:
        """The image, upright, of mode L, RGB or RGBA."""
        from shoal.tasks.images.decode import Photo  # needs Pillow

        return Photo(data, f"{title(where)}").decode()[0]

    def encode(self, value: Any) -> bytes:
        """The image as PNG; an array of pixels is one, too."""
        from PIL import Image

        try:
            image = value if isinstance(value, Image.Image) else Image.fromarray(value)
            written = io.BytesIO()
            image.save(written, "PNG")
        except Exception as error:
            raise BackendFailure(
                f"the result, of type {type(value).__name__}, is not an image that can be written "
                f"as PNG: {error}"
            ) from error
        return written.getvalue()


def codec_of(annotation: Any) -> ElementCodec | None:
    """The codec for a file or an image; None for other types."""
    if annotation in _FILES or typing.get_origin(annotation) is typing.IO:
        return FileCodec()
    is_image = getattr(annotation, "__module__", "").startswith("PIL.") and any(
        base.__module__ == "PIL.Image" and base.__name__ == "Image"
        for base in getattr(annotation, "__mro__", ())
    )
    return ImageCodec() if is_image else None
