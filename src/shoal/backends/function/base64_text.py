"""Files in JSON: base64, also as a `data:` URL."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from shoal.backends.function.field_errors import title, wrong_value
from shoal.errors import InvalidArgument

_LONGEST_NAME = 200
SCHEMA = {"type": "string", "contentEncoding": "base64"}


def decode(value: Any, where: str) -> bytes:
    """The bytes of a text in base64. Raises InvalidArgument, which says how to send a file."""
    if not isinstance(value, str):
        raise wrong_value(where, "a file in base64, as a text", value)
    text = value
    if text.startswith("data:"):
        _, comma, text = text.partition(";base64,")
        if not comma:
            raise InvalidArgument(f"{title(where)} is a data: URL without ;base64")
    elif text.startswith(("http://", "https://")):
        raise InvalidArgument(
            f"{title(where)} is a URL, which the server does not fetch; send the file itself"
        )
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        name = text if 0 < len(text) < _LONGEST_NAME and "." in text else "FILE"
        field = where.partition("[")[0] or "file"
        raise InvalidArgument(
            f"{title(where)} is not base64; send a file with curl -F {field}=@{name}, or "
            f"its bytes as the whole body"
        ) from None


def encode(data: bytes) -> str:
    """The text for JSON."""
    return base64.b64encode(data).decode("ascii")
