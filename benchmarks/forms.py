"""Encodings of a request, and how the response is decoded.

    inputs --encoding--> Exchange(body, headers) --load--> responses --Exchange.read--> outputs

    plain      tensors' bytes, or the JPEG          peers whose handlers get the raw body
    as_json    {"INPUT0": [[...]], ...}             peers that take JSON, or all in JSON workloads
    labels     the JPEG; the best classes in JSON   Shoal's task for photos
    v2_http    KServe v2 with binary tensors        Shoal, Triton
    v2_json    KServe v2 with JSON tensors          MLServer; Shoal and Triton in JSON workloads
    v2_grpc    the same as a framed protobuf        Shoal, Triton, MLServer

A load sends the same few bodies repeatedly, so a request is encoded once; the response to the first
one is decoded before and after the load.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.workloads import JSON, Array, Workload

DATATYPES = {"int32": "INT32", "int64": "INT64", "float32": "FP32", "object": "BYTES"}
DTYPES = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32}
HEADER_LENGTH = "inference-header-content-length"
Read = Callable[[bytes, Mapping[str, str]], dict[str, Array]]


@dataclass(frozen=True)
class Exchange:
    """A request that is sent repeatedly, and how to decode its response."""

    body: bytes
    read: Read
    headers: dict[str, str] = field(default_factory=dict)
    others: tuple[bytes, ...] = ()  # bodies with different numbers, sent in turn after `body`


def plain(workload: Workload) -> Exchange:
    """The raw bytes."""
    if workload.picture:
        body = workload.photo
    else:
        body = b"".join(value.tobytes() for value in workload.inputs.values())
    return Exchange(body, _plain_reader(workload), {"content-type": "application/octet-stream"})


def plain_or_json(workload: Workload) -> Exchange:
    """As the workload asks for, for peers that take both."""
    return as_json(workload) if workload.encoding == JSON else plain(workload)


def as_json(workload: Workload) -> Exchange:
    """Numbers as JSON lists, in and out."""
    body, *others = (
        json.dumps({name: value.tolist() for name, value in inputs.items()}).encode()
        for inputs in workload.requests
    )

    def read(answer: bytes, _: Mapping[str, str]) -> dict[str, Array]:
        values = json.loads(answer)
        return {
            name: np.array(values[name], right.dtype) for name, right in workload.outputs.items()
        }

    return Exchange(body, read, {"content-type": "application/json"}, tuple(others))


def labels(workload: Workload) -> Exchange:
    """A photo as a file; the response names the best classes with their scores.

    Those are compared with the expected ones; the others are not checked.
    """

    def read(answer: bytes, _: Mapping[str, str]) -> dict[str, Array]:
        (name, right), *_ = workload.outputs.items()
        told = json.loads(answer)["images"][0]["labels"]
        best = np.argsort(right.ravel())[::-1][: len(told)].tolist()
        if [one["index"] for one in told] != best:
            return {}
        scores = right.ravel().copy()
        scores[best] = [one["score"] for one in told]
        return {name: scores}

    return Exchange(workload.photo, read, {"content-type": "image/jpeg"})


def v2_http(workload: Workload) -> Exchange:
    """KServe v2 with Triton's binary extension in both directions."""
    inputs, contents = described(workload.inputs)
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in workload.outputs]
    header = json.dumps({"inputs": inputs, "outputs": outputs}, separators=(",", ":")).encode()
    headers = {
        "content-type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(header)),
    }
    return Exchange(header + contents, read_v2_http, headers)


def described(tensors: Mapping[str, Array]) -> tuple[list[dict[str, Any]], bytes]:
    """Tensors in the JSON of KServe v2, and their bytes behind it."""
    raw = {name: raw_bytes(value) for name, value in tensors.items()}
    fields = [
        {
            "name": name,
            "datatype": DATATYPES[value.dtype.name],
            "shape": list(value.shape),
            "parameters": {"binary_data_size": len(raw[name])},
        }
        for name, value in tensors.items()
    ]
    return fields, b"".join(raw.values())


