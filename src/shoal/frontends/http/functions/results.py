"""From a function's outputs to a response: JSON, a file, or a piece of a stream.

outputs --own route--> the value itself      {"label": "cat"}, "Hello, Ada!", the bytes of a PNG
        --generate---> with the model        {"model_name": …, "output": "Hello, Ada!"}
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import orjson

from shoal.backends.function import base64_text
from shoal.core.dtypes import BF16
from shoal.core.interface import FunctionField, FunctionInterface, ResultForm, ValueForm
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument
from shoal.frontends.http.errors import JSON
from shoal.frontends.http.message import Header
from shoal.wire import json_data, json_text

_MEDIA = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "audio/wav"),
    (re.compile(rb"%PDF-"), "application/pdf"),
)
_ANY_MEDIA = "application/octet-stream"
_NO_SNIFFING: Header = (b"X-Content-Type-Options", b"nosniff")


def is_file(interface: FunctionInterface) -> bool:
    """Whether the response of the function's own route is a file and not JSON."""
    return (
        interface.result is ResultForm.VALUE
        and len(interface.outputs) == 1
        and interface.outputs[0].form is ValueForm.BINARY
        and interface.outputs[0].is_single
    )


def file_media(interface: FunctionInterface) -> str:
    """The media type of that file, as far as it is known before there is one."""
    return interface.outputs[0].media or _ANY_MEDIA


def encode_result(interface: FunctionInterface, response: Response) -> tuple[list[Header], bytes]:
    """The headers and body of a response of the function's own route."""
    if is_file(interface):
        data = bytes(response.outputs[0].array.reshape(-1)[0])
        media = next((kind for sign, kind in _MEDIA if sign.match(data)), _ANY_MEDIA)
        return [(b"Content-Type", media.encode()), _NO_SNIFFING], data
    return [JSON], json_text.dumps(_result(interface, response))


def encode_generated(interface: FunctionInterface, response: Response, request_id: str) -> bytes:
    """A response of `generate`: as for other models, but files are base64 and JSON is JSON."""
    document: dict[str, Any] = {"id": request_id} if request_id else {}
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    fields = {field.name: field for field in interface.outputs}
    for tensor in response.outputs:
        document[tensor.name] = _flat(fields[tensor.name], tensor)
    return b"".join(json_text.dumps_parts(document))


def _result(interface: FunctionInterface, response: Response) -> Any:
    tensors = {tensor.name: tensor for tensor in response.outputs}
    values = {
        field.name: _value(field, tensors[field.name], batched=interface.batched)
        for field in interface.outputs
    }
    if interface.result is ResultForm.OBJECT:
        return values
    listed = list(values.values())
    return listed if interface.result is ResultForm.LIST else listed[0]


def _value(field: FunctionField, tensor: Tensor, *, batched: bool) -> Any:
    """One output as JSON has it: a value, or nested lists."""
    array = tensor.array
    if batched:
        array = array[0]
    if field.is_single:
        return _elements(field, array.reshape(-1)[:1])[0]
    if field.form is not ValueForm.NUMBERS:
        return _nested(_elements(field, array.reshape(-1)), array.shape)
    return array.tolist() if tensor.datatype is not BF16 else _elements(field, array)


def _flat(field: FunctionField, tensor: Tensor) -> Any:
    """A flat list, or the element itself where there is only one."""
    flat = tensor.array.reshape(-1)
    if field.form in (ValueForm.NUMBERS, ValueForm.TEXT):
        values = json_data.write(tensor)
        if tensor.element_count != 1 or not isinstance(values, (list, np.ndarray)):
            one = tensor.element_count == 1
            return json_text.scalar(float(flat[0])) if one else values
        return values[0]
    elements = _elements(field, flat)
    return elements[0] if len(elements) == 1 else elements


def _elements(field: FunctionField, flat: np.ndarray) -> list[Any]:
    """The elements of a tensor as values of JSON."""
    if field.form is ValueForm.NUMBERS:
        if field.datatype == BF16.name:
            raise InvalidArgument(f"'{field.name}' is BF16, which JSON has no form for")
        return list(flat.tolist())
    if field.form is ValueForm.JSON:
        return [orjson.Fragment(each) for each in flat.tolist()]
    if field.form is ValueForm.BINARY:
        return [base64_text.encode(each) for each in flat.tolist()]
    return [each.decode("utf-8", "replace") for each in flat.tolist()]


def _nested(elements: list[Any], shape: tuple[int, ...]) -> Any:
    """A flat list as nested ones."""
    for size in reversed(shape[1:]):
        elements = [elements[start : start + size] for start in range(0, len(elements), size or 1)]
    return elements
