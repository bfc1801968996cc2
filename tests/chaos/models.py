"""The models of the chaos suite. All answer INPUT0 + 1, FP32 [rows, 4], as the checker expects.

onnx       in the server            thread    Python in the server
isolated   one of ISOLATED: in processes of its own
"""

from __future__ import annotations

import pytest

from tests.chaos import schedule
from tests.chaos.checker import WIDTH
from tests.support import onnx_models
from tests.support.repositories import add_model, add_onnx, parameter

PYTHON_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numbers + 1)]))
        return responses
"""
BATCHED = "max_batch_size: 8 dynamic_batching { }\n"
_PYTHON = """
backend: "python"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
"""
_TWO = "instance_group { count: 2 kind: KIND_CPU }\n"


def add_plus(repository, name, more=""):
    """The ONNX model."""
    return add_onnx(repository, name, onnx_models.plus(1, WIDTH), BATCHED + more)


def add_python(repository, name, more=""):
    """The Python model."""
    files = {"1/model.py": PYTHON_MODEL.encode()}
    return add_model(repository, name, BATCHED + _PYTHON + more, files)


# Ways to run a model outside the server's process: who writes the model, and its config lines.
ISOLATED = {
    "python": (add_python, parameter("python_execution", "process")),
    "python_twice": (add_python, parameter("python_execution", "process") + _TWO),
    "onnx_isolated": (add_plus, parameter("isolation", "process")),
    "onnx_isolated_twice": (add_plus, parameter("isolation", "process") + _TWO),
}
# In the errors of requests whose process was killed, or is not started again yet.
KILLED = ("is not healthy", "its process ended", "has no process now")
# As parameters of a test; for `make test` one is enough, beside tests/server/test_isolation.py.
EACH_ISOLATED = pytest.mark.parametrize(
    "isolated",
    [pytest.param(name, marks=() if name == "python" else schedule.long_run) for name in ISOLATED],
)


def add(repository, name):
    """Write the model of this name."""
    if name in ISOLATED:
        write, more = ISOLATED[name]
        write(repository, name, more)
    elif name == "thread":
        add_python(repository, name, parameter("python_execution", "thread"))
    elif name == "cached":
        add_plus(repository, name, "response_cache { enable: true }\n")
    else:
        add_plus(repository, name)
