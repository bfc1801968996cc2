"""The models of the soak: one for each way to be served that the demo does not show.

add_sub, upper, photos, questions    the demo's: ONNX, texts, tasks
changing_onnx, changing_thread, changing_process      reloaded now and then
total        a sequence with state         chain     an ensemble with Python models in it
cached       the response cache            count_down, double    functions
"""

from __future__ import annotations

from pathlib import Path

from tests.support import onnx_models, sequences
from tests.support.repositories import add_model, add_onnx, parameter, touch

WIDTH = 4  # of the models that add a number
CHANGING = ("changing_onnx", "changing_thread", "changing_process", "changing_isolated")
UPLOADED = "uploaded"

_PYTHON_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numbers + 1)]))
        return responses
"""
_PYTHON_CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
dynamic_batching { }
"""
_ONNX_CONFIG = "max_batch_size: 8 dynamic_batching { }\n"
_CHAIN = """
platform: "ensemble"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling {
  step {
    model_name: "changing_onnx" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "first" }
  }
  step {
    model_name: "changing_thread" model_version: -1
    input_map { key: "INPUT0" value: "first" } output_map { key: "OUTPUT0" value: "second" }
  }
  step {
    model_name: "changing_process" model_version: -1
    input_map { key: "INPUT0" value: "second" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
  }
}
"""
_FUNCTIONS = '''
"""Functions of the soak."""

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import numpy.typing as npt

import shoal


@shoal.model
def count_down(start: int) -> Iterator[int]:
    yield from range(start, 0, -1)


@shoal.model(batch=16)
def double(numbers: Annotated[npt.NDArray[np.float32], (4,)]) -> npt.NDArray[np.float32]:
    return numbers * 2
'''


def write(folder: Path) -> tuple[Path, Path]:
    """Write the repository and the file with functions."""
    repository = folder / "models"
    plus_one = onnx_models.plus(1, WIDTH)
    add_onnx(repository, "changing_onnx", plus_one, _ONNX_CONFIG)
    isolated = _ONNX_CONFIG + parameter("isolation", "process")
    add_onnx(repository, "changing_isolated", plus_one, isolated)
    for place in ("thread", "process"):
        config = _PYTHON_CONFIG + parameter("python_execution", place)
        source = {"1/model.py": _PYTHON_MODEL.encode()}
        add_model(repository, f"changing_{place}", config, source)
    add_model(repository, "chain", _CHAIN)
    add_onnx(repository, "cached", plus_one, _ONNX_CONFIG + "response_cache { enable: true }\n")
    total = sequences.total_config("oldest { max_candidate_sequences: 8 }")
    add_onnx(repository, "total", sequences.running_total(), total)
    functions = folder / "functions.py"
    functions.write_text(_FUNCTIONS)
    return repository, functions


def change(repository: Path, name: str) -> None:
    """Make a model look changed, so that it is loaded again."""
    touch(next((repository / name / "1").glob("model.*")))


def upload() -> tuple[str, dict[str, bytes]]:
    """The config and the files of a model that a client sends."""
    config = '{"backend": "onnxruntime", "max_batch_size": 8}'
    return config, {"1/model.onnx": onnx_models.plus(1, WIDTH).SerializeToString()}
