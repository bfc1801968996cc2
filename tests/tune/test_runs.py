"""`shoal tune` for real: a server of its own, small models, few requests; nothing is timed."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

import shoal
from shoal.cli.main import main
from shoal.config.pbtxt import parse_pbtxt
from tests.support import onnx_models
from tests.support.repositories import add_model

# A delay of its own: what is measured of it says nothing about the first configs that are tried.
PICKY = """
backend: "python"
max_batch_size: 2
dynamic_batching { max_queue_delay_microseconds: 200 }
input { name: "A" data_type: TYPE_FP32 dims: 1 }
output { name: "B" data_type: TYPE_FP32 dims: 1 }
"""
PICKY_CODE = b"""
import json

import triton_python_backend_utils as utils


class TritonPythonModel:
    def initialize(self, args):
        self.most = json.loads(args["model_config"])["max_batch_size"]

    def execute(self, requests):
        if self.most > 4:
            error = utils.TritonError("nothing goes beyond four")
            return [utils.InferenceResponse(error=error) for _ in requests]
        inputs = [utils.get_input_tensor_by_name(each, "A").as_numpy() for each in requests]
        return [utils.InferenceResponse([utils.Tensor("B", each)]) for each in inputs]
"""


def asked(model, path):
    """Serve a model with a config that was written and ask it once."""
    with shoal.Server(path, allow_metrics=False, allow_grpc=False) as server:
        return server.infer(model, {"INPUT0": np.ones((1, 8), np.float32)})["OUTPUT0"]


def test_a_config_that_loads_and_a_page_with_every_try(tune, models, tmp_path):
    repository = tmp_path / "models"
    shutil.copytree(models / "chain", repository / "chain")
    report = tmp_path / "tune.html"
    words = ("--concurrency", 4, "--max-batch", 8, "--report", report)
    printed = tune(repository / "chain", "--write", *words)
    assert f"wrote {repository / 'chain' / 'config.pbtxt'}" in printed.err
    assert len(printed.tries) > 1
    grid = int(re.search(r"instead of (\d+) for the whole grid", printed.out)[1])
    assert len(printed.tries) <= max(8, grid / 5)
    assert not any("failed" in line for line in printed.tries)
    text = (repository / "chain" / "config.pbtxt").read_text()
    written = parse_pbtxt(text, "config.pbtxt")
    assert written.response_cache.enable  # off while it is measured, and kept
    assert written.max_batch_size in (1, 2, 4, 8)
    assert np.allclose(asked("chain", repository), 1)
    page = report.read_text()
    assert page.count("<tr") == 1 + len(printed.tries)
    assert page.count("<circle") - page.count('cy="14"') == len(printed.tries)


def test_a_bare_file_with_a_limit(tune, tmp_path):
    file = tmp_path / "net.onnx"
    onnx_models.save(onnx_models.matmul_chain(8, 2), file)
    output = tmp_path / "config.pbtxt"
    printed = tune(file, "--latency-limit", "60s", "--concurrency", "1,2", "--output", output)
    assert "chosen: " in printed.out
    folder = tmp_path / "models" / "any_name"
    (folder / "1").mkdir(parents=True)
    shutil.copy(file, folder / "1" / "model.onnx")
    shutil.copy(output, folder)
    assert np.allclose(asked("any_name", tmp_path / "models"), 1)
    again = tune(file, "--output", output, code=1)
    assert again.err == f"error: --output: '{output}' exists; add --force to write over it\n"


def test_a_model_that_does_not_batch_has_its_instances_tuned(tune, models):
    printed = tune("plain", "--repository", models, "--concurrency", 2, "-i", "grpc")
    assert "the model does not batch (max_batch_size is 0): batching is not tuned" in printed.err
    assert {line.split()[1] for line in printed.tries} == {"-"}
    assert len({line.split()[3] for line in printed.tries}) > 1
    written = parse_pbtxt(printed.out[printed.out.rindex("\n\n") :], "")
    assert written.max_batch_size == 0
    assert written.dynamic_batching is None


def test_a_limit_that_is_never_met(tune, models, tmp_path):
    output = tmp_path / "config.pbtxt"
    words = ("--latency-limit", "1us", "--concurrency", 2, "--output", output)
    printed = tune("plain", "--repository", models, *words, code=2)
    assert "no config met the limit of 0.001 ms (p99); the nearest was " in printed.out
    assert "what would help: fewer clients at once (--concurrency 1); " in printed.out
    assert not output.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("chian --repository {}", "there is no model 'chian' in '{}'; did you mean 'chain'?"),
        ("{}/nothing", "there is no file or folder '{}/nothing'; for a model's name, check the path"),
        ("a b c", "name one model: shoal tune models/resnet, shoal tune resnet50.onnx or shoal tune resnet --repository models"),
        ("{}", "there are 5 models in '{}' (both, broken, chain, plain, wide); name one of them: shoal tune both --repository {}"),
        ("{}/both", "model 'both' is an ensemble, which runs no model itself; tune its models: chain"),
        ("{}/chain --output {}", "--output: '{}' is a folder; name a file in it"),
        ("{}/chain --output {}/no/x", "--output: there is no folder '{}/no' to write 'x' into"),
        ("{}/chain --report x.pdf", "--report writes an HTML page: name a .html file, found 'x.pdf'"),
        ("{}/chain --write --output x", "--output and --write are alternatives; choose one of them"),
        ("{}/chain --force", "--force needs --output; --write always overwrites config.pbtxt"),
        ("{}/chain --objctive latency", "unknown option --objctive; did you mean --objective?"),
        ("{}/chain --latency-limit soon", "argument --latency-limit: expected a time such as 20ms, found 'soon'; shoal tune --help lists all options"),
        ("{}/chain --percentile 100", "argument --percentile: expected a whole number from 1 to 99, found '100'; shoal tune --help lists all options"),
        ("{}/chain --concurrency 1,x", "argument --concurrency: expected a whole number from 1 to 1000000, found 'x'; shoal tune --help lists all options"),
        ("{}/chain --concurrency 1,2", "--concurrency takes several numbers only with --latency-limit and --objective throughput; name one number"),
        ("{}/plain -b 2", "model 'plain' does not take batches (max_batch_size is 0); leave --batch-size at 1"),
    ],
)  # fmt: skip
def test_wrong_uses_get_a_sentence(tune, models, words, sentence):
    printed = tune(*words.replace("{}", str(models)).split(), code=1)
    assert printed.err.splitlines()[-1] == f"error: {sentence.replace('{}', str(models))}"


def test_a_shape_is_needed_for_a_dynamic_dim(tune, models):
    printed = tune(models / "wide", code=1)
    assert "--shape" in printed.err
    tune(models / "wide", "--shape", "INPUT0:4", "--concurrency", 1)


def test_a_model_that_cannot_be_served(tune, models):
    printed = tune(models / "broken", code=1)
    assert "unexpected inference input 'X', allowed inputs are: INPUT0" in printed.err


def test_a_config_that_is_wrong(tune, tmp_path):
    folder = tmp_path / "wrong"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text("max_batch_size: -3")
    onnx_models.save(onnx_models.matmul_chain(8, 2), folder / "1" / "model.onnx")
    printed = tune(folder, code=1)
    assert "error: model 'wrong' cannot be served: " in printed.err


def test_configs_that_fail_are_passed_over(tune, tmp_path):
    add_model(tmp_path, "picky", PICKY, {"1/model.py": PICKY_CODE})
    printed = tune("picky", "--repository", tmp_path, "--concurrency", 8)
    by_batch = {line.split()[1]: line for line in printed.tries}
    assert "nothing goes beyond four" in by_batch["8"]  # each request fails
    assert "chosen: batches of up to " in printed.out
    assert int(re.search(r"batches of up to (\d)", printed.out)[1]) <= 4
    assert "a model of the backend 'python' has no thread setting" in printed.err


def test_python_files_have_their_config_in_code(tune, tmp_path):
    file = tmp_path / "app.py"
    file.write_text("import shoal\n")
    assert "so there is no config to tune" in tune(file, code=1).err


def test_help(capsys):
    assert main(["tune", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: shoal tune MODEL")
    assert all(len(line) <= 100 for line in text.splitlines())
