"""The bodies of HTTP inference: a JSON header, then the bytes of the binary tensors.

    request body  --decode_infer / decode_raw-->  InferBody
    Response      --encode_infer-->               EncodedBody

    {"inputs":[{"name":"a", … "parameters":{"binary_data_size":64}}]}<64 bytes>

The header's length travels in an HTTP header field; without it the whole body is JSON. Binary
tensors follow in the order of the inputs, with nothing in between, and are never copied here:
inputs are views of the body, outputs leave as the buffers the model made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.core.dtypes import BYTES
from shoal.core.response import Response
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer, Tensor
from shoal.errors import InvalidArgument
from shoal.wire import json_data, json_text
from shoal.wire.classification import classify
from shoal.wire.infer_json import InferBody, WantedOutput, id_prefix, read_request
from shoal.wire.regions import Regions

__all__ = [
    "BINARY_TYPE",
    "JSON_TYPE",
    "LENGTH_HEADER",
    "EncodedBody",
    "InferBody",
    "WantedOutput",
    "check_json_size",
    "decode_infer",
    "decode_raw",
    "encode_infer",
    "is_raw",
    "parse_header_length",
]

LENGTH_HEADER = "Inference-Header-Content-Length"
JSON_TYPE = b"application/json"
BINARY_TYPE = b"application/octet-stream"


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """A response body in parts; `header_length` is None where there is only JSON."""

    content_type: bytes
    header_length: int | None
    parts: list[Buffer]


def parse_header_length(value: bytes | None, body_size: int) -> int | None:
    """The length of the JSON header, from the field that tells it; None where it is absent."""
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidArgument(f"Unable to parse {LENGTH_HEADER}, got: {text}")
    if text.startswith("-") or len(text) > 18 or int(text) > body_size:
        raise InvalidArgument(
            f"inference header size should be in range (0, {body_size}), got: {text}"
        )
    return int(text)


def is_raw(header_length: int | None, body: Buffer) -> bool:
    """Whether the body is one input's bytes and nothing else."""
    return header_length == 0 or (header_length is None and not len(body))


def decode_infer(
    body: Buffer,
    header_length: int | None,
    *,
    model_name: str,
    max_json_bytes: int,
    regions: Regions | None = None,
) -> InferBody:
    """Read a request body. Raises a ShoalError that names the field and what was expected.

    `max_json_bytes` bounds the JSON text and each tensor made from it, not the binary tensors,
    which are views of `body`.
    """
    size = len(body)
    if header_length is None:
        header_length = size
    check_json_size(header_length, max_json_bytes)
    view = memoryview(body)
    document = json_text.loads(view[:header_length])
    return read_request(
        document,
        view[header_length:],
        model_name=model_name,
        max_json_bytes=max_json_bytes,
        regions=regions,
    )


def check_json_size(size: int, max_json_bytes: int) -> None:
    """Refuse a JSON text that is longer than the server is set to read."""
    if size > max_json_bytes:
        raise InvalidArgument(
            f"request JSON size of {size} bytes exceeds the maximum allowed input size of "
            f"{max_json_bytes} bytes. Use --http-max-input-size to increase the limit."
        )


def decode_raw(body: Buffer, signature: Signature, *, max_raw_bytes: int) -> InferBody:
    """Read a body that is the bytes of a model's only input, for a batch of one.

    The shape comes from the config; one variable dimension is worked out from the size. Raises
    InvalidArgument where that leaves more than one answer.
    """
    if len(body) > max_raw_bytes:
        raise InvalidArgument(
            f"Raw input has a byte_size ({len(body)} bytes) that exceeds the maximum allowed value "
            f"of {max_raw_bytes} bytes. Use --http-max-input-size to increase the limit."
        )
    if len(signature.inputs) != 1:
        raise InvalidArgument(
            f"{id_prefix('')}Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(signature.inputs)} inputs in '{signature.model_name}' model configuration"
        )
    (spec,) = signature.inputs.values()
    if spec.dims.count(-1) > 1:
        raise InvalidArgument(
            f"{id_prefix('')}The shape of the raw input '{spec.name}' can not be deduced because "
            f"there are more than one variable-sized dimension"
        )
    fixed = math.prod(dim for dim in spec.dims if dim != -1)
    batch = (1,) if signature.max_batch_size else ()
    if spec.datatype is BYTES:
        if -1 in spec.dims or fixed != 1:
            raise InvalidArgument(
                f"{id_prefix('')}For BYTE datatype raw input '{spec.name}', the model must have "
                f"input shape [1]"
            )
        shape = batch + spec.dims
        array = np.empty(1, dtype=object)
        array[0] = bytes(body)
        tensor = Tensor(spec.name, BYTES, shape, array=array.reshape(shape))
    else:
        unit = fixed * spec.datatype.itemsize
        variable = len(body) // unit if unit else 0
        shape = batch + tuple(variable if dim == -1 else dim for dim in spec.dims)
        tensor = Tensor(spec.name, spec.datatype, shape, raw=memoryview(body))
    return InferBody(inputs={spec.name: tensor}, binary_default=True)


def encode_infer(
    response: Response,
    wanted: Sequence[WantedOutput],
    *,
    binary_default: bool,
    signature: Signature | None = None,
) -> EncodedBody:
    """Write a response that carries no error. `signature` is needed for classification only.

    Raises InvalidArgument when an output cannot be sent in the form the client asked for.
    """
    by_name = {output.name: output for output in wanted}
    entries: list[dict[str, Any]] = []
    blobs: list[Buffer] = []
    for output in response.outputs:
        want, tensor = by_name.get(output.name), output
        if want is not None and want.classification:
            tensor = _classified(output, want.classification, signature)
        entry: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype.name,
            "shape": tensor.shape,
        }
        if want is not None and want.region is not None:
            want.region.write(tensor)
        elif binary_default if want is None else want.binary:
            size = tensor.nbytes
            entry["parameters"] = {"binary_data_size": size}
            if size:
                blobs.append(tensor.raw)
        else:
            entry["data"] = json_data.write(tensor)
        entries.append(entry)
    document: dict[str, Any] = {"id": response.request_id} if response.request_id else {}
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    if response.parameters:
        document["parameters"] = {
            key: json_text.scalar(value) for key, value in response.parameters.items()
        }
    document["outputs"] = entries
    header = json_text.dumps(document)
    if not blobs:
        return EncodedBody(JSON_TYPE, None, [header])
    return EncodedBody(BINARY_TYPE, len(header), [header, *blobs])


def _classified(tensor: Tensor, count: int, signature: Signature | None) -> Tensor:
    assert signature is not None, "classification needs the model's signature"
    spec = signature.outputs.get(tensor.name)
    labels = spec.labels if spec is not None else ()
    return classify(tensor, count, batched=signature.max_batch_size > 0, labels=labels)
