"""Add and subtract with numpy, request by request: the first model that people write for Triton.

The same file is served by Shoal and by tritonserver, so it uses nothing but the backend's module.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The class the backend looks for."""

    def execute(self, requests: Any) -> list[Any]:
        """One response for each request."""
        responses = []
        for request in requests:
            first = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            second = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            total = pb_utils.Tensor("OUTPUT0", first + second)
            difference = pb_utils.Tensor("OUTPUT1", first - second)
            responses.append(pb_utils.InferenceResponse([total, difference]))
        return responses
