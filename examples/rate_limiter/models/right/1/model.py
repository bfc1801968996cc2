"""Works for a while, and says from when to when."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A model that takes the time it is told to."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Sleep for as long as each request says."""
        answers = []
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()[0]
            began = time.time()
            time.sleep(seconds)
            span = np.array([began, time.time()], np.float64)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SPAN", span)]))
        return answers
