"""Reads ONNX files as far as our graphs need it, without the package `onnx`: nodes and weights.

    decoder.onnx --read_onnx--> OnnxGraph(inputs, outputs, weights, nodes)

Servers have protobuf, but not always `onnx`, which only exports need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from shoal.errors import BackendFailure

_EXTERNAL = 1  # data_location
# The fields that are read, with the numbers and types of onnx.proto; a name is a message, and
# a star means repeated.
_MESSAGES = {
    "Model": {"graph": (7, "Graph")},
    "Graph": {
        "node": (1, "*Node"),
        "initializer": (5, "*Tensor"),
        "input": (11, "*ValueInfo"),
        "output": (12, "*ValueInfo"),
    },
    "Node": {
        "input": (1, "*string"),
        "output": (2, "*string"),
        "op_type": (4, "string"),
        "attribute": (5, "*Attribute"),
        "domain": (7, "string"),
    },
    "Attribute": {
        "name": (1, "string"),
        "f": (2, "float"),
        "i": (3, "int64"),
        "s": (4, "bytes"),
        "t": (5, "Tensor"),
        "floats": (7, "*float"),
        "ints": (8, "*int64"),
        "type": (20, "int32"),
    },
    "Tensor": {
        "dims": (1, "*int64"),
        "data_type": (2, "int32"),
        "float_data": (4, "*float"),
        "int32_data": (5, "*int32"),
        "int64_data": (7, "*int64"),
        "name": (8, "string"),
        "raw_data": (9, "bytes"),
        "external_data": (13, "*Entry"),
        "data_location": (14, "int32"),
    },
    "Entry": {"key": (1, "string"), "value": (2, "string")},
    "ValueInfo": {"name": (1, "string"), "type": (2, "Type")},
    "Type": {"tensor_type": (1, "TensorType")},
    "TensorType": {"elem_type": (1, "int32"), "shape": (2, "TensorShape")},
    "TensorShape": {"dim": (1, "*Dimension")},
    "Dimension": {"dim_value": (1, "int64"), "dim_param": (2, "string")},
}
_TYPES = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64}
_ATTRIBUTES = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints"}  # by type


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operator: the names of its inputs and outputs, and its attributes."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """The graph of a file. Dims of inputs and outputs that vary have a name, or None."""

    inputs: Mapping[str, tuple[Any, ...]]
    outputs: Mapping[str, tuple[Any, ...]]
    weights: Mapping[str, np.ndarray]
    nodes: tuple[OnnxNode, ...]


def read_onnx(path: Path) -> OnnxGraph:
    """Read a file, with its weights. Raises BackendFailure for one that is not ONNX."""
    try:
        graph = _model_class().FromString(path.read_bytes()).graph
        weights = {tensor.name: _array(tensor, path.parent) for tensor in graph.initializer}
        nodes = tuple(_node(node, path.parent) for node in graph.node)
    except OSError as error:
        raise BackendFailure(f"cannot read '{path.name}': {error.strerror or error}") from error
    except Exception as error:
        raise BackendFailure(f"'{path.name}' cannot be read as ONNX: {error}") from error
    inputs = [value for value in graph.input if value.name not in weights]
    return OnnxGraph(_dims(inputs), _dims(graph.output), weights, nodes)


@cache
def _model_class() -> Any:
    """The class of the message of a whole file, in a descriptor pool of its own: `onnx` registers
    the same messages in the default one."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shoal_onnx.proto", package="shoal.onnx", syntax="proto2"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            plain = kind.removeprefix("*")
            added = message.field.add(
                name=field_name,
                number=number,
                label=field.LABEL_OPTIONAL if plain == kind else field.LABEL_REPEATED,
            )
            if plain in _MESSAGES:
                added.type, added.type_name = field.TYPE_MESSAGE, f".shoal.onnx.{plain}"
            else:
                added.type = getattr(field, f"TYPE_{plain.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shoal.onnx.Model"))


def _node(node: Any, folder: Path) -> OnnxNode:
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        value = getattr(attribute, _ATTRIBUTES.get(attribute.type, "s"))
        if attribute.type == 4:
            value = _array(value, folder)
        attributes[attribute.name] = list(value) if attribute.type in (6, 7) else value
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return OnnxNode(operator, tuple(node.input), tuple(node.output), attributes)


def _array(tensor: Any, folder: Path) -> np.ndarray:
    """The contents of a tensor; in the file, or in the one beside it."""
    dtype = np.dtype(_TYPES[tensor.data_type])
    if tensor.data_location == _EXTERNAL:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        with (folder / Path(entries["location"]).name).open("rb") as file:
            file.seek(int(entries.get("offset", 0)))
            raw = file.read(int(entries["length"])) if "length" in entries else file.read()
        found = np.frombuffer(raw, dtype)
    elif tensor.raw_data:
        found = np.frombuffer(tensor.raw_data, dtype)
    elif dtype == np.float16:
        found = np.array(tensor.int32_data, np.uint16).view(dtype)
    else:
        found = np.array(tensor.float_data or tensor.int64_data or tensor.int32_data, dtype)
    return found.reshape(tuple(tensor.dims))


def _dims(values: Any) -> dict[str, tuple[Any, ...]]:
    return {
        value.name: tuple(
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
            for dim in value.type.tensor_type.shape.dim
        )
        for value in values
    }
