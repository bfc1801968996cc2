"""Decodes the photos of W2 in Triton's Python backend, for the ONNX Runtime backend behind it."""

from __future__ import annotations

import os
import sys
from typing import Any

import triton_python_backend_utils as triton

# The server may put another environment on the PATH, where the backend looks for packages.
sys.path[:0] = os.environ["BENCH_PACKAGES"].split(os.pathsep)

from benchmarks.peers.services.inference import picture  # noqa: E402


class TritonPythonModel:
    """The class the backend looks for."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """A JPEG to a tensor, for each request."""
        return [
            triton.InferenceResponse([triton.Tensor("pixels", picture(_photo(one)))])
            for one in requests
        ]


def _photo(request: Any) -> bytes:
    data: bytes = triton.get_input_tensor_by_name(request, "image").as_numpy().flat[0]
    return data
