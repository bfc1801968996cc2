"""ModelInferResponse: a response to the bytes of a gRPC message.

    Response --encode_infer-->   message bytes, in parts
    Response --encode_stream-->  the same inside a ModelStreamInferResponse

Tensors are never copied here: they leave as the buffers the model made.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from types import MappingProxyType

from shoal.core.dtypes import BYTES, DataType
from shoal.core.planned import PlannedResponses, ResponseLayout
from shoal.core.response import ParameterValue, Response
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer, Tensor
from shoal.errors import InvalidArgument
from shoal.wire.classification import classify
from shoal.wire.protobuf_wire import delimited, prefix, signed, varint
from shoal.wire.regions import RegionSlice, copies_slowly

FINAL = "triton_final_response"
LARGEST_MESSAGE_BYTES = 2**31 - 1  # what gRPC libraries take at most

_MOST_INT64 = 2**63
_SMALL_BYTES = 4 << 10  # up to here one string is cheaper than several buffers
_NO_SLICES: Mapping[str, RegionSlice] = MappingProxyType({})


def encode_infer(
    response: Response,
    wanted: Mapping[str, int],
    signature: Signature | None = None,
    slices: Mapping[str, RegionSlice] = _NO_SLICES,
) -> list[Buffer]:
    """A ModelInferResponse for a response that carries no error, as parts to send in order.

    `wanted` has the outputs of the request, `signature` is needed for classification only, and
    outputs named in `slices` are put there instead. Raises InvalidArgument when a classification
    cannot be made of an output or the whole is too large, Internal when a slice is too small.
    """
    if signature is None and not slices and not response.parameters:
        whole = _encode_small(response)
        if whole is not None:
            _check_size(len(whole))
            return [whole]
    head, contents, size = _encode(response, wanted, signature, slices)
    _check_size(len(head) + size)
    return [head, *contents]


def encodes_slowly(response: Response, slices: Mapping[str, RegionSlice] = _NO_SLICES) -> bool:
    """Whether to encode the response takes milliseconds: many strings, or large tensors that go to
    shared memory."""
    return any(
        (tensor.datatype is BYTES or tensor.name in slices) and copies_slowly(tensor)
        for tensor in response.outputs
    )


def _encode_small(response: Response) -> bytes | None:
    """A response whose outputs are few bytes of fixed size, in one piece; None for others.

    What stands around the contents is the same for all responses of a model with such outputs.
    """
    form: list[tuple[str, DataType, tuple[int, ...], int]] = []
    contents: list[Buffer] = []
    for tensor in response.outputs:
        if tensor.datatype is BYTES:
            return None
        raw = tensor.raw
        size = raw.nbytes if isinstance(raw, memoryview) else len(raw)
        form.append((tensor.name, tensor.datatype, tensor.shape, size))
        contents.append(raw)
    around = _around(response.model_name, response.model_version, tuple(form))
    if around is None:
        return None
    parts: list[Buffer] = [id_field(response.request_id)] if response.request_id else []
    for front, raw in zip(around, contents, strict=True):
        parts += (front, raw)
    return b"".join(parts)


def small_columns(answer: PlannedResponses) -> tuple[list[Iterable[bytes]], int] | None:
    """The responses of a batch as columns: the bytes that all messages begin with, then the bytes
    that follow in each of them, and so on; and the size of one message without its id.

    Row by row, after `id_field` of the request's id where it has one, it is what `encode_infer`
    makes of each response. None where that would not be one small piece.
    """
    layout = answer.layout
    fronts: list[bytes] | None = layout.encoded
    if fronts is None:
        fronts = layout.encoded = _fronts(layout)
    if not fronts:
        return None
    columns: list[Iterable[bytes]] = []
    message_bytes = layout.total_bytes
    for front, contents in zip(fronts, answer.columns(), strict=True):
        columns += (repeat(front), contents)
        message_bytes += len(front)
    return columns, message_bytes


def _fronts(layout: ResponseLayout) -> list[bytes]:
    """As `_around`; empty where it is None or for strings."""
    if any(datatype is BYTES for _, datatype, _ in layout.outputs):
        return []
    sized = [(*output, size) for output, size in zip(layout.outputs, layout.sizes, strict=True)]
    return _around(layout.model_name, layout.model_version, tuple(sized)) or []


@lru_cache(1024)
def _around(
    name: str, version: int, form: tuple[tuple[str, DataType, tuple[int, ...], int], ...]
) -> list[bytes] | None:
    """What stands before each of the contents; None where there are none or they are not small."""
    if not form or sum(size for *_, size in form) > _SMALL_BYTES:
        return None
    described = [_output(tensor, datatype, shape) for tensor, datatype, shape, _ in form]
    fronts = [_raw_prefix(size) for *_, size in form]
    fronts[0] = b"".join((_model(name, version), *described, fronts[0]))
    return fronts


def encode_stream(
    response: Response,
    wanted: Mapping[str, int],
    signature: Signature | None = None,
    slices: Mapping[str, RegionSlice] = _NO_SLICES,
) -> list[Buffer]:
    """A ModelStreamInferResponse around what `encode_infer` makes of `response`.

    A parameter marks the request's last one.
    """
    head, contents, size = _encode(response, wanted, signature, slices)
    # Fields may come in any order, so the flag can go in front of all others.
    flag = _FINAL_FLAGS[response.final]
    size += len(flag) + len(head)
    front = prefix(2, size)
    _check_size(len(front) + size)
    return [front + flag + head, *contents]


def _encode(
    response: Response,
    wanted: Mapping[str, int],
    signature: Signature | None,
    slices: Mapping[str, RegionSlice],
) -> tuple[bytes, list[Buffer], int]:
    """The fields before the tensors' contents, the contents in parts, and the size of those."""
    head = [_model(response.model_name, response.model_version)]
    if response.request_id:
        head.append(id_field(response.request_id))
    if response.parameters:
        head.append(encode_parameters(response.parameters))
    contents: list[Buffer] = []
    size = 0
    for output in response.outputs:
        classes = wanted.get(output.name, 0)
        tensor = output if not classes else _classified(output, classes, signature)
        head.append(_output(tensor.name, tensor.datatype, tensor.shape))
        raw = tensor.raw
        if tensor.name in slices:
            slices[tensor.name].write(tensor)
            raw = b""
        raw_size = raw.nbytes if isinstance(raw, memoryview) else len(raw)
        front = _raw_prefix(raw_size)
        contents += (front, raw)
        size += len(front) + raw_size
    return b"".join(head), contents, size


