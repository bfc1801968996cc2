"""HTTP responses, read: results, documents, and the errors they stand for."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from shoal.client.codec import Answer
from shoal.client.errors import HTTP_STATUS, ProtocolError, ServerError, server_error
from shoal.client.result import Output, Result
from shoal.core import dtypes
from shoal.core.tensor import Buffer
from shoal.errors import ShoalError
from shoal.wire import json_text


class Layout(NamedTuple):
    """What the JSON header of a binary response says."""

    model_name: str
    model_version: str
    parameters: dict[str, Any]
    outputs: list[tuple[str, str, list[int], dict[str, Any], int]]  # the last is the size


def refusal(answer: Answer) -> ServerError:
    """The error a response stands for; its text is the server's own where there is one."""
    status = HTTP_STATUS.get(answer.status, "UNKNOWN")
    text = ""
    try:
        document = json_text.loads(bytes(answer.body))
        found = document.get("error", document.get("detail")) if isinstance(document, dict) else ""
        text = found if isinstance(found, str) else str(found)
    except ShoalError:  # no JSON: a proxy, or another kind of server
        text = bytes(answer.body[:500]).decode("utf-8", "replace").strip()
    if not text:
        text = f"the server answered HTTP {answer.status} and said no more"
    error = server_error(text, status, answer.status)
    after = answer.headers.get("retry-after", "")
    if after.isdigit():
        error.retry_after_secs = float(after)
    return error


def document(answer: Answer, header: bytes | None = None) -> dict[str, Any]:
    """The JSON object in an answer, or in `header`, the start of its body."""
    found = _json(answer, header)
    if not isinstance(found, dict):
        raise ProtocolError(f"the server's answer is no JSON object: {str(found)[:60]!r}")
    return found


def generated(answer: Answer) -> dict[str, Any]:
    """A generate response; some of its errors come with status 200."""
    found = document(answer)
    if list(found) == ["error"]:
        raise ServerError(str(found["error"]))
    return found


def rows(answer: Answer) -> list[dict[str, Any]]:
    """The JSON list in an answer."""
    found = _json(answer)
    if not isinstance(found, list):
        raise ProtocolError(f"the server's answer is no JSON list: {str(found)[:60]!r}")
    return found


def model_statistics(answer: Answer) -> list[dict[str, Any]]:
    """The list inside a statistics document."""
    found = document(answer).get("model_stats", [])
    assert isinstance(found, list)
    return found


def _json(answer: Answer, header: bytes | None = None) -> Any:
    if answer.status != 200:
        raise refusal(answer)
    body = bytes(answer.body) if header is None else header
    try:
        return json_text.loads(body)
    except ShoalError:
        raise ProtocolError(
            f"the server's answer is no JSON: {body[:60]!r}; is this a server of the KServe v2 "
            f"protocol?"
        ) from None


def healthy(answer: Answer) -> bool:
    """200 is yes; not ready is no, without a word. Raises for all else."""
    if answer.status == 200:
        return True
    if answer.status == 503 or (answer.status == 400 and not len(answer.body)):
        return False
    raise refusal(answer)


def model_healthy(answer: Answer) -> bool:
    """As `healthy`, but the server says why, and of a model it does not know too."""
    if answer.status in (200, 400, 404, 503):
        return answer.status == 200
    raise refusal(answer)


def nothing(answer: Answer) -> None:
    """Success says no more than that."""
    if answer.status != 200:
        raise refusal(answer)


def all_binary(document: dict[str, Any]) -> bool:
    """Whether no output is JSON, so that equal headers mean the same."""
    return all(
        "binary_data_size" in output.get("parameters", ()) for output in document.get("outputs", ())
    )


def layout(document: dict[str, Any]) -> Layout:
    """What to remember of such a header."""
    outputs = []
    for output in document.get("outputs", ()):
        parameters = dict(output["parameters"])
        size = parameters.pop("binary_data_size")
        outputs.append((output["name"], output["datatype"], output["shape"], parameters, size))
    return Layout(
        document.get("model_name", ""),
        document.get("model_version", ""),
        document.get("parameters", {}),
        outputs,
    )


def json_result(document: dict[str, Any], raw: Buffer, blobs: memoryview | None = None) -> Result:
    """A result of which some outputs are JSON; `blobs` is the binary data."""
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
        wanted: Any = np.float32 if known is dtypes.BF16 else known.numpy
        return np.asarray(data, dtype=wanted).reshape(shape)
    except (ShoalError, ValueError, TypeError, OverflowError) as error:
        raise ProtocolError(f"output '{name}' makes no sense: {error}") from None
