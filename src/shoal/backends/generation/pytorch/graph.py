"""Runs an ONNX graph with PyTorch, operator by operator, on any of its devices.

    decoder.onnx --> TorchGraph --(tensors on the device)--> tensors on the device

So the files that ONNX Runtime runs on a CPU run on a GPU, with their states there. Captured as a
CUDA graph, Python's part in it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from shoal.backends.generation.pytorch.fusions import TRANSPOSED, fused
from shoal.backends.generation.pytorch.onnx_file import OnnxNode, read_onnx
from shoal.backends.generation.pytorch.operators import OPERATORS, Attributes, Operator, Value
from shoal.errors import ConfigError

RANGE = "Range"  # the one operator that makes a tensor of numbers


class _Step(NamedTuple):
    operator: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes
    unused: tuple[str, ...]  # values that no later step reads


class TorchGraph:
    """A graph with its weights on one device. Any thread may call it."""

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Read a file; weights and computations get `dtype`. Raises a ShoalError."""
        self.device, self.dtype = device, dtype
        graph = read_onnx(path)
        self.inputs, self.outputs = graph.inputs, graph.outputs
        nodes = fused(graph)
        unknown = sorted({node.operator for node in nodes} - {*OPERATORS, RANGE})
        if unknown:
            raise ConfigError(
                f"has operators that are not supported on a GPU: {', '.join(unknown)}",
                file=f"{path.parent.parent.name}/{path.parent.name}/{path.name}",
                fix="Write kind: KIND_CPU in the instance_group of the model's config",
            )
        self._weights = {
            name: self._placed(name, graph.weights)
            for name in {name for node in nodes for name in node.inputs}
            if name.removesuffix(TRANSPOSED) in graph.weights
        }
        self._steps = self._planned(nodes)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights on the device."""
        return sum(
            weight.nbytes for weight in self._weights.values() if isinstance(weight, torch.Tensor)
        )

    def __call__(self, feeds: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs for these inputs, on the current stream."""
        values: dict[str, Value] = dict(feeds)
        weights = self._weights
        for operator, inputs, outputs, attributes, unused in self._steps:
            given = [weights[name] if name in weights else values[name] for name in inputs]
            result = operator(given, attributes)
            if len(outputs) == 1:
                values[outputs[0]] = result
            else:
                values.update(zip(outputs, result, strict=True))
            del given, result
            for name in unused:
                del values[name]
        return {name: values[name] for name in self.outputs}

    def _placed(self, name: str, weights: Mapping[str, np.ndarray]) -> Value:
        """A weight on the device; whole numbers stay on the CPU."""
        array = weights[name.removesuffix(TRANSPOSED)]
        if array.dtype.kind != "f":
            return array
        tensor = torch.from_numpy(np.array(array)).to(self.device, self.dtype)
        return tensor.t() if name.endswith(TRANSPOSED) else tensor

    def _planned(self, nodes: list[OnnxNode]) -> list[_Step]:
        last_use = {name: at for at, node in enumerate(nodes) for name in node.inputs}
        made = {name for node in nodes for name in node.outputs}
        steps: list[_Step] = []
        for at, node in enumerate(nodes):
            operator: Operator = self._range if node.operator == RANGE else OPERATORS[node.operator]
            unused = {name for name in node.inputs if last_use[name] == at and name in made}
            unused |= {name for name in node.outputs if name not in last_use}
            attributes = dict(node.attributes)
            if node.operator == "Split":
                attributes["outputs"] = len(node.outputs)
            steps.append(
                _Step(
                    operator,
                    node.inputs,
                    node.outputs,
                    attributes,
                    tuple(unused - self.outputs.keys()),
                )
            )
        return steps

    def _range(self, inputs: Sequence[Value], _: Attributes) -> torch.Tensor:
        start, end, step = (int(value) for value in inputs)
        return torch.arange(start, end, step, device=self.device)
