"""What an OpenVINO model declares: its ports, by the names clients use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from shoal.backends.graph import Graph, GraphTensor
from shoal.core import dtypes
from shoal.core.dtypes import DataType

_DATATYPES: Mapping[str, DataType] = MappingProxyType(
    {
        "boolean": dtypes.BOOL,
        "u8": dtypes.UINT8,
        "u16": dtypes.UINT16,
        "u32": dtypes.UINT32,
        "u64": dtypes.UINT64,
        "i8": dtypes.INT8,
        "i16": dtypes.INT16,
        "i32": dtypes.INT32,
        "i64": dtypes.INT64,
        "f16": dtypes.FP16,
        "f32": dtypes.FP32,
        "f64": dtypes.FP64,
        "bf16": dtypes.BF16,
        "string": dtypes.BYTES,
    }
)


def graph_of(model: Any) -> Graph:
    """A model's inputs and outputs."""
    return Graph.of(
        [_tensor(name, port) for _, name, port in ports_of(model.inputs)],
        [_tensor(name, port) for _, name, port in ports_of(model.outputs)],
    )


def _tensor(name: str, port: Any) -> GraphTensor:
    return GraphTensor(name, port.element_type.get_type_name(), datatype_of(port), dims_of(port))


def ports_of(ports: Sequence[Any]) -> list[tuple[int, str, Any]]:
    """Index, name and port. Of several names of a tensor, the first by alphabet."""
    return [
        (index, min(port.names) if port.names else port.node.friendly_name, port)
        for index, port in enumerate(ports)
    ]


def datatype_of(port: Any) -> DataType | None:
    """Its datatype; None for types that requests cannot contain."""
    return _DATATYPES.get(port.element_type.get_type_name())


def dims_of(port: Any) -> tuple[int, ...]:
    """Its shape; () for a scalar, and if the rank is unknown."""
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        return ()
    return tuple(dim.get_length() if dim.is_static else -1 for dim in shape)


def with_free_batch(graph: Graph) -> Graph:
    """The graph as clients see it if batches are padded: any number of rows."""

    def free(tensors: Mapping[str, GraphTensor]) -> list[GraphTensor]:
        return [
            GraphTensor(t.name, t.type_name, t.datatype, (-1, *t.dims[1:]) if t.dims else ())
            for t in tensors.values()
        ]

    return Graph.of(free(graph.inputs), free(graph.outputs))
