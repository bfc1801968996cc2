"""Requests as bytes, encoded once and replayed: only the fields of a sequence are filled in.

    Content (tensors of one step) --http_request / grpc_request--> Replay.filled(position)

Over HTTP the parameters come first in the JSON, so that everything after them is fixed; the fields
of a protobuf message may come in any order, so there they are appended.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import numpy as np

from shoal.core import bytes_tensor
from shoal.core.dtypes import BYTES, from_name
from shoal.errors import InvalidArgument
from shoal.wire import json_text, protobuf_wire
from shoal.wire.proto import messages

ParameterValue = bool | int | float | str
_GRPC_PREFIX = struct.Struct(">BI")
_REQUEST_PARAMETERS = 4  # ModelInferRequest.parameters
_FINAL_PARAMETER = "triton_enable_empty_final_response"


class SequencePosition(NamedTuple):
    """The position of a request in its sequence."""

    sequence_id: int
    start: bool
    end: bool


class RegionReference(NamedTuple):
    """The location of a tensor in shared memory."""

    name: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class Content:
    """One input of one request: its bytes, or their location in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes
    region: RegionReference | None = None


@dataclass(frozen=True, slots=True)
class RequestLayout:
    """What all requests of a run share."""

    model: str
    version: str = ""
    outputs: tuple[str, ...] = ()
    output_regions: Mapping[str, RegionReference] = field(default_factory=dict)
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    binary_inputs: bool = True
    binary_outputs: bool = True
    empty_final: bool = False  # request a mark on the last response of decoupled models


class Replay(Protocol):
    """A request that can be sent any number of times."""

    def filled(self, position: SequencePosition | None) -> bytes:
        """The bytes to send; `position` is given for models with sequences."""
        ...


class HttpReplay:
    """A request over HTTP/1.1, its head included."""

    __slots__ = ("_blobs", "_fixed", "_head", "_json", "_whole")

    def __init__(self, head: bytes, document: Mapping[str, Any], blobs: bytes) -> None:
        """`head` ends before the length headers."""
        parameters = dict(document.get("parameters", {}))
        rest = {name: value for name, value in document.items() if name != "parameters"}
        self._head = head
        self._fixed = json_text.dumps(parameters)[1:-1]
        self._json = json_text.dumps(rest)[1:]  # without the opening brace
        self._blobs = blobs
        self._whole = self._made(self._fixed)

    def filled(self, position: SequencePosition | None) -> bytes:
        """The whole request."""
        if position is None:
            return self._whole
        parts = b'"sequence_id":%d,"sequence_start":%s,"sequence_end":%s' % (
            position.sequence_id,
            b"true" if position.start else b"false",
            b"true" if position.end else b"false",
        )
        return self._made(parts + b"," + self._fixed if self._fixed else parts)

    def _made(self, parameters: bytes) -> bytes:
        parts = [b'{"parameters":{', parameters, b"},"] if parameters else [b"{"]
        header = b"".join([*parts, self._json])
        lengths = b"Content-Length: %d\r\n\r\n" % (len(header) + len(self._blobs))
        if self._blobs:
            lengths = b"Inference-Header-Content-Length: %d\r\n" % len(header) + lengths
        return b"".join((self._head, lengths, header, self._blobs))


class GrpcReplay:
    """A ModelInferRequest with gRPC's message prefix."""

    __slots__ = ("_compression", "_message", "_whole")

    def __init__(self, message: bytes, compression: str = "") -> None:
        """`compression` is gzip, deflate or nothing."""
        self._message = message
        self._compression = compression
        self._whole = self._made(message)

    def filled(self, position: SequencePosition | None) -> bytes:
        """The message with its prefix."""
        if position is None:
            return self._whole
        more = (
            _grpc_parameter(b"sequence_id", b"\x10" + protobuf_wire.signed(position.sequence_id))
            + _grpc_parameter(b"sequence_start", b"\x08\x01" if position.start else b"\x08\x00")
            + _grpc_parameter(b"sequence_end", b"\x08\x01" if position.end else b"\x08\x00")
        )
        return self._made(self._message + more)

    def _made(self, message: bytes) -> bytes:
        if self._compression:
            packed = gzip.compress if self._compression == "gzip" else zlib.compress
            message = packed(message)
        return _GRPC_PREFIX.pack(bool(self._compression), len(message)) + message


