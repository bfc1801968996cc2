"""Decodes HTTP responses: results, JSON documents and errors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from shoal.client.codec import RawResponse
from shoal.client.errors import HTTP_STATUS, ProtocolError, ServerError, server_error
from shoal.client.result import Output, Result
from shoal.core import dtypes
from shoal.core.tensor import Buffer
from shoal.errors import ShoalError
from shoal.wire import json_text


class BodyLayout(NamedTuple):
    """The parsed JSON header of a binary response."""

    model_name: str
    model_version: str
    parameters: dict[str, Any]
    outputs: list[tuple[str, str, list[int], dict[str, Any], int]]  # the last is the size


def refusal(response: RawResponse) -> ServerError:
    """The exception for an error response, with the server's message if there is one."""
    status = HTTP_STATUS.get(response.status, "UNKNOWN")
    text = ""
    try:
        document = json_text.loads(bytes(response.body))
        found = document.get("error", document.get("detail")) if isinstance(document, dict) else ""
        text = found if isinstance(found, str) else str(found)
    except ShoalError:  # not JSON: a proxy, or another kind of server
        text = bytes(response.body[:500]).decode("utf-8", "replace").strip()
    if not text:
        text = f"the server responded with HTTP status {response.status}"
    return server_error(text, status, response.status, retry_after=response.retry_after)


def document(response: RawResponse, header: bytes | None = None) -> dict[str, Any]:
    """The JSON object in a response, or in `header`, the start of its body."""
    found = _json(response, header)
    if not isinstance(found, dict):
        raise ProtocolError(f"the response is not a JSON object: {str(found)[:60]!r}")
    return found


def generated(response: RawResponse) -> dict[str, Any]:
    """A generate response; some errors have status 200."""
    found = document(response)
    if list(found) == ["error"]:
        raise ServerError(str(found["error"]))
    return found


def rows(response: RawResponse) -> list[dict[str, Any]]:
    """The JSON list in a response."""
    found = _json(response)
    if not isinstance(found, list):
        raise ProtocolError(f"the response is not a JSON list: {str(found)[:60]!r}")
    return found


def model_statistics(response: RawResponse) -> list[dict[str, Any]]:
    """The list inside a statistics document."""
    found = document(response).get("model_stats", [])
    assert isinstance(found, list)
    return found


def _json(response: RawResponse, header: bytes | None = None) -> Any:
    if response.status != 200:
        raise refusal(response)
    body = bytes(response.body) if header is None else header
    try:
        return json_text.loads(body)
    except ShoalError:
        raise ProtocolError(
            f"the response is not JSON: {body[:60]!r}; is this a server of the KServe v2 protocol?"
        ) from None


def healthy(response: RawResponse) -> bool:
    """True for 200, false for not ready. Raises for other statuses."""
    if response.status == 200:
        return True
    if response.status == 503 or (response.status == 400 and not len(response.body)):
        return False
    raise refusal(response)


def model_healthy(response: RawResponse) -> bool:
    """As `healthy`; also false for unknown models."""
    if response.status in (200, 400, 404, 503):
        return response.status == 200
    raise refusal(response)


def nothing(response: RawResponse) -> None:
    """A response without content."""
    if response.status != 200:
        raise refusal(response)


def all_binary(document: dict[str, Any]) -> bool:
    """Whether all outputs are binary, so that the header can be cached."""
    return all(
        "binary_data_size" in output.get("parameters", ()) for output in document.get("outputs", ())
    )


def layout(document: dict[str, Any]) -> BodyLayout:
    """The cacheable part of such a header."""
    outputs = []
    for output in document.get("outputs", ()):
        parameters = dict(output["parameters"])
        size = parameters.pop("binary_data_size")
        outputs.append((output["name"], output["datatype"], output["shape"], parameters, size))
    return BodyLayout(
        document.get("model_name", ""),
        document.get("model_version", ""),
        document.get("parameters", {}),
        outputs,
    )


def json_result(document: dict[str, Any], raw: Buffer, blobs: memoryview | None = None) -> Result:
    """A result with JSON outputs; `blobs` is the binary data."""
    outputs: dict[str, Output] = {}
    position = 0
    for each in document.get("outputs", ()):
        name, datatype, shape = each["name"], each["datatype"], each["shape"]
        parameters = dict(each.get("parameters", {}))
        size = parameters.pop("binary_data_size", None)
        output = Output(name, datatype, shape, parameters=parameters)
        if size is not None and blobs is not None:
            output.raw = blobs[position : position + size]
            position += size
        elif "data" in each:
            output.array = _from_json(each["data"], datatype, shape, name)
        outputs[name] = output
    return Result(
        document.get("model_name", ""),
        document.get("model_version", ""),
        outputs,
        id=document.get("id", ""),
        parameters=document.get("parameters", {}),
        raw=raw,
    )


def _from_json(data: Any, datatype: str, shape: list[int], name: str) -> np.ndarray:
    try:
        known = dtypes.from_name(datatype)
        if known is dtypes.BYTES:
            flat = np.empty(math.prod(shape), dtype=object)
            elements = np.asarray(data, dtype=object).reshape(-1)
            flat[:] = [e.encode() if isinstance(e, str) else e for e in elements]
            return flat.reshape(shape)
        target: Any = np.float32 if known is dtypes.BF16 else known.numpy
        return np.asarray(data, dtype=target).reshape(shape)
    except (ShoalError, ValueError, TypeError, OverflowError) as error:
        raise ProtocolError(f"output '{name}' is malformed: {error}") from None
