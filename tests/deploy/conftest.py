"""Images that are built once, and models to serve in containers."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.support.containers import Containers, missing

SLOW_CONFIG = """
name: "held"
backend: "python"
max_batch_size: 0
input [{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }]
output [{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }]
parameters: { key: "python_execution" value: { string_value: "process" } }
"""
SLOW_MODEL = '''
"""Responds once there is a file /gate/open."""

import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        Path("/gate/running").touch()
        while not Path("/gate/open").exists():
            time.sleep(0.01)
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(
                        "OUTPUT0",
                        pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy(),
                    )
                ]
            )
            for request in requests
        ]
'''


def pytest_collection_modifyitems(items):
    why = missing() if os.environ.get("SHOAL_TEST_IMAGE") else "make test-image runs these"
    for item in items:
        if why and item.get_closest_marker("image"):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def containers(tmp_path_factory):
    made = Containers(tmp_path_factory.mktemp("containers"))
    try:
        made.make_base()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def image(containers):
    """The name of the image `cpu`."""
    return containers.make_image("cpu", "localhost/shoal:test-cpu")


@pytest.fixture(scope="session")
def models(tmp_path_factory, root):
    """Models of the demo, and one in Python that waits for the test."""
    folder = tmp_path_factory.mktemp("repository") / "models"
    demo = root / "demo" / "shoal_demo" / "models"
    for name in ("add_sub", "photos"):
        shutil.copytree(demo / name, folder / name)
    held = folder / "held"
    (held / "1").mkdir(parents=True)
    (held / "config.pbtxt").write_text(SLOW_CONFIG)
    (held / "1" / "model.py").write_text(SLOW_MODEL)
    return folder
