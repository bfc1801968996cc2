"""TensorFlow Lite models for tests, written without TensorFlow.

    save(scaled(2.0), folder / "1" / "model.tflite")

A model file is a flat buffer; the schema that comes with LiteRT writes it as well as reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

_TYPES = {
    "BOOL": "BOOL",
    "UINT8": "UINT8",
    "UINT32": "UINT32",
    "INT8": "INT8",
    "INT16": "INT16",
    "INT32": "INT32",
    "INT64": "INT64",
    "FP16": "FLOAT16",
    "FP32": "FLOAT32",
    "FP64": "FLOAT64",
    "BYTES": "STRING",
}


class ModelBuilder:
    """One graph, written tensor by tensor and operator by operator."""

    def __init__(self) -> None:
        self._model = schema.ModelT()
        self._model.version = 3
        self._model.buffers = [schema.BufferT()]  # the first one stands for no data
        self._model.operatorCodes = []
        self._graph = schema.SubGraphT()
        self._graph.name = "main"
        self._graph.tensors, self._graph.operators = [], []
        self._model.subgraphs = [self._graph]

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        datatype: str = "FP32",
        data: np.ndarray | None = None,
        scale: float = 0.0,
    ) -> int:
        """Add a tensor; -1 is a dimension of any size. With `data` it is a constant, with `scale`
        its whole numbers stand for quantised ones. Returns its number."""
        made = schema.TensorT()
        made.name = name
        made.shape = [1 if dim < 0 else dim for dim in shape]
        made.shapeSignature = list(shape)
        made.type = getattr(schema.TensorType, _TYPES[datatype])
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            made.buffer = len(self._model.buffers)
            self._model.buffers.append(buffer)
        if scale:
            made.quantization = schema.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = [scale], [0]
        self._graph.tensors.append(made)
        return len(self._graph.tensors) - 1

    def operator(self, name: str, inputs: Sequence[int], output: int, options: str = "") -> None:
        """Add an operator; `options` is the kind of its options, where it has any."""
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = 1
        self._model.operatorCodes.append(code)
        made = schema.OperatorT()
        made.opcodeIndex = len(self._model.operatorCodes) - 1
        made.inputs, made.outputs = list(inputs), [output]
        if options:
            made.builtinOptions = getattr(schema, f"{options}T")()
            made.builtinOptionsType = getattr(schema.BuiltinOptions, options)
        self._graph.operators.append(made)

    def build(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        signature: tuple[Sequence[str], Sequence[str]] | None = None,
    ) -> bytes:
        """The file. `signature` gives inputs and outputs other names than their tensors have."""
        self._graph.inputs, self._graph.outputs = list(inputs), list(outputs)
        if signature is not None:
            made = schema.SignatureDefT()
            made.signatureKey, made.subgraphIndex = "serving_default", 0
            made.inputs = [_named(*pair) for pair in zip(signature[0], inputs, strict=True)]
            made.outputs = [_named(*pair) for pair in zip(signature[1], outputs, strict=True)]
            self._model.signatureDefs = [made]
        builder = flatbuffers.Builder(1024)
        builder.Finish(self._model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def scaled(factor: float, width: int = 4, batch: int = -1, *, signature: bool = True) -> bytes:
    """OUTPUT0 = INPUT0 * factor, rows of FP32. The tensors are called `x` and `y`."""
    model = ModelBuilder()
    x = model.tensor("x", [batch, width])
    by = model.tensor("by", [1], data=np.array([factor], np.float32))
    y = model.tensor("y", [batch, width])
    model.operator("MUL", [x, by], y, "MulOptions")
    return model.build([x], [y], (["INPUT0"], ["OUTPUT0"]) if signature else None)


def identity(datatype: str, width: int = 3, scale: float = 0.0) -> bytes:
    """OUTPUT0 = INPUT0, rows of any datatype there is a reshape for."""
    model = ModelBuilder()
    x = model.tensor("x", [-1, width], datatype, scale=scale)
    shape = model.tensor("shape", [2], "INT32", np.array([-1, width], np.int32))
    y = model.tensor("y", [-1, width], datatype, scale=scale)
    model.operator("RESHAPE", [x, shape], y)
    return model.build([x], [y], (["INPUT0"], ["OUTPUT0"]))


def picker(width: int = 4) -> bytes:
    """OUTPUT0 = the elements of `width` FP32 numbers that INDEX names; outside them it fails."""
    model = ModelBuilder()
    table = model.tensor("table", [width], data=np.arange(width, dtype=np.float32))
    index = model.tensor("index", [-1, 1], "INT32")
    y = model.tensor("y", [-1, 1])
    model.operator("GATHER", [table, index], y, "GatherOptions")
    return model.build([index], [y], (["INDEX"], ["OUTPUT0"]))


def dense(size: int, seed: int = 0) -> bytes:
    """OUTPUT0 = INPUT0 through a layer of `size` x `size` random weights."""
    model = ModelBuilder()
    weights = np.random.default_rng(seed).random((size, size), dtype=np.float32)
    x = model.tensor("x", [-1, size])
    w = model.tensor("w", [size, size], data=weights)
    y = model.tensor("y", [-1, size])
    model.operator("FULLY_CONNECTED", [x, w, -1], y, "FullyConnectedOptions")
    return model.build([x], [y], (["INPUT0"], ["OUTPUT0"]))


def save(content: bytes, file: Path) -> Path:
    """Write a model."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def _named(name: str, tensor: int) -> Any:
    made = schema.TensorMapT()
    made.name, made.tensorIndex = name, tensor
    return made
