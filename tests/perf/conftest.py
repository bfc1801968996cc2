"""One server with a model of every kind that is measured differently."""

from __future__ import annotations

import re

import pytest

from shoal.cli import perf
from shoal.config.options import NamedSetting
from shoal.testing.server import running_server
from tests.support import onnx_models, sequences
from tests.support.repositories import add_model, add_onnx

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "A" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "B" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "C" data_type: TYPE_INT32 dims: [ 16 ] } ]
ensemble_scheduling { step [
  { model_name: "sum" model_version: -1
    input_map { key: "INPUT0" value: "A" } input_map { key: "INPUT1" value: "B" }
    output_map { key: "OUTPUT0" value: "s" } output_map { key: "OUTPUT1" value: "d" } },
  { model_name: "cached" model_version: -1
    input_map { key: "INPUT0" value: "s" } input_map { key: "INPUT1" value: "d" }
    output_map { key: "OUTPUT0" value: "C" } }
] }
"""
REPEAT = """
backend: "python"
max_batch_size: 0
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
REPEAT_CODE = b"""
import numpy as np
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(3):
                tensor = utils.Tensor("OUT", np.array([number], np.int32))
                sender.send(utils.InferenceResponse([tensor]))
            sender.send(flags=utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

BROKEN = """
backend: "python"
max_batch_size: 0
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
BROKEN_CODE = b"""
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        return [utils.InferenceResponse(error=utils.TritonError("out of order")) for _ in requests]
"""

TIRED_CODE = b"""
import numpy as np
import triton_python_backend_utils as utils


class TritonPythonModel:
    answered = 0

    def execute(self, requests):
        self.answered += len(requests)
        if self.answered > 500:
            raise utils.TritonModelException("tired")
        tensor = utils.Tensor("OUT", np.array([1], np.int32))
        return [utils.InferenceResponse([tensor]) for _ in requests]
"""


# Any three windows will do, however little they agree.
WINDOWS = (
    *("--measurement-mode", "count_windows", "--measurement-request-count", "20"),
    *("-s", "1000000000", "-r", "3"),
)


@pytest.fixture(scope="module", params=["native"])
def running(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8 dynamic_batching { }")
    cached = "max_batch_size: 8 response_cache { enable: true }"
    add_onnx(folder, "cached", onnx_models.add_sub("INT32"), cached)
    add_onnx(folder, "wide", onnx_models.identity("FP32", [-1]), "max_batch_size: 8")
    add_onnx(folder, "texts", onnx_models.identity("BYTES", [2]), "max_batch_size: 8")
    add_onnx(folder, "total", sequences.running_total(), sequences.total_config())
    add_model(folder, "both", ENSEMBLE)
    add_model(folder, "repeat", REPEAT, {"1/model.py": REPEAT_CODE})
    add_model(folder, "broken", BROKEN, {"1/model.py": BROKEN_CODE})
    add_model(folder, "tired", BROKEN, {"1/model.py": TIRED_CODE})
    with running_server(
        folder,
        cache_config=(NamedSetting("local", "size", "1048576"),),
        allow_client_shm="true",
        grpc_transport=request.param,
    ) as server:
        yield server


class Printed:
    """What a run printed, and its exit code."""

    def __init__(self, code, out, err):
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self):
        return f"exit code {self.code}\n{self.out}\n--- errors ---\n{self.err}"

    def number(self, name):
        """The number after a name; the last one where it occurs several times."""
        found = re.findall(rf"{re.escape(name)}: ([0-9.]+)", self.out)
        assert found, (name, self)
        return float(found[-1])


@pytest.fixture
def measure(running, capsys):
    """Run `shoal perf` with few requests per window, whatever they say."""

    def run(words, protocol="http", code=0, windows=True):
        address = running.http_address if protocol == "http" else running.grpc_address
        line = ["-u", address, "-i", protocol, *words.split()]
        if windows:
            line += WINDOWS
        found = perf.run(line)
        captured = capsys.readouterr()
        printed = Printed(found, captured.out, captured.err)
        assert found == code, printed
        return printed

    return run
