"""The bodies of HTTP inference: a JSON header, then the bytes of the binary tensors.

    request body  --InferBodyDecoder / decode_raw-->  InferBody
    Response      --encode_infer-->                   EncodedBody

    {"inputs":[{"name":"a", … "parameters":{"binary_data_size":64}}]}<64 bytes>

The header's length travels in an HTTP header field; without it the whole body is JSON. Binary
tensors follow in the order of the inputs, with nothing in between, and are never copied here:
inputs are views of the body, outputs leave as the buffers the model made. The meaning of a JSON
header is cached by its bytes, and so is the JSON of a response whose tensors are all binary.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from shoal.core.bytes_tensor import SLOW_ELEMENTS
from shoal.core.dtypes import BYTES, DataType
from shoal.core.response import Response
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer, Tensor
from shoal.errors import InvalidArgument
from shoal.wire import json_arrays, json_data, json_frame, json_text
from shoal.wire.classification import classify
from shoal.wire.infer_json import InferBody, WantedOutput, id_prefix, read_request
from shoal.wire.json_frame import JsonFrame
from shoal.wire.regions import Regions, copies_slowly
from shoal.wire.template import (
    LONGEST_KEY,
    TemplateCache,
    is_plain_json,
    split_json_id,
    split_json_sequence,
)

__all__ = [
    "BINARY_TYPE",
    "JSON_TYPE",
    "LENGTH_HEADER",
    "EncodedBody",
    "InferBody",
    "InferBodyDecoder",
    "WantedOutput",
    "binary_json",
    "check_json_size",
    "decode_raw",
    "encode_infer",
    "encodes_slowly",
    "is_raw",
    "json_around_data",
    "parse_header_length",
]

LENGTH_HEADER = "Inference-Header-Content-Length"
JSON_TYPE = b"application/json"
BINARY_TYPE = b"application/octet-stream"
_SLOW_NUMBERS = 1 << 16  # take milliseconds to write as JSON


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """A response body in parts; `header_length` is None where there is only JSON."""

    content_type: bytes
    header_length: int | None
    parts: list[Buffer]


def parse_header_length(value: bytes | None, body_size: int) -> int | None:
    """The length of the JSON header, from its header field; None where that is absent."""
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


@dataclass(frozen=True, slots=True)
class _Header:
    """What a JSON header means whose inputs are all binary, less its ids."""

    inputs: tuple[tuple[str, DataType, tuple[int, ...], int, int], ...]  # ..., start, end
    total_bytes: int  # of all inputs together
    decoded: InferBody  # with everything else

    @classmethod
    def of(cls, decoded: InferBody) -> _Header | None:
        """What the header of a body means; None if some of it has to be read each time."""
        inputs = []
        position = 0
        for name, tensor in decoded.inputs.items():
            if not tensor.has_raw:
                return None
            end = position + tensor.nbytes
            inputs.append((name, tensor.datatype, tensor.shape, position, end))
            position = end
        if decoded.leases:
            return None
        plain = dataclasses.replace(decoded, inputs={}, parameters=dict(decoded.parameters))
        return cls(tuple(inputs), position, plain)

    def body(
        self, request_id: str, sequence_id: int | str, tail: memoryview, key: tuple[bool, bytes]
    ) -> InferBody:
        """A body with this header."""
        decoded = self.decoded
        inputs = {
            name: Tensor(name, datatype, shape, raw=tail[start:end])
            for name, datatype, shape, start, end in self.inputs
        }
        return InferBody(
            request_id,
            inputs,
            decoded.outputs,
            dict(decoded.parameters),
            sequence_id,
            decoded.sequence_start,
            decoded.sequence_end,
            decoded.priority,
            decoded.timeout_us,
            decoded.binary_default,
            template_key=key,
        )


class InferBodyDecoder:
    """Reads the bodies of inference requests. Any thread may use it."""

    def __init__(self, *, caches: bool = True) -> None:
        """With `caches`, the meaning of a JSON header is kept for the next body that has it, and so
        is that of the JSON around the numbers."""
        self._headers: TemplateCache[_Header] | None = TemplateCache() if caches else None
        self._frames: TemplateCache[JsonFrame] | None = TemplateCache() if caches else None
        self._lock = threading.Lock()  # guards changes of _headers and _frames

    def decode(
        self,
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
        length = size if header_length is None else header_length
        check_json_size(length, max_json_bytes)
        view = memoryview(body)
        tail = view[length:]
        headers = self._headers
        frames = self._frames if size <= json_frame.LARGEST_BODY_BYTES else None
        if frames is not None and header_length is None:
            return self._decode_json(bytes(body), frames, model_name, max_json_bytes, regions)
        if headers is None or header_length is None or length > LONGEST_KEY:
            document = json_arrays.loads(view[:length], max_json_bytes)
            return read_request(document, tail, model_name, max_json_bytes, regions)
        header = bytes(view[:length])
        request_id, rest = split_json_id(header)
        template_key = (request_id is None, rest)
        sequence = split_json_sequence(rest)
        key: Hashable = template_key if sequence is None else (request_id is None, *sequence[1])
        sequence_id = 0 if sequence is None else sequence[0]
        found = headers.get(key)
        if found is not None and found.total_bytes == len(tail):
            text = request_id.decode("ascii") if request_id else ""
            return found.body(text, sequence_id, tail, template_key)
        document = json_text.loads(header)
        decoded = read_request(document, tail, model_name, max_json_bytes, regions)
        if decoded.sequence_id == sequence_id and is_plain_json(header, rest):
            entry = _Header.of(decoded)
            if entry is not None:
                decoded.template_key = template_key
                with self._lock:
                    headers.put(key, entry, len(rest))
        return decoded

    def _decode_json(
        self,
        body: bytes,
        frames: TemplateCache[JsonFrame],
        model_name: str,
        max_json_bytes: int,
        regions: Regions | None,
    ) -> InferBody:
        """Read a body that is JSON alone."""
        cut = json_frame.cut(body)
        frame = None if cut is None else frames.get(cut.key)
        if cut is not None and frame is not None:
            if len(body) <= json_frame.SHORT_BYTES:
                packed = frame.pack(body, cut.lists[0].start)
            else:
                packed = frame.pack_long(body, cut.lists)
            if packed is not None:
                return frame.body(cut.request_id, packed)
        document = json_arrays.loads(body, max_json_bytes)
        decoded = read_request(document, memoryview(b""), model_name, max_json_bytes, regions)
        if cut is not None and frame is None:
            frame = JsonFrame.of(cut, decoded)
            if frame is not None:
                decoded.frame, decoded.template_key = frame, frame.key
                with self._lock:
                    frames.put(frame.key, frame, frame.key_bytes)
        return decoded


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
    InvalidArgument where the shape is ambiguous.
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


def encodes_slowly(
    response: Response, wanted: Sequence[WantedOutput], *, binary_default: bool
) -> bool:
    """Whether `encode_infer` takes milliseconds: many strings or numbers of JSON, or large tensors
    that go to shared memory."""
    for tensor in response.outputs:
        count = tensor.element_count
        if count > SLOW_ELEMENTS:
            want = next((output for output in wanted if output.name == tensor.name), None)
            if tensor.datatype is BYTES:
                return True
            if want is not None and want.region is not None:
                if copies_slowly(tensor):
                    return True
            elif count > _SLOW_NUMBERS and not (binary_default if want is None else want.binary):
                return True
    return False


def encode_infer(
    response: Response,
    wanted: Sequence[WantedOutput],
    *,
    binary_default: bool,
    signature: Signature | None = None,
) -> EncodedBody:
    """Write a response that carries no error. `signature` is needed for classification only.

    Raises InvalidArgument when an output cannot be sent in the requested form.
    """
    if not response.parameters and _all_binary(response, wanted, binary_default):
        encoded = _encode_binary(response)
        if encoded is not None:
            return encoded
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
    header = json_text.dumps_parts(document)
    if not blobs:
        return EncodedBody(JSON_TYPE, None, header)
    return EncodedBody(BINARY_TYPE, sum(map(len, header)), [*header, *blobs])


def _all_binary(response: Response, wanted: Sequence[WantedOutput], binary_default: bool) -> bool:
    """Whether all outputs are to be sent as bytes."""
    for output in wanted:
        if not output.binary or output.classification:
            return False
    return binary_default or [output.name for output in wanted] == [
        tensor.name for tensor in response.outputs
    ]


def _encode_binary(response: Response) -> EncodedBody | None:
    """A response whose outputs are all binary; None if its JSON cannot be cached."""
    described = []
    raws: list[Buffer] = []
    for tensor in response.outputs:
        if tensor.datatype is BYTES:
            return None
        raw = tensor.raw
        size = raw.nbytes if isinstance(raw, memoryview) else len(raw)
        described.append((tensor.name, tensor.datatype, tensor.shape, size))
        raws.append(raw)
    rest = binary_json(response.model_name, response.model_version, tuple(described))
    if rest is None:
        return None
    if response.request_id:
        header = b'{"id":%b,%b' % (json_text.dumps(response.request_id), rest)
    else:
        header = b"{" + rest
    return EncodedBody(BINARY_TYPE, len(header), [header, *raws])


@lru_cache(1024)
def binary_json(
    model_name: str,
    model_version: int,
    outputs: tuple[tuple[str, DataType, tuple[int, ...], int], ...],
) -> bytes | None:
    """The JSON of a response after its id, all of whose outputs (name, datatype, shape, bytes)
    follow as bytes; None where none has any."""
    if not any(size for *_, size in outputs):
        return None
    entries = [
        {
            "name": name,
            "datatype": datatype.name,
            "shape": shape,
            "parameters": {"binary_data_size": size},
        }
        for name, datatype, shape, size in outputs
    ]
    document = {
        "model_name": model_name,
        "model_version": str(model_version),
        "outputs": entries,
    }
    return json_text.dumps(document)[1:]


def json_around_data(
    model_name: str, model_version: int, outputs: Sequence[tuple[str, DataType, tuple[int, ...]]]
) -> list[bytes]:
    """The JSON of a response after its id, without the lists of its outputs (name, type, shape),
    which belong between each two of the parts."""
    document = {"model_name": model_name, "model_version": str(model_version)}
    parts = [json_text.dumps(document)[1:-1] + b',"outputs":[']
    for name, datatype, shape in outputs:
        entry = {"name": name, "datatype": datatype.name, "shape": shape}
        parts[-1] += json_text.dumps(entry)[:-1] + b',"data":'
        parts.append(b"},")
    parts[-1] = b"}]}"
    return parts


def _classified(tensor: Tensor, count: int, signature: Signature | None) -> Tensor:
    assert signature is not None, "classification needs the model's signature"
    spec = signature.outputs.get(tensor.name)
    labels = spec.labels if spec is not None else ()
    return classify(tensor, count, batched=signature.max_batch_size > 0, labels=labels)
