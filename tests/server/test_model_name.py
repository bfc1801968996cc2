"""`--model-name`: one model under a name that its folder or file does not have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli.serve import with_repositories
from shoal.config.options import Options
from shoal.errors import InvalidArgument
from shoal.repository.single import named_model
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.encoders import encoder_checkpoint
from tests.support.repositories import add_onnx

ONNX = onnx_models.plus(1).SerializeToString()


def one_folder(path):
    (path / "1").mkdir()
    (path / "1" / "model.onnx").write_bytes(ONNX)
    (path / "config.pbtxt").write_text("max_batch_size: 4")


def one_file(path):
    (path / "model.onnx").write_bytes(ONNX)
    (path / "README.md").touch()


def another_file(path):
    (path / "resnet50-v1.onnx").write_bytes(ONNX)


@pytest.mark.parametrize("make", [one_folder, one_file, another_file])
@pytest.mark.parametrize("name", ["mnist", "model"])
def test_it_is_served_under_that_name(tmp_path, make, name):
    models = tmp_path / "models"
    models.mkdir()
    make(models)
    with running_server(named_model(models, name)) as running:
        assert [row["name"] for row in running.index()] == [name]
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [5]}]}
        assert running.post(f"/v2/models/{name}/infer", body).json["outputs"][0]["data"] == [6]


def test_a_model_file_by_its_own_path_and_weights_beside_it(tmp_path):
    for name in ("net.xml", "net.bin", "labels.txt", "other.bin"):
        (tmp_path / name).write_text(name)
    found = named_model(tmp_path / "net.xml", "mine")
    assert found.name == "mine.xml"
    texts = {file.name: file.read_text() for file in found.parent.iterdir()}
    assert texts == {
        **{name: name for name in ("net.xml", "net.bin", "labels.txt", "other.bin")},
        "mine.xml": "net.xml",
        "mine.bin": "net.bin",
    }


def served(path, name, **options):
    options = Options(model_repository=(str(path),), model_name=name, **options)
    (found,) = with_repositories(options, "shoal serve").model_repository
    return found


def test_models_that_have_names_keep_them(tmp_path):
    repository = tmp_path / "repository"
    add_onnx(repository, "own", onnx_models.plus(1))
    (repository / "stray.onnx").touch()
    several = tmp_path / "several"
    several.mkdir()
    for name in ("a.onnx", "b.onnx"):
        (several / name).touch()
    functions = tmp_path / "functions.py"
    functions.touch()
    for path in (repository, several, functions, tmp_path / "missing", "s3://bucket/models"):
        assert served(path, "mine") == str(path)


@pytest.mark.parametrize("name", ["..", "a/b", " "])
def test_a_name_that_no_model_can_have(tmp_path, name):
    with pytest.raises(InvalidArgument):
        named_model(tmp_path, name)


def test_links_need_a_folder(tmp_path, monkeypatch):
    one_file(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match="Set TMPDIR to a folder that can be written"):
        named_model(tmp_path, "mine")


def test_a_checkpoint(tmp_path):
    checkpoint = encoder_checkpoint(tmp_path / "models")
    named = served(checkpoint, "sentences", checkpoint_cache=str(tmp_path))
    assert [entry.name for entry in Path(named).iterdir()] == ["sentences"]
    assert json.loads(Path(named, "sentences", "task.json").read_text())
