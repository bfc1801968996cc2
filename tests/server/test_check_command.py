"""`shoal check` and `shoal config`, as their users run them."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys

import pytest

from shoal.cli.main import main
from shoal.config.pbtxt import parse_pbtxt
from shoal.server import ModelsFailed
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.repositories import add_model, add_onnx

BAD = """
backend: "identity"
max_batch_size: -1
input { name: "a" data_type: TYPE_FP32 dims: [ 0 ] }
output { name: "b" dims: [ 1 ] }
"""
GOOD = 'backend: "identity" input { name: "a" data_type: TYPE_FP32 dims: [ 1 ] }'
APP = """
import shoal

@shoal.model
def shout(text: str) -> str: return text.upper()

@shoal.model(batch=4)
def lengths(text: list[str]) -> list[int]: return [len(line) for line in text]
"""


def shoal(*words):
    """A command in this process, which is quicker than in one of its own."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main([str(word) for word in words])
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())


def shoal_alone(*words):
    """The same in a process of its own, where logging is not set up."""
    command = [sys.executable, "-W", "error", "-m", "shoal", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def checked(*words):
    done = shoal("check", *words, "--json")
    document = json.loads(done.stdout)
    assert document["ok"] == (done.returncode == 0)
    return {model["name"]: model for model in document["models"]}


# ---- check


def test_a_repository_without_problems(tmp_path):
    add_onnx(tmp_path, "sum", onnx_models.add_sub("FP32"))
    add_model(tmp_path, "echo", GOOD)
    done = shoal_alone("check", tmp_path, "--load")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "ok    echo  identity, version 1, loaded",
        "ok    sum   onnxruntime, version 1, loaded",
        "2 models checked, no problems",
    ]
    assert done.stderr == ""


def test_a_file_that_does_not_fit_its_config(tmp_path):
    """Its config is complete, so that only a load shows it."""
    tensors = 'input { name: "a" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "b" data_type: '
    folder = add_model(
        tmp_path, "broken", f'backend: "onnxruntime" {tensors} TYPE_FP32 dims: [ 1 ] }}'
    )
    (folder / "1" / "model.onnx").write_bytes(b"junk")
    (problem,) = checked(tmp_path)["broken"]["problems"]
    assert "model.onnx" in problem["message"]
    with pytest.raises(ModelsFailed), running_server(tmp_path):
        pass


def test_every_problem_of_every_model_with_file_field_and_fix(tmp_path):
    add_model(tmp_path, "bad", BAD)
    add_model(tmp_path, "misspelt", "max_batch_sise: 3")
    add_model(tmp_path, "unknown", 'backend: "no_such_backend"')
    add_model(tmp_path, "empty", GOOD, versions=())
    add_model(tmp_path, "good", GOOD)
    done = shoal_alone("check", tmp_path)
    assert done.returncode == 1
    assert "5 models checked, 4 with problems" in done.stdout
    assert f"      {tmp_path}/bad/config.pbtxt: max_batch_size" in done.stdout
    assert "Fix: Write -1 for any size" in done.stdout

    models = checked(tmp_path)
    fields = [problem["field"] for problem in models["bad"]["problems"]]
    assert fields == ["max_batch_size", "input[0].dims", "output[0].data_type"]
    for problem in models["bad"]["problems"]:
        assert problem["file"] == f"{tmp_path}/bad/config.pbtxt"
        assert problem["message"]
        assert problem["fix"]
    (misspelt,) = models["misspelt"]["problems"]
    assert misspelt == {
        "file": f"{tmp_path}/misspelt/config.pbtxt:1:1",
        "field": "max_batch_sise",
        "message": "unknown field 'max_batch_sise'",
        "fix": "Did you mean 'max_batch_size'?",
    }
    assert "no_such_backend" in models["unknown"]["problems"][0]["message"]
    assert "at least one version must be available" in models["empty"]["problems"][0]["message"]
    assert models["good"]["ok"]
    assert models["good"]["versions"] == [1]


def test_one_model_and_what_it_is_made_of(tmp_path):
    add_model(tmp_path, "echo", GOOD)
    ensemble = """
        platform: "ensemble"
        input { name: "a" data_type: TYPE_FP32 dims: [ 1 ] }
        output { name: "b" data_type: TYPE_FP32 dims: [ %s ] }
        ensemble_scheduling { step { model_name: "%s" model_version: -1
          input_map { key: "a" value: "a" } output_map { key: "a_output" value: "b" } } }
    """
    add_model(tmp_path, "fits", ensemble % (1, "echo"))
    add_model(tmp_path, "other_shape", ensemble % (2, "echo"))
    add_model(tmp_path, "lacks", ensemble % (1, "missing"))
    add_model(tmp_path, "circle", ensemble % (1, "circle"))
    models = checked(tmp_path)
    assert models["fits"]["ok"], models["fits"]
    assert "contains models that are not available" in models["lacks"]["problems"][0]["message"]
    assert "circular dependency" in models["circle"]["problems"][0]["message"]
    assert not models["other_shape"]["ok"]
    assert list(checked(tmp_path / "fits")) == ["fits"]
    assert checked(tmp_path / "fits")["fits"]["ok"]


