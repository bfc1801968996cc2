"""HTTP: each question as a request, each response as a result. No socket here."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
import orjson

from shoal.client import http_answers
from shoal.client.address import Address
from shoal.client.codec import Answer, Ask, Call, Headers, Request, Terms
from shoal.client.errors import (
    InvalidInput,
    ProtocolError,
)
from shoal.client.http1 import LENGTH_HEADER
from shoal.client.inputs import InputTensor
from shoal.client.places import fill_from_places
from shoal.client.result import Output, Result
from shoal.core.tensor import Buffer
from shoal.wire import json_text

T = TypeVar("T")

_REMEMBERED = 256
_BINARY = b"Content-Type: application/octet-stream\r\n"
_JSON = b"Content-Type: application/json\r\n"


class HttpCodec:
    """The protocol over HTTP/1.1, for one server."""

    def __init__(self, address: Address, headers: Headers) -> None:
        """`headers` go with every request. InvalidInput when one cannot be a header."""
        self._prefix = address.prefix
        self._tail = f" HTTP/1.1\r\nHost: {address.authority}\r\n{_lines(headers)}"
        self._heads: dict[tuple[str, str], bytes] = {}
        self._layouts: dict[bytes, http_answers.Layout] = {}

    # ---- inference

    def infer(self, ask: Ask, terms: Terms) -> Call[Result]:
        """POST …/infer, with tensors as binary data behind the JSON unless `ask` says otherwise."""
        document: dict[str, Any] = {"inputs": [_input(each, ask.binary) for each in ask.tensors]}
        if ask.id:
            document["id"] = ask.id
        parameters = dict(ask.parameters)
        if ask.outputs:
            document["outputs"] = [_wanted(name, ask) for name in ask.outputs]
        elif ask.binary:
            parameters["binary_data_output"] = True
        if parameters:
            document["parameters"] = parameters
        header = _json_bytes(document)
        blobs: list[Buffer] = []
        size = 0
        if ask.binary:
            blobs = [each.raw for each in ask.tensors if each.placed is None]
            size = sum(each.nbytes for each in ask.tensors)
        head = self._infer_head(ask.model, ask.version)
        if blobs:
            lines = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n" % (
                len(header),
                len(header) + size,
            )
            first = b"".join((head, _BINARY, lines, _extra(terms.headers), b"\r\n", header))
        else:
            length = b"Content-Length: %d\r\n" % len(header)
            first = b"".join((head, _JSON, length, _extra(terms.headers), b"\r\n", header))
        repeatable = "sequence_id" not in ask.parameters
        read: Callable[[Answer], Result] = self.read_result
        if ask.places:
            read = _reader_of_places(read, ask)
        return Call(Request([first, *blobs], len(first) + size), read, repeatable)

    def read_result(self, answer: Answer) -> Result:
        """The result in a response to …/infer."""
        if answer.status != 200:
            raise http_answers.refusal(answer)
        try:
            return self._result(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(
                f"the server's answer makes no sense: {type(error).__name__} {error}"
            ) from None

    def _result(self, answer: Answer) -> Result:
        """The result in an answer that is one, as far as its status says."""
        body = answer.body
        length = answer.headers.get(LENGTH_HEADER)
        if length is None:
            return http_answers.json_result(http_answers.document(answer), body)
        start = int(length)
        view = memoryview(body)
        header = bytes(view[:start])
        layout = self._layouts.get(header)
        if layout is None:
            document = http_answers.document(answer, header)
            if document.get("id") or not http_answers.all_binary(document):
                return http_answers.json_result(document, body, view[start:])
            layout = http_answers.layout(document)
            if len(self._layouts) >= _REMEMBERED:
                self._layouts.clear()
            self._layouts[header] = layout
        outputs: dict[str, Output] = {}
        for name, datatype, shape, parameters, size in layout.outputs:
            outputs[name] = Output(
                name, datatype, shape, view[start : start + size], None, parameters
            )
            start += size
        return Result(
            layout.model_name,
            layout.model_version,
            outputs,
            parameters=layout.parameters,
            raw=body,
        )

    def generate(
        self,
        model: str,
        version: str,
        document: Mapping[str, Any],
        terms: Terms,
        *,
        stream: bool,
    ) -> Call[dict[str, Any]]:
        """POST …/generate or …/generate_stream."""
        path = f"{_model(model, version)}/generate{'_stream' if stream else ''}"
        return Call(self._post(path, document, terms), http_answers.generated)

    def perform(
        self,
        operation: str,
        model: str,
        version: str,
        values: Mapping[str, Any],
        form: tuple[str, bytes] | None,
        terms: Terms,
    ) -> Call[dict[str, Any]]:
        """POST …/classify and the like: JSON, or a form that is ready to be sent."""
        place = f"/{quote(operation, safe='')}"
        path = _model(model, version) + place if model else place
        if form is None:
            return Call(self._post(path, values, terms), http_answers.document)
        kind, body = form
        head = f"POST {self._prefix}{path}{self._tail}Content-Length: {len(body)}\r\n"
        head += f"Content-Type: {kind}\r\n"
        whole = head.encode("latin-1") + _extra(terms.headers) + b"\r\n" + body
        return Call(Request([whole], len(whole)), http_answers.document)

    # ---- status

    def live(self, terms: Terms) -> Call[bool]:
        """GET /v2/health/live."""
        return Call(self._get("/v2/health/live", terms), http_answers.healthy)

    def ready(self, terms: Terms) -> Call[bool]:
        """GET /v2/health/ready."""
        return Call(self._get("/v2/health/ready", terms), http_answers.healthy)

    def model_ready(self, model: str, version: str, terms: Terms) -> Call[bool]:
        """GET …/ready."""
        return Call(self._get(f"{_model(model, version)}/ready", terms), http_answers.model_healthy)

    def server_metadata(self, terms: Terms) -> Call[dict[str, Any]]:
        """GET /v2."""
        return Call(self._get("/v2", terms), http_answers.document)

    def metadata(self, model: str, version: str, terms: Terms) -> Call[dict[str, Any]]:
        """GET /v2/models/…."""
        return Call(self._get(_model(model, version), terms), http_answers.document)

    def config(self, model: str, version: str, terms: Terms) -> Call[dict[str, Any]]:
        """GET …/config."""
        return Call(self._get(f"{_model(model, version)}/config", terms), http_answers.document)

    def statistics(self, model: str, version: str, terms: Terms) -> Call[list[dict[str, Any]]]:
        """GET …/stats."""
        place = _model(model, version) if model else "/v2/models"
        return Call(self._get(f"{place}/stats", terms), http_answers.model_statistics)

    # ---- the repository

    def index(self, ready: bool, terms: Terms) -> Call[list[dict[str, Any]]]:
        """POST /v2/repository/index."""
        asked = {"ready": True} if ready else {}
        return Call(self._post("/v2/repository/index", asked, terms), http_answers.rows)

    def load(
        self,
        model: str,
        config: str,
        files: Mapping[str, bytes],
        terms: Terms,
    ) -> Call[None]:
        """POST …/load."""
        parameters = {"config": config} if config else {}
        for name, content in files.items():
            parameters[name] = base64.b64encode(content).decode()
        asked = {"parameters": parameters} if parameters else {}
        path = f"/v2/repository/models/{quote(model, safe='')}/load"
        return Call(self._post(path, asked, terms), http_answers.nothing, repeatable=False)

    def unload(self, model: str, dependents: bool, terms: Terms) -> Call[None]:
        """POST …/unload."""
        asked = {"parameters": {"unload_dependents": True}} if dependents else {}
        path = f"/v2/repository/models/{quote(model, safe='')}/unload"
        return Call(self._post(path, asked, terms), http_answers.nothing, repeatable=False)

    # ---- settings

    def trace_settings(
        self,
        model: str,
        change: Mapping[str, Any],
        terms: Terms,
    ) -> Call[dict[str, Any]]:
        """GET or POST …/trace/setting."""
        path = f"{_model(model, '')}/trace/setting" if model else "/v2/trace/setting"
        return Call(self._settings(path, change, terms), http_answers.document)

    def log_settings(self, change: Mapping[str, Any], terms: Terms) -> Call[dict[str, Any]]:
        """GET or POST /v2/logging."""
        return Call(self._settings("/v2/logging", change, terms), http_answers.document)

    # ---- shared memory

    def register(self, name: str, key: str, byte_size: int, terms: Terms) -> Call[None]:
        """POST …/register."""
        path = f"/v2/systemsharedmemory/region/{quote(name, safe='')}/register"
        asked = {"key": key, "offset": 0, "byte_size": byte_size}
        return Call(self._post(path, asked, terms), http_answers.nothing, repeatable=False)

    def unregister(self, name: str, terms: Terms) -> Call[None]:
        """POST …/unregister."""
        path = f"/v2/systemsharedmemory/region/{quote(name, safe='')}/unregister"
        return Call(self._post(path, {}, terms), http_answers.nothing)

    def regions(self, terms: Terms) -> Call[list[dict[str, Any]]]:
        """GET /v2/systemsharedmemory/status."""
        return Call(self._get("/v2/systemsharedmemory/status", terms), http_answers.rows)

    # ---- requests

    def _infer_head(self, model: str, version: str) -> bytes:
        head = self._heads.get((model, version))
        if head is None:
            path = f"{self._prefix}{_model(model, version)}/infer"
            head = f"POST {path}{self._tail}".encode("latin-1")
            if len(self._heads) >= _REMEMBERED:
                self._heads.clear()
            self._heads[model, version] = head
        return head

    def _get(self, path: str, terms: Terms) -> Request:
        head = f"GET {self._prefix}{path}{self._tail}".encode("latin-1")
        whole = head + _extra(terms.headers) + b"\r\n"
        return Request([whole], len(whole))

    def _post(self, path: str, document: Mapping[str, Any], terms: Terms) -> Request:
        body = _json_bytes(document) if document else b""
        head = f"POST {self._prefix}{path}{self._tail}Content-Length: {len(body)}\r\n"
        kind = _JSON if body else b""
        whole = head.encode("latin-1") + kind + _extra(terms.headers) + b"\r\n" + body
        return Request([whole], len(whole))

    def _settings(self, path: str, change: Mapping[str, Any], terms: Terms) -> Request:
        return self._post(path, change, terms) if change else self._get(path, terms)


def _model(model: str, version: str) -> str:
    place = f"/v2/models/{quote(model, safe='')}"
    return f"{place}/versions/{quote(version, safe='')}" if version else place


def _json_bytes(document: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError as error:
        raise InvalidInput(f"this cannot be sent as JSON: {error}") from None


def _lines(headers: Headers) -> str:
    made = []
    for name, value in headers.items():
        line = f"{name}: {value}"
        if not name or not line.isprintable() or not line.isascii() or ":" in name or " " in name:
            raise InvalidInput(f"{name!r}: {value!r} cannot be sent as an HTTP header")
        made.append(f"{line}\r\n")
    return "".join(made)


def _extra(headers: Headers | None) -> bytes:
    return _lines(headers).encode() if headers else b""


def _input(tensor: InputTensor, binary: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.shape,
    }
    placed = tensor.placed
    if placed is not None:
        entry["parameters"] = {
            "shared_memory_region": placed.region,
            "shared_memory_offset": placed.offset,
            "shared_memory_byte_size": placed.byte_size,
        }
    elif binary:
        entry["parameters"] = {"binary_data_size": tensor.nbytes}
    else:
        entry["data"] = _json_data(tensor)
    return entry


def _json_data(tensor: InputTensor) -> Any:
    array = tensor.array
    if array is None or tensor.datatype == "FP16":
        raise InvalidInput(
            f"input '{tensor.name}' of datatype {tensor.datatype} has no form in JSON here; "
            f"leave binary=True"
        )
    if tensor.datatype == "BYTES":
        return [_text(element, tensor.name) for element in array.reshape(-1).tolist()]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return json_text.non_finite(array.reshape(-1).tolist())
    return array.reshape(-1).tolist()


def _text(element: Any, name: str) -> str:
    if isinstance(element, str):
        return element
    try:
        return bytes(element).decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            f"input '{name}' holds bytes that are no text, which JSON cannot carry; leave "
            f"binary=True"
        ) from None


def _wanted(name: str, ask: Ask) -> dict[str, Any]:
    place = ask.places.get(name)
    count = ask.classes.get(name)
    if place is not None:
        parameters: dict[str, Any] = {
            "shared_memory_region": place.region.name,
            "shared_memory_offset": place.offset,
            "shared_memory_byte_size": place.byte_size,
        }
    else:
        parameters = {"binary_data": ask.binary}
    if count:
        parameters["classification"] = count
    return {"name": name, "parameters": parameters}


def _reader_of_places(read: Callable[[Answer], Result], ask: Ask) -> Callable[[Answer], Result]:
    """Fill in the outputs that went to shared memory."""

    def read_with_places(answer: Answer) -> Result:
        result = read(answer)
        fill_from_places(result, ask.places)
        return result

    return read_with_places
