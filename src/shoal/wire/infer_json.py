"""The JSON of an inference request, field by field.

    { "id", "parameters", "inputs": [ … ], "outputs": [ … ] }  -->  InferBody

Every reader checks the type of what it takes, so nothing behind it has to. Texts are Triton's,
because clients match on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.core.dtypes import DataType, from_name
from shoal.core.response import ParameterValue
from shoal.core.tensor import Tensor
from shoal.errors import Internal, InvalidArgument, Unsupported
from shoal.wire import json_data
from shoal.wire.regions import Lease, Regions, RegionSlice

if TYPE_CHECKING:
    from shoal.wire.json_frame import JsonFrame

_MOST_ELEMENTS = 2**63 - 1
_MOST_DIMS = 32  # what every numpy can hold
_UNSIGNED_EXPECTED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
_STRING_EXPECTED = "attempt to access JSON non-string as string"
_ARRAY_EXPECTED = "attempt to access JSON non-array as array"
_BOOLEAN_EXPECTED = "attempt to access JSON non-boolean as boolean"


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """One output the client named; `classification` is how many classes, 0 for the tensor."""

    name: str
    binary: bool = False
    classification: int = 0
    region: RegionSlice | None = None  # where in shared memory it goes


@dataclass(slots=True)
class InferBody:
    """A decoded request body. `binary_default` is how outputs are sent that it does not name."""

    id: str = ""
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: list[WantedOutput] = field(default_factory=list)
    parameters: dict[str, ParameterValue] = field(default_factory=dict)  # meant for the model
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    binary_default: bool = False
    leases: list[Lease] = field(default_factory=list)  # shared memory in use until the response
    # The JSON without its id and its lists, if any id may stand there: a key for a template.
    template_key: tuple[bool, bytes | tuple[bytes, ...]] | None = None
    frame: JsonFrame | None = None  # of a body that is JSON alone and has a template key

    def check(self) -> None:
        """Raise a ShoalError if an input in shared memory could not be read."""
        for lease in self.leases:
            lease.check()

    def release(self) -> None:
        """Give back the shared memory this request uses."""
        for lease in self.leases:
            lease.release()


def read_request(
    document: Any,
    tail: memoryview,
    model_name: str,
    max_json_bytes: int,
    regions: Regions | None,
) -> InferBody:
    """The whole request; `tail` is what follows the JSON and must be used up by its inputs.

    What it uses of `regions` is given back if this raises, and by `InferBody.release` if not.
    """
    decoded = InferBody()
    try:
        _read_members(document, tail, model_name, max_json_bytes, regions, decoded)
    except BaseException:
        decoded.release()
        raise
    return decoded


def _read_members(
    document: Any,
    tail: memoryview,
    model_name: str,
    max_json_bytes: int,
    regions: Regions | None,
    decoded: InferBody,
) -> None:
    if type(document) is dict:
        if "id" in document:
            decoded.id = _text(document["id"], "Unable to parse 'id'")
        if "parameters" in document:
            read_parameters(document["parameters"], decoded)
    position = 0
    for entry in _array_member(document, "inputs"):
        tensor, taken = _read_input(
            entry, tail[position:], model_name, max_json_bytes, regions, decoded
        )
        if tensor.name in decoded.inputs:
            raise _duplicate("input", tensor.name, decoded.id)
        decoded.inputs[tensor.name] = tensor
        position += taken
    if position != len(tail):
        raise InvalidArgument(f"unexpected additional input data for model '{model_name}'")
    if "outputs" in document:
        seen = set()
        for entry in _array_member(document, "outputs"):
            wanted = _read_output(entry, regions, decoded)
            if wanted.name in seen:
                raise _duplicate("output", wanted.name, decoded.id)
            seen.add(wanted.name)
            decoded.outputs.append(wanted)


def id_prefix(request_id: str) -> str:
    """What Triton's core puts in front of its errors."""
    return f"[request id: {request_id or '<id_unknown>'}] "