def http_head(
    authority: str,
    layout: RequestLayout,
    *,
    prefix: str = "",
    headers: Sequence[tuple[str, str]] = (),
) -> bytes:
    """The head of a request to …/infer, up to its length headers."""
    version = f"/versions/{quote(layout.version, safe='')}" if layout.version else ""
    path = f"{prefix}/v2/models/{quote(layout.model, safe='')}{version}/infer"
    lines = [f"POST {path} HTTP/1.1", f"Host: {authority}"]
    lines += [f"{name}: {value}" for name, value in headers]
    kind = "application/octet-stream" if layout.binary_inputs else "application/json"
    if "content-type" not in {name.lower() for name, _ in headers}:
        lines.append(f"Content-Type: {kind}")
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def http_request(head: bytes, layout: RequestLayout, contents: Sequence[Content]) -> HttpReplay:
    """A request with these inputs, after `head`. Raises InvalidArgument for tensors that
    JSON cannot represent when JSON is requested."""
    document: dict[str, Any] = {"inputs": [_json_input(each, layout) for each in contents]}
    if layout.outputs:
        document["outputs"] = [_json_output(name, layout) for name in layout.outputs]
    if layout.parameters:
        document["parameters"] = dict(layout.parameters)
    blobs = [each.raw for each in contents if each.region is None and layout.binary_inputs]
    return HttpReplay(head, document, b"".join(blobs))


def grpc_request(
    layout: RequestLayout, contents: Sequence[Content], compression: str = ""
) -> GrpcReplay:
    """A request with these inputs; `compression` is gzip, deflate or nothing."""
    message = messages.ModelInferRequest(model_name=layout.model, model_version=layout.version)
    for each in contents:
        made = message.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        if each.region is None:
            message.raw_input_contents.append(each.raw)
        else:
            _place(made.parameters, each.region)
    for name in layout.outputs:
        output = message.outputs.add(name=name)
        if name in layout.output_regions:
            _place(output.parameters, layout.output_regions[name])
    parameters = dict(layout.parameters)
    if layout.empty_final:
        parameters[_FINAL_PARAMETER] = True
    for name, value in parameters.items():
        _set(message.parameters[name], value)
    return GrpcReplay(message.SerializeToString(), compression)


def _json_input(content: Content, layout: RequestLayout) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": content.name,
        "datatype": content.datatype,
        "shape": list(content.shape),
    }
    if content.region is not None:
        entry["parameters"] = _shared(content.region)
    elif layout.binary_inputs:
        entry["parameters"] = {"binary_data_size": len(content.raw)}
    else:
        entry["data"] = _json_data(content)
    return entry


def _json_output(name: str, layout: RequestLayout) -> dict[str, Any]:
    if name in layout.output_regions:
        return {"name": name, "parameters": _shared(layout.output_regions[name])}
    return {"name": name, "parameters": {"binary_data": layout.binary_outputs}}


def _json_data(content: Content) -> list[Any]:
    datatype = from_name(content.datatype)
    if datatype is BYTES:
        count = int(np.prod(content.shape))
        found = bytes_tensor.decode(content.raw, count, f"input '{content.name}'")
        try:
            return [element.decode() for element in found.tolist()]
        except UnicodeDecodeError:
            raise InvalidArgument(
                f"input '{content.name}' is not valid UTF-8, so JSON cannot carry it; leave "
                f"--input-tensor-format at binary"
            ) from None
    if content.datatype in {"FP16", "BF16"}:
        raise InvalidArgument(
            f"input '{content.name}' is {content.datatype}, which JSON cannot carry; leave "
            f"--input-tensor-format at binary"
        )
    values: list[Any] = np.frombuffer(content.raw, datatype.numpy).tolist()
    return values


def _shared(region: RegionReference) -> dict[str, Any]:
    return {
        "shared_memory_region": region.name,
        "shared_memory_offset": region.offset,
        "shared_memory_byte_size": region.byte_size,
    }


def _place(parameters: Any, region: RegionReference) -> None:
    parameters["shared_memory_region"].string_param = region.name
    parameters["shared_memory_offset"].int64_param = region.offset
    parameters["shared_memory_byte_size"].int64_param = region.byte_size


def _set(parameter: Any, value: ParameterValue) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value


def _grpc_parameter(name: bytes, value: bytes) -> bytes:
    """One entry of the map `parameters`; `value` is the inside of an InferParameter."""
    entry = protobuf_wire.delimited(1, name) + protobuf_wire.delimited(2, value)
    return protobuf_wire.delimited(_REQUEST_PARAMETERS, entry)
