"""Python-based backends: one model.py in --backend-directory for all models of the backend."""

from __future__ import annotations

import json
import os

import pytest

from shoal.cli import check
from shoal.testing.server import running_server, wait_until
from tests.support.repositories import add_model, parameter

WHERE = """
import json
import os
import sys
import numpy as np
import triton_python_backend_utils as pb_utils
from helpers.names import GREETING

REQUESTS = []


class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        REQUESTS.extend(requests)
        config = json.loads(self.args["model_config"])
        told = {
            **self.args,
            "greeting": GREETING,
            "folder": pb_utils.get_model_dir(),
            "module": __name__,
            "path": sys.path,
            "pid": os.getpid(),
            "seen": len(REQUESTS),
            "backend": [config["backend"], config["runtime"]],
        }
        text = np.array([json.dumps(told)], np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
"""
CONFIG = """
backend: "where"
input { name: "IN" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    home = tmp_path_factory.mktemp("python-based")
    code = home / "backends" / "where"
    helpers = code / "helpers"  # without __init__.py, as in Triton's vLLM backend
    helpers.mkdir(parents=True)
    (code / "model.py").write_text(WHERE)
    (helpers / "names.py").write_text("GREETING = 'hello'\n")
    models = home / "models"
    add_model(models, "first", CONFIG)
    add_model(models, "second", CONFIG)
    thread = CONFIG + parameter("python_execution", "thread")
    add_model(models, "thread", thread)
    add_model(models, "thread2", thread)
    return home


@pytest.fixture(scope="module")
def server(places):
    with running_server(
        places / "models",
        model_control_mode="explicit",
        backend_directory=str(places / "backends"),
    ) as running:
        yield running


def ask(server, model):
    body = {"inputs": [{"name": "IN", "shape": [1], "datatype": "BYTES", "data": ["x"]}]}
    response = server.post(f"/v2/models/{model}/infer", body)
    assert response.status == 200, response
    return json.loads(response.json["outputs"][0]["data"][0])


def test_a_model_is_served_by_the_backends_model_py(server, places):
    assert server.load("first").status == 200
    told = ask(server, "first")
    assert told["greeting"] == "hello"
    assert told["folder"] == str(places / "models" / "first" / "1")
    assert told["model_repository"] == str(places / "models" / "first")
    assert (told["model_name"], told["model_version"]) == ("first", "1")
    assert told["backend"] == ["where", "model.py"]
    # As in Triton: a process of its own, whose path has the backend's folder.
    assert told["pid"] != os.getpid()
    assert told["module"] == "model"
    assert str(places / "backends" / "where") in told["path"]
    config = server.config("first")
    assert (config["backend"], config["runtime"]) == ("where", "model.py")
    assert server.get("/v2/models/first").json["platform"] == "where"


@pytest.mark.parametrize("names", [("first", "second"), ("thread", "thread2")])
def test_models_share_code_and_no_state(server, names):
    for name in names:
        assert server.load(name).status == 200
    server.unload(names[1])
    wait_until(lambda: server.states(names[1]) == {"1": "UNAVAILABLE"})
    assert server.load(names[1]).status == 200
    seen = [ask(server, names[0])["seen"] for _ in range(2)]
    assert seen[1] == seen[0] + 1
    other = ask(server, names[1])
    assert (other["seen"], other["greeting"]) == (1, "hello")
    assert (other["pid"] == server.engine_pid) == names[1].startswith("thread")


def test_loading_again_takes_over_changes_of_the_backend(server, places):
    code = places / "backends" / "where"
    assert server.load("first").status == 200
    pid = ask(server, "first")["pid"]
    assert server.load("first").status == 200
    assert ask(server, "first")["pid"] == pid  # nothing has changed
    (code / "helpers" / "names.py").write_text("GREETING = 'good evening'\n")
    try:
        assert server.load("first").status == 200
        told = ask(server, "first")
        assert told["greeting"] == "good evening"
        assert told["pid"] != pid
    finally:
        (code / "helpers" / "names.py").write_text("GREETING = 'hello'\n")


def test_a_config_with_the_runtime_may_be_sent_back(server):
    assert server.load("second").status == 200
    config = server.config("second")
    assert server.load("second", config=config).status == 200
    assert ask(server, "second")["backend"] == ["where", "model.py"]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"backend": "nowhere"},
            (
                "unable to find backend library for backend 'nowhere', try specifying runtime on the "
                "model configuration"
            ),
        ),
        (
            {"backend": "nowhere", "runtime": "model.py"},
            (
                "unable to find Python backend based backend library 'model.py' for model 'first', "
                "searched: '{backends}/nowhere/model.py'"
            ),
        ),
        ({"backend": "../backends/where"}, "unable to find backend library for backend '../backe"),
    ],
)
def test_a_backend_that_is_missing(server, places, config, text):
    response = server.load("first", config=config)
    assert response.status == 400
    assert text.format(backends=places / "backends") in response.error


def test_settings_of_python_and_of_the_backend(places, tmp_path):
    """--backend-config=python,… holds for the backend, as in Triton; its own settings win."""
    add_model(tmp_path, "m", CONFIG)
    for settings, on_thread in (
        ((("python", "execution", "thread"),), True),
        ((("where", "execution", "thread"), ("python", "execution", "process")), True),
        ((("python", "execution", "thread"), ("where", "execution", "process")), False),
    ):
        with running_server(
            tmp_path, backend_config=settings, backend_directory=str(places / "backends")
        ) as running:
            assert (ask(running, "m")["pid"] == running.engine_pid) == on_thread


def test_check_knows_them(places, capsys):
    directory = f"--backend-directory={places / 'backends'}"
    assert check.run([str(places / "models" / "first"), directory]) == 0
    assert "where, version 1" in capsys.readouterr().out
    assert check.run([str(places / "models" / "first")]) == 1
    assert "unable to find backend library for backend 'where'" in capsys.readouterr().out


def test_misspelt_parameters_are_the_models_own(places, tmp_path, capsys):
    add_model(tmp_path, "m", CONFIG + parameter("isolatio", "x"))
    directory = f"--backend-directory={places / 'backends'}"
    assert check.run([str(tmp_path), directory]) == 0
    assert "warning" not in capsys.readouterr().out
