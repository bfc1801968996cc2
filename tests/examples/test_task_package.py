"""The example of a task in a separate package: installed by pip, tested and served."""

from __future__ import annotations

import pytest

CONFIG = """
max_batch_size: 8
parameters { key: "task" value { string_value: "price-estimate" } }
"""

SERVE = """
import json, sys
from pathlib import Path
from onnx import helper
from tests.support import onnx_models
from tests.support.repositories import add_onnx
from shoal.testing.server import running_server

sums = onnx_models.model(
    [helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=1)],
    inputs=[onnx_models.value("x", "FP32", ("N", 2))],
    outputs=[onnx_models.value("y", "FP32", ("N", 1))],
)
add_onnx(Path(sys.argv[1]), "houses", sums, sys.argv[2])
with running_server(sys.argv[1]) as running:
    answer = running.post("/v2/models/houses/estimate", json.dumps({"rooms": 7}))
    print(answer.status, answer.json["words"])
    print(running.post("/estimate", json.dumps({"rooms": -7})).error)
    print(running.statistics("houses")["task"]["name"])
"""


@pytest.fixture(scope="module")
def package(installed):
    """The environment of a Python that has the package installed."""
    return installed("task_package")


def test_its_own_tests_pass(package, root, run_python):
    test = root / "examples" / "task_package" / "test_shoal_prices.py"
    output = run_python(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test))
    assert "4 passed" in output


def test_its_models_are_served(package, tmp_path, run_python):
    assert run_python(package, "-c", SERVE, str(tmp_path), CONFIG).splitlines() == [
        "200 about 700,000 EUR",
        "'rooms' must be a whole number from 1 to 100, not -7",
        "price-estimate",
    ]
