"""Reads the photos of a call, in any of the formats in which clients send them.

-F image=@cat.jpg | --data-binary @cat.jpg | {"image": "base64…"}  -->  files, in order
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from shoal.errors import InvalidArgument
from shoal.tasks.request import File, TaskRequest

MOST_IMAGES = 64
_ONE, _MANY = "image", "images"
_HOW = "Send one with curl -F image=@photo.jpg"


def images_of(request: TaskRequest, most: int = MOST_IMAGES) -> list[File]:
    """The photos of a request in order: files of a form, a bare body, or base64 in JSON.

    Raises InvalidArgument if there are none or more than `most`, or for invalid base64.
    """
    files = list(request.files)
    for name in (_ONE, _MANY):
        value = request.values.get(name)
        entries = value if type(value) is list else [] if value is None else [value]
        for index, entry in enumerate(entries):
            where = f"'{name}'" if value is entry else f"'{name}'[{index}]"
            files.append(File(_decoded(entry, where), name))
    if not files:
        raise InvalidArgument(f"there is no image in the request. {_HOW}")
    if len(files) > most:
        raise InvalidArgument(
            f"the request has {len(files)} images, at most {most} are allowed; send the others in "
            f"another request"
        )
    return files


def titles(files: Sequence[File]) -> list[str]:
    """The name of each photo in errors."""
    if len(files) == 1:
        return [f"the image '{files[0].name}'" if files[0].name else "the image"]
    return [
        f"the image '{file.name}'" if file.name else f"image {number} of {len(files)}"
        for number, file in enumerate(files, 1)
    ]


def _decoded(entry: Any, where: str) -> bytes:
    if type(entry) is not str:
        raise InvalidArgument(f"{where} must be an image in base64, as a text")
    if entry.startswith(("http://", "https://")):
        raise InvalidArgument(f"{where} is a URL; the server does not fetch URLs. {_HOW}")
    if entry.startswith("data:"):
        _, comma, entry = entry.partition(";base64,")
        if not comma:
            raise InvalidArgument(f"{where} is a data: URL without ;base64")
    try:
        return base64.b64decode("".join(entry.split()), validate=True)
    except (binascii.Error, ValueError):
        hint = (
            f"To send a file, write an @ before its name: curl -F image=@{entry}"
            if 0 < len(entry) < 200
            else _HOW
        )
        raise InvalidArgument(f"{where} is not base64. {hint}") from None
