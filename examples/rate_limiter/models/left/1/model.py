"""Sleeps for a while and returns the start and end times."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A model with a configurable duration."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Sleep for the duration in each request."""
        answers = []
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()[0]
            began = time.time()
            time.sleep(seconds)
            span = np.array([began, time.time()], np.float64)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SPAN", span)]))
        return answers
