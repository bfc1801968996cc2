"""JSON: the text itself, inference and generate requests, and the objects of the TCP port."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

import shoal
from fuzz.outcomes import Outcome, outcome, pieces
from shoal.backends.function import declaration
from shoal.core import bytes_tensor
from shoal.core.dtypes import BYTES, FP32, INT32
from shoal.core.signature import Signature, TensorSpec
from shoal.errors import InvalidArgument, ShoalError
from shoal.frontends.http.functions.fields import read_inputs
from shoal.frontends.http.upload import Upload
from shoal.wire import json_arrays, json_limits
from shoal.wire.generate import decode_generate
from shoal.wire.http_body import InferBodyDecoder, parse_header_length
from shoal.wire.json_objects import JsonObjects, StreamError

_MOST_BYTES = 1 << 20
_CACHING = InferBodyDecoder()  # kept: what it has read before must not change what it reads
_PLAIN = InferBodyDecoder(caches=False)


def json_text(data: bytes) -> None:
    """What is accepted means what Python's own parser says."""
    kind, value = outcome(lambda: json_limits.loads(data, _MOST_BYTES), InvalidArgument)
    long_kind, _ = outcome(lambda: json_arrays.loads(data, _MOST_BYTES), InvalidArgument)
    assert kind == long_kind
    if kind == "returned":
        assert _same(value, json.loads(data)), (value, json.loads(data))


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, float) and math.isnan(theirs):
        return isinstance(ours, float) and math.isnan(ours)
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(theirs, int) and not -(1 << 63) <= theirs < 1 << 64:
        theirs = float(theirs) if abs(theirs) < 10**300 else math.copysign(math.inf, theirs)
    return bool(ours == theirs)


def infer_body(data: bytes) -> None:
    """A decoder that has cached headers and frames reads the same as one that has not.

    The first line of the input is the length of the JSON header; empty: all is JSON.
    """
    line, _, body = data.partition(b"\n")
    kind, length = outcome(lambda: parse_header_length(line or None, len(body)), InvalidArgument)
    if kind != "returned":
        return
    expected = _decoded(_PLAIN, body, length)
    for _ in range(2):
        assert _decoded(_CACHING, body, length) == expected


def _decoded(decoder: InferBodyDecoder, body: bytes, length: int | None) -> Outcome:
    def decode() -> Any:
        found = decoder.decode(body, length, model_name="m", max_json_bytes=_MOST_BYTES)
        inputs = {
            name: (tensor.datatype, tensor.shape, _content(tensor))
            for name, tensor in found.inputs.items()
        }
        return (
            found.id, inputs, found.outputs, found.parameters, found.sequence_id,
            found.sequence_start, found.sequence_end, found.priority, found.timeout_us,
            found.binary_default,
        )  # fmt: skip

    return outcome(decode, ShoalError)


def _content(tensor: Any) -> Any:
    if tensor.has_raw or tensor.datatype is not BYTES:  # NaN equals itself in bytes
        return bytes(tensor.raw)
    return repr(tensor.array.tolist())


def generate_body(data: bytes) -> None:
    """A generate request becomes tensors of the model, or is refused."""
    specs = (TensorSpec("text", BYTES, (1,)), TensorSpec("numbers", INT32, (-1,)))
    outputs = {"out": TensorSpec("out", FP32, (-1,))}
    signature = Signature("m", 4, {spec.name: spec for spec in specs}, outputs)
    kind, found = outcome(
        lambda: decode_generate(data, signature, max_json_bytes=_MOST_BYTES), ShoalError
    )
    if kind == "returned":
        assert set(found.inputs) <= {"text", "numbers"}


@dataclass
class _Box:
    name: str
    parts: list[_Box] = field(default_factory=list)
    size: float | None = None


@shoal.model
def _function(
    box: _Box,
    text: str,
    data: bytes,
    rows: Annotated[npt.NDArray[np.uint8], (2, -1)],
    top: int = 1,
    flags: list[bool] | None = None,
) -> str:
    del box, text, data, rows, top, flags
    return ""


def function_fields(data: bytes) -> None:
    """The fields of a function become its arguments, or are refused; both ways to send them.

    The first line of the input is the query.
    """
    query, _, body = data.partition(b"\n")
    declared = declaration.of(_function)
    assert declared is not None
    specs = {
        port.name: TensorSpec(port.name, port.datatype, port.dims, optional=port.optional)
        for port in declared.inputs
    }
    for signature in (None, Signature("f", 0, specs, {})):

        def read(signature: Signature | None = signature) -> Any:
            fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
            upload = Upload(fields, (), json_limits.loads(body, _MOST_BYTES), ())
            return read_inputs(declared.interface, upload, {}, signature=signature)

        kind, found = outcome(read, ShoalError)
        if kind != "returned":
            continue
        for port in declared.inputs:
            if port.name in found:
                array = found[port.name].array
                assert array.dtype == port.datatype.numpy
                outcome(lambda port=port, array=array: port.receive(array), InvalidArgument)


def json_objects(data: bytes) -> None:
    """The objects of a stream do not depend on how it is cut, up to the first error."""
    whole, failed = _objects([data[1:]])
    cut, failed_cut = _objects(pieces(data))
    if not (failed or failed_cut):
        assert cut == whole
    assert failed_cut == failed


def _objects(stream: Iterable[bytes]) -> tuple[list[bytes], bool]:
    objects = JsonObjects(1 << 12)
    found = []
    try:
        for piece in stream:
            objects.feed(piece)
            while (message := objects.take()) is not None:
                found.append(message.data)
    except StreamError:
        return found, True
    return found, False


def bytes_elements(data: bytes) -> None:
    """BYTES elements are read as they were laid out."""
    count = data[0] if data else 0
    blob = data[1:]
    kind, array = outcome(lambda: bytes_tensor.decode(blob, count, "it"), InvalidArgument)
    if kind == "returned":
        assert bytes_tensor.encode(array.tolist()) == blob
        assert len(array) == count
