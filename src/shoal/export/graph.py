"""Writing ONNX graphs node by node: the blocks that transformers are made of.

    graph = GraphBuilder("decoder"); x = graph.linear(x, weight, bias) …; graph.model()

Unlike a traced graph, it contains exactly what it should: no copies of states, no shapes of an
example, and the same file with any versions of the libraries.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.numpy_helper import from_array

from shoal.errors import Unsupported

OPSET = 17  # supported by all runtimes of recent years
IR_VERSION = 8
_EXTERNAL_FROM_BYTES = 1_500_000_000  # a protobuf file holds two gigabytes at most
_NEGATIVE = np.float32(-1e30)  # added to the scores of masked tokens

Dim = int | str


class GraphBuilder:
    """One graph under construction. Values are identified by their names."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._numbers = itertools.count()
        self._known: dict[tuple[str, bytes], str] = {}  # small constants, each once

    def input(self, name: str, element_type: int, dims: Sequence[Dim]) -> str:
        """An input of the model."""
        self._inputs.append(helper.make_tensor_value_info(name, element_type, list(dims)))
        return name

    def output(
        self, value: str, name: str, dims: Sequence[Dim], element_type: int = TensorProto.FLOAT
    ) -> None:
        """Make a value an output of the model."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, element_type, list(dims)))

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The one result of an operator."""
        return self.nodes(operator, 1, *inputs, **attributes)[0]

    def nodes(self, operator: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """The results of an operator that has several."""
        results = [f"{operator.lower()}_{next(self._numbers)}" for _ in range(count)]
        self._nodes.append(helper.make_node(operator, list(inputs), results, **attributes))
        return results

    def weight(self, array: np.ndarray) -> str:
        """A weight, or any other constant."""
        name = f"weight_{next(self._numbers)}"
        self._weights.append(from_array(np.asarray(array, order="C"), name))
        return name

    def integers(self, *values: int) -> str:
        """A small list of numbers, for shapes and indices."""
        return self._constant(np.array(values, np.int64))

    def number(self, value: float) -> str:
        """A single number."""
        return self._constant(np.array(value, np.float32))

    def index(self, index: int) -> str:
        """An index that removes its dimension."""
        return self._constant(np.array(index, np.int64))

    def _constant(self, array: np.ndarray) -> str:
        key = (array.dtype.str, array.tobytes() + bytes([array.ndim]))
        if key not in self._known:
            self._known[key] = self.weight(array)
        return self._known[key]

    # ---- blocks

    def size(self, value: str, axis: int) -> str:
        """How long a value is along an axis, as a list of one number."""
        return self.node("Shape", value, start=axis, end=axis + 1)

    def shape(self, *parts: str | int) -> str:
        """A shape put together from sizes."""
        lists = [self.integers(part) if isinstance(part, int) else part for part in parts]
        return self.node("Concat", *lists, axis=0)

    def reshape(self, value: str, *parts: str | int) -> str:
        """The same elements in another shape; 0 keeps a dimension, -1 is the remaining size."""
        if all(isinstance(part, int) for part in parts):
            return self.node("Reshape", value, self.integers(*map(int, parts)))
        return self.node("Reshape", value, self.shape(*parts))

    def count_up(self, size: str) -> str:
        """0, 1, 2 … as many as `size` says."""
        end = self.node("Squeeze", size, self.integers(0))
        return self.node("Range", self.index(0), end, self.index(1))

    def linear(self, value: str, weight: np.ndarray, bias: np.ndarray | None) -> str:
        """A multiplication by `weight`, which is [in, out], and the bias added."""
        result = self.node("MatMul", value, self.weight(weight))
        return result if bias is None else self.node("Add", result, self.weight(bias))

    def norm(self, value: str, weight: np.ndarray, bias: np.ndarray, epsilon: float) -> str:
        """Layer normalisation over the last dimension."""
        scale, shift = self.weight(weight), self.weight(bias)
        return self.node("LayerNormalization", value, scale, shift, axis=-1, epsilon=epsilon)

    def activation(self, name: str, value: str) -> str:
        """The activation that transformers' configs call `name`. Raises Unsupported."""
        if name == "relu":
            return self.node("Relu", value)
        if name == "gelu":
            inner = self.node("Erf", self.node("Div", value, self.number(2**0.5)))
            inner = self.node("Add", inner, self.number(1))
            return self.node("Mul", self.node("Mul", value, inner), self.number(0.5))
        if name in ("gelu_new", "gelu_pytorch_tanh"):
            cube = self.node("Mul", self.node("Mul", value, value), value)
            inner = self.node("Add", value, self.node("Mul", cube, self.number(0.044715)))
            inner = self.node("Tanh", self.node("Mul", inner, self.number((2 / np.pi) ** 0.5)))
            inner = self.node("Add", inner, self.number(1))
            return self.node("Mul", self.node("Mul", value, inner), self.number(0.5))
        if name == "quick_gelu":
            gate = self.node("Sigmoid", self.node("Mul", value, self.number(1.702)))
            return self.node("Mul", value, gate)
        raise Unsupported(
            f"the activation '{name}' cannot be exported: gelu, gelu_new, quick_gelu and relu can"
        )

    def masked(self, allowed: str) -> str:
        """A boolean mask as numbers to add to scores."""
        return self.node("Where", allowed, self.number(0), self.number(float(_NEGATIVE)))

    def heads(self, value: str, count: int, size: int) -> str:
        """[rows, length, count * size] to [rows, count, length, size]."""
        return self.node("Transpose", self.reshape(value, 0, 0, count, size), perm=[0, 2, 1, 3])

    def join_heads(self, value: str, width: int) -> str:
        """The way back from `heads`."""
        return self.reshape(self.node("Transpose", value, perm=[0, 2, 1, 3]), 0, 0, width)

    def attend(self, query: str, keys: str, values: str, mask: str | None = None) -> str:
        """Attention; `keys` are transposed already, the query is scaled already."""
        scores = self.node("MatMul", query, keys)
        if mask is not None:
            scores = self.node("Add", scores, mask)
        return self.node("MatMul", self.node("Softmax", scores, axis=-1), values)

    def transposed(self, value: str) -> str:
        """[…, length, size] to […, size, length]."""
        return self.node("Transpose", value, perm=[0, 1, 3, 2])

    # ---- the whole

    def model(self) -> ModelProto:
        """The model, checked as far as its size allows."""
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, self._weights
        )
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(
            graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="shoal"
        )

    def save(self, path: Path) -> None:
        """Write the model, with its weights in a second file if they are too large for one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        size = sum(len(weight.raw_data) for weight in self._weights)
        if size < _EXTERNAL_FROM_BYTES:
            onnx.save_model(self.model(), str(path))
        else:
            onnx.save_model(
                self.model(),
                str(path),
                save_as_external_data=True,
                location=f"{path.name}.data",
            )