def test_what_only_loading_shows(tmp_path):
    broken = b"class TritonPythonModel:\n    def initialize(self, args): raise ValueError('no')\n"
    broken += b"    def execute(self, requests): ...\n"
    config = """
        backend: "python"
        input { name: "a" data_type: TYPE_FP32 dims: [ 1 ] }
        output { name: "b" data_type: TYPE_FP32 dims: [ 1 ] }
    """
    add_model(tmp_path, "broken", config, {"1/model.py": broken})
    assert checked(tmp_path)["broken"]["ok"]
    (problem,) = checked(tmp_path, "--load")["broken"]["problems"]
    assert "ValueError: no" in problem["message"]


def test_fields_without_effect_are_warnings(tmp_path):
    add_model(tmp_path, "echo", GOOD + ' runtime: "x.so"')
    (model,) = checked(tmp_path).values()
    assert model["ok"]
    assert model["warnings"] == [
        f"{tmp_path}/echo/config.pbtxt: runtime is not acted on yet and has no effect"
    ]


def test_python_files(tmp_path):
    file = tmp_path / "app.py"
    file.write_text(APP)
    assert {name: m["ok"] for name, m in checked(file, "--load").items()} == {
        "lengths": True,
        "shout": True,
    }
    file.write_text("import shoal\n@shoal.model\ndef f(x): ...\n")
    done = shoal("check", file)
    assert done.returncode == 1
    assert "app.py:2: f(x)" in done.stdout
    assert "the argument has no type" in done.stdout
    assert "Fix: Write npt.NDArray[np.float32], list[str], float, bytes or dict" in done.stdout


def test_the_options_of_serve_are_taken(tmp_path):
    add_onnx(tmp_path, "sum", onnx_models.add_sub("FP32"))
    options = ["--disable-auto-complete-config", "--http-port=8000", "--log-verbose=1"]
    (problem,) = checked(tmp_path, *options)["sum"]["problems"]
    assert "completing configurations is disabled" in problem["message"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["check"], "error: there is nothing to serve; name the folder of your models"),
        (["check", "no/such/place"], "error: 'no/such/place' does not exist"),
        (["check", "--lode"], "error: unknown option --lode; did you mean"),
        (["config"], "error: name one model: shoal config MODEL"),
        (["config", "x", "--format=yaml"], "error: --format takes pbtxt or json; found 'yaml'"),
        (["config", "no/such/place"], "error: 'no/such/place' does not exist"),
    ],
)
def test_mistakes_are_one_line(words, sentence):
    done = shoal(*words)
    assert done.returncode == 1
    assert done.stderr.startswith(sentence)
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_without_models(tmp_path):
    done = shoal("check", tmp_path)
    assert done.returncode == 1
    assert "this folder has no models" in done.stdout


@pytest.mark.parametrize("command", ["check", "config"])
def test_help(command):
    for words in ([command, "--help"], ["help", command]):
        done = shoal(*words)
        assert done.returncode == 0
        assert done.stdout.startswith(f"usage: shoal {command} ")
        assert all(len(line) <= 100 for line in done.stdout.splitlines())


# ---- config


def test_the_config_is_the_one_the_server_runs_with(tmp_path):
    folder = add_onnx(tmp_path, "sum", onnx_models.add_sub("FP32"), "max_batch_size: 4")
    with running_server(tmp_path) as running:
        served = running.get("/v2/models/sum/config").json
    printed = shoal("config", folder, "--format", "json")
    assert json.loads(printed.stdout) == served
    text = shoal("config", folder).stdout
    (folder / "config.pbtxt").write_text(text)
    assert parse_pbtxt(text, "").max_batch_size == 4
    assert json.loads(shoal("config", tmp_path, "--format=json").stdout) == served


def test_the_config_of_a_bare_file(tmp_path):
    file = tmp_path / "resnet.onnx"
    file.write_bytes(onnx_models.add_sub("FP32").SerializeToString())
    config = parse_pbtxt(shoal_alone("config", file).stdout, "")
    assert config.name == "resnet"
    assert config.backend == "onnxruntime"
    assert config.default_model_filename == "resnet.onnx"
    assert [tensor.name for tensor in config.input] == ["INPUT0", "INPUT1"]


def test_the_config_of_a_function(tmp_path):
    file = tmp_path / "app.py"
    file.write_text(APP)
    config = parse_pbtxt(shoal("config", file, "lengths").stdout, "")
    assert (config.name, config.max_batch_size) == ("lengths", 4)
    done = shoal("config", file)
    assert done.returncode == 1
    assert "there are 2 models in" in done.stderr
    assert "(lengths, shout); name one of them" in done.stderr
    done = shoal("config", file, "other")
    assert "there is no model 'other'; models found: lengths, shout" in done.stderr


def test_a_config_that_is_wrong(tmp_path):
    done = shoal("config", add_model(tmp_path, "bad", BAD))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Fix: Write -1 for any size" in done.stderr
