"""The workload's model for Triton's Python backend: a batch of requests is one execution."""

from __future__ import annotations

from typing import Any

import numpy as np

import triton_python_backend_utils as triton
from benchmarks.peers.services.inference import Model, picture


class TritonPythonModel:
    """The class the backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002  the backend's signature
        """Load the model once per instance."""
        self.model = Model()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Join, run once, split."""
        joined = {name: self._join(requests, name) for name, _, _ in self.model.inputs}
        outputs = self.model.run(joined)
        return [
            triton.InferenceResponse(
                [
                    triton.Tensor(name, output[row : row + 1])
                    for name, output in zip(self.model.outputs, outputs, strict=True)
                ]
            )
            for row in range(len(requests))  # every request has one row
        ]

    def _join(self, requests: list[Any], name: str) -> np.ndarray[Any, Any]:
        tensors = [triton.get_input_tensor_by_name(one, name) for one in requests]
        arrays = [tensor.as_numpy() for tensor in tensors if tensor is not None]
        if self.model.pictures:
            arrays = [picture(array.flat[0]) for array in arrays]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
