"""multipart/form-data: what a form, or `curl -F`, sends.

    --boundary CRLF headers CRLF CRLF content CRLF --boundary ... --boundary--

The whole body is at hand, so its parts are found by their boundary and not copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message

from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument

MOST_PARTS = 1024
_LONGEST_HEADERS = 16 * 1024
_END_OF_HEADERS = re.compile(rb"\r?\n\r?\n")


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a form; `file_name` is None where it is not a file."""

    name: str
    content: memoryview
    file_name: str | None = None
    content_type: str = ""


def boundary_of(content_type: str) -> bytes:
    """The boundary that a Content-Type of multipart/form-data names; InvalidArgument without."""
    header = Message()
    header["Content-Type"] = content_type
    boundary = header.get_param("boundary")
    if not isinstance(boundary, str) or not 0 < len(boundary) <= 200:
        raise InvalidArgument(
            "the Content-Type is multipart/form-data without a boundary: let the client library "
            "write that header"
        )
    return boundary.encode("latin-1", "replace")


def parts(body: Buffer, boundary: bytes) -> Iterator[Part]:
    """The fields of a form, in order. Raises InvalidArgument for a body that is not one."""
    whole = memoryview(body).cast("B")
    marks = re.compile(rb"(?:\A|\r?\n)--" + re.escape(boundary) + rb"(--)?[ \t]*(?:\r?\n|\Z)")
    start: int | None = None
    position = count = 0
    while True:
        mark = marks.search(whole, position)
        if mark is None:
            raise InvalidArgument(
                "the form is not complete: the boundary that ends it is missing. The upload may "
                "have been cut off"
            )
        if start is not None:
            count += 1
            if count > MOST_PARTS:
                raise InvalidArgument(f"the form has more than {MOST_PARTS} fields; send fewer")
            yield _part(whole[start : mark.start()])
        if mark[1]:
            return
        start = position = mark.end()


def _part(content: memoryview) -> Part:
    end = _END_OF_HEADERS.search(content[:_LONGEST_HEADERS])
    if end is None:
        raise InvalidArgument("a field of the form has no headers: it must say its name")
    header = Message()
    for line in bytes(content[: end.start()]).decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        header[name.strip()] = value.strip()
    field = header.get_param("name", header="Content-Disposition")
    if not isinstance(field, str):
        raise InvalidArgument('a field of the form has no name: it must say name="…"')
    content_type = header.get_content_type() if header["Content-Type"] else ""
    return Part(field, content[end.end() :], header.get_filename(), content_type)
