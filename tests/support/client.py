"""Inference requests and responses written and read by hand, as simply as the protocol allows.

    Infer().add("INPUT0", array).want("OUTPUT0", binary=True).send(running, "model")

Unlike real clients these let a test send what is wrong: any field of the JSON can be changed
before it is sent. BF16 tensors are `uint16` arrays and their datatype has to be given.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from shoal.core import bytes_tensor
from shoal.core.dtypes import BF16, BYTES, FP16, DataType, from_name, from_numpy
from shoal.testing.server import HttpCall, HttpResponse, RunningServer

LENGTH_HEADER = "Inference-Header-Content-Length"


class Infer:
    """One inference request. `document` is its JSON and `blobs` what follows it."""

    def __init__(self, *, id: str = "", **parameters: Any) -> None:
        self.document: dict[str, Any] = {"inputs": []}
        self.blobs: list[bytes] = []
        if id:
            self.document["id"] = id
        if parameters:
            self.document["parameters"] = parameters

    def add(
        self, name: str, array: np.ndarray, datatype: str = "", *, binary: bool = False
    ) -> Infer:
        """Add an input, as JSON or as binary data."""
        kind = from_name(datatype) if datatype else from_numpy(array.dtype)
        entry: dict[str, Any] = {
            "name": name,
            "datatype": kind.name,
            "shape": list(array.shape),
        }
        if binary:
            blob = to_bytes(array, kind)
            entry["parameters"] = {"binary_data_size": len(blob)}
            self.blobs.append(blob)
        else:
            entry["data"] = to_list(array, kind)
        self.document["inputs"].append(entry)
        return self

    def want(self, name: str, **parameters: Any) -> Infer:
        """Ask for an output by name, with parameters like `binary_data` or `classification`."""
        entry: dict[str, Any] = {"name": name}
        if parameters:
            entry["parameters"] = parameters
        self.document.setdefault("outputs", []).append(entry)
        return self

    def body(self) -> tuple[bytes, dict[str, str]]:
        """The body, and the headers it needs."""
        header = json.dumps(self.document).encode()
        if not self.blobs:
            return header, {}
        return b"".join([header, *self.blobs]), {LENGTH_HEADER: str(len(header))}

    def call(
        self, running: RunningServer, model: str, headers: dict[str, str] | None = None
    ) -> HttpCall:
        """Send it without waiting; `model` may end with `/versions/<n>`."""
        body, needed = self.body()
        return running.call("POST", f"/v2/models/{model}/infer", body, needed | (headers or {}))

    def send(
        self, running: RunningServer, model: str, headers: dict[str, str] | None = None
    ) -> HttpResponse:
        """Send it and wait for the response, whatever it is."""
        return self.call(running, model, headers).response()


def echo(
    running: RunningServer, model: str, number: float = 7, datatype: Any = np.float32
) -> HttpResponse:
    """Send one number as INPUT0 and wait for the response, whatever it is."""
    return Infer().add("INPUT0", np.array([[number]], datatype)).send(running, model)


def check_empty(response: HttpResponse) -> None:
    """A call that succeeded and has nothing to report, like a load or an unload."""
    assert (response.status, response.body) == (200, b""), response


def outputs(response: HttpResponse) -> dict[str, np.ndarray]:
    """Every output of a successful response, checked to fill the body to its last byte."""
    assert response.status == 200, response
    return read_outputs(response.headers, response.body)


def read_outputs(headers: dict[str, str], body: bytes) -> dict[str, np.ndarray]:
    """As `outputs`, for a body that was received in some other way."""
    length = headers.get(LENGTH_HEADER.lower())
    position = len(body) if length is None else int(length)
    binary = length is not None
    assert headers["content-type"] == (
        "application/octet-stream" if binary else "application/json"
    ), headers
    found: dict[str, np.ndarray] = {}
    for entry in json.loads(body[:position])["outputs"]:
        kind = from_name(entry["datatype"])
        size = entry.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[entry["name"]] = from_list(entry["data"], kind, entry["shape"])
        else:
            assert "data" not in entry
            blob = body[position : position + size]
            position += size
            found[entry["name"]] = from_bytes(blob, kind, entry["shape"])
    assert position == len(body), f"{len(body) - position} bytes too many"
    return found


def to_list(array: np.ndarray, kind: DataType) -> list[Any]:
    """The elements as JSON has them."""
    flat: list[Any] = array.reshape(-1).tolist()
    if kind is BYTES:
        return [item.decode() if isinstance(item, bytes) else item for item in flat]
    return flat


def from_list(data: list[Any], kind: DataType, shape: list[int]) -> np.ndarray:
    """An output's `data`, which must be flat and complete."""
    assert kind not in (FP16, BF16), "half floats cannot be written in JSON"
    assert len(data) == math.prod(shape), (len(data), shape)
    if kind is BYTES:
        data = [text.encode() for text in data]
    array = np.empty(len(data), kind.numpy)
    array[:] = data
    return array.reshape(shape)


def to_bytes(array: np.ndarray, kind: DataType) -> bytes:
    """The elements as the binary extension has them: little-endian and row-major."""
    if kind is BYTES:
        return bytes_tensor.encode(array.reshape(-1).tolist())
    return array.astype(kind.numpy, order="C").tobytes()


def from_bytes(blob: bytes, kind: DataType, shape: list[int]) -> np.ndarray:
    """A binary output, which must have exactly the size of its shape."""
    if kind is BYTES:
        return bytes_tensor.decode(blob, math.prod(shape), "output").reshape(shape)
    assert len(blob) == math.prod(shape) * kind.itemsize, (len(blob), shape)
    return np.frombuffer(blob, kind.numpy).reshape(shape)