def _read_input(
    entry: Any,
    tail: memoryview,
    model_name: str,
    max_json_bytes: int,
    regions: Regions | None,
    decoded: InferBody,
) -> tuple[Tensor, int]:
    """One element of `inputs`, and how many bytes of `tail` belong to it."""
    parameters = _parameters_of(entry, "inputs")
    has_data, binary = "data" in entry, "binary_data_size" in parameters
    if has_data + binary + ("shared_memory_region" in parameters) != 1:
        raise _not_one_source(entry, parameters)
    name = _text_member(entry, "name")
    datatype = _datatype(name, _text_member(entry, "datatype"))
    shape, count = _shape(name, datatype, _array_member(entry, "shape"))
    if has_data:
        return json_data.read(name, datatype, shape, count, entry["data"], max_json_bytes), 0
    if not binary:
        slice_ = _read_region(parameters, regions, decoded)
        return slice_.lease.tensor(name, datatype, shape), 0
    size = _unsigned(parameters["binary_data_size"], "Unable to parse 'binary_data_size'")
    if size > len(tail):
        raise InvalidArgument(
            f"unexpected size for input '{name}', expecting {size - len(tail)} additional bytes "
            f"for model '{model_name}'"
        )
    return Tensor(name, datatype, shape, raw=tail[:size]), size


def _read_output(entry: Any, regions: Regions | None, decoded: InferBody) -> WantedOutput:
    """One element of `outputs`."""
    parameters = _parameters_of(entry, "outputs")
    binary = False
    if "binary_data" in parameters:
        binary = _boolean(parameters["binary_data"], "Unable to parse 'binary_data'")
    classes = 0
    if "classification" in parameters:
        classes = _unsigned(parameters["classification"], "Unable to set 'classification'")
    if "shared_memory_region" in parameters:
        if "classification" in parameters:
            raise _both("classification")
        if binary:
            raise _both("binary_data")
        slice_ = _read_region(parameters, regions, decoded)
        return WantedOutput(_text_member(entry, "name"), region=slice_)
    return WantedOutput(_text_member(entry, "name"), binary, classes)


def _read_region(
    parameters: dict[str, Any], regions: Regions | None, decoded: InferBody
) -> RegionSlice:
    """The part of shared memory that an input or output names, leased for this request."""
    if regions is None:
        raise Unsupported("this server does not exchange tensors by shared memory")
    name = _text(parameters["shared_memory_region"], "Unable to parse 'shared_memory_region'")
    offset = 0
    if "shared_memory_offset" in parameters:
        where = "Unable to parse 'shared_memory_offset'"
        offset = _unsigned(parameters["shared_memory_offset"], where)
    if "shared_memory_byte_size" not in parameters:
        raise _missing("shared_memory_byte_size")
    where = "Unable to parse 'shared_memory_byte_size'"
    size = _unsigned(parameters["shared_memory_byte_size"], where)
    lease = regions.lease(name, offset, size)
    decoded.leases.append(lease)
    return RegionSlice(name, offset, size, lease)


def read_parameters(parameters: Any, decoded: InferBody) -> None:
    """The request's `parameters`: those of the server, and those for the model."""
    if type(parameters) is not dict:
        raise InvalidArgument(
            "failed to get request params.: attempt to get members for non-object"
        )
    for key, value in parameters.items():
        where = f"Unable to parse '{key}'"
        if key == "sequence_id":
            is_number = type(value) is int and value >= 0
            decoded.sequence_id = value if is_number else _text(value, where)
        elif key == "sequence_start":
            decoded.sequence_start = _boolean(value, where)
        elif key == "sequence_end":
            decoded.sequence_end = _boolean(value, where)
        elif key == "priority":
            decoded.priority = _unsigned(value, where)
        elif key == "timeout":
            decoded.timeout_us = _unsigned(value, where)
        elif key == "binary_data_output":
            decoded.binary_default = _boolean(value, where)
        elif key.startswith("triton_"):
            raise InvalidArgument(
                f"parameter keys starting with 'triton_' are reserved for Triton usage and should "
                f"not be specified. Got '{key}'"
            )
        elif type(value) not in (str, int, bool, float):
            raise InvalidArgument(
                f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or "
                f"'string'."
            )
        else:
            # Models take signed 64-bit integers; a larger one reaches them as a double.
            too_large = type(value) is int and value >= 2**63
            decoded.parameters[key] = float(value) if too_large else value


