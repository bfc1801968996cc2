"""HTTP: calls encoded as requests, responses decoded. No sockets."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
import orjson

from shoal.client import http_responses
from shoal.client.address import Address
from shoal.client.codec import (
    CallOptions,
    Headers,
    InferenceCall,
    PreparedCall,
    RawRequest,
    RawResponse,
)
from shoal.client.errors import (
    InvalidInput,
    ProtocolError,
)
from shoal.client.http1 import LENGTH_HEADER
from shoal.client.inputs import InputTensor
from shoal.client.region import fill_from_places
from shoal.client.result import Output, Result
from shoal.core.tensor import Buffer
from shoal.wire import json_text

T = TypeVar("T")

_CACHED = 256
_BINARY = b"Content-Type: application/octet-stream\r\n"
_JSON = b"Content-Type: application/json\r\n"


class HttpCodec:
    """The protocol over HTTP/1.1, for one server."""

    def __init__(self, address: Address, headers: Headers) -> None:
        """`headers` are sent with every request. Raises InvalidInput for an invalid header."""
        self._prefix = address.prefix
        self._tail = f" HTTP/1.1\r\nHost: {address.authority}\r\n{_lines(headers)}"
        self._heads: dict[tuple[str, str], bytes] = {}
        self._layouts: dict[bytes, http_responses.BodyLayout] = {}

    # ---- inference

    def infer(self, infer_call: InferenceCall, options: CallOptions) -> PreparedCall[Result]:
        """POST …/infer; tensors follow the JSON as binary data unless JSON is requested."""
        document: dict[str, Any] = {
            "inputs": [_input(each, infer_call.binary) for each in infer_call.tensors]
        }
        if infer_call.id:
            document["id"] = infer_call.id
        parameters = dict(infer_call.parameters)
        if infer_call.outputs:
            document["outputs"] = [_wanted(name, infer_call) for name in infer_call.outputs]
        elif infer_call.binary:
            parameters["binary_data_output"] = True
        if parameters:
            document["parameters"] = parameters
        header = _json_bytes(document)
        blobs: list[Buffer] = []
        size = 0
        if infer_call.binary:
            blobs = [each.raw for each in infer_call.tensors if each.placed is None]
            size = sum(each.nbytes for each in infer_call.tensors)
        head = self._infer_head(infer_call.model, infer_call.version)
        if blobs:
            lines = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n" % (
                len(header),
                len(header) + size,
            )
            first = b"".join((head, _BINARY, lines, _extra(options.headers), b"\r\n", header))
        else:
            length = b"Content-Length: %d\r\n" % len(header)
            first = b"".join((head, _JSON, length, _extra(options.headers), b"\r\n", header))
        repeatable = "sequence_id" not in infer_call.parameters
        read: Callable[[RawResponse], Result] = self.read_result
        if infer_call.places:
            read = _reader_of_places(read, infer_call)
        return PreparedCall(RawRequest([first, *blobs], len(first) + size), read, repeatable)

    def read_result(self, response: RawResponse) -> Result:
        """The result in a response to …/infer."""
        if response.status != 200:
            raise http_responses.refusal(response)
        try:
            return self._result(response)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(
                f"the server's response is malformed: {type(error).__name__} {error}"
            ) from None

    def _result(self, response: RawResponse) -> Result:
        """The result in a response with status 200."""
        body = response.body
        length = response.headers.get(LENGTH_HEADER)
        if length is None:
            return http_responses.json_result(http_responses.document(response), body)
        start = int(length)
        view = memoryview(body)
        header = bytes(view[:start])
        layout = self._layouts.get(header)
        if layout is None:
            document = http_responses.document(response, header)
            if document.get("id") or not http_responses.all_binary(document):
                return http_responses.json_result(document, body, view[start:])
            layout = http_responses.layout(document)
            if len(self._layouts) >= _CACHED:
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
        options: CallOptions,
        *,
        stream: bool,
    ) -> PreparedCall[dict[str, Any]]:
        """POST …/generate or …/generate_stream."""
        path = f"{_model(model, version)}/generate{'_stream' if stream else ''}"
        return PreparedCall(self._post(path, document, options), http_responses.generated)

    def perform(
        self,
        operation: str,
        model: str,
        version: str,
        values: Mapping[str, Any],
        form: tuple[str, bytes] | None,
        options: CallOptions,
    ) -> PreparedCall[dict[str, Any]]:
        """POST …/classify and other operations: JSON, or an encoded form."""
        place = f"/{quote(operation, safe='')}"
        path = _model(model, version) + place if model else place
        if form is None:
            return PreparedCall(self._post(path, values, options), http_responses.document)
        kind, body = form
        head = f"POST {self._prefix}{path}{self._tail}Content-Length: {len(body)}\r\n"
        head += f"Content-Type: {kind}\r\n"
        whole = head.encode("latin-1") + _extra(options.headers) + b"\r\n" + body
        return PreparedCall(RawRequest([whole], len(whole)), http_responses.document)

    # ---- status

    def live(self, options: CallOptions) -> PreparedCall[bool]:
        """GET /v2/health/live."""
        return PreparedCall(self._get("/v2/health/live", options), http_responses.healthy)

    def ready(self, options: CallOptions) -> PreparedCall[bool]:
        """GET /v2/health/ready."""
        return PreparedCall(self._get("/v2/health/ready", options), http_responses.healthy)

    def model_ready(self, model: str, version: str, options: CallOptions) -> PreparedCall[bool]:
        """GET …/ready."""
        return PreparedCall(
            self._get(f"{_model(model, version)}/ready", options), http_responses.model_healthy
        )

    def server_metadata(self, options: CallOptions) -> PreparedCall[dict[str, Any]]:
        """GET /v2."""
        return PreparedCall(self._get("/v2", options), http_responses.document)

    def metadata(
        self, model: str, version: str, options: CallOptions
    ) -> PreparedCall[dict[str, Any]]:
        """GET /v2/models/…."""
        return PreparedCall(self._get(_model(model, version), options), http_responses.document)

    def config(
        self, model: str, version: str, options: CallOptions
    ) -> PreparedCall[dict[str, Any]]:
        """GET …/config."""
        return PreparedCall(
            self._get(f"{_model(model, version)}/config", options), http_responses.document
        )

    def statistics(
        self, model: str, version: str, options: CallOptions
    ) -> PreparedCall[list[dict[str, Any]]]:
        """GET …/stats."""
        place = _model(model, version) if model else "/v2/models"
        return PreparedCall(self._get(f"{place}/stats", options), http_responses.model_statistics)

    # ---- the repository

    def index(self, ready: bool, options: CallOptions) -> PreparedCall[list[dict[str, Any]]]:
        """POST /v2/repository/index."""
        body = {"ready": True} if ready else {}
        return PreparedCall(self._post("/v2/repository/index", body, options), http_responses.rows)

    def load(
        self,
        model: str,
        config: str,
        files: Mapping[str, bytes],
        options: CallOptions,
    ) -> PreparedCall[None]:
        """POST …/load."""
        parameters = {"config": config} if config else {}
        for name, content in files.items():
            parameters[name] = base64.b64encode(content).decode()
        body = {"parameters": parameters} if parameters else {}
        path = f"/v2/repository/models/{quote(model, safe='')}/load"
        return PreparedCall(
            self._post(path, body, options), http_responses.nothing, repeatable=False
        )

    def unload(self, model: str, dependents: bool, options: CallOptions) -> PreparedCall[None]:
        """POST …/unload."""
        body = {"parameters": {"unload_dependents": True}} if dependents else {}
        path = f"/v2/repository/models/{quote(model, safe='')}/unload"
        return PreparedCall(
            self._post(path, body, options), http_responses.nothing, repeatable=False
        )

    # ---- settings

    def trace_settings(
        self,
        model: str,
        change: Mapping[str, Any],
        options: CallOptions,
    ) -> PreparedCall[dict[str, Any]]:
        """GET or POST …/trace/setting."""
        path = f"{_model(model, '')}/trace/setting" if model else "/v2/trace/setting"
        return PreparedCall(self._settings(path, change, options), http_responses.document)

    def log_settings(
        self, change: Mapping[str, Any], options: CallOptions
    ) -> PreparedCall[dict[str, Any]]:
        """GET or POST /v2/logging."""
        return PreparedCall(self._settings("/v2/logging", change, options), http_responses.document)

    # ---- shared memory

    def register(
        self, name: str, key: str, byte_size: int, options: CallOptions
    ) -> PreparedCall[None]:
        """POST …/register."""
        path = f"/v2/systemsharedmemory/region/{quote(name, safe='')}/register"
        body = {"key": key, "offset": 0, "byte_size": byte_size}
        return PreparedCall(
            self._post(path, body, options), http_responses.nothing, repeatable=False
        )

    def unregister(self, name: str, options: CallOptions) -> PreparedCall[None]:
        """POST …/unregister."""
        path = f"/v2/systemsharedmemory/region/{quote(name, safe='')}/unregister"
        return PreparedCall(self._post(path, {}, options), http_responses.nothing)

    def regions(self, options: CallOptions) -> PreparedCall[list[dict[str, Any]]]:
        """GET /v2/systemsharedmemory/status."""
        return PreparedCall(
            self._get("/v2/systemsharedmemory/status", options), http_responses.rows
        )

    # ---- requests

    def _infer_head(self, model: str, version: str) -> bytes:
        head = self._heads.get((model, version))
        if head is None:
            path = f"{self._prefix}{_model(model, version)}/infer"
            head = f"POST {path}{self._tail}".encode("latin-1")
            if len(self._heads) >= _CACHED:
                self._heads.clear()
            self._heads[model, version] = head
        return head

    def _get(self, path: str, options: CallOptions) -> RawRequest:
        head = f"GET {self._prefix}{path}{self._tail}".encode("latin-1")
        whole = head + _extra(options.headers) + b"\r\n"
        return RawRequest([whole], len(whole))

    def _post(self, path: str, document: Mapping[str, Any], options: CallOptions) -> RawRequest:
        body = _json_bytes(document) if document else b""
        head = f"POST {self._prefix}{path}{self._tail}Content-Length: {len(body)}\r\n"
        kind = _JSON if body else b""
        whole = head.encode("latin-1") + kind + _extra(options.headers) + b"\r\n" + body
        return RawRequest([whole], len(whole))

    def _settings(self, path: str, change: Mapping[str, Any], options: CallOptions) -> RawRequest:
        return self._post(path, change, options) if change else self._get(path, options)


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
            f"input '{tensor.name}' of datatype {tensor.datatype} cannot be sent as JSON; "
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
            f"input '{name}' contains bytes that are not UTF-8, which JSON cannot represent; leave "
            f"binary=True"
        ) from None


def _wanted(name: str, infer_call: InferenceCall) -> dict[str, Any]:
    place = infer_call.places.get(name)
    count = infer_call.classes.get(name)
    if place is not None:
        parameters: dict[str, Any] = {
            "shared_memory_region": place.region.name,
            "shared_memory_offset": place.offset,
            "shared_memory_byte_size": place.byte_size,
        }
    else:
        parameters = {"binary_data": infer_call.binary}
    if count:
        parameters["classification"] = count
    return {"name": name, "parameters": parameters}


def _reader_of_places(
    read: Callable[[RawResponse], Result], infer_call: InferenceCall
) -> Callable[[RawResponse], Result]:
    """Read the outputs in shared memory."""

    def read_with_places(response: RawResponse) -> Result:
        result = read(response)
        fill_from_places(result, infer_call.places)
        return result

    return read_with_places
