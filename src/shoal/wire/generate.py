"""The bodies of …/generate: plain JSON in, plain JSON out, no tensors in sight.

    {"prompt": "hi", "max_tokens": 20}  --decode_generate-->  InferBody
    Response  --encode_generate-->  {"model_name": …, "text": "hello"}

A key that names an input becomes that tensor; any other becomes a parameter of the request.
`parameters` may hold more of both.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from shoal.core.response import Response
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Buffer, Tensor
from shoal.errors import InvalidArgument
from shoal.wire import json_data, json_limits, json_text
from shoal.wire.http_body import check_json_size
from shoal.wire.infer_json import InferBody, id_prefix, read_parameters

_NESTED = "parameters"


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object in order, so that one given twice is noticed."""


def decode_generate(body: Buffer, signature: Signature, *, max_json_bytes: int) -> InferBody:
    """Read a request body. Raises InvalidArgument that names the key and what was expected."""
    check_json_size(len(body), max_json_bytes)
    json_limits.check_counts(body, max_json_bytes)
    document = _parse(bytes(body))
    decoded = InferBody()
    _read_members(document, signature, decoded, max_json_bytes)
    return decoded


def _parse(body: bytes) -> _Pairs:
    try:
        document = json.loads(body, object_pairs_hook=_Pairs)
    except RecursionError:
        raise json_text.TooDeep from None
    except ValueError as error:  # no JSON, or no UTF-8
        raise InvalidArgument(f"failed to parse the request JSON buffer: {error}") from None
    if type(document) is not _Pairs:
        raise InvalidArgument("a generate request is a JSON object of inputs and parameters")
    return document


def _read_members(
    members: _Pairs, signature: Signature, decoded: InferBody, most_bytes: int
) -> None:
    for key, value in members:
        spec = signature.inputs.get(key)
        if spec is not None:
            if key in decoded.inputs:
                prefix = id_prefix(decoded.id)
                raise InvalidArgument(f"{prefix}input '{key}' already exists in request")
            decoded.inputs[key] = plain_tensor(spec, signature, value, most_bytes)
        elif key == "id":
            if type(value) is not str:
                raise InvalidArgument(
                    "Unable to parse 'id': attempt to access JSON non-string as string"
                )
            decoded.id = value
        elif key == _NESTED:
            if type(value) is not _Pairs:
                raise InvalidArgument(f"Expected JSON object for keyword: '{key}'")
            try:
                _read_members(value, signature, decoded, most_bytes)
            except InvalidArgument as error:
                raise InvalidArgument(f"Converting keyword: '{key}': {error.message}") from None
        else:
            read_parameters({key: value}, decoded)


def plain_tensor(spec: TensorSpec, signature: Signature, value: Any, most_bytes: int) -> Tensor:
    """The tensor of an input that was given as one JSON value or as a list of them.

    Raises InvalidArgument for what does not fit.
    """
    elements = value if type(value) is list else [value]
    shape = shape_for(spec, signature, len(elements))
    if shape is None:
        raise _unfit(spec.name)
    return json_data.read(spec.name, spec.datatype, shape, len(elements), elements, most_bytes)


def shape_for(spec: TensorSpec, signature: Signature, count: int) -> tuple[int, ...] | None:
    """The shape that holds `count` elements: the innermost free dimension takes the rest. None if
    there is none."""
    shape = [-1, *spec.dims] if signature.max_batch_size else list(spec.dims)
    if count == 0 and -1 in shape:
        innermost = len(shape) - 1 - shape[::-1].index(-1)
        return tuple(0 if n == innermost else max(1, dim) for n, dim in enumerate(shape))
    for dim in shape:
        if dim > 0:
            if count % dim:
                return None
            count //= dim
    for index in reversed(range(len(shape))):
        if shape[index] == -1:
            shape[index] = count
            count = 1
    return tuple(shape) if count == 1 else None


def _unfit(name: str) -> InvalidArgument:
    return InvalidArgument(f"The schema can not convert input '{name}' to tensor with proper shape")


def encode_generate(response: Response) -> bytes:
    """A response that carries no error. Raises InvalidArgument for what JSON cannot carry."""
    document: dict[str, Any] = {"id": response.request_id} if response.request_id else {}
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    for key, value in response.parameters.items():
        document[key] = json_text.scalar(value)
    for tensor in response.outputs:
        document[tensor.name] = _plain(tensor)
    return b"".join(json_text.dumps_parts(document))


def _plain(tensor: Tensor) -> Any:
    """A flat list, or the element itself where there is only one."""
    values = json_data.write(tensor)
    if tensor.element_count != 1:
        return values
    if isinstance(values, (list, np.ndarray)):
        return values[0]
    return json_text.scalar(float(tensor.array.reshape(-1)[0]))
