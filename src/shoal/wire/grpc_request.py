"""ModelInferRequest: from the bytes of a gRPC message to tensors and options.

    message bytes --InferDecoder-->  InferMessage

Raw tensor contents are not copied here: inputs are views of the message. Clients repeat
themselves: what a message means, apart from its ids and its tensors, is cached by its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from shoal.core import bytes_tensor, dtypes
from shoal.core.dtypes import BYTES, DataType, from_name
from shoal.core.response import ParameterValue
from shoal.core.tensor import Buffer, Tensor
from shoal.errors import InvalidArgument, LimitExceeded, Unsupported
from shoal.wire.grpc_pattern import Span, split_sequence
from shoal.wire.proto import messages
from shoal.wire.protobuf_wire import malformed, tag, take_out
from shoal.wire.regions import Lease, Regions, RegionSlice

EMPTY_FINAL = "triton_enable_empty_final_response"

_ID_TAG = tag(3)  # of ModelInferRequest
_RAW_INPUT_TAG = tag(7)
_MOST_HEADS = 512
_LARGEST_HEAD_BYTES = 2_048
MOST_FIELDS = 8_192  # of a request: its inputs, outputs, parameters and raw contents
_MOST_PEEKED_BYTES = 4 << 20
_NO_SLICES: Mapping[str, RegionSlice] = MappingProxyType({})

# Each typed field: its datatype in error texts, the datatypes it carries, and the dtype with which
# numpy reads it. FP16 and BF16 have none: they are sent raw.
_CONTENTS: dict[str, tuple[DataType, tuple[DataType, ...], str]] = {
    "bool_contents": (dtypes.BOOL, (dtypes.BOOL,), "?"),
    "int_contents": (dtypes.INT32, (dtypes.INT8, dtypes.INT16, dtypes.INT32), "<i4"),
    "int64_contents": (dtypes.INT64, (dtypes.INT64,), "<i8"),
    "uint_contents": (dtypes.UINT32, (dtypes.UINT8, dtypes.UINT16, dtypes.UINT32), "<u4"),
    "uint64_contents": (dtypes.UINT64, (dtypes.UINT64,), "<u8"),
    "fp32_contents": (dtypes.FP32, (dtypes.FP32,), "<f4"),
    "fp64_contents": (dtypes.FP64, (dtypes.FP64,), "<f8"),
    "bytes_contents": (dtypes.BYTES, (dtypes.BYTES,), ""),
}


Place: TypeAlias = tuple[str, int, int]  # in shared memory: region, offset, size
Sent: TypeAlias = tuple[str, DataType, tuple[int, ...]]


@dataclass(slots=True, eq=False)
class InferHead:
    """What a ModelInferRequest means, apart from its ids and its data. Equal requests share one:
    copy its parameters before changing them."""

    model_name: str
    model_version: str
    inputs: list[Sent] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)  # name -> classes, 0: the tensor
    output_names: tuple[str, ...] = ()
    classifies: bool = False  # whether any output is requested as classes
    parameters: dict[str, ParameterValue] = field(default_factory=dict)  # meant for the model
    sequence_id: int | str = 0  # of the first such request; each message has its own
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    empty_final_response: bool = False
    input_regions: dict[str, Place] = field(default_factory=dict)  # inputs in shared memory
    output_regions: dict[str, Place] = field(default_factory=dict)


class InferMessage:
    """A decoded ModelInferRequest."""

    __slots__ = ("contents", "head", "id", "ids", "inputs", "leases", "sequence_id", "slices")

    def __init__(self, head: InferHead, id: str, inputs: dict[str, Tensor]) -> None:
        self.head = head
        self.id = id
        self.inputs = inputs
        self.sequence_id = head.sequence_id
        self.slices: Mapping[str, RegionSlice] = _NO_SLICES  # where outputs shall be put
        self.leases: Sequence[Lease] = ()  # shared memory in use until the response
        # Where its ids and raw contents are, if all inputs have those; None otherwise.
        self.ids: tuple[Span, ...] = ()
        self.contents: tuple[Span, ...] | None = None

    def check(self) -> None:
        """Raise a ShoalError if an input in shared memory could not be read."""
        for lease in self.leases:
            lease.check()

    def release(self) -> None:
        """Give back the shared memory this request uses."""
        for lease in self.leases:
            lease.release()


class InferDecoder:
    """Reads ModelInferRequests, and caches what repeated ones mean."""

    def __init__(self, *, caches: bool = True, max_typed_bytes: int = 64 << 20) -> None:
        """`max_typed_bytes` bounds what a request has besides its raw contents."""
        self._heads: dict[Hashable, InferHead] | None = {} if caches else None
        self._max_typed_bytes = max_typed_bytes

    def decode(self, message: Buffer, regions: Regions | None = None) -> InferMessage:
        """Read a message. Raises a ShoalError that names the field and what was expected.

        Whether the inputs fit their shapes is left to validation. What it uses of `regions` is
        given back if this raises, and by `InferMessage.release` if not.
        """
        ids: list[Span] = []
        raw: list[Span] = []
        around = take_out(message, {_ID_TAG: ids, _RAW_INPUT_TAG: raw}, MOST_FIELDS)
        view = memoryview(message)
        request_id = _text(view[slice(*ids[-1])]) if ids else ""
        sequence = split_sequence(around)
        key: Hashable = around if sequence is None else sequence[1]
        head = None if self._heads is None else self._heads.get(key)
        if head is None:
            check_typed(len(around), self._max_typed_bytes)
            request = parse(messages.ModelInferRequest, around)
            head = _read_head(request, request_id)
            if not any(entry.HasField("contents") for entry in request.inputs):
                if sequence is None or sequence[0] == head.sequence_id:
                    self._cache(key, len(around), head)
            elif not raw:
                decoded = InferMessage(head, request_id, _typed_inputs(request, head))
                return _with_regions(decoded, regions)
            else:
                _refuse_mixed(request)
        sent = head.inputs
        if head.input_regions:
            sent = [entry for entry in sent if entry[0] not in head.input_regions]
        if len(raw) != len(sent):
            raise _wrong_raw_count(head, sent, len(raw))
        inputs = {
            name: Tensor(name, datatype, shape, raw=view[slice(*span)])
            for (name, datatype, shape), span in zip(sent, raw, strict=True)
        }
        decoded = InferMessage(head, request_id, inputs)
        if sequence is not None:
            decoded.sequence_id = sequence[0]
        if head.input_regions or head.output_regions:
            return _with_regions(decoded, regions)
        decoded.ids, decoded.contents = tuple(ids), tuple(raw)
        return decoded

    def _cache(self, key: Hashable, key_bytes: int, head: InferHead) -> None:
        heads = self._heads
        if heads is None or key_bytes > _LARGEST_HEAD_BYTES:
            return
        if len(heads) >= _MOST_HEADS:
            del heads[next(iter(heads))]
        heads[key] = head


def _with_regions(decoded: InferMessage, regions: Regions | None) -> InferMessage:
    """Add the inputs that lie in shared memory, and the places of outputs there."""
    head = decoded.head
    if not head.input_regions and not head.output_regions:
        return decoded
    if regions is None:
        raise Unsupported("this server does not exchange tensors by shared memory")
    leases: list[Lease] = []
    slices: dict[str, RegionSlice] = {}
    decoded.leases, decoded.slices = leases, slices
    try:
        for name, datatype, shape in head.inputs:
            place = head.input_regions.get(name)
            if place is not None:
                lease = _lease(place, regions, leases).lease
                decoded.inputs[name] = lease.tensor(name, datatype, shape)
        for name, place in head.output_regions.items():
            slices[name] = _lease(place, regions, leases)
    except BaseException:
        decoded.release()
        raise
    return decoded


def _lease(place: Place, regions: Regions, leases: list[Lease]) -> RegionSlice:
    lease = regions.lease(*place)
    leases.append(lease)
    return RegionSlice(*place, lease)


def peek(message: Buffer) -> tuple[str, str, str]:
    """Model name, model version and id of a request that could not be read, as far as they can."""
    try:
        around = take_out(message, {_RAW_INPUT_TAG: []}, MOST_FIELDS)
        check_typed(len(around), _MOST_PEEKED_BYTES)
        request = parse(messages.ModelInferRequest, around)
    except InvalidArgument:
        return "", "", ""
    return request.model_name, request.model_version, request.id


def check_inflated(message: Buffer, max_typed_bytes: int) -> None:
    """Refuse a decompressed request that would cost far more to read than it cost to send.

    Raw contents are not read, however many bytes they have; typed ones are, value by value.
    """
    try:
        around = take_out(message, {_RAW_INPUT_TAG: []}, MOST_FIELDS)
    except InvalidArgument:
        return  # `decode` finds the same
    if len(around) > max_typed_bytes:
        raise LimitExceeded(
            f"the compressed request has {len(around)} bytes besides its raw_input_contents, and "
            f"at most {max_typed_bytes} are allowed; send the tensors as raw_input_contents, or "
            f"the request uncompressed"
        )
    if len(message) - len(around) > 4 * bytes_tensor.MOST_UNSENT:
        for entry in parse(messages.ModelInferRequest, around).inputs:
            if entry.datatype == BYTES.name:
                bytes_tensor.check_unsent(entry.name, math.prod(entry.shape), "if compressed")


def check_typed(size: int, max_typed_bytes: int) -> None:
    """Refuse a request that has too many bytes besides its raw contents."""
    if size > max_typed_bytes:
        raise LimitExceeded(
            f"the request has {size} bytes besides its raw_input_contents, and at most "
            f"{max_typed_bytes} are allowed; send the tensors as raw_input_contents, or raise the "
            f"limit with --grpc-max-request-bytes"
        )


def parse(kind: Any, content: Buffer) -> Any:
    """A message of the schema from its bytes; InvalidArgument when they are none."""
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(bytes(content))
    except DecodeError as error:
        raise malformed(str(error)) from None


def _text(content: Buffer) -> str:
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError:
        raise malformed("the id is not UTF-8 text") from None


def _read_head(request: Any, request_id: str) -> InferHead:
    head = InferHead(request.model_name, request.model_version)
    _read_parameters(request.parameters, head)
    seen: set[str] = set()
    for entry in request.inputs:
        name = entry.name
        if name in seen:
            raise _duplicate("input", name, request_id)
        seen.add(name)
        place = _read_place(entry)
        if place is not None:
            head.input_regions[name] = place
            if entry.HasField("contents"):
                raise InvalidArgument(
                    f"unexpected 'content' provided when using shared memory for input tensor "
                    f"'{name}' for model '{request.model_name}'"
                )
        try:
            datatype = from_name(entry.datatype)
        except InvalidArgument as error:
            raise InvalidArgument(f"input '{name}': {error.message}") from None
        head.inputs.append((name, datatype, tuple(entry.shape)))
    for wanted in request.outputs:
        if wanted.name in head.outputs:
            raise _duplicate("output", wanted.name, request_id)
        head.outputs[wanted.name] = _read_output(wanted)
        place = _read_place(wanted)
        if place is not None:
            if head.outputs[wanted.name]:
                raise InvalidArgument(
                    "output can't set both 'shared_memory_region' and 'classification'"
                )
            head.output_regions[wanted.name] = place
    head.output_names = tuple(head.outputs)
    head.classifies = any(head.outputs.values())
    return head


def _read_place(tensor: Any) -> Place | None:
    """The shared memory that an input or output names: region, offset, size."""
    values: dict[str, Any] = {}
    for key, kind in _REGION_PARAMETERS.items():
        if key not in tensor.parameters:
            continue
        parameter = tensor.parameters[key]
        if parameter.WhichOneof("parameter_choice") != kind:
            raise InvalidArgument(
                f"invalid value type for '{key}' parameter for tensor '{tensor.name}', expected "
                f"{kind}."
            )
        values[key] = getattr(parameter, kind)
    if not values:
        return None
    if "shared_memory_region" not in values:
        key = next(iter(values))
        raise InvalidArgument(
            f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor "
            f"'{tensor.name}'"
        )
    if "shared_memory_byte_size" not in values:
        raise InvalidArgument(
            f"'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
            f"parameter for tensor '{tensor.name}'"
        )
    # Unsigned numbers that have to travel as signed ones.
    offset = values.get("shared_memory_offset", 0) % 2**64
    return values["shared_memory_region"], offset, values["shared_memory_byte_size"] % 2**64


_REGION_PARAMETERS = {
    "shared_memory_region": "string_param",
    "shared_memory_offset": "int64_param",
    "shared_memory_byte_size": "int64_param",
}


def _read_output(wanted: Any) -> int:
    """How many classes of an output are requested; 0 for the tensor itself."""
    if "classification" not in wanted.parameters:
        return 0
    parameter = wanted.parameters["classification"]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise InvalidArgument(
            "invalid value type for 'classification' parameter, expected int64_param"
        )
    if parameter.int64_param <= 0:
        raise InvalidArgument("invalid value for 'classification' parameter, expected >= 0")
    return int(parameter.int64_param)


# What each parameter the server itself reads may be; all others are meant for the model.
_KNOWN_PARAMETERS = {
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
    EMPTY_FINAL: ("bool_param",),
}
_MODEL_PARAMETERS = ("int64_param", "bool_param", "string_param", "double_param")


def _read_parameters(parameters: Mapping[str, Any], head: InferHead) -> None:
    for key, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        expected = _KNOWN_PARAMETERS.get(key)
        if expected is None:
            if key.startswith("triton_"):
                raise InvalidArgument(
                    f"parameter keys starting with 'triton_' are reserved for Triton usage. Only "
                    f"the following keys starting with 'triton_' are allowed: {EMPTY_FINAL}"
                )
            if kind not in _MODEL_PARAMETERS:
                raise _wrong_type(key, "int64_param, bool_param, or string_param")
            head.parameters[key] = getattr(parameter, kind)
            continue
        if kind not in expected:
            raise _wrong_type(key, " or ".join(expected))
        value = getattr(parameter, kind)
        if key == "sequence_id":
            # An unsigned number that has to travel as a signed one.
            head.sequence_id = value + 2**64 if kind == "int64_param" and value < 0 else value
        elif key == "priority":
            if value < 0:
                raise InvalidArgument("invalid value for 'priority', expected value >= 0.")
            head.priority = value
        elif key == "timeout":
            head.timeout_us = max(0, value)
        elif key == EMPTY_FINAL:
            head.empty_final_response = value
        else:
            setattr(head, key, value)


def _refuse_mixed(request: Any) -> None:
    """Typed contents beside raw ones are a mistake, unless they are empty."""
    for entry in request.inputs:
        if entry.contents.ByteSize():
            raise InvalidArgument(
                f"contents field must not be specified when using raw_input_contents for "
                f"'{entry.name}' for model '{request.model_name}'"
            )


def _typed_inputs(request: Any, head: InferHead) -> dict[str, Tensor]:
    """The inputs of a request that brings their elements in typed fields."""
    inputs: dict[str, Tensor] = {}
    for entry in request.inputs:
        if entry.name in head.input_regions:
            continue
        if not entry.HasField("contents"):
            raise _no_data(entry.name, request.model_name)
        datatype = from_name(entry.datatype)
        content = _read_contents(entry, datatype, request.model_name)
        raw, array = (None, content) if isinstance(content, np.ndarray) else (content, None)
        inputs[entry.name] = Tensor(entry.name, datatype, tuple(entry.shape), raw=raw, array=array)
    return inputs


def _read_contents(entry: Any, datatype: DataType, model_name: str) -> Buffer | np.ndarray:
    """The elements of a typed field, laid out as raw contents are; strings as an array."""
    filled = [descriptor.name for descriptor, _ in entry.contents.ListFields()]
    if not filled:
        return b""
    where = f"unexpected explicit tensor data for input tensor '{entry.name}' for model"
    told_as, carried, layout = _CONTENTS[filled[0]]
    if datatype not in carried:
        raise InvalidArgument(
            f"{where} '{model_name}' of type '{told_as.name}', expected datatype '{datatype.name}'"
        )
    if len(filled) > 1:
        raise InvalidArgument(f"{where} '{model_name}', binary data was already supplied.")
    values = getattr(entry.contents, filled[0])
    if datatype is dtypes.BYTES:
        count = math.prod(entry.shape)
        if len(values) != count or min(entry.shape, default=0) < 0:
            # Validation refuses that, whatever the strings are: as many empty ones.
            return bytes(4 * min(len(values), max(0, count) + 1))
        array = np.empty(count, object)
        array[:] = values[:]
        return array.reshape(tuple(entry.shape))
    # Like a C cast: an int_contents element keeps the low bits its datatype has room for.
    numbers = np.fromiter(values, np.dtype(layout), len(values)).astype(datatype.numpy, copy=False)
    return numbers.view(np.uint8).data


def _wrong_raw_count(head: InferHead, sent: Sequence[Sent], count: int) -> InvalidArgument:
    if count < len(sent):
        return _no_data(sent[count][0], head.model_name)
    return InvalidArgument(
        f"raw_input_contents has {count} entries but the request has {len(sent)} inputs for "
        f"model '{head.model_name}'"
    )


def _no_data(input_name: str, model_name: str) -> InvalidArgument:
    return InvalidArgument(
        f"unable to find data for input tensor '{input_name}' for model '{model_name}' in request."
    )


def _duplicate(kind: str, name: str, request_id: str) -> InvalidArgument:
    return InvalidArgument(
        f"[request id: {request_id or '<id_unknown>'}] {kind} '{name}' already exists in request"
    )


def _wrong_type(key: str, expected: str) -> InvalidArgument:
    return InvalidArgument(f"invalid value type for '{key}' parameter, expected {expected}.")
