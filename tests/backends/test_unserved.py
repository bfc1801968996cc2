"""Models that cannot be served here: the client who asks for them learns what to do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shoal.config.backends import BACKENDS
from shoal.testing.server import running_server
from tests.support.repositories import add_model

EXTRAS = {name: backend.extra for name, backend in BACKENDS.items() if backend.extra}

WITHOUT_LIBRARIES = """
import sys
for name in (
    "openvino", "torch", "sklearn", "joblib", "xgboost", "lightgbm", "ai_edge_litert", "jax", "PIL",
    "tokenizers",
):
    sys.modules[name] = None  # as if it were not installed

from shoal.testing.server import running_server

with running_server(sys.argv[1], model_control_mode="explicit") as running:
    for name in sys.argv[2:]:
        answer = running.load(name)
        print(name, answer.status, answer.error)
    assert running.load("bystander").status == 200
"""


@pytest.mark.parametrize(
    ("filename", "config", "says"),
    [
        ("model.plan", "", "pip install 'shoal[tensorrt]'"),
        ("model.plan", 'platform: "tensorrt_plan"', "pip install 'shoal[tensorrt]'"),
        ("model.savedmodel/saved_model.pb", "", "tf2onnx.convert --saved-model"),
        ("model.graphdef", "", "tf2onnx"),
        ("dali.py", 'backend: "dali"', "Python model"),
        ("model.json", 'backend: "vllm"', "Python model"),
        ("model.bin", 'backend: "mine"', "The backends installed here are:"),
    ],
)
def test_formats_without_a_backend(tmp_path, filename, config, says):
    add_model(tmp_path, "m", config, {f"1/{filename}": b"x"})
    with running_server(tmp_path, model_control_mode="explicit") as running:
        answer = running.load("m")
        assert answer.status == 400  # in Triton's words and codes
        assert (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid" in answer.error
        )
        assert says in answer.error


def test_libraries_that_are_not_installed(tmp_path):
    """All of them in one server: each costs its own models, and no others."""
    echo = 'backend: "identity" input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }'
    add_model(tmp_path, "bystander", echo)
    for backend in EXTRAS:
        add_model(tmp_path, backend, f'backend: "{backend}"', {"1/model.any": b"x"})
    done = subprocess.run(
        (sys.executable, "-c", WITHOUT_LIBRARIES, str(tmp_path), *EXTRAS),
        env={**os.environ, "SHOAL_SERVERS": ""},  # the libraries are missing in this process
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    for backend, extra in EXTRAS.items():
        assert lines[backend].startswith("400 ")
        assert f"pip install 'shoal[{extra}]'" in lines[backend]
