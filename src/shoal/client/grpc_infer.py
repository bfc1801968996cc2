"""Inference messages: the part of a request and of a response before the tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.client.codec import InferenceCall
from shoal.client.errors import InvalidInput, ProtocolError
from shoal.client.grpc_messages import contents_of
from shoal.core.tensor import Buffer
from shoal.wire.protobuf_wire import delimited, prefix, signed, varint

_DOUBLE = struct.Struct("<d")


class ResponseHead(NamedTuple):
    """A response without its tensors."""

    model_name: str
    model_version: str
    id: str
    parameters: dict[str, Any]
    outputs: list[tuple[str, str, tuple[int, ...], dict[str, Any], Any]]  # the last: contents


def request_head(infer_call: InferenceCall) -> bytes:
    """The part of a ModelInferRequest that is the same in repeated calls."""
    head = delimited(1, infer_call.model.encode()) + delimited(2, infer_call.version.encode())
    for each in infer_call.tensors:
        dims = b"".join(map(signed, each.shape))
        entry = delimited(1, each.name.encode()) + delimited(2, each.datatype.encode())
        entry += delimited(3, dims)
        if each.placed is not None:
            entry += encoded_parameters(
                4, _place(each.placed.region, each.placed.offset, each.placed.byte_size)
            )
        head += prefix(5, len(entry)) + entry
    for name in infer_call.outputs:
        entry = delimited(1, name.encode())
        place = infer_call.places.get(name)
        if place is not None:
            entry += encoded_parameters(2, _place(place.region.name, place.offset, place.byte_size))
        if name in infer_call.classes:
            entry += encoded_parameters(2, {"classification": infer_call.classes[name]})
        head += prefix(6, len(entry)) + entry
    return head


def _place(region: str, offset: int, byte_size: int) -> dict[str, Any]:
    return {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": byte_size,
    }


def encoded_parameters(field: int, parameters: Mapping[str, Any]) -> bytes:
    """A map of InferParameter."""
    encoded = b""
    for name, value in parameters.items():
        if isinstance(value, bool):
            choice = b"\x08" + varint(int(value))
        elif isinstance(value, int):
            choice = _integer(name, value)
        elif isinstance(value, str):
            text = value.encode()
            choice = prefix(3, len(text)) + text
        elif isinstance(value, float):
            choice = b"\x21" + _DOUBLE.pack(value)
        else:
            raise InvalidInput(
                f"parameter '{name}' is of type {type(value).__name__}; parameters are true, "
                f"false, numbers and text"
            )
        entry = delimited(1, name.encode()) + prefix(2, len(choice)) + choice
        encoded += prefix(field, len(entry)) + entry
    return encoded


def _integer(name: str, value: int) -> bytes:
    if name == "priority" and 0 <= value < 1 << 64:
        return b"\x28" + varint(value)
    if not -(1 << 63) <= value < 1 << 63:
        raise InvalidInput(f"parameter '{name}' is {value}, which does not fit 64 bits")
    return b"\x10" + signed(value)


def with_contents(infer_call: InferenceCall) -> tuple[list[Buffer], int]:
    """A request with tensors as lists of numbers, for servers without raw contents."""
    from shoal.wire.proto import messages

    request = messages.ModelInferRequest.FromString(request_head(infer_call))
    for entry, each in zip(request.inputs, infer_call.tensors, strict=True):
        if each.placed is None:
            contents_of(each, entry.contents)
    body = request.SerializeToString() + delimited(3, infer_call.id.encode())
    body += encoded_parameters(4, infer_call.parameters)
    return [body], len(body)


def response_head(rest: bytes) -> ResponseHead:
    """Parse a ModelInferResponse without its tensors. Raises ProtocolError."""
    from google.protobuf.message import DecodeError

    from shoal.wire.proto import messages

    try:
        found = messages.ModelInferResponse.FromString(rest)
    except DecodeError as error:
        raise ProtocolError(f"the server's response is malformed: {error}") from None
    return ResponseHead(
        found.model_name,
        found.model_version,
        found.id,
        _read_parameters(found.parameters),
        [
            (
                output.name,
                output.datatype,
                tuple(output.shape),
                _read_parameters(output.parameters),
                output.contents if output.HasField("contents") else None,
            )
            for output in found.outputs
        ],
    )


def _read_parameters(found: Any) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "int64_param")
        for name, value in found.items()
    }
