"""The number of primes below a number, counted slowly."""

from __future__ import annotations

from typing import Any

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A slow model."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Count for each row of each request."""
        answers = []
        for request in requests:
            limits = pb_utils.get_input_tensor_by_name(request, "LIMIT").as_numpy()
            counts = np.array([[primes_below(int(row[0]))] for row in limits], np.int32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("COUNT", counts)]))
        return answers


def primes_below(limit: int) -> int:
    """The number of primes that are smaller than `limit`."""
    found: list[int] = []
    for number in range(2, limit):
        if all(number % prime for prime in found if prime * prime <= number):
            found.append(number)
    return len(found)
