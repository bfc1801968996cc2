"""The responses of a batch whose requests have one template, written as a whole.

    PlannedResponses --write--> one piece of bytes per call

What is the same in all responses of a layout is made once, and the Date once a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from shoal.core.dtypes import BYTES
from shoal.core.planned import PlannedRequest, PlannedResponses, ResponseLayout
from shoal.frontends.http.infer import binary_headers
from shoal.frontends.http.message import response_lines
from shoal.frontends.http.options import HttpOptions
from shoal.wire import json_data
from shoal.wire.http_body import JSON_TYPE, binary_json, json_around_data

_LARGEST_BINARY_BYTES = 16 * 1024  # larger responses are sent from where they are
_LARGEST_JSON_BYTES = 64 * 1024  # of the outputs; more of them would keep the loop too long
_JSON_LINES = response_lines(200, [(b"Content-Type", JSON_TYPE)])
_WITH_ID = b'\r\n{"id":"'
_WITHOUT_ID = b"\r\n{"


def writer_for(
    layout: ResponseLayout, options: HttpOptions, *, binary: bool
) -> ResponseWriter | None:
    """What writes responses of `layout`; None if each of them takes the slow path."""
    datatypes = [datatype for _, datatype, _ in layout.outputs]
    if BYTES in datatypes:
        return None
    if not binary:
        if layout.total_bytes > _LARGEST_JSON_BYTES:
            return None
        if not all(layout.sizes) or any(one in json_data.BINARY_ONLY for one in datatypes):
            return None
        return JsonWriter(layout)
    outputs = [(*output, size) for output, size in zip(layout.outputs, layout.sizes, strict=True)]
    json = binary_json(layout.model_name, layout.model_version, tuple(outputs))
    if json is None or layout.total_bytes > _LARGEST_BINARY_BYTES:
        return None
    lines = response_lines(200, binary_headers(b"%d", options))
    return BinaryWriter(json, layout.total_bytes, lines)


class BinaryWriter:
    """Responses whose outputs are bytes after the JSON."""

    __slots__ = ("_json", "_lines", "_made", "_tensor_bytes")

    _last_front = b""

    def __init__(self, json: bytes, tensor_bytes: int, lines: bytes) -> None:
        """`json` is the JSON after the id, `lines` the headers without the length of the JSON."""
        self._json = json
        self._lines = lines
        self._tensor_bytes = tensor_bytes
        self._made = (-1, b"", b"", b"")  # for the last length of an id, and the last second

    def write(self, responses: PlannedResponses, requests: Sequence[PlannedRequest]) -> bool:
        """Write all responses; false, with nothing done, if they take the slow path this time."""
        if len(requests) == 1:
            (request,) = requests
            alone: Any = request.reply
            connection, request_id = alone.connection, alone.request_id
            made_for, date, front, after = self._made
            if made_for != len(request_id) or date is not connection.date_line:
                front, after = self._around(len(request_id), connection.date_line)
            whole = b"".join((front, request_id, after, *(responses.rows or responses.contents)))
            if connection.finish_with(alone, whole):
                alone.request = None
            else:
                alone.deliver(responses.response(0, request.id))
            return True
        id_bytes = -1
        front = after = b""
        pieces = responses.pieces()
        for index, (request, row) in enumerate(zip(requests, pieces, strict=True)):
            call: Any = request.reply  # an HttpFastPathCall; a `cast` takes 5 % of this loop
            request_id = call.request_id
            if len(request_id) != id_bytes:
                id_bytes = len(request_id)
                front, after = self._around(id_bytes, call.connection.date_line)
            whole = b"".join((front, request_id, after, *row))
            if call.connection.finish_with(call, whole):
                call.request = None  # which refers to this call: both are freed at once
            else:
                call.deliver(responses.response(index, request.id))
        return True

    def _around(self, id_bytes: int, date_line: bytes) -> tuple[bytes, bytes]:
        """What is before and after an id of `id_bytes` bytes, with the current Date header."""
        made_for, date, front, after = self._made
        if made_for != id_bytes or date is not date_line:
            after = b'",' + self._json if id_bytes else self._json
            opening = _WITH_ID if id_bytes else _WITHOUT_ID
            json_bytes = len(opening) - 2 + id_bytes + len(after)
            length = b"Content-Length: %d\r\n" % (json_bytes + self._tensor_bytes)
            front = b"".join((self._lines % json_bytes, length, date_line, opening))
            if front != BinaryWriter._last_front:
                BinaryWriter._last_front = front
            front = BinaryWriter._last_front  # many models have the same one in memory
            self._made = (id_bytes, date_line, front, after)
        return front, after


class JsonWriter:
    """Responses whose outputs are JSON."""

    __slots__ = ("_date_line", "_form", "_json", "_json_bytes")

    def __init__(self, layout: ResponseLayout) -> None:
        parts = json_around_data(layout.model_name, layout.model_version, layout.outputs)
        self._json = b"[%b]".join([part.replace(b"%", b"%%") for part in parts])
        # Without the numbers, and with the brace before it.
        self._json_bytes = 1 + sum(map(len, parts)) + len(b"[]") * len(layout.outputs)
        self._date_line = b""
        self._form = b""  # of a response: its length, its id and the numbers are left out

    def write(self, responses: PlannedResponses, requests: Sequence[PlannedRequest]) -> bool:
        """Write all responses; false, with nothing done, if they take the slow path this time."""
        columns: list[list[bytes]] = []
        layout = responses.layout
        for (_, datatype, _), size, content in zip(
            layout.outputs, layout.sizes, responses.contents, strict=True
        ):
            texts = json_data.write_several(datatype, size, content)
            if texts is None:  # some are not finite
                return False
            columns.append(texts)
        form = b""
        rows = zip(*columns, strict=True)
        for index, (request, row) in enumerate(zip(requests, rows, strict=True)):
            call: Any = request.reply  # an HttpFastPathCall
            if not form:
                form = self._formed(call.connection.date_line)
            request_id = call.request_id
            if request_id:
                request_id = b'"id":"%b",' % request_id
            json_bytes = self._json_bytes + len(request_id) + sum(map(len, row))
            whole = form % (json_bytes, request_id, *row)
            if call.connection.finish_with(call, whole):
                call.request = None
            else:
                call.deliver(responses.response(index, request.id))
        return True

    def _formed(self, date_line: bytes) -> bytes:
        """The response with the current Date header."""
        if self._date_line is not date_line:
            self._date_line = date_line
            lines = (_JSON_LINES, b"Content-Length: %d\r\n", date_line, b"\r\n{%b", self._json)
            self._form = b"".join(lines)
        return self._form


ResponseWriter: TypeAlias = BinaryWriter | JsonWriter
