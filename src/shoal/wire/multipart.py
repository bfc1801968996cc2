"""multipart/form-data: what a form, or `curl -F`, sends.

    --boundary CRLF headers CRLF CRLF content CRLF --boundary ... --boundary--

The whole body is at hand, so its parts are found by their boundary and not copied. Every byte is
read a fixed number of times, and the number of parts, the size of a part's headers and the number
of their parameters are limited.

The packages `multipart` 2.0 and `python-multipart` 0.0.33 do not fit: they copy the body or its
parts, refuse lines that end in LF alone, and ignore `filename*`, which some clients send.
`email` takes quadratic time for a header of many semicolons in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument

MOST_PARTS = 1024
_LONGEST_HEADERS = 16 * 1024
_MOST_HEADERS = 32
_MOST_PARAMETERS = 32
_END_OF_HEADERS = re.compile(rb"\r?\n\r?\n")
# One parameter: up to a semicolon that is not in quotes. No character has two ways to match.
_PARAMETER = re.compile(r'(?:[^;"]|"(?:[^"\\]|\\.)*"?)*', re.DOTALL)
_ESCAPE = re.compile(r'\\(["\\])')


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a form; `file_name` is None where it is not a file."""

    name: str
    content: memoryview
    file_name: str | None = None
    content_type: str = ""


def boundary_of(content_type: str) -> bytes:
    """The boundary that a Content-Type of multipart/form-data names; InvalidArgument without."""
    boundary = _parameters(content_type)[1].get("boundary", "")
    if not 0 < len(boundary) <= 200:
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
        raise InvalidArgument(
            f"a field of the form has no headers, or more than {_LONGEST_HEADERS} bytes of them: "
            f"it must say its name"
        )
    headers = _headers(bytes(content[: end.start()]).decode("utf-8", "replace"))
    _, disposition = _parameters(headers.get("content-disposition", ""))
    if "name" not in disposition:
        raise InvalidArgument('a field of the form has no name: it must say name="…"')
    content_type, of_type = _parameters(headers.get("content-type", ""))
    content_type = content_type.lower()
    if content_type.count("/") != 1:
        content_type = "text/plain" if content_type else ""
    file_name = disposition.get("filename", of_type.get("name"))
    return Part(disposition["name"], content[end.end() :], file_name, content_type)


def _headers(text: str) -> dict[str, str]:
    """Header lines by name in lower case; the first of each counts."""
    lines = text.splitlines()
    if len(lines) > _MOST_HEADERS:
        raise InvalidArgument(f"a field of the form has more than {_MOST_HEADERS} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers.setdefault(name.strip().lower(), value.strip())
    return headers


def _parameters(header: str) -> tuple[str, dict[str, str]]:
    """What a header says before its first semicolon, and its parameters; the first of each counts.

    `name*=UTF-8''…` stands for `name` where that is absent.
    """
    plain: dict[str, str] = {}
    encoded: dict[str, str] = {}
    main, _, rest = header.partition(";")
    position = count = 0
    while position < len(rest):
        found = _PARAMETER.match(rest, position)
        assert found is not None, "the pattern also matches nothing"
        position = found.end() + 1
        count += 1
        if count > _MOST_PARAMETERS:
            raise InvalidArgument(
                f"a header of the form has more than {_MOST_PARAMETERS} parameters"
            )
        name, _, value = found[0].partition("=")
        name, value = name.strip().lower(), value.strip()
        if name.endswith("*"):
            encoded.setdefault(name[:-1], _decoded(value))
        else:
            plain.setdefault(name, _unquoted(value))
    return main.strip(), {**encoded, **plain}


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        return _ESCAPE.sub(r"\1", value[1:-1])
    return value


def _decoded(value: str) -> str:
    """A value in the notation of RFC 5987: charset'language'percent-encoded.

    Only the two charsets that it names are known: Python's others are not all made for text.
    """
    charset, language, text = (
        _unquoted(value).split("'", 2) if value.count("'") >= 2 else ("", "", value)
    )
    del language
    return unquote(text, "latin-1" if charset.lower() == "iso-8859-1" else "utf-8", "replace")
