"""Small models on disk, and `shoal tune` with few requests per measurement."""

from __future__ import annotations

import pytest

from shoal.cli.main import main
from tests.support import onnx_models
from tests.support.repositories import add_model, add_onnx

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: [ 8 ] }
output { name: "B" data_type: TYPE_FP32 dims: [ 8 ] }
ensemble_scheduling { step { model_name: "chain" model_version: -1
  input_map { key: "INPUT0" value: "A" } output_map { key: "OUTPUT0" value: "B" } } }
"""
BROKEN = (
    'backend: "onnxruntime" max_batch_size: 4 input { name: "X" data_type: TYPE_FP32 dims: [ 8 ] }'
)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    chain = onnx_models.matmul_chain(8, 2)
    cached = "max_batch_size: 4\ndynamic_batching { }\nresponse_cache { enable: true }\n"
    add_onnx(folder, "chain", chain, cached)
    add_onnx(folder, "plain", onnx_models.matmul_chain(8, 2, batch=False))
    add_onnx(folder, "wide", onnx_models.identity("FP32", [-1]), "max_batch_size: 4")
    add_onnx(folder, "broken", chain, BROKEN)
    add_model(folder, "both", ENSEMBLE)
    return folder


class Printed:
    """What a run printed, and its exit code."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"exit code {self.code}\n{self.out}\n--- errors ---\n{self.err}"

    @property
    def tries(self):
        """The lines of the table."""
        lines = self.out.splitlines()
        begin = next(n for n, line in enumerate(lines) if line.split()[:1] == ["try"]) + 1
        return lines[begin : lines.index("", begin)]


@pytest.fixture
def tune(capsys):
    def run(*words, code=0):
        found = main(["tune", *map(str, words), "--request-count", "24"])
        captured = capsys.readouterr()
        printed = Printed(found, captured.out, captured.err)
        assert found == code, printed
        return printed

    return run
