"""Where the models are among the files of an archive or of a hub's repository."""

from __future__ import annotations

import pytest

from shoal.config.platforms import PLATFORMS
from shoal.storage import contents


@pytest.mark.parametrize(
    ("paths", "located"),
    [
        # a repository, with what is beside it
        (
            ["README.md", "a/config.pbtxt", "a/1/model.onnx", "b/2/model.pt", "images/cat.png"],
            ["a/config.pbtxt", "a/1/model.onnx", "b/2/model.pt"],
        ),
        # in a folder, as `tar czf models.tar.gz models` makes it
        (["models/a/1/model.onnx", "models/README.md"], ["a/1/model.onnx"]),
        (["x/models/a/1/model.onnx"], ["a/1/model.onnx"]),
        # one model
        (["config.pbtxt", "1/model.onnx", "labels.txt"], None),
        (["1/model.onnx", "2/model.onnx"], None),
        # models whose names are numbers
        (["1/config.pbtxt", "1/1/model.onnx"], ["1/config.pbtxt", "1/1/model.onnx"]),
        # an ensemble has no files of its own
        (["e/config.pbtxt", "a/1/model.onnx"], ["e/config.pbtxt", "a/1/model.onnx"]),
        # hidden files
        ([".gitattributes", "__MACOSX/a/1/._model.onnx", "a/1/model.onnx"], ["a/1/model.onnx"]),
        (["README.md", "config.json", "model.safetensors"], []),
        ([], []),
        (["a.onnx", "b.onnx"], []),
    ],
)
def test_repositories_and_models(paths, located):
    expected = [f"name/{path}" for path in paths] if located is None else located
    assert sorted(contents.locate(paths, "name")) == sorted(expected)


@pytest.mark.parametrize(
    ("paths", "located"),
    [
        (["model.onnx", "README.md"], {"name/1/model.onnx": "model.onnx"}),
        (["resnet50.onnx"], {"name/1/model.onnx": "resnet50.onnx"}),
        (
            ["model.onnx", "model.onnx_data", "model.safetensors"],
            {"name/1/model.onnx": "model.onnx", "name/1/model.onnx_data": "model.onnx_data"},
        ),
        (
            ["config.json", "model.safetensors", "onnx/model.onnx", "onnx/model_fp16.onnx"],
            {"name/1/model.onnx": "onnx/model.onnx"},
        ),
        (
            ["openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml"],
            {"name/1/model.xml": "openvino_model.xml", "name/1/model.bin": "openvino_model.bin"},
        ),
        (
            ["config.pbtxt", "model.onnx"],
            {
                "name/config.pbtxt": "config.pbtxt",
                "name/model.onnx": "model.onnx",
                "name/1/model.onnx": "model.onnx",
            },
        ),
    ],
)
def test_bare_files(paths, located):
    assert contents.locate(paths, "name") == located


def test_a_folder_or_a_file_of_it():
    paths = ["models/a/1/model.onnx", "other/b/1/model.onnx", "onnx/model_fp16.onnx"]
    assert contents.locate(paths, "name", "models") == {"a/1/model.onnx": "models/a/1/model.onnx"}
    assert contents.locate(paths, "name", "models/a") == {
        "name/1/model.onnx": "models/a/1/model.onnx"
    }
    assert contents.locate(paths, "name", "onnx/model_fp16.onnx") == {
        "name/1/model.onnx": "onnx/model_fp16.onnx"
    }
    assert contents.locate(paths, "name", "nowhere") == {}


def test_names_are_those_of_backends():
    names = {platform.filename for platform in PLATFORMS}
    assert {*contents._BARE.values(), *contents._BARE_SUFFIXES.values()} <= names