def _check_size(size: int) -> None:
    if size > LARGEST_MESSAGE_BYTES:
        raise InvalidArgument(
            f"Response has byte size {size} which exceeds gRPC's byte size limit "
            f"{LARGEST_MESSAGE_BYTES}."
        )


def encode_stream_error(
    error_message: str, asked: tuple[str, str, str], *, final: bool = True
) -> list[Buffer]:
    """A ModelStreamInferResponse with an error; `asked` is the request's model name, model
    version and id."""
    model_name, model_version, request_id = asked
    response = (
        delimited(1, _utf8(model_name))
        + delimited(2, _utf8(model_version))
        + delimited(3, _utf8(request_id))
        + _FINAL_FLAGS[final]
    )
    # An empty message would mean that there is no error.
    return [delimited(1, _utf8(error_message or "unknown error")) + delimited(2, response)]


def encode_parameters(parameters: Mapping[str, ParameterValue]) -> bytes:
    """The `parameters` of a ModelInferResponse."""
    encoded: list[bytes] = []
    for key, value in parameters.items():
        if isinstance(value, bool):
            content = b"\x08\x01" if value else b"\x08\x00"
        elif isinstance(value, int) and -_MOST_INT64 <= value < _MOST_INT64:
            content = b"\x10" + signed(value)
        elif isinstance(value, (int, float)):
            content = b"\x21" + struct.pack("<d", value)
        else:
            text = _utf8(value)
            content = b"\x1a" + varint(len(text)) + text
        entry = delimited(1, _utf8(key)) + prefix(2, len(content)) + content
        encoded.append(prefix(4, len(entry)) + entry)
    return b"".join(encoded)


@lru_cache(1024)
def _model(name: str, version: int) -> bytes:
    return delimited(1, _utf8(name)) + delimited(2, b"%d" % version if version >= 0 else b"")


@lru_cache(4096)
def _output(name: str, datatype: DataType, shape: tuple[int, ...]) -> bytes:
    """One element of `outputs`."""
    entry = delimited(1, _utf8(name)) + delimited(2, datatype.name.encode())
    entry += delimited(3, b"".join(map(signed, shape)))
    return prefix(5, len(entry)) + entry


def id_field(request_id: str) -> bytes:
    """The id of the request, as the response repeats it."""
    return delimited(3, _utf8(request_id))


@lru_cache(1024)
def _raw_prefix(size: int) -> bytes:
    return prefix(6, size)


def _utf8(text: str) -> bytes:
    """Protobuf takes valid Unicode only; what a model invents may not be."""
    return text.encode("utf-8", "replace")


def _classified(tensor: Tensor, count: int, signature: Signature | None) -> Tensor:
    assert signature is not None, "classification needs the model's signature"
    spec = signature.outputs.get(tensor.name)
    labels: Sequence[str] = spec.labels if spec is not None else ()
    return classify(tensor, count, batched=signature.max_batch_size > 0, labels=labels)


_FINAL_FLAGS = {final: encode_parameters({FINAL: final}) for final in (False, True)}