def _datatype(name: str, text: str) -> DataType:
    try:
        return from_name(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"input '{name}': {error.message}") from None


def _shape(name: str, datatype: DataType, dims: list[Any]) -> tuple[tuple[int, ...], int]:
    """The shape and its product, both small enough to reckon with."""
    if len(dims) > _MOST_DIMS:
        raise InvalidArgument(
            f"invalid shape for input '{name}': it has {len(dims)} dimensions, the most is "
            f"{_MOST_DIMS}"
        )
    spread = 1  # the product of the dims that are not 0: libraries multiply those alone
    for dim in dims:
        if type(dim) is not int or dim < 0:
            # By its code a server error, although the client is at fault: that is what Triton
            # answers here, and its own tests insist on it.
            raise Internal(f"Unable to parse 'shape': {_UNSIGNED_EXPECTED}")
        spread *= dim or 1
    shape = tuple(dims)
    if spread > _MOST_ELEMENTS:
        if max(shape) > _MOST_ELEMENTS:
            problem = "contains one or more invalid dimensions"
        else:
            problem = f"causes total element count to exceed maximum size of {_MOST_ELEMENTS}"
        raise InvalidArgument(
            f"invalid shape for input '{name}': shape {json_data.format_shape(shape)} {problem}"
        )
    if spread * datatype.itemsize > _MOST_ELEMENTS:
        raise InvalidArgument(
            f"byte size overflow for input '{name}': element count ({spread}) * data type size "
            f"({datatype.itemsize}) exceeds maximum allowed size ({_MOST_ELEMENTS})"
        )
    return shape, 0 if 0 in shape else spread


def _parameters_of(entry: Any, kind: str) -> dict[str, Any]:
    """The `parameters` of one input or output, which must itself be an object."""
    if type(entry) is not dict:
        raise InvalidArgument(f"Unable to parse '{kind}': each element must be an object")
    parameters = entry.get("parameters", {})
    if type(parameters) is not dict:
        raise InvalidArgument(f"Unable to parse '{kind}': 'parameters' must be an object")
    return parameters


def _array_member(document: Any, key: str) -> list[Any]:
    if type(document) is not dict or key not in document:
        raise _missing(key)
    value = document[key]
    if type(value) is not list:
        raise InvalidArgument(f"Unable to parse '{key}': {_ARRAY_EXPECTED}")
    return value


def _text_member(entry: dict[str, Any], key: str) -> str:
    if key not in entry:
        raise _missing(key)
    return _text(entry[key], f"Unable to parse '{key}'")


def _text(value: Any, where: str) -> str:
    if type(value) is not str:
        raise InvalidArgument(f"{where}: {_STRING_EXPECTED}")
    return value


def _unsigned(value: Any, where: str) -> int:
    if type(value) is not int or value < 0:
        raise InvalidArgument(f"{where}: {_UNSIGNED_EXPECTED}")
    return value


def _boolean(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise InvalidArgument(f"{where}: {_BOOLEAN_EXPECTED}")
    return value


def _missing(key: str) -> InvalidArgument:
    return InvalidArgument(
        f"Unable to parse '{key}': attempt to access non-existing object member '{key}'"
    )


def _duplicate(kind: str, name: str, request_id: str) -> InvalidArgument:
    return InvalidArgument(f"{id_prefix(request_id)}{kind} '{name}' already exists in request")


def _both(other: str) -> InvalidArgument:
    return InvalidArgument(f"Output can't set both 'shared_memory_region' and '{other}'")


def _not_one_source(entry: dict[str, Any], parameters: dict[str, Any]) -> InvalidArgument:
    found = ["'data'"] if "data" in entry else []
    found += [f"'{k}'" for k in ("binary_data_size", "shared_memory_region") if k in parameters]
    return InvalidArgument(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in "
        "'parameters', 'shared_memory_region' in 'parameters'. But "
        + (f"set {' '.join(found)}" if found else "no field is set")
    )