def read_v2_http(answer: bytes, headers: Mapping[str, str]) -> dict[str, Array]:
    """The outputs of a v2 response, binary or JSON."""
    length = int(headers.get(HEADER_LENGTH, len(answer)))
    outputs, start = {}, length
    for output in json.loads(answer[:length])["outputs"]:
        dtype = DTYPES[output["datatype"]]
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            outputs[output["name"]] = np.array(output["data"], dtype)
        else:
            outputs[output["name"]] = np.frombuffer(answer[start : start + size], dtype)
            start += size
    return outputs


def v2_json(workload: Workload) -> Exchange:
    """KServe v2 in JSON alone; an image is sent as base64."""
    body, *others = (_v2_json_body(workload, inputs) for inputs in workload.requests)
    return Exchange(body, read_v2_http, {"content-type": "application/json"}, tuple(others))


def _v2_json_body(workload: Workload, tensors: dict[str, Array]) -> bytes:
    inputs: list[dict[str, Any]] = []
    for name, value in tensors.items():
        tensor: dict[str, Any] = {
            "name": name,
            "datatype": DATATYPES[value.dtype.name],
            "shape": list(value.shape),
        }
        if workload.picture:
            tensor["parameters"] = {"content_type": "base64"}
            tensor["data"] = [base64.b64encode(workload.photo).decode()]
        else:
            tensor["data"] = value.ravel().tolist()
        inputs.append(tensor)
    return json.dumps({"inputs": inputs}).encode()


def v2_grpc(workload: Workload) -> Exchange:
    """A ModelInferRequest with raw contents, after the five bytes of gRPC's message header."""
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=workload.model)
    for name, value in workload.inputs.items():
        tensor = request.inputs.add(name=name, datatype=DATATYPES[value.dtype.name])
        tensor.shape.extend(value.shape)
        request.raw_input_contents.append(raw_bytes(value))
    message = request.SerializeToString()
    return Exchange(
        struct.pack(">BI", 0, len(message)) + message,
        read_v2_grpc,
        {"content-type": "application/grpc", "te": "trailers"},
    )


def read_v2_grpc(answer: bytes, _: Mapping[str, str]) -> dict[str, Array]:
    """The outputs of a ModelInferResponse, raw or in typed contents."""
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelInferResponse.FromString(answer)
    outputs = {}
    for place, output in enumerate(response.outputs):
        dtype = DTYPES[output.datatype]
        if response.raw_output_contents:
            outputs[output.name] = np.frombuffer(response.raw_output_contents[place], dtype)
        else:
            field = {"INT32": "int_contents", "INT64": "int64_contents", "FP32": "fp32_contents"}
            values = getattr(output.contents, field[output.datatype])
            outputs[output.name] = np.array(values, dtype)
    return outputs


def perf_analyzer_data(workload: Workload) -> dict[str, Any]:
    """The request and the expected response in the format of perf_analyzer's --input-data."""

    def listed(tensors: dict[str, Array]) -> dict[str, Any]:
        return {
            name: {"content": value.ravel().tolist(), "shape": list(value.shape[1:])}
            for name, value in tensors.items()
        }

    return {"data": [listed(workload.inputs)], "validation_data": [listed(workload.outputs)]}


def raw_bytes(value: Array) -> bytes:
    """A tensor as the protocol's raw bytes; elements of BYTES are preceded by their length."""
    if value.dtype != np.object_:
        return value.tobytes()
    return b"".join(struct.pack("<I", len(element)) + element for element in value.ravel())


def _plain_reader(workload: Workload) -> Read:
    def read(answer: bytes, _: Mapping[str, str]) -> dict[str, Array]:
        outputs, start = {}, 0
        for name, right in workload.outputs.items():
            outputs[name] = np.frombuffer(answer, right.dtype, right.size, start)
            start += right.nbytes
        return outputs

    return read
