"""Reads the request for a task from an HTTP request.

form | JSON | the bytes of a file, and the query  -->  TaskRequest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from shoal.errors import InvalidArgument, Unsupported
from shoal.frontends.http.message import HttpRequest
from shoal.tasks.request import File, TaskRequest
from shoal.wire import http_body, json_limits, multipart
from shoal.wire.compression import IDENTITY, coding

_FORM = "multipart/form-data"
_FIELDS = "application/x-www-form-urlencoded"
_MOST_FIELDS = 256
_READ_OFF_LOOP_BYTES = 64 * 1024


def reads_quickly(request: HttpRequest) -> bool:
    """Whether `read_upload` takes less time than waking a thread, or a millisecond at most."""
    if len(request.body) <= _READ_OFF_LOOP_BYTES:
        return True
    kind = _kind((request.header(b"content-type") or b"").decode("latin-1"))
    return kind not in ("", _FORM, _FIELDS) and not kind.endswith("json")


@dataclass(frozen=True, slots=True)
class Upload:
    """What a request has sent, by where it was."""

    query: Sequence[tuple[str, str]]
    fields: Sequence[tuple[str, str]]  # of a form, which are texts
    document: Any  # of a JSON body; None without one
    files: Sequence[File]  # of a form, or the body itself


def read_upload(request: HttpRequest, most_json_bytes: int) -> TaskRequest:
    """Read a request for a task. Raises InvalidArgument or Unsupported.

    Values may also be in the query; those of the body take precedence.
    """
    upload = read_parts(request, most_json_bytes)
    if upload.document is not None and type(upload.document) is not dict:
        raise InvalidArgument("the request body must be a JSON object")
    return TaskRequest(
        upload.files, {**dict(upload.query), **dict(upload.fields), **(upload.document or {})}
    )


def read_parts(request: HttpRequest, most_json_bytes: int) -> Upload:
    """Read a request with files, form fields or JSON. Raises InvalidArgument or Unsupported."""
    if coding(request.header(b"content-encoding")) != IDENTITY:
        raise Unsupported("Unsupported compression type: send the request without compression")
    fields: list[tuple[str, str]] = []
    document: Any = None
    content_type = (request.header(b"content-type") or b"").decode("latin-1")
    kind = _kind(content_type)
    body = request.body
    files: list[File] = []
    if kind == _FORM:
        for part in multipart.parts(body, multipart.boundary_of(content_type)):
            if part.file_name is None and not part.content_type.startswith("image/"):
                fields.append((part.name, _text(part.name, part.content)))
            else:
                files.append(File(part.content, part.name, part.file_name or "", part.content_type))
    elif kind.endswith("json") or (
        len(body) and bytes(body[:1]) in b"{[" and kind in ("", _FIELDS)
    ):
        # curl -d declares JSON as form fields; text that begins with a bracket is JSON.
        http_body.check_json_size(len(body), most_json_bytes)
        document = json_limits.loads(body, most_json_bytes)
        if document is None:
            raise InvalidArgument("the request body must be a JSON object")
    elif kind == _FIELDS and not _is_binary(body):
        fields = _pairs(_fields(memoryview(body)))
    elif len(body):
        files.append(File(body, content_type=kind))
    return Upload(_pairs(request.query), fields, document, files)


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_binary(body: bytes | memoryview) -> bool:
    """Whether the declared form fields are a file, as curl -d sends it: fields have no NULs."""
    return b"\0" in bytes(body[: 1 << 16])


def _fields(body: memoryview) -> str:
    try:
        return str(body, "utf-8")
    except UnicodeDecodeError:
        raise InvalidArgument(
            "the body is neither form fields nor a whole file: curl -d leaves out line breaks and "
            "zero bytes. Send a file with curl --data-binary @FILE, or as a form with -F"
        ) from None


def _pairs(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise InvalidArgument(f"more than {_MOST_FIELDS} fields; send fewer") from None


def _text(name: str, content: memoryview) -> str:
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError:
        raise InvalidArgument(f"'{name}' is not UTF-8 text") from None
